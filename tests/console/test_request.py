"""The page *A request*, and what *A turn* shows of its request."""

import json

import httpx2

from addon.console.rendering import marked
from addon.control.app import ControlApp
from addon.core.summaries import Summary
from tests.console.test_pages import HOSTILE, part
from tests.control.conftest import Capture
from tests.monitoring.test_kept_requests import bodies


def keep(app: ControlApp, client: str = "hello", turn_id: str = "") -> str:
    body = json.dumps({"contents": [{"role": "user", "parts": [{"text": client}]}]}, ensure_ascii=False).encode()
    summary = Summary("default", model=HOSTILE, operation=HOSTILE, end=HOSTILE, turn_id=turn_id)
    fields = ((b"x-note", HOSTILE.encode()), (b"authorization", b"Bearer a-token-of-the-client-42"))
    app.api.recent.begin(summary, bodies(body, body[:-1] + b', "tools": []}', fields=fields))
    app.api.recent.end(summary)
    return str(app.api.recent.records()[0]["request_id"])


async def test_text_of_others_is_text(page: httpx2.AsyncClient, app: ControlApp) -> None:
    request_id = keep(app, HOSTILE)
    for name in ("request", "replay"):
        text = await part(page, name, request_id=request_id)
        for bad in ("<script>", "<img", "\u202e", "\x1b", "a-token-of-the-client-42"):
            assert bad not in text
    text = await part(page, "request", request_id=request_id)
    assert 'class="put-in">+ &#34;tools&#34;: []' in text
    assert "&#34;Bearer $ACCESS_TOKEN&#34;" in text
    assert 'data-copy="curl-sent"' in text


async def test_a_turn_shows_its_request(page: httpx2.AsyncClient, app: ControlApp, capture: Capture) -> None:
    await capture("call_1")
    assert "Its request" not in await part(page, "turn", turn_id="turn_call_1")
    request_id = keep(app, turn_id="turn_call_1")
    text = await part(page, "turn", turn_id="turn_call_1")
    assert f"/console/request?request_id={request_id}" in text
    assert "Replay through today" in text
    assert "curl -X POST" in text
    assert "turn_id=turn_call_1" in await part(page, "request", request_id=request_id)


async def test_large_bodies_are_not_compared_on_the_page(page: httpx2.AsyncClient, app: ControlApp) -> None:
    text = await part(page, "request", request_id=keep(app, "x" * 600_000))
    assert "too long to be compared here" in text
    assert "--curl sent" in text
    assert len(text) < 100_000


async def test_what_is_not_kept_is_said(page: httpx2.AsyncClient, app: ControlApp) -> None:
    app.api.recent.end(Summary("default", status=200))
    request_id = app.api.recent.records()[0]["request_id"]
    assert "graft_keep_requests" in await part(page, "request", request_id=request_id)
    assert (await page.get("/console/parts/request?request_id=req_x")).status_code == 404


def test_a_diff_on_a_page_is_cut() -> None:
    lines = ["--- a", "+++ b", "@@ -1 +1 @@", *(f"+{number}" for number in range(1000))]
    found = marked(lines)
    assert [mark for mark, _ in found[:4]] == ["", "", "", "put-in"]
    assert found[-1] == ("", "… and 603 more lines")
