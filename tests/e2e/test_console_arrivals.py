"""What arrives while a page is open, in Chromium: a client's first request, and a call that waits for an approval."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e import chats
from tests.e2e.browser import follow, running_chromium, sign_in, violations
from tests.e2e.processes import until
from tests.e2e.proxies import MODEL_PATH, Proxy, Session, ask, new_session, user
from tests.e2e.upstreams import Gemini

WEATHER = {
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}},
    "executor": {"type": "worker"},
    "approval": True,
}
KEY, MODEL = "a-secret-key", "gemini-3-flash-preview"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1200, "height": 800})
    context.set_default_timeout(20_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, proxy: Proxy) -> Iterator[Page]:
    """Signed in. No page may have an error."""
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.on("console", lambda entry: errors.append(entry.text) if "Content Security" in entry.text else None)
    sign_in(page, proxy)
    yield page
    assert errors == []


def wait_for_client(page: Page, proxy: Proxy, session: Session, name: str) -> None:
    page.goto(f"{proxy.control.url}/console/connect?session={session.name}")
    follow(page.get_by_role("link", name=f"Wait for its first request of {name}", exact=True))
    expect(page.get_by_role("article")).to_have_count(1)
    expect(page.get_by_role("status").filter(has_text="waiting")).to_contain_text(f"request of {name} in session")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_connect_shows_the_first_request_of_the_chosen_client(
    proxy: Proxy, session: Session, page: Page, gemini: Gemini, tmp_path: Path
) -> None:
    ask(proxy, session, "before the page is opened")
    wait_for_client(page, proxy, session, "curl")
    assert violations(page) == []
    command = page.get_by_label("Lines for curl").inner_text()
    other = {b"user-agent": "<img src=x onerror=alert(1)> \u202e".encode(), b"x-goog-api-key": KEY.encode()}
    url = f"{proxy.url}/@{session.name}{MODEL_PATH}:generateContent"
    httpx2.post(url, json={"contents": [user("hello")]}, headers=other, timeout=30).raise_for_status()
    arrival = page.locator("#arrival")
    expect(arrival).to_contain_text(r"Another client has sent one, as <img src=x onerror=alert(1)> \u202e")
    env = {**os.environ, "GEMINI_API_KEY": KEY}
    subprocess.run(["sh", "-c", command], env=env, capture_output=True, timeout=30, check=True)
    expect(arrival).to_contain_text(re.compile(r"seen The first request of curl .*, as curl/\d", re.DOTALL))
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        for width in (1200, 400):
            page.set_viewport_size({"width": width, "height": 800})
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.screenshot(path=tmp_path / f"connect-{scheme}-{width}.png", full_page=True)


@pytest.mark.parametrize(
    ("name", "client", "kind"),
    [("google-genai (Python)", chats.python, "sync"), ("@google/genai (JavaScript)", chats.node, "async")],
)
def test_connect_knows_google_genai_and_a_session_that_was_not_meant(
    name: str,
    client: Callable[..., chats.Chat],
    kind: str,
    proxy: Proxy,
    session: Session,
    page: Page,
    gemini: Gemini,
    tmp_path: Path,
) -> None:
    wait_for_client(page, proxy, session, name)
    for base, text in (
        (proxy.url, "One has arrived in session default instead, as google-genai-sdk/"),
        (f"{proxy.url}/@{session.name}", f"seen The first request of {name} arrived at"),
    ):
        with client(tmp_path, kind, model=MODEL, key=KEY, base_url=base) as chat:
            chat.say("hello")
        expect(page.locator("#arrival")).to_contain_text(text)


def test_connect_knows_clients_of_the_front_door(proxy: Proxy, session: Session, page: Page, gemini: Gemini) -> None:
    wait_for_client(page, proxy, session, "OpenAI's Responses API")
    headers = {"x-graft-session": session.name, "x-goog-api-key": KEY, "user-agent": "OpenAI/Python 3.2.0"}
    answer = proxy.control.http.post("/v1/responses", json={"model": MODEL, "input": "hello"}, headers=headers)
    assert answer.status_code == 200, answer.text
    expect(page.locator("#arrival")).to_contain_text("as OpenAI/Python 3.2.0")


# --- notifications --------------------------------------------------------------------------------------------------

LISTEN = """
window.arrived = [];
window.Notification = class extends Notification {
  constructor(title, options) {
    super(title, options);
    this.addEventListener("show", () => window.arrived.push(this));
  }
};
window.isElsewhere = true;
document.hasFocus = () => !window.isElsewhere;
"""
"""Keeps the notifications that the browser shows. Chromium without a screen shows each page as the one in use."""

DENY = "/v1/approvals/deny"


def bodies(page: Page, count: int) -> list[str]:
    """The texts of the notifications, once there are so many."""

    def found() -> list[str]:
        texts: list[str] = page.evaluate("arrived.map(one => `${one.title}: ${one.body}`)")
        return texts if len(texts) >= count else []

    return until(found, f"{count} notifications")


@pytest.fixture
def listening(context: BrowserContext, page: Page, proxy: Proxy) -> Page:
    """A page whose person uses another window, and has allowed notifications."""
    context.grant_permissions(["notifications"], origin=proxy.control.url)
    page.add_init_script(LISTEN)
    page.goto(f"{proxy.control.url}/console/calls")
    expect(page.locator("#waiting [data-newest]")).to_have_count(1)
    expect(page.get_by_role("button", name="Notify me")).to_be_hidden()
    return page


@pytest.fixture
def asked(proxy: Proxy) -> Iterator[Callable[[str], None]]:
    """Asks something whose call waits for an approval. In the end all such calls are denied."""
    session = new_session(proxy, tools=False)
    session.tools([{**WEATHER, "name": name} for name in ("first", "second", "third")])
    session.policy(delivery="loop", tool_timeout=60, approval_timeout=60)
    with ThreadPoolExecutor(3) as pool:
        running: list[Future[str]] = []
        yield lambda name: running.append(pool.submit(ask, proxy, session, f'call {name} {{"city": "Oslo"}}'))
        while not all(one.done() for one in running):
            proxy.control.ask("POST", DENY, json={"session": session.name})
            wait(running, timeout=0.1)


def test_a_notification_tells_of_an_approval_that_arrives(
    listening: Page, proxy: Proxy, asked: Callable[[str], None], gemini: Gemini
) -> None:
    asked("first")
    assert bodies(listening, 1) == ["toolgraft: A call waits for your approval."]
    asked("second")
    assert bodies(listening, 2)[1:] == ["toolgraft: 2 calls wait for your approval."]
    listening.evaluate("arrived[1].onclick()")
    expect(listening.get_by_role("heading", name="Approvals")).to_be_visible()
    expect(listening.locator("#waiting .number")).to_have_text("2")
    assert listening.evaluate("arrived.length") == 0, "what waited before the page was opened has not arrived"


def test_a_call_that_takes_the_place_of_another_is_told_of(
    listening: Page, proxy: Proxy, asked: Callable[[str], None], gemini: Gemini
) -> None:
    asked("first")
    assert len(bodies(listening, 1)) == 1
    listening.evaluate("window.isElsewhere = false")
    asked("second")
    expect(listening.locator("#waiting .number")).to_have_text("2")
    listening.evaluate("window.isElsewhere = true")
    (first,) = proxy.control.ask("GET", "/v1/calls", params={"status": "pending", "name": "first"})["items"]
    # both reach the page in one batch of changes: as many calls wait as before
    proxy.control.ask("POST", f"/v1/calls/{first['call_id']}/deny", json={})
    asked("third")
    assert bodies(listening, 2)[1:] == ["toolgraft: 2 calls wait for your approval."], "none for the page in use"
