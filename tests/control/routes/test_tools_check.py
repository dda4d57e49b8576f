"""What a new toolset would change, with the refusals of setting it."""

from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from store.base import Store
from tests.control.routes.test_tools import PATH, WEATHER, http


async def test_a_check_says_what_changes_and_changes_nothing(client: httpx2.AsyncClient, store: Store) -> None:
    etag = (await client.put(PATH, json={"tools": [WEATHER]})).headers["etag"]
    before = await store.session("default"), await store.last_event_id()
    answer = await client.post(f"{PATH}/check", json={"tools": [WEATHER | {"description": "Now."}, {"name": "f"}]})
    assert (answer.status_code, answer.headers["etag"]) == (200, etag)
    changed, added = answer.json()["changes"]
    assert (changed["name"], changed["change"]) == ("get_weather", "changed")
    assert '-  "description": "Weather."' in changed["diff"]
    assert '+  "description": "Now."' in changed["diff"]
    assert (added["name"], added["change"]) == ("f", "added")
    same = await client.post(f"{PATH}/check", json=(await client.get(PATH)).json())
    assert same.json() == {"changes": []}
    assert (await store.session("default"), await store.last_event_id()) == before


@pytest.mark.parametrize(
    "document",
    [
        {"tools": [WEATHER, {"name": "bad name"}]},
        {"tools": [{"name": "f", "parameters": 3}]},
        {"tools": [WEATHER, WEATHER]},
        {"tools": [http(Key="***")]},
        {"tools": [{"name": "f", "executor": {"type": "http"}}]},
        {"tools": [{"name": "f", "timeout": -1}]},
        {},
        [],
        3,
    ],
)
async def test_a_check_refuses_what_setting_refuses(client: httpx2.AsyncClient, document: Any) -> None:
    await client.put(PATH, json={"tools": [{"name": "other"}]})
    refused = await client.put(PATH, json=document)
    assert refused.status_code == 422
    answer = await client.post(f"{PATH}/check", json=document)
    assert (answer.status_code, answer.json()) == (refused.status_code, refused.json())


async def test_a_worker_s_check_refuses_what_it_may_not_set(app: ControlApp, client: httpx2.AsyncClient) -> None:
    _, token = app.api.tokens.make(["worker"], None, "")
    headers = {"Authorization": f"Bearer {token}"}
    for document, status in (
        ({"tools": [WEATHER]}, 403),
        ({"tools": [WEATHER | {"executor": {"type": "worker"}}]}, 200),
    ):
        for method, path in (("POST", f"{PATH}/check"), ("PUT", PATH)):
            answer = await client.request(method, path, json=document, headers=headers)
            assert answer.status_code == status, (path, answer.text)


async def test_a_header_that_is_not_given_stays_as_it_is_stored(client: httpx2.AsyncClient) -> None:
    await client.put(PATH, json={"tools": [http(Key="s3cret")]})
    stored = (await client.get(PATH)).json()
    assert (await client.post(f"{PATH}/check", json=stored)).json() == {"changes": []}
    answer = await client.post(f"{PATH}/check", json={"tools": [http(Key="an0ther")]})
    (change,) = answer.json()["changes"]
    assert (change["change"], change["diff"]) == ("changed", "")
    assert "an0ther" not in answer.text
