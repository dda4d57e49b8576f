"""A door's turn goes the way of any client's: keys, redirects, the graft, the loop, and what becomes of hang-ups."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest

from addon.core.framing.documents import Document
from addon.core.history.calls import responses_in
from addon.fake_gemini.server import StrictGemini
from store.base import Store
from store.models import Toolset
from tests.control.conftest import Exchange
from tests.databases import notes_in
from tests.gateway.conftest import MODEL, House, Scripted, until
from tests.gateway.test_gemini import WEATHER, answer, calls, text
from tests.loop.calling import returns
from tests.loop.conftest import call, google_error, says, streamed


async def begin(house: House, **document: Any) -> Exchange:
    """A request whose client may leave."""
    body = httpx2.Request("POST", "http://x", json={"model": MODEL, "input": "Hi", **document}).content
    return Exchange(house.app, "/v1/gemini", headers={"content-type": "application/json"}, body=body)


@pytest.mark.parametrize(
    ("environ", "header", "expected"),
    [
        ({"GEMINI_API_KEY": "one", "GOOGLE_API_KEY": "two"}, None, "one"),
        ({"GEMINI_API_KEY": " ", "GOOGLE_API_KEY": "two"}, None, "two"),
        ({"GEMINI_API_KEY": "one"}, "own", "own"),
        ({}, "own", "own"),
        ({}, None, None),
    ],
)
async def test_the_key_is_the_caller_s_or_the_proxy_s(
    tmp_path: Path, environ: dict[str, str], header: str | None, expected: str | None
) -> None:
    house = House(environ=environ, state=tmp_path)
    await house.open()
    house.upstream([says("a", finish="STOP")])
    headers = {"authorization": "Bearer not-a-key"} | ({"x_goog_api_key": header} if header else {})
    answered = await house.ask("/v1/gemini", {"model": MODEL, "input": "Hi"}, 200 if expected else 401, **headers)
    if expected is None:
        assert answered["error"]["status"] == "UNAUTHENTICATED"
        assert "x-goog-api-key" in answered["error"]["message"]
        assert "GEMINI_API_KEY" in answered["error"]["message"]
    else:
        (request,) = house.outside.requests
        assert [v for k, v in request.headers if k == b"x-goog-api-key"] == [expected.encode()]
        assert not any(b"not-a-key" in v for _, v in request.headers)
    await house.close()


@pytest.mark.parametrize(
    ("upstream", "url"),
    [
        (
            "https://generativelanguage.googleapis.com",
            "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-flash:generateContent",
        ),
        ("http://gw.test:81/p/", "http://gw.test:81/p/v1beta/models/gemini-3-flash:generateContent"),
    ],
)
async def test_requests_go_to_the_upstream(tmp_path: Path, upstream: str, url: str) -> None:
    house = House(state=tmp_path, upstream=upstream)
    await house.open()
    house.upstream([says("a", finish="STOP")])
    await house.gemini("Hi")
    (request,) = house.outside.requests
    assert request.url == url
    await house.close()


@pytest.mark.parametrize(
    ("model", "path"),
    [("gemini-3-flash", "models/gemini-3-flash"), ("models/m", "models/m"), ("tunedModels/t-1", "tunedModels/t-1")],
)
async def test_models_go_by_their_bare_or_their_whole_name(house: House, model: str, path: str) -> None:
    house.upstream([says("a", finish="STOP")])
    await house.gemini("Hi", model=model, stream=False)
    assert house.outside.requests[0].url.endswith(f"/v1beta/{path}:generateContent")


@pytest.mark.parametrize("more", [{"tools": []}, {"tools": [{"functionDeclarations": [{"name": "other"}]}]}])
@pytest.mark.parametrize("config", [{}, {"responseMimeType": "application/json"}])
async def test_calls_of_functions_that_are_declared_no_more_are_told_as_text(
    home: House, gemini: StrictGemini, more: Document, config: Document
) -> None:
    async def get_news() -> str:
        return "rain"

    home.proxy.tools.add("get_news", get_news)
    await home.open()
    first = await home.gemini("call get_news {} and call get_weather {}", tools=[WEATHER], conversation="c")
    await home.gemini([answer(calls(first)[0], celsius=3)], conversation="c")
    await home.gemini("Thanks.", conversation="c", generationConfig=config, **more)
    contents = str(gemini.requests[-1]["body"]["contents"])
    assert "functionCall" not in contents
    assert "get_weather" in contents
    await home.gemini("Thanks.", conversation="c", tools=[WEATHER])
    assert str(gemini.requests[-1]["body"]["contents"]).count("'functionCall'") == 2, "nothing of it was lost"
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


@pytest.mark.parametrize("newer", ["gemini-3-flash", "gemini-3.5-pro"])
async def test_a_conversation_goes_on_with_a_newer_model(home: House, gemini: StrictGemini, newer: str) -> None:
    older: Any = {"model": "gemini-2.5-flash", "conversation": "c"}
    await home.ask("/v1/gemini", {"input": "call get_weather {}", "tools": [WEATHER], **older})
    for given in ({"functionResponse": {"name": "get_weather", "response": {"celsius": 3}}}, "Thanks."):
        await home.ask("/v1/gemini", {"input": given, "model": newer, "conversation": "c"})
    assert not gemini.refused


def pass_time(store: Store, seconds: float) -> None:
    clock, uptime = store.clock, store.uptime
    store.clock, store.uptime = lambda: clock() + seconds, lambda: uptime() + seconds


async def test_a_conversation_outlives_what_is_known_of_its_calls(home: House, gemini: StrictGemini) -> None:
    async def get_news() -> str:
        return "rain"

    home.proxy.tools.add("get_news", get_news)
    await home.open()
    asked: Any = {"model": "gemini-3.5-pro", "conversation": "c"}
    words = "call get_news {} and call get_weather {}"
    first = await home.ask("/v1/gemini", {"input": words, "tools": [WEATHER], **asked})
    await home.ask("/v1/gemini", {"input": [answer(calls(first)[0], celsius=3)], **asked})
    pass_time(home.store, 0.6 * home.store.ttl)
    await home.ask("/v1/gemini", {"input": "Thanks.", **asked})
    pass_time(home.store, 0.6 * home.store.ttl)
    assert await home.store.expire()
    await home.ask("/v1/gemini", {"input": "Thanks.", **asked})
    contents = gemini.requests[-1]["body"]["contents"]
    assert [len(content["parts"]) for content in contents[1:3]] == [1, 1], "its own call, and no other"
    assert not gemini.refused


@pytest.mark.parametrize("stream", [False, True])
async def test_grafted_tools_are_run_beside_the_client_s_own(home: House, gemini: StrictGemini, stream: bool) -> None:
    async def get_news() -> str:
        return "rain"

    home.proxy.tools.add("get_news", get_news)
    await home.open()
    ask: Any = home.gemini_stream if stream else home.gemini

    async def asked(given: Any, **more: Any) -> list[Document]:
        found = await ask(given, conversation="c", **more)
        return found if isinstance(found, list) else [found]

    first = await asked("call get_news {} then call get_weather {} and call get_news {}", tools=[WEATHER])
    assert [one["name"] for one in calls(*first)] == ["get_weather"], "its own, and no other"
    await asyncio.sleep(0)
    last = await asked([answer(calls(*first)[0], celsius=3)])
    assert text(*last) == (
        'get_news returned {"result": "rain"}. get_weather returned {"celsius": 3}. '
        'get_news returned {"result": "rain"}.'
    )
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)
    assert text(*await asked("What is 1+1?")) == "1 + 1 = 2."
    assert not gemini.refused, "the history is told as it was"
    assert not home.proxy.executors._tasks


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_ends_the_turn_and_nothing_is_kept(house: House, stream: bool) -> None:
    async def nap() -> None:
        await asyncio.Event().wait()

    house.proxy.tools.add("nap", nap, idempotent=True)
    await house.open()
    upstream = house.upstream([says("a", call("nap"), finish="STOP")], [says("b", finish="STOP")])
    exchange = await begin(house, conversation="c", stream=stream)
    await until(lambda: house.proxy.tools.begun == ["nap"])
    await exchange.leave()
    await until(lambda: house.proxy.tools.cancelled == ["nap"])
    assert len(upstream.bodies) == 1
    await house.gemini("again", conversation="c")
    assert len(upstream.bodies[-1]["contents"]) == 1
    assert house.outside.watcher.exchanges[0].error is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_word_frees_its_conversation(house: House, stream: bool) -> None:
    upstream = house.upstream([asyncio.Event()], [says("b", finish="STOP")])
    exchange = await begin(house, conversation="c", stream=stream)
    await until(lambda: bool(upstream.bodies))
    await exchange.leave()
    assert text(await house.gemini("again", conversation="c")) == "b"


class TornDown(Scripted):
    """An upstream that takes the end of a request for a mistake."""

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append({})
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("the client has been closed")


@pytest.mark.parametrize("make", [lambda: Scripted([asyncio.Event()]), TornDown], ids=["waits", "fails"])
@pytest.mark.parametrize(("path", "word"), [("/v1/gemini", "UNAVAILABLE"), ("/v1/responses", "server_error")])
async def test_a_client_whose_proxy_ends_may_ask_again(
    path: str, word: str, make: Callable[[], Scripted], house: House
) -> None:
    upstream = house.proxy.upstream(make())
    asked = asyncio.ensure_future(house.post(path, {"model": "gemini-3-flash", "input": "Hi"}))
    await until(lambda: bool(upstream.bodies))
    house.app.stop()
    answer = await asyncio.wait_for(asked, 5)
    assert answer.status_code == 503
    assert word in answer.text
    assert "the proxy is ending" in answer.text


class Reached(asyncio.Event):
    """Of a scripted stream: what comes before it is with the client."""

    is_reached = False

    async def wait(self) -> Literal[True]:
        self.is_reached = True
        return await super().wait()


@pytest.mark.parametrize(("door", "word"), [("gemini_stream", "UNAVAILABLE"), ("respond_stream", "server_error")])
async def test_a_stream_whose_proxy_ends_says_so_and_is_not_kept(door: str, word: str, house: House) -> None:
    reached = Reached()
    house.upstream([says("a"), reached])
    asked = asyncio.ensure_future(getattr(house, door)("Hi", conversation="c"))
    await until(lambda: reached.is_reached)
    house.app.stop()
    *_, last = await asyncio.wait_for(asked, 5)
    assert word in str(last)
    assert "the proxy is ending" in str(last)
    assert await house.store.conversation("default", "c") is None


async def test_a_call_that_waits_for_approval_in_a_door_s_loop_can_be_approved(house: House) -> None:
    async def get_news() -> str:
        return "rain"

    house.proxy.tools.add("get_news", get_news, approval=True)
    await house.open()
    house.upstream([says(call("get_news"), finish="STOP")], [says("b", finish="STOP")])
    asked = asyncio.ensure_future(house.gemini("Hi"))
    waiting = await house.http.get("/v1/calls?wait=5")
    (one,) = waiting.json()["items"]
    async with asyncio.timeout(5):
        while (await house.store.call("default", one["call_id"])).approval is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
    approved = await house.http.post(f"/v1/calls/{one['call_id']}/approve", json={})
    assert approved.status_code == 200, approved.text
    assert text(await asked) == "b"


@pytest.mark.parametrize(
    ("round_", "status", "message"),
    [
        (httpx2.Response(429, json=google_error(429, "RESOURCE_EXHAUSTED")), 429, "of the upstream"),
        (httpx2.Response(503, json=[google_error(503)]), 503, "of the upstream"),
        (httpx2.Response(502, text="<html>bad gateway</html>"), 502, "<html>bad gateway</html>"),
        (httpx2.Response(500), 500, "status 500"),
        (httpx2.Response(302, headers={"location": "http://elsewhere"}), 502, "status 302"),
        (httpx2.Response(204), 502, "status 204"),
        (httpx2.Response(200, text="hello"), 502, "is not JSON"),
        (httpx2.Response(200, json=3), 502, "is not a JSON object"),
        (httpx2.ConnectError("no route"), 502, "no route"),
        (httpx2.Response(200, content=streamed(b"{}"), headers={"content-encoding": "secret"}), 502, "'secret'"),
        ([says("a"), httpx2.ReadError("gone")], 502, "gone"),
    ],
)
async def test_every_failure_of_the_upstream_is_reported(house: House, round_: Any, status: int, message: str) -> None:
    house.upstream(round_)
    failed = await house.gemini("Hi", status)
    assert message in failed["error"]["message"]
    assert failed["error"]["code"] == status


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [204, 302])
async def test_a_status_that_is_neither_answer_nor_error_is_an_error_in_a_later_round(
    house: House, status: int, stream: bool
) -> None:
    async def lookup() -> str:
        return "found"

    house.proxy.tools.add("lookup", lookup)
    await house.open()
    rounds = [says(call("lookup"), finish="STOP")], httpx2.Response(status)
    house.upstream(*rounds, *rounds)
    failed = await house.gemini("Hi", 502, stream=stream)
    assert (failed["error"]["code"], failed["error"]["status"]) == (502, "UNAVAILABLE")
    assert f"status {status} " in failed["error"]["message"]
    response = (await house.respond_stream("Hi"))[-1]["response"] if stream else await house.respond("Hi", 502)
    assert f"status {status} " in response["error"]["message"]


async def test_a_stream_that_begins_with_an_error_has_the_error_s_own_status(house: House) -> None:
    house.upstream([google_error(429, "RESOURCE_EXHAUSTED")], [google_error(429, "RESOURCE_EXHAUSTED")])
    assert (await house.gemini("Hi", 429, stream=True))["error"]["status"] == "RESOURCE_EXHAUSTED"
    *_, failed = await house.respond_stream("Hi")
    assert failed["response"]["error"]["code"] == "rate_limit_exceeded"


@pytest.mark.parametrize("key", ["a-key\nand-more", "clé", "a-key\x7f"])
async def test_a_key_that_no_header_holds_is_refused_and_never_shown(tmp_path: Path, key: str) -> None:
    house = House(environ={"GEMINI_API_KEY": key}, state=tmp_path)
    await house.open()
    for path in ("/v1/gemini", "/v1/responses"):
        refused = await house.post(path, {"model": MODEL, "input": "Hi"})
        assert refused.status_code == 401
        assert "characters" in refused.text
        assert key[:5] not in refused.text
    assert not house.outside.callers
    await house.close()


async def test_nothing_is_sent_upstream_if_the_store_fails(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.store.close()
    failed = await house.gemini("Hi", 503, conversation="c")
    assert failed["error"]["status"] == "UNAVAILABLE"
    assert not house.outside.callers


@pytest.mark.parametrize("where", ["graft.grafter.rewrite", "graft.session_config.Toolbox"])
@pytest.mark.parametrize("policy", ["fail", "pass"])
async def test_a_mistake_in_a_turn_is_told_in_the_door_s_words_or_the_turn_goes_on_without_the_graft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, where: str
) -> None:
    def mistaken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake")

    house = House(state=tmp_path, on_store_error=policy)
    await house.open()
    await house.store.put_toolset("default", Toolset())
    house.upstream([says("fine", finish="STOP")], [says("fine", finish="STOP")])
    monkeypatch.setattr(f"addon.{where}", mistaken)
    passes = policy == "pass" and not where.endswith("Toolbox")
    status = 200 if passes else 500
    answered = await house.gemini("Hi", status)
    if status == 200:
        assert text(answered) == "fine"
    else:
        assert answered["error"]["status"] == "INTERNAL"
        assert "ZeroDivisionError" in answered["error"]["message"]
    other = await house.respond("Hi", status)
    assert status == 200 or "ZeroDivisionError" in other["error"]["message"]
    await house.close()


@pytest.mark.parametrize("breaks", [True, False], ids=["the upstream breaks off", "the client hangs up"])
async def test_the_client_s_part_of_an_ungrafted_stream_is_noted(house: House, breaks: bool) -> None:
    """A client that keeps its own history may go on with it."""

    async def nap() -> None: ...

    house.proxy.tools.add("nap", nap)
    await house.open()
    upstream = house.upstream([says("Do"), says("ne"), httpx2.ReadError("reset") if breaks else asyncio.Event()])
    config = {"responseMimeType": "application/json"}
    exchange = await begin(house, stream=True, model="gemini-2.5-flash", generationConfig=config)
    store = house.proxy.store
    if not breaks:
        await until(lambda: bool(upstream.bodies))
        await exchange.start()
        assert b"Do" in (await exchange.start())["body"]
        assert not notes_in(store)
        await exchange.leave()
    await until(lambda: bool(notes_in(store)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("door", ["gemini", "responses"])
async def test_a_turn_that_ends_without_a_word_keeps_its_calls(house: House, door: str, stream: bool) -> None:
    house.proxy.tools.add("look", returns({"ok": 1}))
    await house.open()
    empty = says(finish="STOP")
    upstream = house.upstream([says(call("look"), finish="STOP")], [empty], [says("a", finish="STOP")])
    if door == "gemini":
        silent = (await house.gemini_stream("one"))[-1] if stream else await house.gemini("one")
        await house.gemini("two", previousResponseId=silent["responseId"])
    else:
        ended = (await house.respond_stream("one"))[-1]["response"] if stream else await house.respond("one")
        await house.respond("two", previous_response_id=ended["id"])
    assert [one["response"] for one in responses_in(upstream.bodies[-1]["contents"])] == [{"ok": 1}]


@pytest.mark.parametrize("name", [["own"], {}, 1, None], ids=repr)
@pytest.mark.parametrize("door", ["gemini", "responses"])
async def test_a_call_whose_name_is_no_text_is_no_error_of_the_proxy_s(house: House, door: str, name: Any) -> None:
    house.proxy.tools.add("look", returns({"ok": 1}))
    await house.open()
    odd: Document = {"functionCall": {"name": name, "args": {}}}
    rounds = [[says("a", call("look"), finish="STOP")], [says("b", odd, finish="STOP")]]
    house.upstream(*rounds, *[[says("c", finish="STOP")]] * 3)
    own = (
        [{"type": "function", "name": "own"}] if door == "responses" else [{"functionDeclarations": [{"name": "own"}]}]
    )
    body: Document = {"model": MODEL, "tools": own, "conversation": "c"}
    for given in ("one", "two"):
        answered = await house.post(f"/v1/{door}", {**body, "input": given})
        assert answered.status_code in (200, 400, 502), answered.text
