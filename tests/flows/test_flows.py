"""Recorded chats of the published client, pushed through the addon's hooks: the same goes upstream as was recorded,
byte for byte, and the client gets what it then remembered. `make.py` makes the recordings."""

import itertools
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx2
import pytest
from mitmproxy import http

from addon.hooks.looping import Looping
from addon.loop.server import LoopAnswer
from store.models import Policy, Status, Toolset
from tests.e2e.proxies import DECLARATIONS, sse, text_of
from tests.flows.recordings import RECORDINGS, RESULTS, flows_of, sent_by_client, turn_ids
from tests.hooks.harness import Hooks, request, response


def text_in(body: bytes, kind: str) -> str:
    return text_of(sse(body.decode()) if kind == "text/event-stream" else json.loads(body))


class Upstream(httpx2.AsyncBaseTransport):
    """Answers with a recorded stream, in these pieces. `asked`: the request's body."""

    def __init__(self, kind: str, pieces: Sequence[bytes]) -> None:
        self.kind = kind
        self.pieces = pieces
        self.asked = b""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked = await request.aread()
        return httpx2.Response(200, headers={"content-type": self.kind}, content=self._body())

    async def _body(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


async def streamed(hooks: Hooks, flow: http.HTTPFlow, upstream: Upstream) -> bytes:
    """What the client gets of a stream."""
    vars(hooks.part(Looping).pool)["connections_for"] = lambda _: upstream
    answering = hooks.destination(flow)
    assert isinstance(answering, LoopAnswer)
    got: list[bytes] = []
    while not answering.over:
        got += [piece for piece in await answering.take() if isinstance(piece, bytes)]
    assert answering.error is None
    answering.settle_handover(True)
    return b"".join(got)


def test_there_are_recordings() -> None:
    assert [path.stem for path in RECORDINGS] == ["parallel", "passthrough", "placeholder"]


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
@pytest.mark.parametrize("size", [1, 64, 100_000])
async def test_the_recorded_requests_go_upstream(path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = flows_of(path)
    made_up = itertools.chain(turn_ids(recorded), (f"turn_{n:016x}" for n in itertools.count()))
    monkeypatch.setattr("addon.graft.turn_records.new_turn_id", lambda: next(made_up))
    hooks = Hooks()
    store = hooks.store
    await store.put_toolset(path.stem, Toolset(declarations=DECLARATIONS))
    passed = path.stem == "passthrough"
    await store.put_policy(path.stem, Policy(delivery="passthrough" if passed else "placeholder"))
    try:
        for before, after in itertools.pairwise([*recorded, None]):
            assert before is not None
            assert before.response is not None
            session = {"x-graft-session": path.stem}
            flow = await hooks.ask(request(before.request.url, sent_by_client(before), session))
            kind = before.response.headers["content-type"]
            recorded_body = before.response.content or b""
            if kind == "text/event-stream":
                pieces = [recorded_body[n : n + size] for n in range(0, len(recorded_body), size)]
                upstream = Upstream(kind, pieces)
                got = await streamed(hooks, flow, upstream)
                sent: bytes | None = upstream.asked
            else:
                sent = flow.request.content
                got = await hooks.answer(flow, response(recorded_body, kind))
            assert sent == before.request.content
            if passed:
                assert got == recorded_body
            else:
                assert b"functionCall" not in got
                for call in (await store.calls(session=path.stem, status=Status.PENDING)).items:
                    await store.answer(call.session, call.call_id, result=RESULTS[call.name](**call.args))
            if after is not None:
                remembered = json.loads(sent_by_client(after))["contents"]
                texts = "".join(part.get("text", "") for content in remembered for part in content["parts"])
                assert text_in(got, kind) in texts
    finally:
        await hooks.done()


@pytest.mark.parametrize("path", RECORDINGS, ids=[path.stem for path in RECORDINGS])
def test_a_recording_holds_no_secret_and_nothing_of_the_machine_it_was_made_on(path: Path) -> None:
    for flow in flows_of(path):
        assert flow.request.headers["x-goog-api-key"] == "REMOVED"
        assert flow.request.host == "generativelanguage.googleapis.com"
        assert flow.server_conn.peername is None
        assert not flow.server_conn.certificate_list
        assert flow.client_conn.peername == ("127.0.0.1", 1)
        assert flow.timestamp_created < 100
