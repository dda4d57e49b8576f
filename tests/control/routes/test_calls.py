import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from addon.monitoring.metrics import Metrics
from store.base import Store
from tests.control.conftest import TOKEN

CALL = "/v1/calls/c1"


async def ids(client: httpx2.AsyncClient, **query: Any) -> list[str]:
    answer = await client.get("/v1/calls", params=query)
    assert answer.status_code == 200, answer.text
    return [call["call_id"] for call in answer.json()["items"]]


async def test_calls_are_listed_newest_last_and_narrowed(client: httpx2.AsyncClient, capture: Any) -> None:
    await capture("c1")
    await capture("c2", session="work")
    await capture("c3", name="get_time")
    await client.post("/v1/calls/c3/result", json={"result": 1})
    assert await ids(client) == ["c1", "c2", "c3"]
    assert await ids(client, session="work") == ["c2"]
    assert await ids(client, status="pending") == ["c1", "c2"]
    assert await ids(client, name="get_time") == ["c3"]
    assert await ids(client, session="default", status="done", name="get_time") == ["c3"]
    assert await ids(client, session="nobody") == []


async def test_calls_come_page_by_page(client: httpx2.AsyncClient, capture: Any) -> None:
    for n in range(5):
        await capture(f"c{n}")
    call_ids: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await client.get("/v1/calls", params=query)).json()
        call_ids += [call["call_id"] for call in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert call_ids == [f"c{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ({"wait": "61"}, "wait", ["'61'", "60"]),
        ({"wait": "-1"}, "wait", ["0"]),
        ({"wait": "nan"}, "wait", []),
        ({"wait": "long"}, "wait", ["'long'"]),
        ({"limit": "0"}, "limit", ["1"]),
        ({"limit": "1001"}, "limit", ["1000"]),
        ({"status": "open"}, "status", ["'open'", "pending", "expired"]),
        ({"session": "a b"}, "session", ["[A-Za-z0-9_.-]{1,64}"]),
        ({"session": ""}, "session", ["[A-Za-z0-9_.-]{1,64}"]),
        ({"cursor": "nonsense"}, "cursor", ["next_cursor"]),
        ({"sesion": "a"}, "sesion", ["unknown", "session"]),
    ],
)
async def test_a_wrong_query_is_refused_by_name(
    client: httpx2.AsyncClient, query: dict[str, str], field: str, words: list[str]
) -> None:
    answer = await client.get("/v1/calls", params=query)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    for word in words:
        assert word in answer.json()["detail"]


async def test_a_call_is_shown_with_all_its_fields(client: httpx2.AsyncClient, capture: Any) -> None:
    call = await capture("c1")
    answer = await client.get(CALL)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == call.model_dump(mode="json")


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/calls/no"), ("POST", "/v1/calls/no/result")])
async def test_an_unknown_call_is_not_found(client: httpx2.AsyncClient, method: str, path: str) -> None:
    answer = await client.request(method, path, json={"result": 1} if method == "POST" else None)
    assert (answer.status_code, answer.json()["status"]) == (404, 404)


@pytest.mark.parametrize(
    "result",
    [None, True, 0, -0.5, 12345678901234567890123, "", "snow ❄", [], {}, {"a": [{"b": None}], "result": 1, "error": 2}],
)
async def test_a_result_is_kept_as_it_was_sent(client: httpx2.AsyncClient, capture: Any, result: Any) -> None:
    await capture("c1")
    answer = await client.post(f"{CALL}/result", json={"result": result})
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["result"], answer.json()["error"]) == ("done", result, None)
    assert (await client.get(CALL)).json() == answer.json()
    assert (await client.post(f"{CALL}/result", json={"result": result})).json() == answer.json()


PNG = {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}


async def test_a_result_may_have_images(client: httpx2.AsyncClient, capture: Any, store: Store) -> None:
    await capture("c1")
    body = {"result": "see part 1", "parts": [PNG]}
    answer = await client.post(f"{CALL}/result", json=body)
    assert answer.status_code == 200, answer.text
    assert [(one["mime_type"], one["size"]) for one in answer.json()["media"]] == [("image/png", 4)]
    assert "iVBORw" not in answer.text
    assert (await client.post(f"{CALL}/result", json=body)).json() == answer.json()
    assert (await client.post(f"{CALL}/result", json={"result": "see part 1"})).status_code == 409
    assert (await store.call("default", "c1")).parts == [PNG]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"parts": [PNG]}, None, 'exactly one of "result" and "error"'),
        ({"error": "e", "parts": [PNG]}, None, '"parts" belong to a "result"'),
        ({"result": 1, "parts": PNG}, "parts", "list"),
        ({"result": 1, "parts": [{"text": "x"}]}, "parts[0]", ""),
        ({"result": 1, "parts": [{}]}, "parts[0]", "must be"),
        ({"result": 1, "parts": [{"inlineData": {"data": "QQ=="}}]}, "parts[0].inlineData.mimeType", "image/png"),
        ({"result": 1, "parts": [PNG, {"inlineData": {"mimeType": "png", "data": "QQ=="}}]}, "parts[1]", "media type"),
        ({"result": 1, "parts": [{"inlineData": {"mimeType": "a/b", "data": "?"}}]}, "parts[0].inlineData.data", "64"),
        ({"result": 1, "parts": [{"inlineData": {"mimeType": "a/b", "data": ""}}]}, "parts[0].inlineData.data", "one"),
        (
            {"result": 1, "parts": [{"inlineData": {"mimeType": "a/b", "data": "A" * 400}}]},
            "parts",
            "300 bytes, more than the 256 of graft_max_media",
        ),
    ],
)
async def test_wrong_parts_are_refused_by_name_and_nothing_is_stored(
    client: httpx2.AsyncClient, capture: Any, body: Any, field: str | None, words: str
) -> None:
    await capture("c1")
    answer = await client.post(f"{CALL}/result", json=body)
    assert answer.status_code == 422, answer.text
    assert str(answer.json().get("field", "")).startswith(field or "")
    assert words in answer.json()["detail"]
    assert (await client.get(CALL)).json()["status"] == "pending"


@pytest.mark.parametrize("error", ["no such city", ""])
async def test_an_error_is_an_answer_as_well(client: httpx2.AsyncClient, capture: Any, error: str) -> None:
    await capture("c1")
    for _ in range(2):
        answer = await client.post(f"{CALL}/result", json={"error": error})
        assert answer.status_code == 200
        assert (answer.json()["status"], answer.json()["error"]) == ("failed", error)


@pytest.mark.parametrize("second", [{"result": 2}, {"error": "1"}, {"result": None}, {"result": "1"}])
async def test_the_first_answer_stands(client: httpx2.AsyncClient, capture: Any, second: Any) -> None:
    await capture("c1")
    await client.post(f"{CALL}/result", json={"result": 1})
    answer = await client.post(f"{CALL}/result", json=second)
    assert (answer.status_code, answer.json()["status"]) == (409, 409)
    assert (await client.get(CALL)).json()["result"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{}", None),
        (b'{"result": 1, "error": "x"}', None),
        (b'{"result": 1, "error": null}', "error"),
        (b'{"error": 3}', "error"),
        (b'{"error": null}', "error"),
        (b'{"results": 1}', "results"),
        (b"[]", None),
        (b"1", None),
    ],
)
async def test_an_answer_that_does_not_fit_changes_nothing(
    client: httpx2.AsyncClient, capture: Any, body: bytes, field: str | None
) -> None:
    await capture("c1")
    answer = await client.post(f"{CALL}/result", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json().get("field") == field
    assert (await client.get(CALL)).json()["status"] == "pending"


@pytest.mark.parametrize("body", [b'{"result": NaN}', b'{"result": 1e999}', b'{"result": "\\ud800"}', b"\xff", b"["])
async def test_a_body_that_is_no_json_is_refused(client: httpx2.AsyncClient, capture: Any, body: bytes) -> None:
    await capture("c1")
    answer = await client.post(f"{CALL}/result", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert (await client.get(CALL)).json()["status"] == "pending"


async def test_answers_are_counted_once(client: httpx2.AsyncClient, capture: Any, metrics: Metrics) -> None:
    await capture("c1")
    for _ in range(2):
        await client.post(f"{CALL}/result", json={"result": 1})
    assert b'toolgraft_calls_total{outcome="done"} 1.0' in metrics.render()


async def test_a_long_poll_returns_at_once_where_a_call_matches(client: httpx2.AsyncClient, capture: Any) -> None:
    await capture("c1")
    async with asyncio.timeout(5):
        assert await ids(client, wait=60) == ["c1"]


async def test_a_long_poll_wakes_when_a_call_comes_that_matches(
    client: httpx2.AsyncClient, store: Store, capture: Any
) -> None:
    waiting = asyncio.ensure_future(ids(client, wait=60, session="work", name="get_time", status="done"))
    async with asyncio.timeout(5):
        await capture("c1", session="other", name="get_time")
        await capture("c2", session="work")
        await capture("c3", session="work", name="get_time")
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waiting.done()
        await client.post("/v1/calls/c3/result", json={"result": 1})
        answered = time.monotonic()
        assert await waiting == ["c3"]
        assert time.monotonic() - answered < 0.5


async def test_a_long_poll_ends_empty_when_its_time_is_out(client: httpx2.AsyncClient, capture: Any) -> None:
    await capture("c1")
    async with asyncio.timeout(5):
        assert await ids(client, wait=0.02, session="work") == []


async def test_a_long_poll_ends_when_the_server_stops(client: httpx2.AsyncClient, app: ControlApp) -> None:
    waiting = asyncio.ensure_future(ids(client, wait=60))
    async with asyncio.timeout(5):
        await asyncio.sleep(0)
        app.stop()
        assert await waiting == []


async def test_a_long_poll_ends_when_the_client_hangs_up(exchange: Callable[..., Any]) -> None:
    poll = exchange("/v1/calls", "wait=60")
    await asyncio.sleep(0)
    await poll.leave()
    assert poll.task.done()


@pytest.mark.parametrize("kind", ["result", "error"])
async def test_the_token_of_whoever_answers_is_not_stored(client: httpx2.AsyncClient, capture: Any, kind: str) -> None:
    await capture("c1")
    words = f"it was {TOKEN}, 1.0"
    body = {"error": words} if kind == "error" else {"result": {"a": [words, 1.0, None], TOKEN: 1}}
    for _ in range(2):
        answer = await client.post(f"{CALL}/result", json=body)
        assert answer.status_code == 200
        assert json.dumps(answer.json()[kind]) == json.dumps(body[kind]).replace(TOKEN, "***")
