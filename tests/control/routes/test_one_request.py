"""One request: its bodies, as curl, and rewritten again."""

import json
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from addon.core.summaries import Summary
from addon.graft.exchange import Forward
from addon.graft.grafter import Grafter
from addon.monitoring.metrics import Metrics
from addon.monitoring.recent_requests import Bodies
from addon.surfaces.incoming import Incoming
from addon.surfaces.registry import match_path
from store.base import Store
from store.models import Toolset

PATH = "/v1beta/models/gemini-3-flash-preview:generateContent"
URL = f"https://generativelanguage.googleapis.com{PATH}"
KEY = "AIza-a-client-s-key-0123456789"
FIELDS = ((b"host", b"x"), (b"x-goog-api-key", KEY.encode()), (b"content-type", b"application/json"))
TOOL = {"name": "get_weather", "description": "The weather."}
ASKED = {"contents": [{"role": "user", "parts": [{"text": f"Oslo? {KEY}"}]}]}


async def sent(app: ControlApp, store: Store, client: Any = ASKED, session: str = "default") -> str:
    """A request as the proxy rewrites and keeps it. Returns its id."""
    body = json.dumps(client).encode()
    grafter = Grafter(store, app.api.settings, Metrics())
    config = await grafter.session_config(session)
    target = match_path("POST", PATH)
    assert config is not None
    assert target is not None
    incoming = Incoming(target, session, body, url=URL, fields=FIELDS, asker=KEY)
    outcome = await grafter.request(incoming, config)
    assert isinstance(outcome, Forward)
    summary = Summary(session, model="gemini-3-flash-preview")
    app.api.recent.begin(summary, Bodies(incoming, outcome.body))
    summary.status = 200
    app.api.recent.end(summary)
    return str(app.api.recent.records()[0]["request_id"])


@pytest.fixture
async def request_id(app: ControlApp, store: Store) -> str:
    await store.put_toolset("default", Toolset(declarations=[TOOL]))
    return await sent(app, store)


async def test_both_bodies_without_secrets(client: httpx2.AsyncClient, request_id: str) -> None:
    one = (await client.get(f"/v1/requests/{request_id}")).json()
    assert (one["request_id"], one["has_bodies"], one["state"]) == (request_id, True, "done")
    path = f"/v1/requests/{request_id}/body"
    mine = (await client.get(path, params={"side": "client"})).json()
    assert mine["contents"][0]["parts"][0]["text"] == "Oslo? ***"
    sent_on = (await client.get(path)).json()
    assert sent_on["tools"][0]["functionDeclarations"][0]["name"] == "get_weather"
    wrong = await client.get(path, params={"side": "both"})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "side")


async def test_as_curl_to_the_model_and_through_the_proxy(
    app: ControlApp, client: httpx2.AsyncClient, request_id: str
) -> None:
    path = f"/v1/requests/{request_id}/curl"
    command = (await client.get(path)).json()["command"]
    assert command.startswith(f"curl -X POST {URL}")
    assert "-H 'x-goog-api-key: '\"$GEMINI_API_KEY\"" in command
    assert "functionDeclarations" in command
    assert KEY not in command
    app.api.settings.state.mkdir(parents=True, exist_ok=True)
    addresses = app.api.settings.state / "proxy.json"
    addresses.write_text(json.dumps({"reverse": ["http://127.0.0.1:8080"]}))
    command = (await client.get(path, params={"side": "client"})).json()["command"]
    assert f"http://127.0.0.1:8080/@default{PATH}" in command
    assert "functionDeclarations" not in command
    addresses.write_text(json.dumps({"regular": ["http://127.0.0.1:8081"], "ca": "/home/me/ca.pem"}))
    command = (await client.get(path, params={"side": "client"})).json()["command"]
    assert command.startswith(f"curl -X POST {URL} ")
    assert " --proxy http://127.0.0.1:8081 --cacert /home/me/ca.pem " in command.replace(" \\\n ", "")


async def test_a_replay_uses_what_holds_today_and_writes_nothing(
    client: httpx2.AsyncClient, store: Store, request_id: str
) -> None:
    path = f"/v1/requests/{request_id}/replay"
    same = (await client.get(path)).json()
    assert same == {"request_id": request_id, "changed": False, "note": "", "differences": []}
    await store.put_toolset("default", Toolset(declarations=[{"name": "lookup", "description": "Look up."}]))
    before = await store.last_event_id()
    changed = (await client.get(path)).json()
    assert changed["changed"]
    assert [line.strip(' +-",') for line in changed["differences"] if '"name"' in line] == [
        'name": "get_weather',
        'name": "lookup',
    ]
    assert await store.last_event_id() == before
    await store.put_toolset("default", None)
    assert "no toolset" in (await client.get(path)).json()["note"]


async def test_what_is_unknown_or_not_kept_is_a_404(
    app: ControlApp, client: httpx2.AsyncClient, request_id: str
) -> None:
    for part in ("", "/body", "/curl", "/replay"):
        answer = await client.get(f"/v1/requests/req_unknown{part}")
        assert (answer.status_code, "no such request" in answer.json()["detail"]) == (404, True)
    app.api.recent.end(Summary("default", status=200))
    bare = app.api.recent.records()[0]["request_id"]
    assert (await client.get(f"/v1/requests/{bare}")).json()["has_bodies"] is False
    for part in ("body", "curl", "replay"):
        answer = await client.get(f"/v1/requests/{bare}/{part}")
        assert (answer.status_code, "graft_keep_requests" in answer.json()["detail"]) == (404, True)


async def test_a_token_of_one_session_gets_only_its_own(
    app: ControlApp, client: httpx2.AsyncClient, store: Store, request_id: str
) -> None:
    await store.put_toolset("mine", Toolset(declarations=[TOOL]))
    mine = await sent(app, store, session="mine")
    client.headers["authorization"] = f"Bearer {app.api.tokens.make(('read',), 'mine', '')[1]}"
    for part in ("", "/body", "/curl", "/replay"):
        assert (await client.get(f"/v1/requests/{mine}{part}")).status_code == 200
        assert (await client.get(f"/v1/requests/{request_id}{part}")).status_code == 404
        assert (await client.get(f"/v1/requests/{request_id}{part}?session=default")).status_code == 403
