"""The rights of a token, and its lines in the audit log."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.routing import Route

from addon.control.app import ControlApp, create_app
from addon.gateway.front_door import DoorRoute
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.web.own_token import token_at_start
from addon.web.tokens import Tokens
from store.base import Store
from store.models import Toolset
from tests.control.conftest import ADDRESS, TOKEN, Capture, Exchange
from tests.control.conftest import app as app
from tests.control.conftest import capture as capture
from tests.control.conftest import client as client
from tests.control.conftest import exchange as exchange
from tests.control.conftest import metrics as metrics
from tests.control.conftest import settings as settings
from tests.control.conftest import store as store
from tests.gateway.conftest import House
from tests.gateway.conftest import house as house
from tests.loop.conftest import says

Json = dict[str, Any]
Client = httpx2.AsyncClient

TOOLS = {"tools": [{"name": "get_weather", "description": "A tool.", "executor": {"type": "worker"}}]}
HTTP = {"tools": [{"name": "pay", "description": "A tool.", "executor": {"type": "http", "url": "https://a.example"}}]}
CLAIM = {"session": "mine", "names": ["get_weather"]}

OPERATIONS: list[tuple[str, str, Any, set[str]]] = [
    ("GET", "/metrics", None, {"read"}),
    ("GET", "/v1/sessions", None, {"read"}),
    ("GET", "/v1/sessions/mine", None, {"read"}),
    ("PATCH", "/v1/sessions/mine", {"delivery": "loop"}, set()),
    ("DELETE", "/v1/sessions/mine", None, set()),
    ("GET", "/v1/sessions/mine/usage", None, {"read"}),
    ("GET", "/v1/sessions/mine/tools", None, {"read", "worker"}),
    ("PUT", "/v1/sessions/mine/tools", TOOLS, {"worker"}),
    ("DELETE", "/v1/sessions/mine/tools", None, set()),
    ("POST", "/v1/sessions/mine/tools/check", TOOLS, {"worker"}),
    ("POST", "/v1/sessions/mine/tools/get_weather/try", {"args": {}}, {"worker"}),
    ("GET", "/v1/calls?session=mine", None, {"read", "approve"}),
    ("GET", "/v1/calls/call_1", None, {"read", "approve"}),
    ("POST", "/v1/calls/call_1/result", {"result": 1}, {"worker"}),
    ("POST", "/v1/calls/claim", CLAIM, {"worker"}),
    ("POST", "/v1/calls/call_1/renew", {"worker": "w"}, {"worker"}),
    ("POST", "/v1/calls/call_1/approve", None, {"approve"}),
    ("POST", "/v1/calls/call_1/deny", {}, {"approve"}),
    ("POST", "/v1/approvals/deny", {}, {"approve"}),
    ("DELETE", "/v1/sessions/mine/always_approved/get_weather", None, set()),
    ("GET", "/v1/turns?session=mine", None, {"read"}),
    ("GET", "/v1/turns/turn_call_1?session=mine", None, {"read"}),
    ("GET", "/v1/requests?session=mine", None, {"read"}),
    ("GET", "/v1/requests/req_1?session=mine", None, {"read"}),
    ("GET", "/v1/requests/req_1/body?session=mine", None, {"read"}),
    ("GET", "/v1/requests/req_1/curl?session=mine", None, {"read"}),
    ("GET", "/v1/requests/req_1/replay?session=mine", None, {"read"}),
    ("GET", "/v1/events?after=x", None, {"read"}),
    ("POST", "/v1/tokens", {"scopes": ["read"]}, set()),
    ("GET", "/v1/servers", None, {"read"}),
    ("POST", "/v1/servers/files/restart", None, set()),
    ("GET", "/v1/mcp/held", None, set()),
    ("GET", "/v1/config", None, set()),
    ("POST", "/v1/mcp/accept", {"server": "s", "tool": "t", "digest": "d"}, set()),
    ("GET", "/v1/tokens", None, set()),
    ("DELETE", "/v1/tokens/nobody", None, set()),
]
OF_NO_SESSION = ["/metrics", "/v1/sessions", "/v1/tokens", "/v1/tokens/nobody"]
OF_NO_SESSION += ["/v1/config", "/v1/mcp/held", "/v1/mcp/accept"]
OF_NO_SESSION += ["/v1/servers", "/v1/servers/files/restart"]
"""What a token for one session does not reach, whatever else it may do."""


async def make(client: Client, *scopes: str, session: str | None = None, name: str = "") -> Json:
    answer = await client.post("/v1/tokens", json={"scopes": scopes, "session": session, "name": name})
    assert answer.status_code == 200, answer.text
    made: Json = answer.json()
    return made


async def lasts(app: ControlApp, made: Json) -> None:
    """Returns once an answer to this token waits for something."""
    async with asyncio.timeout(5):
        while made["id"] not in app.api.tokens._ends:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)


def bearer(made: Json) -> dict[str, str]:
    return {"Authorization": f"Bearer {made['token']}"}


def audited(settings: Settings) -> list[Json]:
    lines = (settings.state / "audit.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in ("time", "id")} for line in lines]


def test_the_table_has_every_operation(app: ControlApp) -> None:
    def form(path: str) -> str:
        path = (
            path.partition("?")[0]
            .replace("turn_call_1", "{turn_id}")
            .replace("call_1", "{call_id}")
            .replace("/nobody", "/{token_id}")
            .replace("/files/", "/{server:path}/")
            .replace("/req_1", "/{request_id}")
        )
        return path.replace("/mine", "/{session}").replace("/get_weather", "/{name}")

    known = {(method, form(path)) for method, path, _, _ in OPERATIONS}
    guarded = [route for route in app.served.routes if isinstance(route, Route)]
    assert {(method, route.path) for route in guarded for method in route.methods or ()} == known


@pytest.mark.parametrize("session", [None, "mine"])
@pytest.mark.parametrize("right", ["ask", "read", "approve", "worker", "admin"])
async def test_a_token_does_what_its_scope_says_and_nothing_else(
    right: str, session: str | None, client: Client, store: Store, capture: Capture
) -> None:
    token = bearer(await make(client, right, session=session))
    for method, path, body, rights in OPERATIONS:
        await store.delete_session("mine")
        await capture("call_1", session="mine")
        await store.put_toolset("mine", Toolset())
        answer = await client.request(method, path, json=body, headers=token)
        may = right == "admin" or right in rights
        if session is not None and path in OF_NO_SESSION:
            may = False
        assert (answer.status_code == 403) is not may, (method, path, answer.text)
        assert answer.status_code < 500


async def test_a_body_is_read_only_for_those_who_may_send_it(client: Client) -> None:
    token = bearer(await make(client, "ask", session="mine"))
    for method, path, body, rights in OPERATIONS:
        if body is not None and "ask" not in rights:
            answer = await client.request(
                method, path, content="{", headers=token | {"Content-Type": "application/json"}
            )
            assert answer.status_code == 403, (method, path, answer.text)


async def test_who_may_approve_may_not_approve_for_good(client: Client, capture: Capture) -> None:
    await capture("call_1", session="mine", approval="waiting")
    token = bearer(await make(client, "approve", session="mine"))
    answer = await client.post("/v1/calls/call_1/approve", json={"always": True}, headers=token)
    assert answer.status_code == 403
    assert "admin" in answer.json()["detail"]
    assert (await client.get("/v1/calls/call_1")).json()["approval"] == "waiting"


async def test_each_operation_keeps_a_token_for_one_session_to_it(
    client: Client, store: Store, capture: Capture
) -> None:
    await capture("call_1", session="other")
    await store.put_toolset("other", Toolset(declarations=[{"name": "get_weather"}]))
    token = bearer(await make(client, "admin", session="mine"))
    before, last = await store.session("other"), await store.last_event_id()
    for method, path, body, _ in OPERATIONS:
        if path in OF_NO_SESSION:
            continue
        path = path.replace("mine", "other") + ("&session=other" if "?after" in path else "")
        if path in ("/v1/calls/claim", "/v1/approvals/deny"):
            body = {**body, "session": "other"}
        answer = await client.request(method, path, json=body, headers=token)
        names_session = path.partition("?")[0].startswith("/v1/sessions/") or "session" in (body or path)
        assert answer.status_code == (403 if names_session else 404), (method, path, answer.text)
        assert "get_weather" not in answer.text
        assert (await store.session("other"), await store.last_event_id()) == (before, last), "nothing was changed"


async def test_a_request_without_a_session_means_the_token_s(client: Client, capture: Capture) -> None:
    for session in ("mine", "other", "default"):
        await capture(f"call_{session}", session=session)
    token = bearer(await make(client, "read", session="mine"))
    for path, key in (("/v1/calls", "call_id"), ("/v1/turns", "turn_id")):
        found = (await client.get(path, headers=token)).json()["items"]
        assert [one[key].removeprefix("turn_") for one in found] == ["call_mine"]


async def test_a_revoked_token_is_nobody_s_from_the_next_request_on(client: Client, settings: Settings) -> None:
    made = await make(client, "read", name="ci")
    assert (await client.get("/v1/sessions", headers=bearer(made))).status_code == 200
    (listed,) = (await client.get("/v1/tokens")).json()["items"]
    assert listed == {name: value for name, value in made.items() if name != "token"}
    assert (await client.delete(f"/v1/tokens/{made['id']}")).status_code == 204
    assert (await client.delete(f"/v1/tokens/{made['id']}")).status_code == 404
    assert (await client.get("/v1/sessions", headers=bearer(made))).status_code == 401
    assert (await client.get("/v1/tokens")).json()["items"] == []


@pytest.mark.parametrize("path", ["/v1/events", "/v1/calls"])
async def test_requests_that_wait_with_a_revoked_token_end(
    path: str, app: ControlApp, client: Client, exchange: Callable[..., Exchange]
) -> None:
    made = await make(client, "read")
    query = "" if path == "/v1/events" else "wait=60"
    waiting = exchange(path, query, {"authorization": bearer(made)["Authorization"]})
    await lasts(app, made)
    assert (await client.delete(f"/v1/tokens/{made['id']}")).status_code == 204
    async with asyncio.timeout(5):
        await waiting.task


async def test_a_claim_of_a_token_that_is_revoked_gets_no_call(
    app: ControlApp, client: Client, exchange: Callable[..., Exchange], capture: Capture, store: Store
) -> None:
    made = await make(client, "worker")
    body = json.dumps(CLAIM | {"wait": 60}).encode()
    given = {"authorization": bearer(made)["Authorization"], "content-type": "application/json"}
    given["content-length"] = str(len(body))
    waiting = exchange("/v1/calls/claim", "", given, body)
    await lasts(app, made)
    await client.delete(f"/v1/tokens/{made['id']}")
    async with asyncio.timeout(5):
        await waiting.task
    await capture("call_1", session="mine")
    assert (await store.find_call("call_1")).status == "pending"


async def test_tokens_made_or_revoked_elsewhere_count_at_once(client: Client, store: Store, settings: Settings) -> None:
    other = create_app(store=store, settings=settings, token="other", metrics=Metrics(), version="1")
    transport = httpx2.ASGITransport(other)
    async with httpx2.AsyncClient(transport=transport, base_url=ADDRESS) as there:
        made = await make(client, "read")
        assert (await there.get("/v1/sessions", headers=bearer(made))).status_code == 200
        await client.delete(f"/v1/tokens/{made['id']}")
        assert (await there.get("/v1/sessions", headers=bearer(made))).status_code == 401


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: t + "x", lambda t: "tg_" + t, lambda t: t.upper()])
async def test_a_string_that_resembles_a_token_is_none(change: Any, client: Client) -> None:
    made = await make(client, "admin")
    answer = await client.get("/v1/sessions", headers={"Authorization": f"Bearer {change(made['token'])}"})
    assert answer.status_code == 401


async def test_tokens_are_kept_as_digests_for_their_owner_alone(client: Client, settings: Settings) -> None:
    made = await make(client, "read")
    for path in settings.state.iterdir():
        assert made["token"] not in path.read_text()
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tokens": [{"id": "a"}]}'])
async def test_tokens_that_cannot_be_read_let_nobody_in_but_the_owner(
    text: str, client: Client, settings: Settings
) -> None:
    made = await make(client, "read")
    (settings.state / "tokens.json").write_text(text)
    assert (await client.get("/v1/sessions", headers=bearer(made))).status_code == 503
    assert (await client.get("/v1/sessions")).status_code == 200


@pytest.mark.parametrize("given", ["option", "environment"])
def test_a_made_token_does_not_become_the_proxy_s_own(given: str, tmp_path: Path) -> None:
    _, made = Tokens(tmp_path).make(["ask"], None, "")
    settings = Settings(state=tmp_path, token=made if given == "option" else "")
    with pytest.raises(ValueError, match="cannot be the proxy's own") as refused:
        token_at_start(settings, {"TOOLGRAFT_TOKEN": made})
    assert made not in str(refused.value)


# --- workers --------------------------------------------------------------------------------------------------------


async def test_a_worker_s_token_sets_workers_tools_and_leaves_the_others_as_they_are(client: Client) -> None:
    token = bearer(await make(client, "worker", session="mine"))
    path = "/v1/sessions/mine/tools"
    both: Json = {"tools": [*HTTP["tools"], *TOOLS["tools"]]}

    async def put(document: Json, headers: dict[str, str] = token) -> int:
        return (await client.put(path, json=document, headers=headers)).status_code

    assert await put(HTTP) == 403
    assert await put(HTTP, {}) == 200
    assert await put(both) == 200
    assert await put(TOOLS) == 403  # one that is no worker's would be gone
    assert await put({"tools": [HTTP["tools"][0] | {"executor": {"type": "worker"}}]}) == 403
    assert await put({"tools": [*HTTP["tools"], TOOLS["tools"][0] | {"executor": {}}]}) in (403, 422)
    assert await put(both | {"tool_choice": "required"}) == 403
    assert await put(HTTP) == 200


async def test_a_worker_s_token_does_not_take_an_approval_away(client: Client) -> None:
    token = bearer(await make(client, "worker", session="mine"))
    path = "/v1/sessions/mine/tools"
    asks = {"tools": [TOOLS["tools"][0] | {"approval": True}]}
    await client.put(path, json=asks)
    without: list[Json] = [TOOLS, {"tools": []}]
    for document in without:
        assert (await client.put(path, json=document, headers=token)).status_code == 403
    assert (await client.put(path, json=asks, headers=token)).status_code == 200


async def test_a_worker_s_token_does_not_replace_the_proxy_s_own_tools(client: Client, app: ControlApp) -> None:
    token = bearer(await make(client, "worker", session="mine"))
    path = "/v1/sessions/mine/tools"
    name = TOOLS["tools"][0]["name"]
    app.api.shared = lambda: [{"name": name, "description": "the proxy's own"}]

    async def refused(document: Json) -> bool:
        answer = await client.put(path, json=document, headers=token)
        assert answer.status_code in (200, 403)
        return answer.status_code == 403 and answer.json()["tool"] == name

    other = {"tools": [TOOLS["tools"][0] | {"name": "another"}]}
    none: Json = {"tools": []}
    assert await refused(TOOLS)
    assert await refused(none), "an empty list would leave the session none of them"
    assert not await refused(other)
    assert await refused({"tools": [*other["tools"], *TOOLS["tools"]]})
    assert (await client.put(path, json=TOOLS)).status_code == 200, "whoever may do everything may do this"
    assert not await refused(TOOLS)
    assert (await client.put(path, json=none)).status_code == 200
    assert not await refused(none)


async def test_a_worker_s_token_does_not_answer_what_the_proxy_runs(client: Client, capture: Capture) -> None:
    token = bearer(await make(client, "worker"))
    await capture("call_1", owner="loop", released=False)
    answer = await client.post("/v1/calls/call_1/result", json={"result": 1}, headers=token)
    assert answer.status_code == 403
    assert (await client.post("/v1/calls/call_1/result", json={"result": 1})).status_code == 200


@pytest.mark.parametrize("owner", ["workers", "hand"])
@pytest.mark.parametrize("body", [{"result": 1}, {"error": "no"}], ids=["result", "error"])
@pytest.mark.parametrize("scopes", [("worker",), ("worker", "read"), ("worker", "approve"), ("admin",)])
async def test_a_call_that_waits_for_an_approval_is_answered_only_by_who_may_approve_it(
    client: Client, store: Store, capture: Capture, scopes: tuple[str, ...], body: Json, owner: str
) -> None:
    token, may = bearer(await make(client, *scopes)), {"approve", "admin"} & {*scopes}
    await capture("call_1", owner=owner, released=False, approval="waiting")
    claim = {"session": "default", "names": ["get_weather"]}
    assert (await client.post("/v1/calls/claim", json=claim, headers=token)).status_code == 204
    assert (await client.post("/v1/calls/call_1/renew", json={"worker": "w"}, headers=token)).status_code == 409
    if not may:
        answer = await client.post("/v1/calls/call_1/result", json=body, headers=token)
        assert (answer.status_code, "waits for an approval" in answer.text) == (409, True)
        call = await store.call("default", "call_1")
        assert (call.status, call.approval) == ("pending", "waiting")
        assert (await client.post("/v1/calls/call_1/approve")).status_code == 200
    assert (await client.post("/v1/calls/call_1/result", json=body, headers=token)).status_code == 200


# --- the front doors ------------------------------------------------------------------------------------------------


@pytest.fixture
async def door(house: House) -> AsyncIterator[Client]:
    """The control API of a proxy with its doors, and a token of its own."""
    app = create_app(
        store=house.store,
        settings=house.proxy.settings,
        token=TOKEN,
        metrics=Metrics(),
        version="1",
        extra_routes=house.app.extra_routes,
    )
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=ADDRESS, headers=headers) as client:
        yield client


DOORS = [
    ("POST", "/v1/responses", 400),
    ("POST", "/v1/gemini", 400),
    ("POST", "/v1/responses/compact", 400),
    ("POST", "/v1/responses/input_tokens", 400),
    ("POST", "/v1/responses/{response_id}/cancel", 404),
    ("POST", "/v1/chat/completions", 400),
    ("POST", "/v1/embeddings", 400),
    ("GET", "/v1/models", 502),
    ("GET", "/v1/models/{model:path}", 400),
    ("GET", "/v1/responses/{response_id}", 404),
    ("DELETE", "/v1/responses/{response_id}", 404),
    ("GET", "/v1/responses/{response_id}/input_items", 404),
    ("POST", "/v1/conversations", 400),
    ("GET", "/v1/conversations/{conversation_id}", 404),
    ("POST", "/v1/conversations/{conversation_id}", 400),
    ("DELETE", "/v1/conversations/{conversation_id}", 404),
    ("POST", "/v1/conversations/{conversation_id}/items", 400),
    ("GET", "/v1/conversations/{conversation_id}/items", 404),
    ("GET", "/v1/conversations/{conversation_id}/items/{item_id}", 404),
    ("DELETE", "/v1/conversations/{conversation_id}/items/{item_id}", 404),
]


def test_the_table_has_every_front_door(house: House) -> None:
    routes = [route for route in house.app.extra_routes.routes if isinstance(route, DoorRoute)]
    assert {(method, route.path) for route in routes for method in route.methods or ()} == {one[:2] for one in DOORS}


@pytest.mark.parametrize("right", ["ask", "read", "approve", "worker", "admin"])
async def test_only_a_token_that_may_ask_passes_a_front_door(right: str, door: Client) -> None:
    token = bearer(await make(door, right))
    for method, path, status in DOORS:
        body = {"nothing": 1} if method == "POST" else None
        answer = await door.request(method, path, json=body, headers=token)
        assert answer.status_code == (status if right in ("ask", "admin") else 403), (method, path, answer.text)
        if answer.status_code == 403:
            assert isinstance(answer.json()["error"], dict)  # in the door's own form


async def test_a_token_for_one_session_asks_in_that_one_alone(door: Client, house: House) -> None:
    await house.proxy.store.put_toolset("mine", Toolset(declarations=[{"name": "of_mine", "description": "A tool."}]))
    token = bearer(await make(door, "ask", session="mine"))
    asked = {"model": "gemini-3-flash", "input": "hello"}
    other = await door.post("/v1/responses", json=asked, headers=token | {"x-graft-session": "other"})
    assert other.status_code == 403
    both = [("x-graft-session", "other"), ("x-graft-session", "mine"), *token.items()]
    assert (await door.post("/v1/responses", json=asked, headers=both)).status_code == 403
    house.upstream(*[[says("hi", finish="STOP")]] * 2)
    assert (await door.post("/v1/responses", json=asked, headers=token)).status_code == 200
    named_chat = {**asked, "conversation": "theirs"}
    theirs = await door.post("/v1/responses", json=named_chat, headers={"x-graft-session": "other"})
    for method, path in [(method, path) for method, path, status in DOORS if status == 404]:
        where = path.format(response_id=theirs.json()["id"], conversation_id="theirs", item_id="msg_1")
        assert (await door.request(method, where, headers=token)).status_code == 404
        named = await door.request(method, where, headers=token | {"x-graft-session": "other"})
        assert named.status_code == 403
    reply = await door.get(f"/v1/responses/{theirs.json()['id']}", headers={"x-graft-session": "other"})
    assert reply.status_code == 200
    assert b"of_mine" in house.outside.requests[0].body


# --- the audit log --------------------------------------------------------------------------------------------------


async def test_the_audit_log_says_which_token_did_what(client: Client, capture: Capture, settings: Settings) -> None:
    made = await make(client, "admin", session="mine", name="ops\n\u202e")
    token = bearer(made)
    await client.put("/v1/sessions/mine/tools", json=TOOLS, headers=token)
    await client.get("/v1/sessions/mine/tools", headers=token)
    await client.patch("/v1/sessions/mine", json={"delivery": "loop"}, headers=token)
    for call_id in ("call_1", "call_2"):
        await capture(call_id, session="mine", approval="waiting", released=False)
    await client.post("/v1/calls/call_1/approve", headers=token)
    await client.post("/v1/calls/call_1/result", json={"result": "secret"}, headers=token)
    await client.post("/v1/calls/call_2/deny", json={}, headers=token)
    await client.delete("/v1/sessions/mine/tools", headers=token)
    await client.delete("/v1/sessions/mine", headers=token)
    await client.delete(f"/v1/tokens/{made['id']}")

    own, name = {"token": "own", "name": ""}, "ops\n\u202e"
    who, of = {"token": made["id"], "name": name}, {"session": "mine"}
    call = {"tool": "get_weather"} | of
    assert audited(settings) == [
        {"action": "token.make", "scopes": ["admin"], "for_name": name} | own | of,
        {"action": "tools.set", "tools": ["get_weather"]} | who | of,
        {"action": "tools.read"} | who | of,
        {"action": "session.change", "policy": ["delivery"]} | who | of,
        {"action": "call.approve", "call_id": "call_1"} | who | call,
        {"action": "call.answer", "call_id": "call_1"} | who | call,
        {"action": "call.deny", "call_id": "call_2"} | who | call,
        {"action": "tools.clear"} | who | of,
        {"action": "session.forget"} | who | of,
        {"action": "token.revoke", "revoked": made["id"]} | own,
    ]
    text = (settings.state / "audit.jsonl").read_text()
    assert text.isascii()
    assert made["token"] not in text
    assert "secret" not in text
    assert (settings.state / "audit.jsonl").stat().st_mode & 0o077 == 0


async def test_a_later_refusal_is_in_the_audit_log_too(client: Client, capture: Capture, settings: Settings) -> None:
    await capture("call_1")
    assert (await client.post("/v1/calls/call_1/approve")).status_code == 409
    begun, refused = (json.loads(line) for line in (settings.state / "audit.jsonl").read_text().splitlines())
    assert (begun["action"], refused["action"], refused["refused"]) == ("call.approve", "call.approve", "Decided")
    assert begun["id"] == refused["id"]


@pytest.mark.parametrize("kind", ["folder", "link"])
async def test_an_action_that_cannot_be_logged_is_not_done(
    kind: str, client: Client, capture: Capture, store: Store, settings: Settings
) -> None:
    await capture("call_1", approval="waiting", released=False)
    settings.state.mkdir(exist_ok=True)
    path = settings.state / "audit.jsonl"
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(settings.state / "elsewhere")
    for method, where, body in (
        ("POST", "/v1/calls/call_1/approve", None),
        ("POST", "/v1/calls/call_1/result", {"result": 1}),
        ("PUT", "/v1/sessions/mine/tools", TOOLS),
        ("POST", "/v1/tokens", {"scopes": ["admin"]}),
    ):
        answer = await client.request(method, where, json=body)
        assert answer.status_code == 503
        assert "audit log" in answer.json()["detail"]
    assert (await store.find_call("call_1")).approval == "waiting"
    assert (await client.get("/v1/tokens")).json()["items"] == []
