"""Every recorded exchange through the hooks, in a session without a toolset: not a byte and not a header changes."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from mitmproxy import http

from tests.hooks.harness import Hooks, request
from tests.recorded import at_least, exchanges

HTTPS = re.compile(r"https://[a-zA-Z0-9.-]+[:/]")
"""Not the few whose host was replaced by a word of the redactor's, nor sockets."""

FRAMED_ANEW = ("content-encoding", "content-length", "transfer-encoding")
"""Headers of a body that the recording holds decoded."""


def over_https() -> Iterator[dict[str, Any]]:
    for one in exchanges():
        if HTTPS.match(one["url"] or ""):
            yield one


def headers_of(recorded: Any) -> dict[str, str]:
    pairs = (recorded or {}).items()
    return {str(name): str(value) for name, value in pairs if name.lower() not in FRAMED_ANEW}


def body_of(recorded: Any) -> bytes:
    return recorded.encode() if isinstance(recorded, str) else json.dumps(recorded).encode()


def asked(flow: http.HTTPFlow) -> tuple[object, ...]:
    sent = flow.request
    return sent.method, sent.url, sent.headers.fields, sent.raw_content


async def test_without_a_toolset_requests_and_answers_are_byte_for_byte_what_they_were(
    make: Callable[..., Hooks],
) -> None:
    hooks = make()
    routed = 0
    for one in over_https():
        flow = request(one["url"], body_of(one["request_body"]), headers_of(one["request_headers"]))
        before = asked(flow)
        await hooks.ask(flow)
        assert asked(flow) == before, one["id"]
        assert flow.response is None, one["id"]
        routed += hooks.route(flow) is not None

        recorded_body = (one["response_body"] or "").encode()
        answer = http.Response.make(one["status"] or 200, recorded_body, headers_of(one["response_headers"]))
        fields = answer.headers.fields
        assert await hooks.answer(flow, answer) == recorded_body, one["id"]
        assert flow.response is answer, one["id"]
        assert answer.headers.fields == fields, one["id"]
        assert not callable(answer.stream), one["id"]
    assert routed > at_least(55, 800), "recordings that are a surface's"


async def test_with_a_toolset_the_same_way_does_change_them(make: Callable[..., Hooks]) -> None:
    """Rewriting would change the bytes that the test above compares."""
    hooks = make()
    await hooks.tools("toolgraft_probe")
    changed = 0
    for one in over_https():
        flow = request(one["url"], body_of(one["request_body"]), headers_of(one["request_headers"]))
        before = asked(flow)
        await hooks.ask(flow)
        changed += asked(flow) != before
    assert changed > at_least(50, 800)
