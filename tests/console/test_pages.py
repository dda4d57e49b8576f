"""What the pages show, to whom, and how they show text of others."""

import json
import re
from html import unescape
from typing import Any
from urllib.parse import parse_qsl

import httpx2
import pytest

from addon.console.pages import PAGES
from addon.core.summaries import CallSummary, Summary
from addon.settings import Settings
from store.base import Store
from store.models import Policy, Slot, Step, Toolset, Turn
from tests.console.conftest import SignIn
from tests.control.conftest import TOKEN, Capture

PARTS = [*PAGES, "waiting"]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x1b[31m\"'&{{7*7}}"


async def part(page: httpx2.AsyncClient, path: str, /, **query: Any) -> str:
    answer = await page.get(f"/console/parts/{path}", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return str(answer.text)


async def test_frames_are_open_and_hold_no_data(visitor: httpx2.AsyncClient, capture: Capture) -> None:
    await capture("call_1", session="private")
    for path in ("/console", *(f"/console/{name}" for name in PAGES), "/console/call?call_id=call_1"):
        answer = await visitor.get(path)
        assert answer.status_code == 200
        assert "private" not in answer.text
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"


async def test_a_frame_passes_its_query_on_escaped(visitor: httpx2.AsyncClient) -> None:
    answer = await visitor.get("/console/calls", params={"name": '"><script>x</script>'})
    assert "<script>x" not in answer.text
    assert 'hx-get="/console/parts/calls?name=%22%3E%3Cscript' in answer.text


@pytest.mark.parametrize("name", PARTS)
async def test_a_part_needs_cookie_and_page_key(name: str, page: httpx2.AsyncClient, app: Any) -> None:
    path = f"/console/parts/{name}"
    assert (await page.get(path)).status_code == 200
    key = page.headers.pop("x-graft-page")
    assert (await page.get(path)).status_code == 401
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=page.base_url) as other:
        assert (await other.get(path, headers={"x-graft-page": key})).status_code == 401


async def test_a_page_uses_the_control_api_with_its_session(page: httpx2.AsyncClient, capture: Capture) -> None:
    await capture("call_1", owner="hand")
    answer = await page.post("/v1/calls/call_1/result", json={"result": 1})
    assert (answer.status_code, answer.json()["status"]) == (200, "done")
    del page.headers["x-graft-page"]
    assert (await page.post("/v1/calls/call_1/result", json={"result": 1})).status_code == 401


async def test_the_cookie_is_for_http_and_this_site_alone(visitor: httpx2.AsyncClient) -> None:
    answer = await visitor.post("/console/session", headers={"authorization": f"Bearer {TOKEN}"})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("toolgraft-8741=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))


async def test_a_link_signs_in_once(page: httpx2.AsyncClient, visitor: httpx2.AsyncClient) -> None:
    path = (await page.post("/console/links", json={})).json()["path"]
    code = path.removeprefix("/console#")
    first = await visitor.post("/console/session/link", json={"code": code})
    assert first.status_code == 200
    visitor.headers["x-graft-page"] = first.json()["page_key"]
    assert (await visitor.get("/console/parts/calls")).status_code == 200
    second = await visitor.post("/console/session/link", json={"code": code})
    assert (second.status_code, second.json()["detail"]) == (
        401,
        "this link was used, or is too old. `toolgraft console` prints another",
    )


async def test_only_the_owner_makes_links(sign_in: SignIn) -> None:
    reader = await sign_in("read", "approve", "worker")
    assert (await reader.post("/console/links", json={})).status_code == 403


async def test_signing_out_ends_the_session(page: httpx2.AsyncClient) -> None:
    cookie = dict(page.cookies)
    assert (await page.delete("/console/session")).status_code == 204
    assert not page.cookies
    page.cookies.update(cookie)
    assert (await page.get("/console/parts/calls")).status_code == 401


async def test_a_token_that_may_ask_alone_cannot_sign_in(app: Any, visitor: httpx2.AsyncClient) -> None:
    _, token = app.api.tokens.make(["ask"], None, "")
    answer = await visitor.post("/console/session", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_approvals_are_listed_oldest_first_with_their_arguments(
    page: httpx2.AsyncClient, capture: Capture
) -> None:
    assert "No call waits for an approval." in await part(page, "approvals")
    assert "number" not in await part(page, "waiting")
    await capture("call_b", approval="waiting", name="delete_it")
    await capture("call_a", approval="waiting")
    await capture("call_c")
    html = await part(page, "approvals")
    assert html.index("call_b") < html.index("call_a")
    assert "call_c" not in html
    assert "&#34;city&#34;: &#34;Oslo&#34;" in html
    assert 'data-to="/v1/calls/call_b/approve"' in html
    assert re.sub("<.*?>", "", await part(page, "waiting")).split() == ["2", "waiting"]


async def test_nobody_approves_arguments_that_the_page_has_cut(page: httpx2.AsyncClient, capture: Capture) -> None:
    """The end of them is what a hostile model would hide."""
    await capture("call_1", approval="waiting", args={"text": "x" * 5000, "z": "rm -rf"})
    html = await part(page, "approvals")
    assert "/v1/calls/call_1/approve" not in html
    assert "Only the first 4000 characters are shown" in html
    html = await part(page, "call", call_id="call_1")
    assert html.count("rm -rf") == 2
    assert html.count('data-to="/v1/calls/call_1/approve"') == 3, "approve, always approve, with other arguments"
    assert "Only the first" not in html
    await capture("call_2", approval="waiting", args={"text": "x" * 50_000, "z": "rm -rf"})
    html = await part(page, "call", call_id="call_2")
    assert "Only the first 20000 characters are shown" in html
    assert "<textarea" not in html
    assert html.count('data-to="/v1/calls/call_2/approve"') == 1


async def test_a_long_list_of_approvals_is_cut_and_says_so(page: httpx2.AsyncClient, capture: Capture) -> None:
    for number in range(60):
        await capture(f"call_{number:02}", approval="waiting", args={"text": "<b> é " * 3000})
    html = await part(page, "approvals")
    assert sorted(set(re.findall(r"call_id=(call_\d+)", html))) == [f"call_{number:02}" for number in range(50)]
    assert "60 calls wait; the oldest 50 are shown." in html
    assert len(html) < 1_000_000
    assert re.sub("<.*?>", "", await part(page, "waiting")).split() == ["60", "waiting"]


async def test_many_calls_that_wait_for_a_result_hide_no_approval(page: httpx2.AsyncClient, capture: Capture) -> None:
    for number in range(1200):
        await capture(f"call_{number}", owner="hand")
    await capture("call_last", approval="waiting")
    assert "/v1/calls/call_last/approve" in await part(page, "approvals")
    assert re.sub("<.*?>", "", await part(page, "waiting")).split() == ["1", "waiting"]


async def test_who_may_not_decide_gets_no_buttons(sign_in: SignIn, capture: Capture) -> None:
    await capture("call_1", approval="waiting", owner="hand", released=False)
    for rights, may_decide in ((["read"], False), (["approve"], True)):
        page = await sign_in(*rights)
        for html in (await part(page, "approvals"), await part(page, "call", call_id="call_1")):
            assert ("/v1/calls/call_1/approve" in html) is may_decide
            assert "/v1/calls/call_1/result" not in html


async def test_calls_are_found_by_session_tool_and_state(page: httpx2.AsyncClient, capture: Capture) -> None:
    await capture("call_1", session="one", name="alpha")
    await capture("call_2", session="two", name="beta")
    for query, found in (
        ({}, {"call_1", "call_2"}),
        ({"session": "one"}, {"call_1"}),
        ({"name": "beta", "session": ""}, {"call_2"}),
        ({"status": "done"}, set()),
    ):
        assert set(re.findall(r"call_id=(call_\d)", await part(page, "calls", **query))) == found


async def test_a_long_list_has_pages(page: httpx2.AsyncClient, capture: Capture) -> None:
    for number in range(51):
        await capture(f"call_{number:02}", session="one")
    first = await part(page, "calls", session="one")
    assert len(set(re.findall(r"call_id=(call_\d+)", first))) == 50
    (rest,) = re.findall(r'href="/console/calls\?([^"]*cursor[^"]*)"', first)
    query = dict(pair.split("=") for pair in rest.replace("&amp;", "&").split("&"))
    assert re.findall(r"call_id=(call_\d+)", await part(page, "calls", **query)) == ["call_00"]


async def test_calls_are_searched_by_text_and_time(
    page: httpx2.AsyncClient, capture: Capture, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        await capture(f"call_{number}", args={"city": f"Oslo {number} {HOSTILE}"}, created_at=1_800_000_000.0 + number)

    async def found(**query: str) -> list[str]:
        return re.findall(r"call_id=(call_\d+)", await part(page, "calls", **query))

    assert await found(text="oslo 3") == ["call_3"]
    assert await found(text=HOSTILE, order="oldest") == [f"call_{number}" for number in range(6)]
    html = await part(page, "calls", since="2027-01-15T08:00:02Z", until="1800000004", text=HOSTILE)
    assert re.findall(r"call_id=(call_\d+)", html) == ["call_3", "call_2"]
    assert 'data-moment="2027-01-15T08:00:02Z"' in html
    assert "<script>" not in html
    assert await found(since="", until="", text="") == [f"call_{number}" for number in range(6)][::-1]
    assert (await page.get("/console/parts/calls?since=yesterday")).json()["field"] == "since"
    monkeypatch.setattr("addon.control.call_search.MOST_LOOKED_AT", 3)
    monkeypatch.setattr("addon.control.call_search._PORTION", 3)
    html = await part(page, "calls", text="Oslo 1 ")
    assert "None among the" in html
    assert "Search further" in html


@pytest.mark.parametrize("limit", [0, -1, 1001])
@pytest.mark.parametrize("name", ["calls", "live"])
async def test_a_limit_out_of_range_is_refused(name: str, limit: int, page: httpx2.AsyncClient) -> None:
    answer = await page.get(f"/console/parts/{name}", params={"limit": limit})
    assert (answer.status_code, answer.json()["field"]) == (422, "limit")


async def test_a_page_of_large_items_ends_early_and_goes_on(
    page: httpx2.AsyncClient, store: Store, capture: Capture
) -> None:
    text = "x" * 1_000_000
    for number in range(8):
        await capture(f"call_{number}", session="one", args={"text": text})
        step = Step(content={"parts": [{"text": text}]}, slots=[Slot(name="get_weather", call_id="call_gone")])
        turn = Turn(turn_id=f"turn_{number}", session="two", visible=[], steps=[step], created_at=store.clock())
        await store.save_turn(turn)
    for name, session, item in (("calls", "one", r"call_id=(call_\d)"), ("turns", "two", r"<code>(turn_\d)<")):
        query, found, pages = {"session": session}, list[str](), 0
        while query:
            html = await part(page, name, **query)
            assert len(html) < 100_000
            pages += 1
            found += re.findall(item, html)
            after = re.findall(rf'href="/console/{name}\?([^"]*cursor[^"]*)"', html)
            query = dict(pair.split("=") for pair in after[0].replace("&amp;", "&").split("&")) if after else {}
        assert pages > 1
        newest_last = [f"{name[:-1]}_{number}" for number in range(8)]
        assert found == (newest_last[::-1] if name == "calls" else newest_last)


async def test_a_large_value_is_not_indented(page: httpx2.AsyncClient, capture: Capture) -> None:
    """Indentation of a large value would freeze the proxy."""
    await capture("call_1", status="done", result={"rows": ["row"] * 100_000})
    await capture("call_2", status="done", result={"rows": ["row"]})
    assert "{&#34;rows&#34;:[&#34;row&#34;,&#34;row&#34;" in await part(page, "call", call_id="call_1")
    assert "{\n  &#34;rows&#34;: [\n" in await part(page, "call", call_id="call_2")


async def test_a_token_for_one_session_learns_of_no_other(
    app: Any, visitor: httpx2.AsyncClient, store: Store, capture: Capture
) -> None:
    for session in ("mine", "theirs"):
        await store.put_policy(session, Policy(delivery="placeholder"))
        await capture(f"call_{session}", session=session, approval="waiting", args={"text": f"of {session}"})
    _, token = app.api.tokens.make(["read", "approve"], "mine", "")
    visitor.headers["authorization"] = f"Bearer {token}"
    for name in PARTS:
        answer = await visitor.get(f"/console/parts/{name}")
        assert answer.status_code == (403 if name == "sessions" else 200), name
        assert "theirs" not in answer.text, name
    for query in ("session=theirs", "cursor=x&session=theirs"):
        for name in PARTS:
            assert (await visitor.get(f"/console/parts/{name}?{query}")).status_code in {403, 422}, name
    assert (await visitor.get("/console/parts/call?call_id=call_theirs")).status_code == 403
    theirs = Summary("theirs", status=200)
    theirs.note_client("curl/8")
    app.api.recent.end(theirs)
    arrival = await visitor.get("/console/parts/arrival?session=mine&client=curl&since=0")
    assert (arrival.status_code, "theirs" in arrival.text) == (200, False)


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"status": "done", "result": {"celsius": 3}}, ["Result", "&#34;celsius&#34;: 3"]),
        (
            {"status": "done", "result": 1, "media": [{"mime_type": "image/<p>", "size": 4, "digest": "0"}]},
            ["Part 1: image/&lt;p&gt;, 4 bytes"],
        ),
        ({"status": "failed", "error": "no such city"}, ["Error", "no such city"]),
        ({"owner": "hand", "released": False}, ["Answer by hand"]),
        ({"status": "running", "worker": "w<1>"}, ["workers (w&lt;1&gt;)"]),
    ],
)
async def test_a_call_shows_what_became_of_it(
    fields: dict[str, Any], texts: list[str], page: httpx2.AsyncClient, capture: Capture
) -> None:
    await capture("call_1", **fields)
    html = await part(page, "call", call_id="call_1")
    for text in texts:
        assert text in html


async def test_an_unknown_call_is_a_problem(page: httpx2.AsyncClient) -> None:
    answer = await page.get("/console/parts/call", params={"call_id": "call_x"})
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


async def test_text_of_others_is_text(page: httpx2.AsyncClient, store: Store, capture: Capture) -> None:
    declaration = {"name": "get_weather", "description": HOSTILE, "parameters": {"type": "OBJECT"}}
    await store.put_toolset("default", Toolset(declarations=[declaration]))
    fields: dict[str, Any] = {"name": HOSTILE, "args": {HOSTILE: HOSTILE}, "model": HOSTILE, "worker": HOSTILE}
    await capture("call_1", approval="waiting", **fields)
    await capture("call_2", status="failed", error=HOSTILE, **fields)
    await capture("call_3", status="done", result=[HOSTILE], **fields)
    pages = [await part(page, name) for name in PARTS]
    pages += [await part(page, "call", call_id=f"call_{number}") for number in (1, 2, 3)]
    assert sum("alert(1)" in html for html in pages) == 7
    for html in pages:
        assert "<script" not in html
        assert "<img" not in html
        assert "\u202e" not in html
        assert "\x1b" not in html


async def test_long_and_deep_values_are_cut(page: httpx2.AsyncClient, capture: Capture) -> None:
    await capture("call_1", status="done", result="x" * 1_000_000)
    deep: Any = 0
    for _ in range(150):
        deep = [deep]
    await capture("call_2", status="done", result=deep)
    for call_id in ("call_1", "call_2"):
        assert len(await part(page, "call", call_id=call_id)) < 100_000
    assert "…" in await part(page, "call", call_id="call_1")


async def test_turns_show_both_sides_and_what_became_of_each_call(
    page: httpx2.AsyncClient, capture: Capture, store: Store
) -> None:
    assert "has no turns with calls" in await part(page, "turns")
    await capture("call_1", status="done", result={"celsius": -3})
    await capture("call_2", status="failed", error="no such city")
    await capture("call_3", session="other")
    html = await part(page, "turns", session="default")
    for text in ("Tool call completed [turn_call_1]", "functionCall", "&#34;celsius&#34;:-3", "no such city"):
        assert text in html
    assert "call_3" not in html
    assert 'href="/console/call?call_id=call_1"' in html


async def test_a_turn_outlives_its_calls(page: httpx2.AsyncClient, store: Store) -> None:
    slots = [Slot(name="get_weather", call_id="call_gone"), Slot(name="read_file")]
    step = Step(content={"role": "model", "parts": []}, slots=slots)
    now = store.clock()
    turn = Turn(turn_id="turn_1", session="default", visible=[{"inlineData": {}}], steps=[step], created_at=now)
    await store.save_turn(turn)
    html = re.sub(r"\s+", " ", re.sub("<.*?>", " ", await part(page, "turns")))
    assert "get_weather expired" in html
    assert "read_file of the client" in html
    assert "inlineData" in html


async def test_tools_are_shown_and_can_be_saved_as_they_are_shown(page: httpx2.AsyncClient, store: Store) -> None:
    declaration = {"name": "get_weather", "description": "now", "parameters": {"type": "OBJECT"}}
    await store.put_toolset("one", Toolset(declarations=[declaration]))
    html = await part(page, "tools", session="one")
    assert "get_weather" in html
    assert "of this session" in html
    (etag,) = re.findall(r'data-if-match="&#34;([^&]+)&#34;"', html)
    version = (await page.get("/v1/sessions/one/tools")).headers["etag"]
    assert version == f'"{etag}"'
    assert "has no toolset" in await part(page, "tools", session="two")


async def test_connect_has_lines_for_each_kind_of_client(page: httpx2.AsyncClient, settings: Settings) -> None:
    html = await part(page, "connect")
    assert "OPENAI_BASE_URL=http://127.0.0.1:8741/v1" in html
    assert "google-genai" not in html
    ports = {"reverse": ["http://127.0.0.1:1"], "regular": ["http://127.0.0.1:2"], "ca": "/conf/ca.pem"}
    settings.state.mkdir(exist_ok=True)
    (settings.state / "proxy.json").write_text(json.dumps(ports))
    html = await part(page, "connect")
    assert "GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:1 " in html
    assert "toolgraft env --proxy)" in html
    html = await part(page, "connect", session="one")
    assert "http://127.0.0.1:1/@one" in html
    assert "toolgraft env --proxy --session one)" in html
    assert "toolgraft run --session one -- agy" in html


async def test_sessions_show_where_each_setting_comes_from(page: httpx2.AsyncClient, app: Any, store: Store) -> None:
    await store.put_policy("one", Policy(delivery="placeholder"))
    html = re.sub(r"\s+", " ", re.sub("<.*?>", " ", await part(page, "sessions")))
    assert "default" in html
    assert "delivery placeholder (set for this session)" in html
    assert "max_rounds 10 (the default)" in html
    app.api.setting_rows = lambda: [{"name": "graft_max_rounds", "value": "10", "source": "command line"}]
    html = re.sub(r"\s+", " ", re.sub("<.*?>", " ", await part(page, "sessions")))
    assert "max_rounds 10 (the proxy&#39;s option)" in html


async def test_sessions_show_what_they_have_used(page: httpx2.AsyncClient, app: Any, store: Store) -> None:
    await store.put_policy("unused", Policy())
    for status in (200, 500):
        calls = [CallSummary("f", {}, state) for state in ("done", "waiting")]
        app.api.recent.end(Summary("work", status=status, prompt=100, output=20, calls=calls))
    await store.put_policy("work", Policy())
    text = " ".join(re.sub("<[^>]*>", "", await part(page, "sessions")).split())
    assert text.count("from memory: no request has ended") == 2
    assert "2 requests, 1 of them failed · 200 → 40 tokens · calls: 2 done, 2 left waiting · last used" in text


async def test_only_an_admin_may_forget_a_session(page: httpx2.AsyncClient, sign_in: SignIn, store: Store) -> None:
    await store.put_policy("one", Policy(delivery="placeholder"))
    assert 'data-send="DELETE" data-to="/v1/sessions/one"' in await part(page, "sessions")
    reader = await sign_in("read")
    assert "DELETE" not in await part(reader, "sessions")
    assert (await page.request("DELETE", "/v1/sessions/one", json={})).status_code == 204
    assert "one" not in [session.name for session in (await store.sessions()).items]


async def test_what_is_fetched_later_is_what_was_asked_for(page: httpx2.AsyncClient, store: Store) -> None:
    """A page of one session's approvals that became one of all would deny all."""
    for number in range(60):
        await store.put_policy(f"s{number:02}", Policy(delivery="placeholder"))
        turn = Turn(turn_id=f"turn_{number:02}", session="s00", visible=[], steps=[], created_at=store.clock())
        await store.save_turn(turn)
    cursors = {name: found for name in ("sessions", "turns") if (found := await next_cursor(page, name, "s00"))}
    assert set(cursors) == {"sessions", "turns"}
    for name, query in (
        ("approvals", {"session": "s00"}),
        ("calls", {"session": "s00", "status": "done"}),
        ("live", {"session": "s00"}),
        ("turns", {"session": "s00", "cursor": cursors["turns"]}),
        ("sessions", {"cursor": cursors["sessions"]}),
    ):
        fetched = rf'hx-get="/console/parts/{name}\?([^"]*)" hx-trigger="[^"]*" hx-target="#main"'
        (later,) = re.findall(fetched, await part(page, name, **query))
        assert query.items() <= dict(parse_qsl(unescape(later))).items()


async def next_cursor(page: httpx2.AsyncClient, name: str, session: str) -> str:
    query = {"session": session} if name == "turns" else {}
    (after,) = re.findall(rf'href="/console/{name}\?([^"]*cursor[^"]*)"', await part(page, name, **query))
    return dict(parse_qsl(unescape(after)))["cursor"]
