"""The console's forms for tools, in Chromium."""

import json
from concurrent.futures import ThreadPoolExecutor

from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.browser import follow, sign_in, violations
from tests.e2e.processes import until
from tests.e2e.proxies import Proxy, Session, ask, new_session
from tests.e2e.test_console import browser as browser
from tests.e2e.test_console import context as context
from tests.e2e.test_console import page as page
from tests.e2e.test_console import pool as pool

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city, now.",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}},
    "response": {
        "type": "OBJECT",
        "properties": {
            "celsius": {"type": "INTEGER", "description": "How warm it is."},
            "sky": {"type": "STRING", "enum": ["clear", "grey"]},
            "hours": {
                "type": "ARRAY",
                "items": {"type": "OBJECT", "properties": {"rain": {"type": "ARRAY", "items": {"type": "NUMBER"}}}},
            },
        },
        "required": ["celsius"],
    },
}


def signed_in(proxy: Proxy, context: BrowserContext) -> Page:
    """A page of another proxy than that of `page`."""
    page = context.new_page()
    sign_in(page, proxy)
    return page


def test_a_call_is_answered_with_fields(proxy: Proxy, page: Page, pool: ThreadPoolExecutor) -> None:
    session = new_session(proxy, tools=False)
    session.tools([WEATHER])
    session.policy(delivery="hold", answer_timeout=60)
    asked = pool.submit(ask, proxy, session, 'call get_weather {"city": "Oslo"}')
    (call,) = session.calls(status="pending", wait=20)
    page.goto(f"{proxy.control.url}/console/call?call_id={call['call_id']}")
    result = page.get_by_role("form", name="The result")
    result.get_by_label("celsius").fill("warm")
    result.get_by_label("sky").select_option("grey")
    for _ in range(3):
        result.get_by_role("button", name="Add an item to hours").click()
    hour = result.locator("[data-list] > .item")
    hour.nth(1).get_by_role("button", name="Add an item to rain").click()
    hour.nth(1).get_by_role("button", name="Add an item to rain").click()
    for at, rain in enumerate(("0.5", "1")):
        hour.nth(1).locator("input:visible").nth(at).fill(rain)
    hour.nth(0).get_by_role("button", name="Remove").click()
    assert violations(page) == []
    for width in (400, 1200):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    result.get_by_role("button", name="Send this result").click()
    expect(page.get_by_role("alert")).to_contain_text("celsius: must be a whole number")
    expect(result.get_by_label("celsius")).to_be_focused()
    words = "must be a whole number, such as 3 How warm it is."
    expect(result.get_by_label("celsius")).to_have_accessible_description(words)
    assert violations(page) == []
    big = 12345678901234567891
    result.get_by_label("celsius").fill(str(big))
    result.get_by_role("button", name="Send this result").click()
    assert str(big) in asked.result(30)
    (answered,) = session.calls()
    assert answered["result"] == {"celsius": big, "sky": "grey", "hours": [{"rain": [0.5, 1]}, {}]}
    expect(page.get_by_label("Result", exact=True)).to_contain_text(json.dumps("grey"))


def test_a_tool_is_tried_with_a_form(looper: Proxy, context: BrowserContext) -> None:
    page = signed_in(looper, context)
    session = new_session(looper, tools=False)
    page.goto(f"{looper.control.url}/console/tools?session={session.name}")
    expect(page.locator("article.card").filter(has_text="local_add")).to_contain_text("of MCP server 'local'")
    expect(page.locator("article.card").filter(has_text="Delete something")).to_contain_text(
        "of local.py · needs approval"
    )
    follow(page.get_by_role("link", name="Try it weather", exact=True))
    arguments = page.get_by_role("form", name="Arguments", exact=True)
    arguments.get_by_role("button", name="Run it").click()
    expect(page.get_by_role("alert")).to_contain_text("city: missing")
    assert violations(page) == []
    arguments.get_by_label("city").fill("Bergen <b>")
    arguments.get_by_role("button", name="Run it").click()
    expect(page.get_by_label("Result", exact=True)).to_contain_text('"celsius": 10')
    expect(page.get_by_text("it belongs to no conversation")).to_be_visible()
    assert violations(page) == []
    (call,) = session.calls()
    assert (call["surface"], call["status"], call["args"]) == ("try", "done", {"city": "Bergen <b>"})


def test_a_toolset_is_checked_while_it_is_typed_and_compared_before_it_is_saved(
    proxy: Proxy, session: Session, page: Page
) -> None:
    page.goto(f"{proxy.control.url}/console/tools?session={session.name}")
    editor = page.get_by_label("The session's own tools, as JSON")
    good, checked = editor.input_value(), page.locator("#toolset-check")
    editor.fill(good.replace('"get_time"', '"get time"'))
    expect(checked).to_contain_text("tools[0].functionDeclarations[1].name is 'get time'")
    assert violations(page) == []
    editor.fill(good.replace('"get_time",', '"get_time"'))
    line = good[: good.index('"get_time"')].count("\n") + 2
    expect(checked).to_contain_text(f"Line {line}: not JSON that can be stored")
    checked.get_by_role("button", name=f"Go to line {line}").click()
    selection = "(editor) => editor.value.slice(editor.selectionStart, editor.selectionEnd)"
    assert editor.evaluate(selection) == good.split("\n")[line - 1]
    editor.fill(good.replace("The weather of a city.", "The weather <b>now</b>."))
    expect(checked).to_contain_text("get_weather is changed")
    expect(checked.locator(".taken-out")).to_have_text('-  "description": "The weather of a city.",')
    expect(checked.locator(".put-in")).to_have_text('+  "description": "The weather <b>now</b>.",')
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert violations(page) == []
    session_tools = f"/v1/sessions/{session.name}/tools"
    assert "now" not in str(proxy.control.ask("GET", session_tools)["tools"]), "nothing is saved yet"
    page.get_by_role("button", name="Save").click()
    expect(checked).to_be_empty()
    assert "<b>now</b>" in str(proxy.control.ask("GET", session_tools)["tools"])
    editor.fill(editor.input_value() + " ")
    expect(checked).to_contain_text("Nothing changes.")
    session.tools()
    editor.fill(editor.input_value() + " ")
    expect(checked).to_contain_text("Somebody else has changed the session")


def test_a_server_is_restarted(looper: Proxy, context: BrowserContext) -> None:
    def pid() -> int:
        path = f"/v1/sessions/{session.name}/tools/local_about/try"
        called = looper.control.ask("POST", path, params={"wait": 30}, json={})
        return int(called["result"]["pid"])

    session = new_session(looper, tools=False)
    before = pid()
    page = signed_in(looper, context)
    page.goto(f"{looper.control.url}/console/tools?session={session.name}")
    server = page.locator("article.card").filter(has=page.get_by_role("heading", name="local up", exact=True))
    expect(server).to_contain_text("7 tools")
    assert violations(page) == []
    with page.expect_response("**/v1/servers/local/restart") as restarted:
        server.get_by_role("button", name="Restart local").click()
    assert restarted.value.status == 200
    expect(server).to_contain_text("7 tools")
    assert pid() != before


def test_the_tools_of_a_session_are_followed(proxy: Proxy, page: Page) -> None:
    """A declaration that was opened stays open, and what is being typed stays."""
    session = new_session(proxy, tools=False)
    session.tools([WEATHER])
    page.goto(f"{proxy.control.url}/console/tools?session={session.name}")
    cards = page.locator("article.card").filter(has=page.get_by_role("heading", level=2))
    declaration = cards.filter(has_text="get_weather").locator("details")
    declaration.locator("summary").click()
    session.tools([WEATHER, {"name": "get_tides"}])
    expect(cards.filter(has_text="get_tides")).to_be_visible()
    expect(declaration).to_have_attribute("open", "")
    editor = page.get_by_label("The session's own tools, as JSON")
    editor.fill('{"tools": []}')
    page.evaluate("document.getElementById('changes').addEventListener('sessions', () => (window.wasTold = true))")
    session.tools([WEATHER])
    until(lambda: page.evaluate("window.wasTold === true"), "the page is told of the change")
    editor.press_sequentially(" ")
    expect(page.locator("#toolset-check")).to_contain_text("Somebody else has changed the session")
    expect(editor).to_have_value('{"tools": []} ')
    expect(cards.filter(has_text="get_tides")).to_be_visible()
    editor.fill(editor.evaluate("field => field.defaultValue"))
    editor.blur()
    expect(cards.filter(has_text="get_tides")).to_have_count(0)
