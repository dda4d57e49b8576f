"""A later round of a loop that is refused temporarily is repeated when the upstream says so, and not earlier."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.e2e.proxies import TOOLS, Proxy, Session, new_session, sse, text_of, user
from tests.e2e.test_loop_upstream import CALLS, METHODS, PATH, STREAM, TELLS, found, script
from tests.e2e.upstreams import Canned, answer

Json = dict[str, Any]

KEY = {"x-goog-api-key": "a-secret-key"}
NOON = "Wait. It is noon."


def post(looper: Proxy, session: Session, method: str, *contents: Json) -> httpx2.Response:
    """A request to the server of raw bytes."""
    url = f"{looper.urls[1]}/@{session.name}{PATH}:{method}"
    return httpx2.post(url, json={"contents": list(contents)}, headers=KEY, timeout=20)


def busy(retry_after: str | None, *details: Json) -> list[bytes]:
    body = {"error": {"code": 429, "message": "Slow down.", "status": "RESOURCE_EXHAUSTED", "details": list(details)}}
    headers = ["Connection: close"] + ([f"Retry-After: {retry_after}"] if retry_after else [])
    return [answer(json.dumps(body).encode(), "429 Too Many Requests", "application/json", *headers)]


RETRY_INFO = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1.2s"}
BACK: dict[str, tuple[list[bytes], float]] = {
    "Retry-After": (busy("1"), 1.0),
    "RetryInfo": (busy(None, RETRY_INFO), 1.2),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("refusal", "seconds"), BACK.values(), ids=BACK)
def test_a_later_round_comes_back_when_the_upstream_says_so(
    refusal: list[bytes], seconds: float, method: str, looper: Proxy, canned: Canned
) -> None:
    canned.first = [script(method, CALLS), refusal, script(method, TELLS)]
    session = new_session(looper, tools=False)
    got = post(looper, session, method, user("What time is it?"))
    assert got.status_code == 200, got.text
    assert text_of(found(got, method)) == NOON
    _, second, third = canned.heard_at
    assert third - second >= seconds
    assert [call["status"] for call in session.calls()] == ["done"]


def test_a_stream_is_kept_alive_until_the_upstream_may_be_asked_again(
    start: Callable[..., Proxy], canned: Canned
) -> None:
    proxy = start(canned.url, tools=str(TOOLS), keepalive="0.2")
    canned.first = [script(STREAM, CALLS), busy("1"), script(STREAM, TELLS)]
    got = httpx2.post(f"{proxy.url}{PATH}:{STREAM}", json={"contents": [user("Hello")]}, headers=KEY, timeout=20)
    events = sse(got.text)
    assert text_of(events) == NOON
    fillers = [one for one in events if one["candidates"][0]["content"]["parts"] == [{"text": "", "thought": True}]]
    assert len(fillers) >= 2
