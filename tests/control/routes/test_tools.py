import json
from typing import Any

import httpx2
import pytest

from store.base import Store

PATH = "/v1/sessions/default/tools"
WEATHER = {"name": "get_weather", "description": "Weather.", "parameters": {"type": "OBJECT", "properties": {}}}


async def test_tools_come_back_in_geminis_form_and_can_be_put_again(client: httpx2.AsyncClient) -> None:
    document = {
        "tools": [{"googleSearch": {}}, WEATHER, {"type": "function", "function": {"name": "f"}}],
        "tool_choice": "required",
    }
    answer = await client.put(PATH, json=document)
    assert answer.status_code == 200, answer.text
    shown = (await client.get(PATH)).json()
    assert shown == answer.json()
    assert [d["name"] for d in shown["tools"][0]["functionDeclarations"]] == ["get_weather", "f"]
    assert shown["tools"][1] == {"googleSearch": {}}
    assert shown["tool_config"]["functionCallingConfig"]["mode"] == "ANY"
    assert (await client.put(PATH, json=shown)).json() == shown
    assert (await client.get("/v1/sessions/default")).json()["tools"] == 3


async def test_an_empty_list_is_a_toolset(client: httpx2.AsyncClient, store: Store) -> None:
    assert (await client.put(PATH, json={"tools": []})).json() == {"tools": [], "tool_config": None}
    assert (await client.get(PATH)).status_code == 200
    session = await store.session("default")
    assert session is not None
    assert session.toolset is not None


@pytest.mark.parametrize(
    ("document", "tool", "field"),
    [
        ({"tools": [WEATHER, {"name": "bad name"}]}, None, "tools[1]"),
        ({"tools": [{"name": "f", "parameters": 3}]}, "f", "parameters"),
        ({"tools": [WEATHER, WEATHER]}, "get_weather", "name"),
        ({"tool": []}, None, "tool"),
        ({}, None, "tools"),
        ([], None, None),
        (3, None, None),
    ],
)
async def test_a_bad_tool_is_refused_by_name_and_nothing_is_changed(
    client: httpx2.AsyncClient, store: Store, document: Any, tool: str | None, field: str | None
) -> None:
    await client.put(PATH, json={"tools": [WEATHER]})
    before = await store.session("default"), await store.last_event_id()
    answer = await client.put(PATH, json=document)
    problem = answer.json()
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert field is None or field in problem["field"]
    assert tool is None or problem["tool"] == tool
    assert problem["detail"]
    assert (await store.session("default"), await store.last_event_id()) == before


async def test_without_a_toolset_there_is_nothing_to_show(client: httpx2.AsyncClient) -> None:
    await client.patch("/v1/sessions/default", json={"delivery": "loop"})
    for path in (PATH, "/v1/sessions/other/tools"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()["status"]) == (404, 404)


async def test_clearing_leaves_the_session_untouched_and_its_policy_alone(
    client: httpx2.AsyncClient, store: Store
) -> None:
    await client.patch("/v1/sessions/default", json={"delivery": "loop"})
    await client.put(PATH, json={"tools": [WEATHER]})
    for _ in range(2):
        assert (await client.delete(PATH)).status_code == 204
    assert (await client.get(PATH)).status_code == 404
    session = await store.session("default")
    assert session is not None
    assert session.toolset is None
    assert session.policy.delivery == "loop"


async def test_clearing_what_was_never_set_writes_nothing(client: httpx2.AsyncClient, store: Store) -> None:
    assert (await client.delete("/v1/sessions/other/tools")).status_code == 204
    assert await store.session("other") is None
    assert await store.last_event_id() == 0


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN"])
async def test_a_number_that_json_cannot_hold_is_refused(client: httpx2.AsyncClient, store: Store, number: str) -> None:
    schema = {"type": "object", "properties": {"n": {"maximum": 4711}}}
    body = json.dumps({"tools": [{"name": "f", "parametersJsonSchema": schema}]}).replace("4711", number)
    answer = await client.put(PATH, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert await store.session("default") is None
