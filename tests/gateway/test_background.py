"""Responses that are made in the background: polled, followed, cancelled."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai.types.responses import Response

from addon.core.framing.documents import Document, encode
from addon.fake_gemini.server import StrictGemini
from addon.gateway import background
from addon.gateway.background import Run
from store.backends.memory import MemoryStore
from store.base import StoreUnavailable
from tests.gateway.conftest import MODEL, House
from tests.loop.conftest import google_error, says, until

DONE = [says("do"), says("ne", finish="STOP", usageMetadata={})]
WHOLE = [says("done", finish="STOP", usageMetadata={})]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """All that are made."""
    made: list[Run] = []
    init = Run.__init__

    def noted(self: Run, *args: Any) -> None:
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(Run, "__init__", noted)
    return made


async def begin(house: House, given: Any = "Hi", **more: Any) -> Document:
    response = await house.respond(given, background=True, **more)
    assert (response["status"], response["background"]) == ("in_progress", True)
    Response.model_validate(response, strict=True)
    return response


async def show(house: House, response_id: str, status: int = 200, **query: Any) -> Document:
    answer = await house.http.get(f"/v1/responses/{response_id}", params=query)
    assert answer.status_code == status, answer.text
    found: Document = answer.json()
    return found


async def final(house: House, response_id: str) -> Document:
    async with asyncio.timeout(30):
        while (found := await show(house, response_id))["status"] == "in_progress":  # noqa: ASYNC110 - it is polled
            await asyncio.sleep(0.001)
    Response.model_validate(found, strict=True)
    return found


async def events_after(house: House, response_id: str, number: int | None = None) -> list[Document]:
    query: dict[str, Any] = {"stream": "true"} | ({} if number is None else {"starting_after": number})
    answer = await house.http.get(f"/v1/responses/{response_id}", params=query)
    assert answer.status_code == 200, answer.text
    return events_in(answer.text)


def events_in(text: str) -> list[Document]:
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [json.loads(block.split("\n")[1].removeprefix("data: ")) for block in blocks]


async def cancel(house: House, response_id: str, status: int = 200) -> Document:
    return await house.ask(f"/v1/responses/{response_id}/cancel", None, status)


# --- polling ------------------------------------------------------------------------------------------------------


async def test_a_response_is_polled_until_it_is_complete_and_can_be_continued(
    home: House, gemini: StrictGemini
) -> None:
    response = await begin(home, "What is 2+2?")
    found = await final(home, response["id"])
    assert (found["status"], found["id"]) == ("completed", response["id"])
    assert found["output"][0]["content"][0]["text"] == "2 + 2 = 4."
    await home.respond("And now?", previous_response_id=response["id"])
    assert len(gemini.requests[-1]["body"]["contents"]) == 3
    items = (await home.http.get(f"/v1/responses/{response['id']}/input_items")).json()["data"]
    assert [item["content"][0]["text"] for item in items] == ["What is 2+2?"]
    assert gemini.refused == []


async def test_its_failure_is_shown_and_its_history_stays(house: House) -> None:
    upstream = house.upstream(WHOLE, httpx2.Response(400, content=encode(google_error(400, "INVALID_ARGUMENT"))), WHOLE)
    earlier = await house.respond("one")
    response = await begin(house, "two", previous_response_id=earlier["id"])
    found = await final(house, response["id"])
    assert (found["status"], found["error"]["message"]) == ("failed", "of the upstream")
    await house.respond("three", previous_response_id=response["id"])
    texts = [part["text"] for content in upstream.bodies[-1]["contents"] for part in content["parts"]]
    assert texts == ["one", "done", "three"]


async def test_a_final_state_that_the_store_does_not_take_is_stored_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.upstream(DONE)
    add, failures = house.store.add_response, iter([None, StoreUnavailable("x"), StoreUnavailable("x")])

    async def sometimes(*args: Any, **options: Any) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        await add(*args, **options)

    monkeypatch.setattr(house.store, "add_response", sometimes)
    response = await begin(house)
    found = await final(house, response["id"])
    assert (found["status"], found["error"]["code"]) == ("failed", "server_error")
    await until(lambda: next(failures, True) is True)
    await house.restart()
    assert (await final(house, response["id"]))["status"] == "failed"


async def test_without_a_place_for_its_marker_nothing_begins(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = house.upstream(DONE)

    async def fails(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(house.store, "add_response", fails)
    await house.respond("Hi", 503, background=True)
    assert upstream.bodies == []


async def test_only_so_many_are_made_at_a_time(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MOST_RUNNING", 1)
    waits = asyncio.Event()
    house.upstream([says("a"), waits, says(finish="STOP")])
    response = await begin(house)
    assert "1 background responses" in (await house.respond("Hi", 429, background=True))["error"]["message"]
    waits.set()
    await final(house, response["id"])


async def test_it_is_stored_so_store_may_not_be_false(house: House) -> None:
    error = (await house.respond("Hi", 400, background=True, store=False))["error"]
    assert (error["param"], error["code"]) == ("background", "invalid_value")


# --- its events ---------------------------------------------------------------------------------------------------


async def test_a_stream_that_was_dropped_goes_on_after_the_last_event(house: House, runs: list[Run]) -> None:
    waits = asyncio.Event()
    house.upstream([says("do"), waits, says("ne", finish="STOP", usageMetadata={})])
    body = {"model": MODEL, "input": "Hi", "stream": True, "background": True}
    reading = asyncio.ensure_future(house.post("/v1/responses", body))
    await until(lambda: bool(runs) and len(runs[0]._events) >= 4)
    (run,) = runs
    reading.cancel()
    await asyncio.wait({reading})
    waits.set()
    rest = await events_after(house, run.response_id, 1)
    assert [event["sequence_number"] for event in rest] == list(range(2, 2 + len(rest)))
    assert rest[-1]["type"] == "response.completed"
    whole = await events_after(house, run.response_id)
    assert whole[0]["type"] == "response.created"
    assert whole[2:] == rest
    assert "".join(event["delta"] for event in whole if event["type"] == "response.output_text.delta") == "done"


@pytest.mark.parametrize("after", ["-1", "x", "99", "9" * 40])
async def test_a_wrong_number_is_refused(house: House, after: str) -> None:
    house.upstream(DONE)
    response = await begin(house)
    await final(house, response["id"])
    error = (await show(house, response["id"], 400, stream="true", starting_after=after))["error"]
    assert error["param"] == "starting_after"


async def test_only_the_latest_events_are_kept(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_EVENTS", 1500)
    house.upstream([*[says("x" * 100)] * 20, says(finish="STOP")])
    response = await begin(house)
    await final(house, response["id"])
    error = (await show(house, response["id"], 400, stream="true"))["error"]
    assert "the events that are kept" in error["message"]
    monkeypatch.setattr(background, "MOST_ENDED", 0)
    house.upstream(DONE)
    await final(house, (await begin(house))["id"])
    error = (await show(house, response["id"], 400, stream="true"))["error"]
    assert error["param"] == "stream"


# --- cancelling ---------------------------------------------------------------------------------------------------


async def test_a_response_is_cancelled_and_what_was_before_it_is_continued(house: House) -> None:
    upstream = house.upstream(WHOLE, [says("a"), asyncio.Event()], WHOLE)
    earlier = await house.respond("one")
    response = await begin(house, "two", previous_response_id=earlier["id"])
    for _ in range(2):
        assert (await cancel(house, response["id"]))["status"] == "cancelled"
    Response.model_validate(await show(house, response["id"]), strict=True)
    await house.respond("three", previous_response_id=response["id"])
    texts = [part["text"] for content in upstream.bodies[-1]["contents"] for part in content["parts"]]
    assert texts == ["one", "done", "three"]


async def test_only_background_responses_are_cancelled(house: House) -> None:
    house.upstream(WHOLE, DONE)
    plain = await house.respond("Hi")
    assert (await cancel(house, plain["id"], 400))["error"]["message"] == "Cannot cancel a synchronous response."
    assert (await cancel(house, "resp_none", 404))["error"]["param"] == "response_id"
    response = await begin(house)
    await final(house, response["id"])
    assert (await cancel(house, response["id"]))["status"] == "completed"


# --- deleting -----------------------------------------------------------------------------------------------------


async def delete(house: House, response_id: str, status: int = 200) -> None:
    assert (await house.http.delete(f"/v1/responses/{response_id}")).status_code == status


async def check_gone(house: House, response_id: str) -> None:
    await show(house, response_id, 404)
    await show(house, response_id, 404, stream="true")
    await cancel(house, response_id, 404)
    await delete(house, response_id, 404)


async def test_a_deleted_response_and_its_events_are_gone(house: House) -> None:
    house.upstream(DONE)
    response = await begin(house)
    await final(house, response["id"])
    await delete(house, response["id"])
    await check_gone(house, response["id"])


async def test_a_response_that_is_deleted_while_it_is_made_is_cancelled(house: House, runs: list[Run]) -> None:
    upstream = house.upstream([says("a"), asyncio.Event()], WHOLE)
    response = await begin(house, "one", conversation="c")
    await delete(house, response["id"])
    assert runs[0].response["status"] == "cancelled"
    await check_gone(house, response["id"])
    await house.respond("two", conversation="c")
    assert len(upstream.bodies[-1]["contents"]) == 1


# --- the proxies --------------------------------------------------------------------------------------------------


async def test_if_its_proxy_ends_it_fails(house: House, runs: list[Run]) -> None:
    house.upstream([says("a"), asyncio.Event()])
    response = await begin(house)
    await house.store.drop("this")
    await house.restart()
    await house.store.drop("this")
    house.proxy.executors.proxy_id = "next"
    await house.store.hold("next", 3600)
    for _ in range(2):
        found = await show(house, response["id"])
        assert (found["status"], found["error"]["message"]) == ("failed", "the proxy that made the response has ended")
    runs[0].cancelled.set()
    await runs[0].over.wait()


async def test_a_proxy_that_stops_says_so(house: House) -> None:
    house.upstream([says("a"), asyncio.Event()])
    response = await begin(house)
    house.app.stop()
    found = await final(house, response["id"])
    assert found["status"] == "failed"
    assert "ending" in found["error"]["message"] or "stop" in found["error"]["message"], found["error"]


async def test_another_proxy_shows_and_cancels_it(tmp_path: Path) -> None:
    store = MemoryStore()
    one, other = House(store, state=tmp_path), House(store, state=tmp_path)
    for house in (one, other):
        await house.open()
    try:
        one.upstream([says("a"), asyncio.Event()])
        response = await begin(one)
        assert (await show(other, response["id"]))["status"] == "in_progress"
        assert (await cancel(other, response["id"]))["status"] == "cancelled"
        assert (await final(one, response["id"]))["status"] == "cancelled"
        error = (await show(other, response["id"], 400, stream="true"))["error"]
        assert error["param"] == "stream"
        await delete(other, response["id"])
        for house in (one, other):
            await check_gone(house, response["id"])
    finally:
        for house in (one, other):
            await house.close()
