"""A disk that becomes full in the middle of a loop: an answer is complete only if its calls are in the next request."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.processes import until
from tests.e2e.proxies import TOOLS, Proxy, sse, text_of, user
from tests.e2e.test_loop_upstream import METHODS, PATH, STREAM, found
from tests.e2e.upstreams import Gemini

Json = dict[str, Any]

KEY = {"x-goog-api-key": "a-secret-key"}


@pytest.fixture
def alone(gemini: Gemini, start: Callable[..., Proxy]) -> Proxy:
    """Its disk can be filled without harm to others."""
    return start(gemini.url, tools=str(TOOLS))


def ask(proxy: Proxy, method: str, *contents: Json) -> httpx2.Response:
    return httpx2.post(f"{proxy.url}{PATH}:{method}", json={"contents": list(contents)}, headers=KEY, timeout=20)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("for_long", [False, True], ids=["as the result is kept", "to the end"])
def test_an_answer_is_whole_only_if_its_calls_are_in_the_next_request(
    for_long: bool, method: str, alone: Proxy, gemini: Gemini, tmp_path: Path
) -> None:
    """The disk is full from within the tool, until the model is told the result, or until the answer has ended."""
    freed = tmp_path / "freed"
    words = f"call fill_disk {json.dumps({'file': str(freed)})}"
    rounds = len(gemini.requests) + 2
    if not for_long:
        gemini.watch(lambda: freed.touch() if len(gemini.requests) == rounds else None)
    got = ask(alone, method, user(words))
    freed.touch()
    until(lambda: alone.control.http.get("/healthz").status_code == 200, "the store can be written again")
    failed = got.status_code != 200 or (method == STREAM and "error" in sse(got.text)[-1])
    if for_long:
        assert failed, got.text
    if not failed:
        text = text_of(found(got, method))
        assert text == 'fill_disk returned {"disk": "full"}.'
        answered = ask(
            alone, method, user(words), {"role": "model", "parts": [{"text": text}]}, user("repeat the results")
        )
        assert text_of(found(answered, method)) == text
    assert gemini.errors == []
    session = alone.control.session("default")
    until(lambda: not [*session.calls(status="running"), *session.calls(status="pending")], "no call is left open")
    retried = ask(alone, method, user("call hour {}"))
    assert text_of(found(retried, method)) == 'hour returned {"hour": 12}.'
