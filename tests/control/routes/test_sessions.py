from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from addon.core.summaries import CallSummary, Summary
from store.base import Store
from store.models import Policy, Snapshot

DEFAULTS = {
    "client_tools": "strip",
    "delivery": "auto",
    "on_pending": "pass",
    "pending_timeout": 30.0,
    "max_rounds": 10,
    "parallel": 8,
    "tool_timeout": 30.0,
    "approval_timeout": 300.0,
    "answer_timeout": 300.0,
    "proof": "judged",
    "askers": "each",
    "always_approved": [],
}
PATH = "/v1/sessions/work"


def policy(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return {name: answer.json()[name] for name in DEFAULTS}


async def test_a_session_that_nothing_was_set_for_shows_what_holds(client: httpx2.AsyncClient, store: Store) -> None:
    answer = await client.get(PATH)
    assert policy(answer) == DEFAULTS
    assert answer.json() | DEFAULTS == DEFAULTS | {
        "name": "work",
        "overrides": [],
        "origins": dict.fromkeys(DEFAULTS.keys() - {"always_approved"}, "default"),
        "tools": None,
        "created_at": None,
        "updated_at": None,
    }
    assert await store.session("work") is None


async def test_a_change_leaves_the_other_fields_and_null_resets_one(client: httpx2.AsyncClient) -> None:
    first = await client.patch(PATH, json={"delivery": "loop", "pending_timeout": 2})
    assert policy(first) == DEFAULTS | {"delivery": "loop", "pending_timeout": 2.0}
    second = await client.patch(PATH, json={"on_pending": "wait"})
    assert second.json()["overrides"] == ["delivery", "on_pending", "pending_timeout"]
    third = await client.patch(PATH, json={"delivery": None})
    assert policy(third) == DEFAULTS | {"on_pending": "wait", "pending_timeout": 2.0}
    assert policy(await client.get(PATH)) == policy(third)


async def test_a_change_of_what_was_seen_is_refused_once_it_is_another(
    client: httpx2.AsyncClient, store: Store
) -> None:
    first = await client.patch(PATH, json={"delivery": "loop"})
    condition = {"If-Match": first.headers["etag"]}
    assert (await client.get(PATH)).headers["etag"] == first.headers["etag"]
    second = await client.patch(PATH, json={"parallel": 2}, headers=condition)
    assert second.status_code == 200
    assert second.headers["etag"] != first.headers["etag"]
    for method, path, body in (
        ("PATCH", PATH, {"parallel": 3}),
        ("DELETE", PATH, None),
        ("PUT", f"{PATH}/tools", {"tools": []}),
        ("DELETE", f"{PATH}/tools", None),
    ):
        refused = await client.request(method, path, json=body, headers=condition)
        assert (refused.status_code, refused.json()["field"]) == (412, "If-Match")
    assert (await client.get(PATH)).json() == second.json()
    assert (await client.delete(PATH, headers={"If-Match": second.headers["etag"]})).status_code == 204
    assert (await client.patch(PATH, json={}, headers={"If-Match": second.headers["etag"]})).status_code == 412
    changed = await client.patch(PATH, json={"delivery": "loop"})
    assert changed.headers["etag"] not in (first.headers["etag"], second.headers["etag"])


async def test_changes_at_the_same_time_lose_nothing_of_each_other(
    client: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the other one comes by another proxy, where no lock of this one's would help."""
    snapshot, others = store.snapshot, [Policy(delivery="loop"), Policy(delivery="loop", max_rounds=3)]

    async def overtaken(session: str) -> Snapshot:
        version = await snapshot(session)
        if others:
            await store.put_policy(session, others.pop(0))
        return version

    monkeypatch.setattr(store, "snapshot", overtaken)
    answer = await client.patch(PATH, json={"parallel": 2})
    assert answer.json()["overrides"] == ["delivery", "max_rounds", "parallel"]


async def test_a_loop_s_limits_are_a_session_s_own(client: httpx2.AsyncClient, store: Store) -> None:
    limits = {"max_rounds": 3, "parallel": 1, "tool_timeout": 0.5, "approval_timeout": 0}
    answer = await client.patch(PATH, json=limits)
    assert policy(answer) == DEFAULTS | limits
    session = await store.session("work")
    assert session is not None
    assert session.policy.model_dump(exclude_none=True) == limits


async def test_a_reset_is_one_also_where_the_same_value_was_never_set(client: httpx2.AsyncClient) -> None:
    assert policy(await client.patch(PATH, json={"delivery": None})) == DEFAULTS


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"delivery": "later"}, "delivery", ["'later'", "placeholder", "passthrough"]),
        ({"client_tools": 1}, "client_tools", ["1", "strip", "keep"]),
        ({"on_pending": "loop"}, "on_pending", ["'loop'", "block"]),
        ({"pending_timeout": -1}, "pending_timeout", ["-1", "0"]),
        ({"pending_timeout": 3601}, "pending_timeout", ["3601", "3600"]),
        ({"pending_timeout": "soon"}, "pending_timeout", ["'soon'"]),
        ({"max_rounds": 0}, "max_rounds", ["0", "1"]),
        ({"max_rounds": 101}, "max_rounds", ["101", "100"]),
        ({"max_rounds": 1.5}, "max_rounds", ["1.5"]),
        ({"parallel": 0}, "parallel", ["0", "1"]),
        ({"parallel": 65}, "parallel", ["65", "64"]),
        ({"tool_timeout": 0}, "tool_timeout", ["0"]),
        ({"tool_timeout": 3601}, "tool_timeout", ["3601", "3600"]),
        ({"approval_timeout": -1}, "approval_timeout", ["-1", "0"]),
        ({"approval_timeout": 86401}, "approval_timeout", ["86401", "86400"]),
        ({"answer_timeout": 86401}, "answer_timeout", ["86401", "86400"]),
        ({"max_round": 3}, "max_round", ["unknown", "client_tools", "delivery", "on_pending", "pending_timeout"]),
        ([], None, ["does not fit"]),
        ("loop", None, ["does not fit"]),
    ],
)
async def test_a_wrong_policy_is_refused_by_name_and_nothing_is_changed(
    client: httpx2.AsyncClient, store: Store, body: Any, field: str | None, words: list[str]
) -> None:
    await client.patch(PATH, json={"delivery": "loop"})
    before = await store.session("work"), await store.last_event_id()
    sent = {"on_pending": "wait", **body} if isinstance(body, dict) and "on_pending" not in body else body
    answer = await client.patch(PATH, json=sent)
    assert answer.status_code == 422
    assert answer.json().get("field") == field
    for word in words:
        assert word in answer.json()["detail"]
    assert (await store.session("work"), await store.last_event_id()) == before


@pytest.mark.parametrize(
    ("name", "method", "tail", "body"),
    [
        ("a b", "GET", "", None),
        ("x" * 65, "PATCH", "", {}),
        ("%C3%A9", "DELETE", "", None),
        ("a%0A", "GET", "/tools", None),
        ("a@b", "PUT", "/tools", {"tools": []}),
        ("....", "DELETE", "/tools", None),
    ],
)
async def test_a_session_name_that_does_not_fit_is_refused_with_what_fits(
    client: httpx2.AsyncClient, store: Store, name: str, method: str, tail: str, body: Any
) -> None:
    answer = await client.request(method, f"/v1/sessions/{name}{tail}", json=body)
    assert answer.status_code == 422
    assert answer.json()["field"] == "session"
    assert "[A-Za-z0-9_.-]{1,64}" in answer.json()["detail"]
    assert await store.events(after=None) == []


async def test_sessions_are_listed_by_name_page_by_page(client: httpx2.AsyncClient) -> None:
    for name in ("b", "a", "c"):
        await client.patch(f"/v1/sessions/{name}", json={"delivery": "loop"})
    first = (await client.get("/v1/sessions", params={"limit": 2})).json()
    assert [s["name"] for s in first["items"]] == ["a", "b"]
    assert first["items"][0]["delivery"] == "loop"
    rest = (await client.get("/v1/sessions", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [s["name"] for s in rest["items"]] == ["c"]
    assert rest["next_cursor"] is None


async def test_a_session_is_forgotten_and_forgetting_it_again_is_fine(client: httpx2.AsyncClient, store: Store) -> None:
    await client.patch(PATH, json={"delivery": "loop"})
    for _ in range(2):
        answer = await client.delete(PATH)
        assert (answer.status_code, answer.content) == (204, b"")
    assert policy(await client.get(PATH)) == DEFAULTS
    assert await store.session("work") is None


async def test_the_usage_of_a_session_is_shown(app: ControlApp, client: httpx2.AsyncClient) -> None:
    app.api.recent.end(Summary("work", status=200, prompt=10, output=3, calls=[CallSummary("f", {}, "done")]))
    usage = (await client.get("/v1/sessions/work/usage")).json()
    assert usage | {"since": 0, "last_used_at": 0} == {
        "session": "work",
        "since": 0,
        "requests": 1,
        "failed": 0,
        "prompt_tokens": 10,
        "output_tokens": 3,
        "calls": {"done": 1, "failed": 0, "waiting": 0, "running": 0, "client": 0},
        "last_used_at": 0,
    }
    unused = (await client.get("/v1/sessions/unused/usage")).json()
    assert (unused["requests"], unused["last_used_at"], unused["since"]) == (0, None, usage["since"])
    assert (await client.get("/v1/sessions/a%20b/usage")).status_code == 422
