"""The requests that are kept in memory: their states, times and bounds."""

import asyncio
import time

from addon.core.summaries import CallSummary, RoundSummary, Summary
from addon.monitoring.recent_requests import RecentRequests


def test_a_request_is_listed_while_it_runs_and_after() -> None:
    recent, summary = RecentRequests(), Summary("work", model="gemini-3-flash")
    recent.begin(summary)
    now = time.monotonic()
    summary.loop.append(RoundSummary(now, now + 0.5))
    summary.calls.append(CallSummary("weather", {"city": "Oslo"}, call_id="call_1", began=now + 0.4))
    (record,) = recent.records()
    assert (record["state"], record["session"], record["status"]) == ("running", "work", None)
    assert record["round_times"][0]["seconds"] == 0.5
    assert record["calls"][0] | {"began": 0, "seconds": 0} == {
        "name": "weather",
        "call_id": "call_1",
        "arguments": "Oslo",
        "state": "running",
        "began": 0,
        "seconds": 0,
        "waited": None,
    }
    summary.status, summary.seconds = 200, 1.5
    summary.calls[0].state, summary.calls[0].seconds = "done", 0.25
    recent.end(summary)
    (ended,) = recent.records()
    assert (ended["state"], ended["seconds"], ended["request_id"]) == ("done", 1.5, record["request_id"])
    assert (ended["calls"][0]["state"], ended["calls"][0]["seconds"]) == ("done", 0.25)


def test_what_failed_or_was_never_begun_is_listed_too() -> None:
    recent = RecentRequests()
    for status, end in ((500, ""), (0, "the client hung up"), (200, "answered by the proxy")):
        recent.end(Summary("work", status=status, end=end, seconds=0.1))
    assert sorted(record["state"] for record in recent.records()) == ["done", "failed", "failed"]


def test_only_the_last_are_kept_newest_first_and_large_arguments_are_not() -> None:
    recent = RecentRequests(3)
    for number in range(5):
        recent.end(Summary(f"s{number}", status=200, calls=[CallSummary("f", {"text": "x" * 1_000_000})]))
    assert [record["session"] for record in recent.records()] == ["s4", "s3", "s2"]
    assert recent.forgotten == 2
    assert len(str(recent.records())) < 3000


def test_what_runs_is_listed_however_many_have_ended_since() -> None:
    recent = RecentRequests(3)
    recent.begin(Summary("waits"))
    for number in range(5):
        recent.end(Summary(f"s{number}", status=200))
    assert [record["session"] for record in recent.records()] == ["s4", "s3", "s2", "waits"]


async def test_a_listener_is_woken() -> None:
    recent = RecentRequests()
    waiting = asyncio.ensure_future(recent.change(recent.version))
    await asyncio.sleep(0)
    recent.begin(Summary("work"))
    await asyncio.wait_for(waiting, 5)
    await recent.change(recent.version - 1)
