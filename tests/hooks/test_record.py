"""The contents of a recording, and the absence of secrets in it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mitmproxy import http

from addon.hooks.recording_reader import client_request, flows_of
from tests.hooks.harness import Hooks, request, response

Make = Callable[..., Hooks]


async def test_a_recording_keeps_of_a_flows_metadata_its_own_entry_alone(make: Make, tmp_path: Path) -> None:
    """Where mitmproxy asks for a password, it leaves the user's there."""
    path = tmp_path / "chat.mitm"
    hooks = make(record=str(path))
    await hooks.tools("get_weather")
    flow: http.HTTPFlow = request(body=b'{"contents":[]}')
    flow.metadata["proxyauth"] = ("bob", "pass-word")
    await hooks.ask(flow)
    await hooks.answer(flow, response(b"{}"))
    assert flow.metadata["proxyauth"] == ("bob", "pass-word")
    await hooks.done()
    assert b"pass-word" not in path.read_bytes()
    (recorded,) = flows_of(path)
    assert client_request(recorded)[:4] == (b'{"contents":[]}', False, "bob", False)


@pytest.mark.parametrize(("size", "kept"), [(2000, True), (2001, False)])
async def test_a_packed_answer_that_is_too_long_to_be_searched_for_secrets_is_not_recorded(
    make: Make, tmp_path: Path, size: int, kept: bool
) -> None:
    path = tmp_path / "chat.mitm"
    hooks = make(record=str(path), max_answer="2000")
    flow: http.HTTPFlow = request(body=b'{"contents":[]}')
    await hooks.ask(flow)
    await hooks.answer(flow, response(b" " * size, content_encoding="gzip"))
    await hooks.done()
    (recorded,) = flows_of(path)
    assert recorded.response is not None
    assert recorded.response.content == (b" " * size if kept else b"")
