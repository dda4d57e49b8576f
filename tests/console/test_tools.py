"""The pages about tools."""

import json
import re
from html import unescape
from typing import Any

import httpx2
import pytest

from addon.console import tools
from addon.control.app import ControlApp
from addon.core.framing.documents import Document
from addon.tools.base import ServerState
from store.base import Store
from store.models import Executor, ToolRules, Toolset
from tests.console.conftest import SignIn
from tests.control.conftest import Capture

PARAMETERS = {
    "type": "OBJECT",
    "properties": {"city": {"type": "STRING"}, "days": {"type": "INTEGER"}},
    "required": ["city"],
}


@pytest.fixture
async def tried(app: ControlApp, store: Store, capture: Capture) -> list[Document]:
    """The arguments of each try. The tools: `get_weather` of workers, `pay` of an endpoint, `ask` of nobody."""
    tried: list[Document] = []

    async def try_tool(session: str, name: str, args: Document, check: Any) -> Any:
        check("loop" if name == "pay" else "workers")
        tried.append(args)
        return await capture(f"call_{len(tried)}", session=session, name=name, args=args, surface="try")

    app.api.try_tool = try_tool
    rules = {
        "get_weather": ToolRules(executor=Executor(type="worker")),
        "pay": ToolRules(executor=Executor(type="http", url="https://a.example")),
    }
    declarations: list[Document] = [{"name": "get_weather", "parameters": PARAMETERS}, {"name": "pay"}, {"name": "ask"}]
    await store.put_toolset("one", Toolset(declarations=declarations, rules=rules))
    return tried


async def part(page: httpx2.AsyncClient, path: str, /, **query: str) -> str:
    answer = await page.get(f"/console/parts/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return str(answer.text)


async def test_each_tool_that_is_run_can_be_tried(page: httpx2.AsyncClient, tried: list[Document]) -> None:
    html = await part(page, "tools", session="one")
    assert 'href="/console/try?session=one&amp;name=get_weather"' in html
    assert 'href="/console/try?session=one&amp;name=pay"' in html
    assert "name=ask" not in html
    assert "Nobody runs it" in html


async def test_each_tool_has_its_source_and_its_rules(
    page: httpx2.AsyncClient, app: ControlApp, store: Store, tried: list[Document]
) -> None:
    rules = {"approval": True, "timeout": 7.5, "after": ["<b>"]}
    app.api.shared = lambda: [{"name": "local_add"}, {"name": "new"}]
    app.api.origin = {"local_add": {"source": "MCP server 'local'\u202e", "rules": rules}}.get
    html = re.sub(r"\s+", " ", await part(page, "tools", session="two"))
    for text in (
        "of MCP server &#39;local&#39;\\u202e · needs approval",
        "<dt>timeout</dt><dd>7.5</dd>",
        "[&#34;&lt;b&gt;&#34;]",
    ):
        assert text in html
    assert "of one of the proxy&#39;s files and MCP servers" in html
    executor = Executor(type="worker")
    toolset = Toolset(declarations=[{"name": "f"}], rules={"f": ToolRules(executor=executor, approval=True, retries=2)})
    await store.put_toolset("three", toolset)
    html = re.sub(r"\s+", " ", await part(page, "tools", session="three"))
    for text in ("of this session · run by workers · needs approval", "<dt>retries</dt><dd>2</dd>"):
        assert text in html


async def test_a_tool_is_tried_with_a_form_of_its_parameters(
    page: httpx2.AsyncClient, tried: list[Document], store: Store
) -> None:
    html = await part(page, "try", session="one", name="get_weather")
    for text in ('name="value/city"', 'name="value/days"', "Or the arguments, as a JSON object"):
        assert text in html
    path = "/console/sessions/one/tools/get_weather/try"
    refused = await page.post(path, json={"fields": {"value/city": "Oslo", "value/days": "many"}})
    assert (refused.status_code, list(refused.json()["fields"])) == (422, ["value/days"])
    assert tried == []
    answer = await page.post(path, json={"fields": {"value/city": "Oslo", "value/days": ""}})
    assert answer.status_code == 200, answer.text
    assert tried == [{"city": "Oslo"}]
    html = await part(page, "call", call_id=answer.json()["call_id"])
    assert "it belongs to no conversation" in html
    assert "/console/turn?" not in html


async def test_a_tool_without_parameters_needs_none(page: httpx2.AsyncClient, tried: list[Document]) -> None:
    html = await part(page, "try", session="one", name="pay")
    assert "It takes no arguments" in html
    assert "data-fields" not in html
    answer = await page.post("/v1/sessions/one/tools/pay/try", json={"args": {}})
    assert answer.status_code == 200, answer.text


async def test_who_may_not_run_a_tool_is_not_offered_it(
    sign_in: SignIn, tried: list[Document], page: httpx2.AsyncClient
) -> None:
    reader, worker = await sign_in("read"), await sign_in("read", "worker")
    assert "/console/try" not in await part(reader, "tools", session="one")
    html = await part(worker, "tools", session="one")
    assert "name=get_weather" in html
    assert "name=pay" not in html
    assert (await reader.get("/console/parts/try", params={"session": "one", "name": "pay"})).status_code == 403
    body: dict[str, Any] = {"fields": {"value/city": "Oslo"}}
    path = "/console/sessions/one/tools/get_weather/try"
    assert (await reader.post(path, json=body)).status_code == 403
    assert (await worker.post("/v1/sessions/one/tools/pay/try", json={})).status_code == 403
    assert tried == []
    assert (await worker.post(path, json=body)).status_code == 200


async def test_a_token_for_one_session_tries_no_tool_of_another(
    app: ControlApp, visitor: httpx2.AsyncClient, tried: list[Document]
) -> None:
    _, token = app.api.tokens.make(["admin"], "mine", "")
    visitor.headers["authorization"] = f"Bearer {token}"
    assert (await visitor.get("/console/parts/try", params={"session": "one", "name": "pay"})).status_code == 403
    body: dict[str, Any] = {"fields": {}}
    assert (await visitor.post("/console/sessions/one/tools/pay/try", json=body)).status_code == 403
    assert tried == []


async def test_a_try_is_not_taken_for_a_turn_of_a_conversation(
    page: httpx2.AsyncClient, store: Store, capture: Capture
) -> None:
    call = await capture("call_1", surface="try", status="done", result=3)
    (turn,) = (await store.turns("default")).items
    await store.save_turn(turn.model_copy(update={"surface": "try", "visible": []}), [call])
    html = await part(page, "turns")
    assert "Somebody tried a tool" in html
    assert "What the client sees" not in html
    assert "The model, round" not in html
    assert 'href="/console/call?call_id=call_1"' in html
    assert "Somebody tried a tool" in await part(page, "turn", turn_id=turn.turn_id)


async def test_an_unknown_tool_is_named(page: httpx2.AsyncClient, tried: list[Document]) -> None:
    answer = await page.get("/console/parts/try", params={"session": "one", "name": "get_wether"})
    assert (answer.status_code, answer.json()["detail"]) == (404, "session one has no tool get_wether")


# --- edit -----------------------------------------------------------------------------------------------------------


async def check(page: httpx2.AsyncClient, text: str, session: str = "one", version: str = "") -> str:
    body = {"text": text, "version": version}
    answer = await page.post("/console/parts/tools-check", params={"session": session}, json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.text)


async def test_a_mistake_is_named_with_its_line_while_it_is_typed(
    page: httpx2.AsyncClient, tried: list[Document]
) -> None:
    for text, line, words in (
        ('{"tools": [\n{"name": "f",}\n]}', 2, "not JSON that can be stored"),
        ('{"tools": [\n{"name": "f"},\n{"name": "a b"}\n]}', None, "tools[1].name is &#39;a b&#39;"),
        ('{"tools": [{"name": "f", "timeout": 1e999}]}', None, "not JSON"),
        ("[]", None, "the document must be an object"),
        ('{"tools": [' + "[" * 5000, None, "not JSON"),
    ):
        html = await check(page, text)
        assert words in html, html
        assert ("Line" in html) is (line is not None) or "column" in html
        if line is not None:
            assert f"Line {line}: " in html
            assert f'data-line="{line}"' in html


async def test_what_would_change_is_shown_before_it_is_saved(
    page: httpx2.AsyncClient, tried: list[Document], store: Store
) -> None:
    version = (await page.get("/v1/sessions/one/tools")).headers["etag"]
    before = await store.session("one")
    html = await check(page, '{"tools": [{"name": "get_weather", "description": "<b>\\u202e"}]}', version=version)
    for text in ("get_weather is changed", "pay is removed", 'class="put-in"', "&lt;b&gt;\\u202e"):
        assert text in html
    assert "<b>" not in html
    assert "\u202e" not in html
    assert "Somebody else" not in html
    assert "Somebody else" in await check(page, '{"tools": []}', version='"x"')
    tools = (await page.get("/v1/sessions/one/tools")).text
    assert "Nothing changes." in await check(page, tools, version=version)
    assert await store.session("one") == before


async def test_a_toolset_that_is_too_long_is_not_cut_but_edited_elsewhere(
    page: httpx2.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved, the text would take the place of the whole toolset."""
    tool = {"name": "f", "description": "é\u202e<b>" * 20}
    await store.put_toolset("long", Toolset(declarations=[tool]))
    where = {"session": "long"}
    html = (await page.get("/console/parts/tools", params=where)).text
    edited = unescape(html.partition("<textarea")[2].partition(">")[2].partition("</textarea>")[0])
    assert json.loads(edited)["tools"][0]["functionDeclarations"] == [tool]
    for longest in (len(edited) - 1, 100):
        monkeypatch.setattr(tools, "_LONGEST_EDITED", longest)
        html = (await page.get("/console/parts/tools", params=where)).text
        assert "<textarea" not in html
        assert "toolgraft tools set FILE --session long" in html
    monkeypatch.setattr(tools, "_LONGEST_EDITED", len(edited))
    assert "<textarea" in (await page.get("/console/parts/tools", params=where)).text


async def test_only_who_may_set_tools_may_check_them(sign_in: SignIn, tried: list[Document]) -> None:
    reader, worker = await sign_in("read"), await sign_in("read", "worker")
    body = {"text": '{"tools": []}'}
    path = "/console/parts/tools-check?session=one"
    assert (await reader.post(path, json=body)).status_code == 403
    assert "this token may set only tools that workers run" in await check(worker, '{"tools": [{"name": "f"}]}', "two")


# --- MCP servers ----------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\u202e\x1b"


@pytest.fixture
def mcp(app: ControlApp) -> None:
    up = ServerState("files", True, 3, last_error=HOSTILE, last_error_at=7.0)
    down = ServerState(HOSTILE, False, 0, f"no such program {HOSTILE}")
    app.api.server_states = lambda: [up, down]


@pytest.mark.usefixtures("mcp")
async def test_servers_are_listed_with_state_and_last_error(page: httpx2.AsyncClient) -> None:
    html = await part(page, "tools")
    for text in (
        "MCP servers",
        "3 tools",
        "last error",
        "down: no such program &lt;script&gt;",
        "/v1/servers/files/restart",
    ):
        assert text in html
    for text in ("<script", "\u202e", "\x1b"):
        assert text not in html


@pytest.mark.usefixtures("mcp")
async def test_only_an_admin_is_offered_a_restart(
    app: ControlApp, sign_in: SignIn, visitor: httpx2.AsyncClient
) -> None:
    html = await part(await sign_in("read", "worker"), "tools")
    assert "MCP servers" in html
    assert "/restart" not in html
    _, token = app.api.tokens.make(["admin"], "mine", "")
    visitor.headers["authorization"] = f"Bearer {token}"
    assert "MCP servers" not in await part(visitor, "tools"), "they are of no session"
