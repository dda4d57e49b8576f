"""The page *Connect*: what it waits for, and what it makes of requests that arrive."""

import json
import re
import time
from typing import Any

import httpx2
import pytest

from addon.console import changes
from addon.console.connect import CLIENTS, is_from
from addon.control.app import ControlApp
from addon.core.summaries import Summary
from tests.console.test_changes import EVERYTHING, kind_of
from tests.console.test_pages import HOSTILE, part
from tests.control.conftest import Exchange

AGENTS = {
    "gemini-cli": "GeminiCLI/0.61.0/gemini-3-flash (linux; x64; terminal)",
    "python": "google-genai-sdk/3.1.0 gl-python/3.13.5",
    "javascript": "google-genai-sdk/3.1.0 gl-node/v24.0.0",
    "curl": "curl/8.14.1",
    "openai": "AsyncOpenAI/Python 3.2.0",
}


def arrive(app: ControlApp, agent: str | None, session: str = "work", **fields: Any) -> None:
    summary = Summary(session, **{"status": 200, **fields})
    summary.note_client(agent)
    app.api.recent.end(summary)


async def arrival(page: httpx2.AsyncClient, client: str = "curl", since: float = 0.0) -> str:
    text = await part(page, "arrival", session="work", client=client, since=str(since))
    return " ".join(text.split())


def test_each_client_is_known_by_its_user_agent() -> None:
    assert AGENTS.keys() == {key for key, kind in CLIENTS.items() if kind.agents}
    for name, agent in AGENTS.items():
        assert [key for key in AGENTS if is_from(key, agent)] == [name]
    assert all(is_from(key, "") for key in CLIENTS.keys() - AGENTS.keys())


async def test_a_chosen_client_is_awaited_from_now_on(page: httpx2.AsyncClient, app: ControlApp, settings: Any) -> None:
    arrive(app, AGENTS["openai"])
    html = await part(page, "connect", session="work", client="openai")
    assert "waiting" in html
    assert 'hx-trigger="requests from:#changes"' in html
    since = re.search(r"since=([\d.]+)", html)
    assert since is not None
    assert time.time() - 60 < float(since[1]) <= time.time()
    assert html.count("<article") == 1
    assert html.count("<option") == 1 + html.count('value="openai" selected')


async def test_the_first_request_of_the_client_is_shown_and_stays(page: httpx2.AsyncClient, app: ControlApp) -> None:
    assert "hx-get" in await arrival(page)
    arrive(app, AGENTS["curl"], model="gemini-3-flash")
    arrive(app, "curl/9")
    text = await arrival(page)
    assert "seen</span> The first request of curl arrived at" in text
    assert "<code>curl/8.14.1</code>, for gemini-3-flash." in text
    assert "hx-get" not in text
    assert "seen" not in await arrival(page, since=time.time() + 60), "it arrived before the page was opened"
    assert "without a user agent" not in text
    assert "seen" in await arrival(page, "env"), "it may call itself anything"


async def test_a_first_request_that_failed_says_so(page: httpx2.AsyncClient, app: ControlApp) -> None:
    arrive(app, AGENTS["curl"], status=401)
    assert "It failed: status 401." in await arrival(page)


async def test_requests_of_others_and_in_other_sessions_are_mentioned(
    page: httpx2.AsyncClient, app: ControlApp
) -> None:
    arrive(app, None)
    assert "Another client has sent one, without a user agent." in await arrival(page)
    arrive(app, AGENTS["python"])
    assert "Another client has sent one, without a user agent." in await arrival(page)
    arrive(app, AGENTS["curl"], "default")
    text = await arrival(page)
    assert "in session <strong>default</strong> instead, as <code>curl/8.14.1</code>" in text
    assert "hx-get" in text


@pytest.mark.parametrize("key", ["env", "curl"], ids=["the client", "another client"])
async def test_a_hostile_user_agent_is_text_and_bounded(key: str, page: httpx2.AsyncClient, app: ControlApp) -> None:
    arrive(app, HOSTILE + "x" * 100_000, end=HOSTILE, model=HOSTILE)
    text = await arrival(page, key)
    assert "&lt;script&gt;alert(1)" in text
    for bad in ("<script>", "<img", "\u202e", "\x1b"):
        assert bad not in text
    assert len(text) < 3000
    (record,) = (await page.get("/v1/requests")).json()["items"]
    assert len(record["user_agent"]) == 200
    assert "\u202e" not in json.dumps(record, ensure_ascii=False)


@pytest.mark.parametrize(
    "query",
    [
        {"session": "work", "client": "telnet", "since": "0"},
        {"session": "work", "client": "curl", "since": "nan"},
        {"session": "work", "client": "curl"},
        {"session": "a b", "client": "curl", "since": "0"},
    ],
)
async def test_a_wrong_query_is_refused(query: dict[str, str], page: httpx2.AsyncClient) -> None:
    assert (await page.get("/console/parts/arrival", params=query)).status_code == 422


async def test_the_page_is_told_of_requests(app: ControlApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_PAUSE", 0.0)
    stream = Exchange(app, "/console/changes", "page=connect")
    assert (await stream.start())["status"] == 200
    assert [kind_of(await stream.block()) for _ in range(5)] == [*EVERYTHING, "requests"]
    arrive(app, AGENTS["curl"])
    assert kind_of(await stream.block()) == "requests"
    await stream.leave()
