import json
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
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
    tools = (await client.get(PATH)).json()
    assert tools == answer.json()
    assert [d["name"] for d in tools["tools"][0]["functionDeclarations"]] == ["get_weather", "f"]
    assert tools["tools"][1] == {"googleSearch": {}}
    assert tools["tool_config"]["functionCallingConfig"]["mode"] == "ANY"
    assert (await client.put(PATH, json=tools)).json() == tools
    assert (await client.get("/v1/sessions/default")).json()["tools"] == 3


async def test_an_empty_list_is_a_toolset(client: httpx2.AsyncClient, store: Store) -> None:
    empty: dict[str, Any] = {"tools": [], "tool_config": None, "shared": [], "origins": {}}
    assert (await client.put(PATH, json={"tools": []})).json() == empty
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
    assert await store.events(after=None) == []


URL = "https://tools.example/run"


def http(url: str = URL, **headers: str) -> dict[str, Any]:
    return {"name": "f", "executor": {"type": "http", "url": url, "headers": headers}}


async def headers_kept(store: Store) -> dict[str, str]:
    session = await store.session("default")
    assert session is not None
    assert session.toolset is not None
    executor = session.toolset.rules["f"].executor
    assert executor is not None
    return executor.headers


async def test_how_tools_are_run_is_shown_in_their_declarations_and_kept_apart(
    client: httpx2.AsyncClient, store: Store
) -> None:
    rules = {
        "executor": {"type": "worker"},
        "approval": True,
        "after": ["g"],
        "idempotent": True,
        "redeliver": True,
        "cache_ttl": 0.0,
        "timeout": 2.5,
        "retries": 0,
        "behavior": "NON_BLOCKING",
        "scheduling": "SILENT",
    }
    answer = await client.put(PATH, json={"tools": [{"name": "f", **rules}, {"name": "g"}]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["tools"] == [{"functionDeclarations": [{"name": "f", **rules}, {"name": "g"}]}]
    assert (await client.put(PATH, json=answer.json())).json() == answer.json()
    session = await store.session("default")
    assert session is not None
    assert session.toolset is not None
    assert session.toolset.declarations == [{"name": "f"}, {"name": "g"}]
    assert session.toolset.rules.keys() == {"f"}
    assert session.toolset.rules["f"].model_dump() == rules | {
        "executor": {"type": "worker", "url": None, "headers": {}}
    }


async def test_values_of_headers_are_shown_nowhere_and_kept_where_their_mask_comes_back(
    client: httpx2.AsyncClient, store: Store, exchange: Any
) -> None:
    answers = [await client.put(PATH, json={"tools": [http(Authorization="Bearer s3cret", Other="s3cond")]})]
    answers.append(await client.get(PATH))
    tools = answers[-1].json()
    (declaration,) = tools["tools"][0]["functionDeclarations"]
    assert declaration == http(Authorization="***", Other="***")
    declaration["executor"] |= {"url": f"{URL}/2", "headers": {"Authorization": "***", "Other": "new s3cret"}}
    answers.append(await client.put(PATH, json=tools))
    answers.append(await client.patch("/v1/sessions/default", json={"parallel": 2}))
    answers.append(await client.get("/v1/sessions"))
    assert await headers_kept(store) == {"Authorization": "Bearer s3cret", "Other": "new s3cret"}
    events = exchange("/v1/events", "after=0")
    await events.start()
    await events.block()
    blocks = [await events.block() for _ in range(3)]
    assert not any(secret in text for text in (*blocks, *(a.text for a in answers)) for secret in ("s3cret", "s3cond"))


@pytest.mark.parametrize(
    ("before", "tool", "words"),
    [
        (None, http(Key="***"), "none is stored"),
        ({"name": "f"}, http(Key="***"), "none is stored"),
        ({"name": "f", "executor": {"type": "worker"}}, http(Key="***"), "none is stored"),
        (http(Other="s3cret"), http(Key="***"), "none is stored"),
        ({**http(Key="s3cret"), "name": "g"}, http(Key="***"), "none is stored"),
        (http(Key="s3cret"), http("https://elsewhere.example/run", Key="***"), "another host"),
        (http(Key="s3cret"), http("http://tools.example/run", Key="***"), "another host"),
        (http(Key="s3cret"), http("https://tools.example:444/run", Key="***"), "another host"),
    ],
)
async def test_a_mask_stands_for_what_was_given_for_that_tool_and_host_only(
    client: httpx2.AsyncClient, store: Store, before: Any, tool: Any, words: str
) -> None:
    if before:
        await client.put(PATH, json={"tools": [before]})
    kept = await store.session("default")
    answer = await client.put(PATH, json={"tools": [tool]})
    assert answer.status_code == 422
    assert (answer.json()["tool"], answer.json()["field"]) == ("f", "executor.headers.Key")
    assert words in answer.json()["detail"]
    assert await store.session("default") == kept


async def test_tools_are_replaced_only_where_they_are_those_that_were_seen(client: httpx2.AsyncClient) -> None:
    first = await client.put(PATH, json={"tools": [WEATHER]}, headers={"If-None-Match": "*"})
    assert first.status_code == 200
    tag = first.headers["etag"]
    assert (await client.get(PATH)).headers["etag"] == tag
    refused = await client.put(PATH, json={"tools": []}, headers={"If-None-Match": "*"})
    assert (refused.status_code, refused.json()["field"]) == (412, "If-None-Match")
    second = await client.put(PATH, json={"tools": [{"name": "f"}]}, headers={"If-Match": tag})
    assert second.status_code == 200
    assert second.headers["etag"] != tag
    for path in (PATH, "/v1/sessions/other/tools"):
        refused = await client.put(path, json={"tools": []}, headers={"If-Match": tag})
        assert (refused.status_code, refused.json()["field"]) == (412, "If-Match")
    assert (await client.get(PATH)).json() == second.json()


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN"])
async def test_a_number_that_json_cannot_hold_is_refused(client: httpx2.AsyncClient, store: Store, number: str) -> None:
    schema = {"type": "object", "properties": {"n": {"maximum": 4711}}}
    body = json.dumps({"tools": [{"name": "f", "parametersJsonSchema": schema}]}).replace("4711", number)
    answer = await client.put(PATH, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert await store.session("default") is None


async def test_tools_of_the_proxy_s_own_are_shown_with_source_and_rules_and_come_back_ignored(
    app: ControlApp, client: httpx2.AsyncClient
) -> None:
    origin = {"source": "MCP server 'clock'", "rules": {"timeout": 5.0, "after": ["f"]}}
    app.api.shared = lambda: [{"name": "get_time"}, {"name": "f"}, {"name": "gone"}]
    app.api.origin = {"get_time": origin, "f": {"source": "tools.py", "rules": {}}}.get
    await client.put(PATH, json={"tools": [{"name": "f"}]})
    stored = (await client.get(PATH)).json()
    assert [one["name"] for one in stored["shared"]] == ["get_time", "gone"]
    assert stored["origins"] == {"get_time": origin}, "the session's own f hides the proxy's"
    assert (await client.put(PATH, json=stored)).json() == stored
    assert (await client.post(f"{PATH}/check", json=stored)).json() == {"changes": []}
