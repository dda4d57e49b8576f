"""What sessions have used since the start."""

import time

from addon.core.summaries import CallSummary, Summary
from addon.monitoring.recent_requests import SessionUsage, Usage


def usage_bytes(prompt: int, output: int) -> bytes:
    return f'{{"usageMetadata": {{"promptTokenCount": {prompt}, "candidatesTokenCount": {output}}}}}'.encode()


def test_requests_tokens_and_calls_are_counted_by_session() -> None:
    usage, before = SessionUsage(), time.time()
    calls = [CallSummary("f", {}, state) for state in ("done", "done", "failed", "waiting")]
    usage.count(Summary("work", status=200, prompt=10, output=3, calls=calls))
    unread = Summary("work", status=200)
    unread.keep_end(usage_bytes(7, 2))
    usage.count(unread)
    usage.count(Summary("work", status=500))
    usage.count(Summary("other", status=200, end="the client hung up"))
    work = usage.of("work")
    assert (work.requests, work.failed, work.prompt_tokens, work.output_tokens) == (3, 1, 17, 5)
    assert work.calls == {"done": 2, "failed": 1, "waiting": 1, "running": 0, "client": 0}
    assert work.last_used_at is not None
    assert work.since <= before <= work.last_used_at
    assert (usage.of("other").requests, usage.of("other").failed) == (1, 1)
    assert usage.of("unknown") == Usage(work.since)


def test_of_many_sessions_the_last_used_are_known_and_the_others_are_not_said_to_be_unused() -> None:
    usage = SessionUsage(2)
    start = usage.of("a").since
    for session in ("a", "b", "a"):
        usage.count(Summary(session, status=200))
    usage.count(Summary("c", status=200))
    assert (usage.of("a").requests, usage.of("a").since) == (2, start)
    assert usage.of("b").requests == 0
    assert usage.of("b").since > start
    usage.count(Summary("b", status=200))
    assert usage.of("b").since > start
