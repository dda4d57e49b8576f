"""Loops that do not finish: the upstream fails, or the store does."""

import asyncio
import gc
import gzip
import weakref
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.graft.rounds import Rounds
from addon.loop.runner import Head, Runner
from addon.surfaces.incoming import Framing
from store.backends.memory import MemoryStore
from store.base import StoreUnavailable
from store.models import ToolRules
from tests.contents import user
from tests.loop.conftest import Proxy, Scripted, call, google_error, lookup, says, streamed, until

STREAMS = [Framing.SSE, Framing.ARRAY]
ANSWER = [says("done", finish="STOP")]

STEP = [says("Wait. ", call("lookup"), finish="STOP")]


def refusal(code: int, body: bytes | None = None) -> httpx2.Response:
    return httpx2.Response(code, content=encode(google_error(code)) if body is None else body)


# --- the upstream ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize(
    "trouble",
    [
        [refusal, refusal],
        [httpx2.ConnectError("refused"), httpx2.ReadTimeout("")],
        [[httpx2.ReadError("cut")], [httpx2.RemoteProtocolError("cut")]],
    ],
    ids=["503", "no connection", "cut before anything came"],
)
async def test_trouble_in_a_later_round_is_tried_again(ready: Proxy, framing: Framing, trouble: list[Any]) -> None:
    rounds = [refusal(503) if one is refusal else one for one in trouble]
    upstream = ready.upstream(Scripted(STEP, *rounds, ANSWER))
    played = await ready.ask("x", framing=framing)
    played.check()
    assert played.text == "Wait. done"
    assert upstream.rounds == []
    assert ready.tools.begun == ["lookup"], "the tools are not run again"


async def test_an_answer_in_a_later_round_that_is_no_json_is_asked_for_again(ready: Proxy) -> None:
    ready.upstream(Scripted(STEP, [b"<html>"], ANSWER))
    assert (await ready.ask("x")).text == "Wait. done"


@pytest.mark.parametrize("later", [False, True], ids=["first round", "later round"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["until it closes", "chunked"])
async def test_only_an_answer_that_tells_its_end_is_whole_without_a_finish_reason(
    ready: Proxy, later: bool, is_chunked: bool
) -> None:
    data = b"data: " + encode(says("half")) + b"\r\n\r\n"
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=streamed(data))
    if not is_chunked:
        del answer.headers["transfer-encoding"]
    ready.upstream(Scripted(*([STEP] if later else []), answer))
    played = await ready.ask("x", framing=Framing.SSE)
    assert played.text.endswith("half")
    assert any("error" in one for one in played.documents) != is_chunked


BAD = {
    "html": httpx2.Response(200, headers={"content-type": "text/html"}, content=b"<html>"),
    "html as events": httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=b"<html>"),
    "html in an event": httpx2.Response(
        200, headers={"content-type": "text/event-stream"}, content=b"data: <html>\r\n\r\n"
    ),
    "html as json": httpx2.Response(200, headers={"content-type": "application/json"}, content=b"<html>"),
    "nothing": httpx2.Response(200, content=b""),
    "no event": httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=b""),
    "no element": httpx2.Response(200, headers={"content-type": "application/json"}, content=b"[]"),
    "another document": httpx2.Response(200, headers={"content-type": "application/json"}, content=b'{"hello": 1}'),
    "another event": httpx2.Response(
        200,
        headers={"content-type": "text/event-stream"},
        content=b'data: {"usageMetadata": {"totalTokenCount": 3}}\n\n',
    ),
    "no document": httpx2.Response(200, headers={"content-type": "application/json"}, content=b""),
}


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("bad", BAD)
async def test_an_answer_in_a_later_round_that_is_none_is_asked_for_again_and_then_an_error(
    ready: Proxy, framing: Framing, bad: str
) -> None:
    ready.upstream(Scripted(STEP, BAD[bad], ANSWER))
    played = await ready.ask("x", framing=framing)
    played.check()
    assert played.text == "Wait. done"
    upstream = ready.upstream(Scripted(STEP, *[BAD[bad]] * 3))
    played = await ready.ask("x", framing=framing)
    assert played.documents[-1]["error"]["status"] == "UNAVAILABLE"
    assert played.status == (503 if framing is Framing.JSON else 200)
    assert upstream.rounds == []


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("bad", ["html", "nothing"])
async def test_an_answer_of_the_first_round_that_is_none_is_the_client_s_as_it_came(
    ready: Proxy, framing: Framing, bad: str
) -> None:
    ready.upstream(Scripted(BAD[bad]))
    played = await ready.ask("x", framing=framing)
    assert (played.status, played.body) == (200, BAD[bad].content)


def asking_for_time(kind: str, seconds: float) -> httpx2.Response:
    """A refusal that says after how many seconds another try is of use."""
    if kind == "Retry-After":
        return httpx2.Response(429, headers={"retry-after": f"{seconds:g}"}, content=encode(google_error(429)))
    error = google_error(429)
    error["error"]["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{seconds:g}s"}]
    return httpx2.Response(429, content=encode(error))


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("kind", ["Retry-After", "RetryInfo"])
async def test_a_refusal_that_asks_for_time_is_given_it_while_the_stream_is_kept_alive(
    framing: Framing, kind: str, leaping: None
) -> None:
    proxy = Proxy(keepalive=0.02)
    proxy.tools.add("lookup", lookup)
    await proxy.open()
    upstream = proxy.upstream(Scripted(STEP, asking_for_time(kind, 0.3), ANSWER))
    began = asyncio.get_running_loop().time()
    played = await proxy.ask("x", framing=framing)
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.3)
    played.check()
    assert played.text == "Wait. done"
    assert len(upstream.bodies) == 3
    assert proxy.tools.begun == ["lookup"]
    if framing is not Framing.JSON:
        assert len(played.documents) > 5, "events that clients ignore"
    await proxy.close()


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("kind", ["Retry-After", "RetryInfo"])
async def test_a_refusal_that_asks_for_much_time_is_the_client_s(ready: Proxy, framing: Framing, kind: str) -> None:
    upstream = ready.upstream(Scripted(STEP, asking_for_time(kind, 3600)))
    played = await ready.ask("x", framing=framing)
    assert played.status == (429 if framing is Framing.JSON else 200)
    assert played.documents[-1]["error"]["code"] == 429
    assert len(upstream.bodies) == 2


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize(
    ("refusals", "code", "tries"),
    [([400], 400, 2), ([503, 503, 503], 503, 4), ([503, 403], 403, 3)],
)
async def test_an_error_of_a_later_round_reaches_the_client(
    ready: Proxy, framing: Framing, refusals: list[int], code: int, tries: int
) -> None:
    upstream = ready.upstream(Scripted(STEP, *map(refusal, refusals)))
    played = await ready.ask("x", framing=framing)
    assert played.status == (code if framing is Framing.JSON else 200)
    assert played.documents[-1] == google_error(code)
    assert len(upstream.bodies) == tries
    if framing is not Framing.JSON:
        assert played.text == "Wait. "


@pytest.mark.parametrize("framing", STREAMS)
@pytest.mark.parametrize(
    "body", [encode([google_error(400)]), b"<html>no", b""], ids=["Google's, in a list", "not JSON", "empty"]
)
async def test_a_stream_ends_with_a_readable_error_for_any_upstream_error(
    ready: Proxy, framing: Framing, body: bytes
) -> None:
    ready.upstream(Scripted(STEP, refusal(400, body)))
    played = await ready.ask("x", framing=framing)
    assert played.documents[-1]["error"]["code"] == 400
    assert played.documents[-1]["error"]["message"]


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("code", [400, 429, 503])
async def test_an_error_of_the_first_round_is_not_touched(ready: Proxy, framing: Framing, code: int) -> None:
    body = b'{ "error": {"code": %d} }' % code
    upstream = ready.upstream(Scripted(refusal(code, body)))
    played = await ready.ask("x", framing=framing)
    assert (played.status, played.body) == (code, body)
    assert len(upstream.bodies) == 1


async def all_final(proxy: Proxy) -> None:
    """Waits for calls that go on after their answer has failed."""
    async with asyncio.timeout(5):
        while not all(one.status.final for one in await proxy.calls()):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_cut_in_the_first_round_stays_one(ready: Proxy, framing: Framing) -> None:
    ready.upstream(Scripted([says("Wa", call("lookup")), httpx2.ReadError("cut")]))
    with pytest.raises(httpx2.ReadError):
        await ready.ask("x", framing=framing)
    await all_final(ready)
    assert ready.watcher.exchanges[0].error == "ReadError: cut"


@pytest.mark.parametrize("framing", STREAMS)
@pytest.mark.parametrize("text", ["text", "a call"])
async def test_a_cut_in_a_later_round_is_an_error_where_some_of_the_round_is_out(
    ready: Proxy, framing: Framing, text: str
) -> None:
    await ready.declare({"name": "manual", "description": "d"})
    item = says("do") if text == "text" else says(call("manual"))
    upstream = ready.upstream(Scripted(STEP, [item, httpx2.ReadError("cut")], ANSWER))
    played = await ready.ask("x", framing=framing)
    assert played.documents[-1]["error"]["status"] == "UNAVAILABLE"
    assert played.finishes == []
    assert len(upstream.bodies) == 2
    pending = [one.name for one in await ready.calls() if not one.status.final]
    assert pending == ([] if text == "text" else ["manual"]), "a retry of the request finds it"


@pytest.mark.parametrize("before", [[], [STEP]], ids=["first round", "later round"])
async def test_an_answer_that_has_ended_with_an_error_gets_nothing_more(ready: Proxy, before: list[Any]) -> None:
    cut = [httpx2.ReadError("cut")] if before else []  # a cut in the first round is raised
    upstream = ready.upstream(Scripted(*before, [b'data: {"functionCall"\r\n\r\n', says("more"), *cut], ANSWER))
    played = await ready.ask("x", framing=Framing.SSE)
    assert [decoded for decoded in played.documents if "error" in decoded] == [played.documents[-1]]
    assert played.text == ("Wait. " if before else "")
    assert upstream.rounds == [ANSWER], "and is not asked for again"


WHOLE = {Framing.JSON: b"%s", Framing.ARRAY: b"[%s]", Framing.SSE: b"data: %s\r\n\r\n"}


def packed(framing: Framing, how: str, *, cut: bool) -> httpx2.Response:
    """An answer without a call, whose content encoding cannot be undone."""
    body = gzip.compress(WHOLE[framing] % encode(says("It is said.", finish="STOP")))
    kind = "text/event-stream" if framing is Framing.SSE else "application/json"
    headers = {"content-type": kind, "content-encoding": how}
    return httpx2.Response(200, headers=headers, content=streamed(body[:-4] if cut else b"\0" + body))


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("later", [False, True], ids=["first round", "later round"])
@pytest.mark.parametrize(("how", "cut"), [("secret", False), ("gzip", False), ("gzip", True), ("br", False)])
async def test_an_answer_whose_encoding_cannot_be_undone_is_an_error(
    ready: Proxy, framing: Framing, how: str, cut: bool, later: bool
) -> None:
    rounds = [STEP, *(packed(framing, how, cut=cut) for _ in range(3))] if later else [packed(framing, how, cut=cut)]
    ready.upstream(Scripted(*rounds))
    played = await ready.ask("x", framing=framing)
    error = played.documents[-1]["error"]
    assert (error["code"], error["status"]) == (502, "UNAVAILABLE")
    assert "the model's answer cannot be decompressed" in error["message"]
    assert played.status == 502 or framing is not Framing.JSON
    assert played.text.replace("It is said.", "") == ("Wait. " if later and framing is not Framing.JSON else "")
    assert all(exchange.error is None or "DecodingError" in exchange.error for exchange in ready.watcher.exchanges)


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("status", [204, 302, 304])
async def test_a_status_that_is_neither_answer_nor_error_is_an_error_in_a_later_round(
    ready: Proxy, framing: Framing, status: int
) -> None:
    elsewhere = {"location": "http://elsewhere.example"}
    upstream = ready.upstream(Scripted(STEP, httpx2.Response(status, headers=elsewhere)))
    played = await ready.ask("x", framing=framing)
    error = played.documents[-1]["error"]
    assert (error["code"], error["status"]) == (502, "UNAVAILABLE")
    assert f"status {status} " in error["message"]
    assert played.status == (502 if framing is Framing.JSON else 200)
    assert len(upstream.bodies) == 2


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("status", [204, 302])
async def test_a_status_that_is_neither_answer_nor_error_reaches_the_client_in_the_first_round(
    ready: Proxy, framing: Framing, status: int
) -> None:
    ready.upstream(Scripted(httpx2.Response(status, content=b"")))
    runner, _ = await ready.prepare([user("x")], framing)
    head, *body = [out async for out in runner.output()]
    assert isinstance(head, Head)
    assert head.status == status
    assert b"".join(one for one in body if isinstance(one, bytes)) == b""


# --- the store -------------------------------------------------------------------------------------------------


class Failing(MemoryStore):
    """A store that does not take a turn any more once it has taken so many."""

    def __init__(self, saves: int) -> None:
        super().__init__()
        self.saves = saves

    async def save_turn(self, *args: Any, **kwargs: Any) -> None:
        self.saves -= 1
        if self.saves < 0:
            raise StoreUnavailable("the disk is full")
        await super().save_turn(*args, **kwargs)


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("saves", [0, 1, 2])
async def test_a_store_that_fails_in_the_middle_is_a_503_in_the_answer_s_form(framing: Framing, saves: int) -> None:
    proxy = Proxy(store=Failing(saves))
    proxy.tools.add("lookup", lookup)
    await proxy.open()
    upstream = proxy.upstream(Scripted(STEP, STEP, ANSWER))
    played = await proxy.ask("x", framing=framing)
    error: Document = played.documents[-1]["error"]
    assert (error["code"], error["status"]) == (503, "UNAVAILABLE")
    assert "the store does not answer" in error["message"]
    assert (played.status, played.headers.get(b"retry-after")) == (
        (503, b"1") if framing is Framing.JSON else (200, None)
    )
    assert not any("functionCall" in part for part in played.parts)
    assert len(upstream.bodies) <= 1 + saves
    await all_final(proxy)
    await proxy.close()


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_loop_goes_on_without_the_store_where_the_settings_say_so(framing: Framing) -> None:
    proxy = Proxy(store=Failing(1), on_store_error="pass")
    proxy.tools.add("lookup", lookup)
    await proxy.open()
    proxy.upstream(Scripted(STEP, ANSWER))
    played = await proxy.ask("x", framing=framing)
    played.check()
    assert played.text == "Wait. done"
    await proxy.close()


# --- memory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Without the cycle collector, only objects without reference cycles are freed."""
    gc.disable()
    yield
    gc.enable()


async def test_nothing_is_kept_of_loops_that_are_over(ready: Proxy, no_collection: None) -> None:
    await ready.declare({"name": "manual", "description": "d"}, manual=ToolRules())
    runners: weakref.WeakSet[Runner] = weakref.WeakSet()
    mixed = [says(call("lookup"), call("manual"), finish="STOP")]
    for script in ([STEP, ANSWER], [mixed], [STEP, refusal(400)], [[says(finish="STOP")]]):
        ready.upstream(Scripted(*script))
        await ready.ask("x", framing=Framing.SSE)
        runners.add(ready.runner)
        await until(lambda: not ready.executors._tasks)
    del ready.runner
    assert list(runners) == []
    executors = ready.executors
    assert not executors._tasks
    assert not executors._shared._in_flight


async def test_a_failed_answer_in_json_is_one_document(ready: Proxy) -> None:
    ready.upstream(Scripted(STEP, refusal(400)))
    assert decode((await ready.ask("x")).body) == google_error(400)


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize(("where", "method"), [(Rounds, "after_tools"), (Runner, "_tools")])
async def test_a_mistake_in_a_loop_is_an_error_in_the_form_of_the_answer(
    ready: Proxy, framing: Framing, monkeypatch: pytest.MonkeyPatch, where: type, method: str
) -> None:
    def mistaken(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(where, method, mistaken)
    ready.upstream(Scripted(STEP))
    played = await ready.ask("x", framing=framing)
    assert played.status == (500 if framing is Framing.JSON else 200)
    error = played.documents[-1]["error"]
    assert (error["code"], error["status"]) == (500, "INTERNAL")
    assert "RuntimeError" in error["message"]
