"""Recorded chats of the published client as the upstream of a real mitmdump (`--server-replay`): the client gets its
visible turns, and no request leaves the machine."""

import json
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from addon.core.history.placeholder import TURN_ID
from tests.e2e.proxies import Proxy, sse, text_of
from tests.flows.recordings import RECORDINGS, RESULTS, flows_of, sent_by_client


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_a_recorded_chat_is_had_again_without_an_upstream(path: Path, start: Callable[..., Proxy]) -> None:
    # what is not in the recording is cut off; connecting before that is known would ask for the host
    options = ("--server-replay", str(path), "--set", "server_replay_extra=kill", "--set", "connection_strategy=lazy")
    proxy = start(arguments=options)
    session = proxy.control.session(path.stem)
    session.tools()
    passed = path.stem == "passthrough"
    if passed:
        session.policy(delivery="passthrough")
    trusts = ssl.create_default_context(cafile=str(proxy.ca))
    ids: list[str] = []
    with httpx2.Client(proxy=proxy.user(path.stem), verify=trusts, timeout=30) as client:
        for flow in flows_of(path):
            body = sent_by_client(flow).decode()
            for old, new in zip(dict.fromkeys(TURN_ID.findall(body)), ids, strict=True):
                body = body.replace(old, new)
            headers = {"content-type": "application/json", "x-goog-api-key": "a-secret-key"}
            got = client.post(flow.request.url, content=body.encode(), headers=headers)
            assert got.status_code == 200, got.text
            assert flow.response is not None
            if passed:
                assert got.text == flow.response.text
                continue
            kind = got.headers["content-type"]
            found = sse(got.text) if kind == "text/event-stream" else json.loads(got.text)
            if "functionCall" not in (flow.response.text or ""):
                assert got.text == flow.response.text
                assert "celsius" in text_of(found)
                continue
            turn_id = session.turns()[-1]["turn_id"]
            assert text_of(found).endswith(f"[{turn_id}]")
            ids.append(turn_id)
            session.answer(**RESULTS)
    assert proxy.control.metric("toolgraft_errors") == 0
