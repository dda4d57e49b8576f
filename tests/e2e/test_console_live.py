"""The page *Live* in Chromium, beside clients."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browser import follow, running_chromium, sign_in, violations
from tests.e2e.proxies import Proxy, Session, ask, new_session
from tests.e2e.upstreams import Gemini

HOSTILE = "Oslo <img src=x onerror=alert(1)> \u202e"
LOOKUP = {
    "name": "lookup",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}},
    "executor": {"type": "worker"},
    "approval": True,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


def opened(browser: Browser, proxy: Proxy, errors: list[str], **context: Any) -> Page:
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(30_000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda entry: errors.append(entry.text) if "Content Security" in entry.text else None)
    sign_in(page, proxy)
    page.goto(f"{proxy.control.url}/console/live")
    expect(page.get_by_role("heading", name="Live")).to_be_visible()
    return page


def loop(proxy: Proxy) -> Session:
    session = new_session(proxy, tools=False)
    session.tools([LOOKUP])
    session.policy(delivery="loop", tool_timeout=60, approval_timeout=60)
    return session


def look_at(page: Page, folder: Path, name: str) -> None:
    """Light and dark, wide and narrow: nothing is cut off, and axe has no objection. Leaves it light and wide."""
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        for width in (400, 1200):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert violations(page) == []
            page.screenshot(path=folder / f"{name}-{scheme}-{width}.png", full_page=True)


def test_a_loop_appears_while_it_runs_and_its_rounds_when_it_ends(
    proxy: Proxy, gemini: Gemini, browser: Browser, tmp_path: Path
) -> None:
    errors: list[str] = []
    page, session = opened(browser, proxy, errors, viewport={"width": 1200, "height": 800}), loop(proxy)
    card = page.locator("article.card").filter(has_text=f"session {session.name} ")
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, proxy, session, f"call lookup {json.dumps({'city': HOSTILE})}", stream=True)
        expect(card).to_contain_text("running")
        expect(card.get_by_role("link", name="lookup").first).to_be_visible()
        assert violations(page) == []
        (call,) = session.calls(status="pending", wait=5)
        proxy.control.ask("POST", f"/v1/calls/{call['call_id']}/approve")
        proxy.control.ask("POST", f"/v1/calls/{call['call_id']}/result", json={"result": {"ok": True}})
        assert asked.result(20)
    expect(card).to_contain_text("done")
    expect(card).to_contain_text("2 rounds")
    labels = card.locator(".bar-label").all_inner_texts()
    assert labels == ["round 1", "lookup waits", "lookup", "round 2"], "it waited for the approval"
    assert violations(page) == []
    look_at(page, tmp_path, "live")
    follow(card.get_by_role("heading").get_by_role("link"))
    expect(page.get_by_role("heading", name="A request")).to_be_visible()
    expect(page.locator(".diff .put-in").filter(has_text="functionDeclarations")).to_be_visible()
    page.get_by_role("button", name="Replay through today").click()
    expect(page.locator("#replayed")).to_contain_text("Today the same request would go to the model.")
    session.tools([LOOKUP | {"description": f"Another {HOSTILE}"}])
    page.get_by_role("button", name="Replay through today").click()
    expect(page.locator("#replayed")).to_contain_text("Another Oslo <img")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy").first.click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("curl -X POST ")
    look_at(page, tmp_path, "request")
    follow(page.get_by_role("link", name="turn_"))
    expect(page.get_by_role("heading", name="A turn")).to_be_visible()
    expect(page.get_by_role("link", name="Its request")).to_be_visible()
    look_at(page, tmp_path, "turn")
    page.goto(f"{proxy.control.url}/console/live")
    follow(card.get_by_role("link", name="lookup").first)
    expect(page.get_by_label("Arguments")).to_contain_text("Oslo <img src=x onerror=alert(1)>")
    follow(page.get_by_role("link", name="turn_"))
    sides = page.get_by_role("region", name="What Gemini said and was told")
    expect(sides).to_contain_text("taken out: the client does not see this call")
    expect(sides.get_by_label("Result")).to_contain_text('"ok": true')
    look_at(page, tmp_path, "turn")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("region", name="As JSON").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert json.loads(page.evaluate("navigator.clipboard.readText()"))["session"] == session.name
    assert errors == []
    page.context.close()


def test_the_page_goes_on_after_a_restart(start: Callable[..., Proxy], gemini: Gemini, browser: Browser) -> None:
    proxy, errors = start(gemini.url, control="127.0.0.1:0"), list[str]()
    port = proxy.control.url.rpartition(":")[2]
    proxy._arguments = [
        f"graft_control=127.0.0.1:{port}" if "graft_control" in one else one for one in proxy._arguments
    ]
    page = opened(browser, proxy, errors)
    proxy.stop()
    expect(page.get_by_role("status")).to_contain_text("cannot be reached")
    proxy.start()
    expect(page.get_by_role("status")).to_be_hidden(timeout=20_000)
    session = new_session(proxy)
    ask(proxy, session, "hello")
    expect(page.get_by_text(f"session {session.name} ")).to_be_visible(timeout=20_000)
    assert errors == []
    page.context.close()
