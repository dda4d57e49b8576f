"""The console in Chromium, beside a client that waits."""

import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e import chats
from tests.e2e.browser import follow, running_chromium, sign_in, violations
from tests.e2e.processes import until
from tests.e2e.proxies import Proxy, Session, ask, new_session
from tests.e2e.upstreams import Gemini

WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city, now.",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}},
    "executor": {"type": "worker"},
    "approval": True,
}
MODEL, KEY = "gemini-3-flash-preview", "a-secret-key"
HOSTILE = "Oslo <img src=x onerror=alert(1)> \u202e"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(30_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, proxy: Proxy) -> Iterator[Page]:
    """Signed in by a link. No page may have an error."""
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.on("console", lambda entry: errors.append(entry.text) if "Content Security" in entry.text else None)
    sign_in(page, proxy)
    assert "#" not in page.url
    yield page
    assert errors == []


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture
def watched(proxy: Proxy) -> Session:
    """A session whose tool needs approval, and is then answered by hand or by a worker."""
    session = new_session(proxy, tools=False)
    session.tools([WEATHER])
    session.policy(delivery="loop", tool_timeout=60, approval_timeout=60)
    return session


def card(page: Page, session: Session) -> Any:
    return page.locator("article.card").filter(has_text=f"session {session.name} ")


@pytest.mark.smoke
def test_a_call_appears_is_approved_and_answered_while_google_genai_waits(
    proxy: Proxy, watched: Session, page: Page, gemini: Gemini, tmp_path: Any, pool: ThreadPoolExecutor
) -> None:
    with chats.python(tmp_path, "sync", model=MODEL, key=KEY, base_url=f"{proxy.url}/@{watched.name}") as chat:
        asked = pool.submit(chat.say, f"call get_weather {json.dumps({'city': HOSTILE})}")
        waiting = card(page, watched)
        expect(waiting).to_contain_text(r"Oslo <img src=x onerror=alert(1)> \u202e")
        expect(page.locator("#waiting")).to_contain_text("1")
        assert violations(page) == []
        waiting.get_by_role("button", name="Approve", exact=True).click()
        expect(waiting).to_have_count(0)
        (call,) = watched.calls(status="pending")
        assert call["approval"] == "approved"
        page.goto(f"{proxy.control.url}/console/calls?session={watched.name}")
        follow(page.get_by_role("link", name="get_weather"))
        page.get_by_label("Result, as JSON").fill("{not json")
        page.get_by_role("button", name="Send the result").click()
        expect(page.get_by_role("alert")).to_contain_text("This is not JSON")
        page.get_by_label("Result, as JSON").fill('{"celsius": 3}')
        page.get_by_role("button", name="Send the result").click()
        assert asked.result(20) == 'get_weather returned {"celsius": 3}.'
        expect(page.get_by_label("Result", exact=True)).to_contain_text('"celsius": 3')
        assert violations(page) == []
    assert gemini.errors == []


def test_a_call_is_approved_with_changed_arguments_while_google_genai_waits(
    proxy: Proxy, watched: Session, page: Page, gemini: Gemini, tmp_path: Any, pool: ThreadPoolExecutor
) -> None:
    with chats.python(tmp_path, "sync", model=MODEL, key=KEY, base_url=f"{proxy.url}/@{watched.name}") as chat:
        asked = pool.submit(chat.say, 'call get_weather {"city": "Oslo"}')
        waiting = card(page, watched)
        waiting.get_by_text("Change the arguments").click()
        field = waiting.get_by_label("Arguments, as a JSON object")
        assert json.loads(field.input_value()) == {"city": "Oslo"}
        field.fill('{"city": 1}')
        assert violations(page) == []
        approve = waiting.get_by_role("button", name="Approve with these arguments")
        approve.click()
        expect(page.get_by_role("alert")).to_contain_text("args: do not fit the parameters of get_weather")
        field.fill('{"city": "Bergen"}')
        approve.click()
        expect(waiting).to_have_count(0)
        (call,) = watched.calls(status="pending")
        assert (call["args"], call["asked_args"]) == ({"city": "Bergen"}, {"city": "Oslo"})
        watched.answer(get_weather={"celsius": 3})
        assert "the user changed the arguments to" in asked.result(20)
        page.goto(f"{proxy.control.url}/console/call?call_id={call['call_id']}")
        expect(page.get_by_label("The model's arguments")).to_contain_text("Oslo")
        assert violations(page) == []
        chat.say("Thanks.")
    (made,) = [part["functionCall"] for part in gemini.last["body"]["contents"][1]["parts"] if "functionCall" in part]
    assert made["args"] == {"city": "Oslo"}, "the history has what the model asked for"
    assert gemini.errors == []


def test_a_tool_is_approved_for_good_until_that_is_taken_back(
    proxy: Proxy, watched: Session, page: Page, gemini: Gemini, tmp_path: Any, pool: ThreadPoolExecutor
) -> None:
    def answered_by_hand(chat: Any, asked: Any) -> None:
        def approved() -> bool:
            return [call["approval"] for call in watched.calls(status="pending")] in (["approved"], [None])

        until(approved, "a call that waits for no approval")
        watched.answer(get_weather={"celsius": 3})
        assert asked.result(20) == 'get_weather returned {"celsius": 3}.'

    with chats.python(tmp_path, "sync", model=MODEL, key=KEY, base_url=f"{proxy.url}/@{watched.name}") as chat:
        asked = pool.submit(chat.say, 'call get_weather {"city": "Oslo"}')
        waiting = card(page, watched)
        waiting.get_by_text("Always approve this tool").click()
        assert violations(page) == []
        waiting.get_by_role("button", name="Always approve get_weather").click()
        answered_by_hand(chat, asked)
        answered_by_hand(chat, pool.submit(chat.say, 'call get_weather {"city": "Bergen"}'))
        page.goto(f"{proxy.control.url}/console/sessions")
        page.get_by_role("button", name="Ask again for get_weather").click()
        expect(page.get_by_role("button", name="Ask again for get_weather")).to_have_count(0)
        assert violations(page) == []
        asked = pool.submit(chat.say, 'call get_weather {"city": "Rome"} and call get_weather {"city": "Bonn"}')
        page.goto(f"{proxy.control.url}/console/approvals?session={watched.name}")
        expect(page.get_by_text("Deny these 2", exact=True)).to_be_visible()  # the page has heard of both calls
        page.get_by_text("Deny these 2", exact=True).click()
        page.get_by_label("Reason for the model (optional)").fill("not today")
        page.get_by_role("button", name="Deny these 2 calls").click()
        expect(page.get_by_text("No call waits for an approval.")).to_be_visible()
        assert asked.result(20).count("not today") == 2
    assert gemini.errors == []


def test_numbers_that_a_browser_would_round_stay_as_they_were(
    proxy: Proxy, watched: Session, page: Page, gemini: Gemini, pool: ThreadPoolExecutor
) -> None:
    """In arguments, results and toolsets."""
    big, words = 12345678901234567891, '"id": 12345678901234567891, "at": 1.0'
    declaration = {
        **WEATHER,
        "parameters": {"type": "OBJECT", "properties": {"id": {"type": "INTEGER", "maximum": big}}},
    }
    watched.tools([declaration])
    asked = pool.submit(ask, proxy, watched, f"call get_weather {{{words}}}")
    waiting = card(page, watched)
    waiting.get_by_text("Change the arguments").click()
    field = waiting.get_by_label("Arguments, as a JSON object")
    field.fill(field.input_value().replace("1.0", '1.0, "city": "Bergen"'))
    waiting.get_by_role("button", name="Approve with these arguments").click()
    expect(waiting).to_have_count(0)
    (call,) = watched.calls(status="pending")
    assert (call["args"], str(call["args"]["at"])) == ({"id": big, "at": 1.0, "city": "Bergen"}, "1.0")
    page.goto(f"{proxy.control.url}/console/call?call_id={call['call_id']}")
    page.get_by_label("Result, as JSON").fill(f"{{{words}}}")
    page.get_by_role("button", name="Send the result").click()
    assert asked.result(20)
    assert str(big) in json.dumps(watched.calls()[0]["result"])
    page.goto(f"{proxy.control.url}/console/tools?session={watched.name}")
    editor = page.get_by_label("The session's own tools, as JSON")
    editor.fill(editor.input_value().replace('"get_weather"', '"get_wind"'))
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="get_wind")).to_be_visible()
    assert str(big) in json.dumps(proxy.control.ask("GET", f"/v1/sessions/{watched.name}/tools"))


def test_a_call_is_denied_with_a_reason_and_goes_from_every_tab(
    proxy: Proxy, watched: Session, page: Page, gemini: Gemini, pool: ThreadPoolExecutor
) -> None:
    other = page.context.new_page()
    other.goto(f"{proxy.control.url}/console")
    asked = pool.submit(ask, proxy, watched, 'call get_weather {"city": "Oslo"}')
    expect(card(other, watched)).to_be_visible()
    card(page, watched).get_by_label("Reason for the model").fill("not on a Friday")
    card(page, watched).get_by_role("button", name="Deny").click()
    assert "not on a Friday" in asked.result(20)
    expect(card(other, watched)).to_have_count(0)


def test_what_is_typed_stays_when_something_changes(
    proxy: Proxy, watched: Session, page: Page, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(ask, proxy, watched, 'call get_weather {"city": "Oslo"}')
    reason = card(page, watched).get_by_label("Reason for the model")
    reason.fill("half a sen")
    with page.expect_request("**/console/parts/waiting"):
        watched.policy(max_rounds=3)
        assert watched.calls(status="pending", wait=5)
        with ThreadPoolExecutor(1) as another:
            second = another.submit(ask, proxy, watched, 'call get_weather {"city": "Bergen"}')
            expect(page.locator("#waiting")).to_contain_text("2")
            expect(reason).to_have_value("half a sen")
            for one in watched.calls(status="pending"):
                proxy.control.ask("POST", f"/v1/calls/{one['call_id']}/deny")
            assert second.result(20)
    assert first.result(20)


def test_what_is_typed_stays_when_an_earlier_refresh_arrives(
    proxy: Proxy, watched: Session, page: Page, pool: ThreadPoolExecutor
) -> None:
    asked = pool.submit(ask, proxy, watched, 'call get_weather {"city": "Oslo"}')
    reason = card(page, watched).get_by_label("Reason for the model")
    expect(reason).to_be_visible()
    routes: list[Any] = []
    page.route("**/console/parts/approvals*", lambda route: routes.append(route))
    with page.expect_request("**/console/parts/approvals*"):
        page.evaluate("htmx.trigger('#changes', 'approvals')")
    reason.fill("half a sen")
    with page.expect_response("**/console/parts/approvals*"):
        for route in routes:
            route.continue_()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    expect(reason).to_have_value("half a sen")
    page.unroute("**/console/parts/approvals*")
    for one in watched.calls(status="pending"):
        proxy.control.ask("POST", f"/v1/calls/{one['call_id']}/deny")
    assert asked.result(20)


def test_tools_are_edited_and_a_mistake_is_named(proxy: Proxy, session: Session, page: Page) -> None:
    page.goto(f"{proxy.control.url}/console/tools?session={session.name}")
    editor = page.get_by_label("The session's own tools, as JSON")
    good = editor.input_value()
    editor.fill(good.replace('"get_weather"', '"get weather"'))
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("tools[0].functionDeclarations[0].name")
    editor.fill(good.replace('"get_weather"', '"get_wind"'))
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("heading", name="get_wind")).to_be_visible()
    assert "get_wind" in str(proxy.control.ask("GET", f"/v1/sessions/{session.name}/tools"))
    # somebody else saves meanwhile
    session.tools()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("changed")


def test_a_session_is_forgotten_after_a_second_click(proxy: Proxy, session: Session, page: Page) -> None:
    session.tools()
    page.goto(f"{proxy.control.url}/console/sessions")
    mine = page.locator("article", has=page.get_by_role("heading", name=session.name, exact=True))
    forget = mine.get_by_role("button", name=f"Forget {session.name}")
    expect(forget).to_be_hidden()
    mine.get_by_text("Forget this session").click()
    forget.click()
    expect(mine).to_have_count(0)
    names = [one["name"] for one in proxy.control.ask("GET", "/v1/sessions", params={"limit": 1000})["items"]]
    assert session.name not in names


def test_a_press_hits_no_other_call_when_the_list_moves(proxy: Proxy, page: Page, gemini: Gemini) -> None:
    session = new_session(proxy, tools=False)
    session.tools([WEATHER | {"executor": {"type": "worker"}, "approval": True}])
    session.policy(delivery="loop", approval_timeout=60, tool_timeout=60)
    page.add_init_script("performance.now = () => 0")  # the time that a press is refused never ends
    with ThreadPoolExecutor(1) as pool:
        words = " and ".join(f'call get_weather {{"city": "{city}"}}' for city in ("Oslo", "Rome", "Bonn"))
        asked = pool.submit(ask, proxy, session, words)
        until(lambda: len(session.calls(status="pending")) == 3, "three calls wait")
        first, *others = session.calls(status="pending")
        page.goto(f"{proxy.control.url}/console/approvals?session={session.name}")
        page.locator(f"#call-{first['call_id']}").get_by_role("button", name="Approve", exact=True).hover()
        proxy.control.ask("POST", f"/v1/calls/{first['call_id']}/deny", json={})
        expect(page.locator(f"#call-{first['call_id']}")).to_have_count(0)
        page.mouse.down()
        page.mouse.up()
        expect(page.get_by_role("alert")).to_contain_text("moved under the pointer")
        assert [call["approval"] for call in session.calls(status="pending")] == ["waiting", "waiting"]
        proxy.control.ask("POST", "/v1/approvals/deny", json={"call_ids": [call["call_id"] for call in others]})
        assert asked.result(30)


def test_a_session_shows_what_it_has_used(proxy: Proxy, session: Session, page: Page, gemini: Gemini) -> None:
    session.tools()
    page.goto(f"{proxy.control.url}/console/sessions")
    mine = page.locator("article", has=page.get_by_role("heading", name=session.name, exact=True))
    expect(mine).to_contain_text("from memory: no request has ended")
    ask(proxy, session, "hello")
    path = f"/v1/sessions/{session.name}/usage"
    until(lambda: proxy.control.ask("GET", path)["requests"] == 1, "the usage of the request")
    usage = proxy.control.ask("GET", path)
    assert usage["prompt_tokens"] > 0
    assert usage["since"] <= usage["last_used_at"]
    expect(mine).to_contain_text(f"1 request · {usage['prompt_tokens']} → {usage['output_tokens']} tokens · last used")


def test_every_page_is_accessible_and_fits(proxy: Proxy, session: Session, page: Page, gemini: Gemini) -> None:
    """Light and dark, on a phone and on a desk."""
    for city in ("Oslo", "Bergen"):
        ask(proxy, session, f'call get_weather {{"city": "{city}"}}')
    call = session.calls()[0]
    trial = f"try?session={session.name}&name=get_weather"
    for name in (
        "approvals",
        "live",
        "calls",
        f"turns?session={session.name}",
        f"turn?session={session.name}&turn_id={call['turn_id']}",
        "tools",
        "sessions",
        "connect",
        f"call?call_id={call['call_id']}",
        trial,
    ):
        page.goto(f"{proxy.control.url}/console/{name}")
        expect(page.get_by_text("Loading …")).to_have_count(0)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (400, 1200):
                page.set_viewport_size({"width": width, "height": 800})
                assert violations(page) == [], (name, scheme, width)
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, scheme)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_lines_of_connect_reach_the_proxy(proxy: Proxy, session: Session, page: Page, gemini: Gemini) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{proxy.control.url}/console/connect?session={session.name}")
    page.locator("article").filter(has_text="curl").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    command = page.evaluate("navigator.clipboard.readText()")
    ran = subprocess.run(
        ["sh", "-c", command], env={**os.environ, "GEMINI_API_KEY": KEY}, capture_output=True, text=True, timeout=30
    )
    assert "candidates" in json.loads(ran.stdout), (command, ran)
    assert gemini.requests[-1]["path"].endswith("gemini-3-flash-preview:generateContent")


def test_the_page_connects_to_a_restarted_proxy(start: Callable[..., Proxy], gemini: Gemini, browser: Browser) -> None:
    proxy = start(gemini.url, control="127.0.0.1:0")
    port = int(proxy.control.url.rpartition(":")[2])
    proxy._arguments = [
        f"graft_control=127.0.0.1:{port}" if "graft_control" in one else one for one in proxy._arguments
    ]
    context = browser.new_context()
    page = context.new_page()
    sign_in(page, proxy)
    page.goto(f"{proxy.control.url}/console/calls")
    expect(page.get_by_text("No such calls.")).to_be_visible()
    proxy.stop()
    expect(page.get_by_role("status")).to_contain_text("cannot be reached")
    proxy.start()
    session = proxy.control.session("default")
    session.tools()
    expect(page.get_by_role("status")).to_be_hidden(timeout=20_000)
    ask(proxy, session, 'call get_weather {"city": "Oslo"}')
    expect(page.get_by_role("link", name="get_weather")).to_be_visible()
    context.close()


class _Listener(http.server.BaseHTTPRequestHandler):
    """Another site on this machine: keeps the cookies that browsers send to it."""

    cookies: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.cookies.append(self.headers.get("cookie", ""))
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!DOCTYPE html><title>another site</title>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


FETCH = """async ([url, method, headers]) => {
  try {
    const response = await fetch(url, {method, headers, credentials: "include", signal: AbortSignal.timeout(20000)});
    return [response.status, await response.text()];
  } catch (error) {
    return [0, ""];
  }
}"""


def test_another_site_reads_and_changes_nothing(
    proxy: Proxy, watched: Session, page: Page, pool: ThreadPoolExecutor
) -> None:
    """Another port of 127.0.0.1 gets the cookie, for cookies ignore ports; nobody can use it."""
    asked = pool.submit(ask, proxy, watched, 'call get_weather {"city": "Oslo"}')
    expect(card(page, watched)).to_be_visible()
    (call,) = watched.calls(status="pending")
    base, approve = proxy.control.url, f"/v1/calls/{call['call_id']}/approve"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for host in ("127.0.0.1", "localhost"):
            other = page.context.new_page()
            other.goto(f"http://{host}:{server.server_port}/")
            assert other.evaluate("localStorage.getItem('toolgraft-page')") is None
            assert "toolgraft" not in other.evaluate("document.cookie")
            for method, path in (("GET", "/console/parts/approvals"), ("GET", "/v1/calls"), ("POST", approve)):
                for headers in ({}, {"x-graft-page": "x"}):
                    status, text = other.evaluate(FETCH, [base + path, method, headers])
                    assert (status, text) == (0, ""), (host, method, path)
            other.set_content(
                f'<form method="post" action="{base}{approve}"></form><iframe src="{base}/console"></iframe>'
            )
            with other.expect_navigation():  # it begins when the script has ended: a script that it ends may hang
                other.evaluate("setTimeout(() => document.forms[0].submit())")
            other.close()
        server.shutdown()
    cookie = next(one for one in _Listener.cookies if "toolgraft-" in one)
    assert re.search(r"toolgraft-\d+=\S", cookie)
    for path in ("/console/parts/approvals", "/v1/calls"):
        for headers in ({"cookie": cookie}, {"cookie": cookie, "x-graft-page": cookie.rpartition(".")[2]}):
            assert httpx2.get(base + path, headers=headers).status_code == 401
    assert watched.calls(status="pending")[0]["approval"] == "waiting"
    proxy.control.ask("POST", f"/v1/calls/{call['call_id']}/deny")
    assert asked.result(20)


def test_signing_out_empties_every_tab(proxy: Proxy, watched: Session, page: Page, pool: ThreadPoolExecutor) -> None:
    asked = pool.submit(ask, proxy, watched, 'call get_weather {"city": "Oslo"}')
    other = page.context.new_page()
    other.goto(f"{proxy.control.url}/console")
    expect(card(other, watched)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(other.get_by_label("Token")).to_be_visible()
    expect(card(other, watched)).to_have_count(0)
    expect(other.get_by_role("status")).to_be_hidden()
    for call in watched.calls(status="pending"):
        proxy.control.ask("POST", f"/v1/calls/{call['call_id']}/deny")
    assert asked.result(20)


def test_a_page_whose_session_ends_asks_for_a_token_and_then_follows_again(
    proxy: Proxy, watched: Session, page: Page, pool: ThreadPoolExecutor
) -> None:
    page.evaluate(
        "fetch('/console/session', "
        "{method: 'DELETE', headers: {'X-Graft-Page': localStorage.getItem('toolgraft-page')}})"
    )
    watched.policy(max_rounds=3)
    expect(page.get_by_label("Token")).to_be_visible(timeout=30_000)
    expect(page.get_by_role("status")).to_be_hidden()
    page.get_by_label("Token").fill(proxy.control.token)
    page.keyboard.press("Enter")
    expect(page.get_by_text("No call waits for an approval.")).to_be_visible()
    asked = pool.submit(ask, proxy, watched, 'call get_weather {"city": "Oslo"}')
    card(page, watched).get_by_role("button", name="Deny").click()
    assert asked.result(20)
    expect(page.get_by_role("status")).to_be_hidden()


def test_signing_out_works_without_the_proxy(page: Page) -> None:
    page.route("**/console/session", lambda route: route.abort())
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.evaluate("localStorage.length") == 0


def test_signing_in_with_a_token_and_out(proxy: Proxy, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(f"{proxy.control.url}/console")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("a bearer token is needed")
    assert violations(page) == []
    page.get_by_label("Token").fill(proxy.control.token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Approvals")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert page.evaluate("localStorage.length") == 0
