"""Chromium, driven by Playwright, and axe-core's check of what a page shows."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from tests.e2e.chats import installed
from tests.e2e.proxies import Proxy

AXE = "axe-core@4.14.1"
_PATIENCE = 20_000
"""Milliseconds to wait for a page's contents: the machine may be busy."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Debian's Chromium. Without it, the test is skipped, except in CI."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("chromium is not installed")
    expect.set_options(timeout=_PATIENCE)
    with sync_playwright() as playwright:
        # root cannot use the sandbox
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def violations(page: Page) -> list[str]:
    """The violations that axe-core finds."""
    page.evaluate((Path(installed(AXE)) / "axe.min.js").read_text())
    found: dict[str, Any] = page.evaluate(f"axe.run(document, {{runOnly: {RULES}}})")
    return [f"{one['id']}: {[node['html'] for node in one['nodes']]}" for one in found["violations"]]


def sign_in(page: Page, proxy: Proxy) -> None:
    """Open the console by a single-use link."""
    page.goto(proxy.control.url + proxy.control.ask("POST", "/console/links", json={})["path"])
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()  # the page itself is there before


def follow(link: Locator) -> None:
    """Click a link, and wait until the new page has loaded: before that, htmx ignores clicks."""
    with link.page.expect_navigation():
        link.click()
