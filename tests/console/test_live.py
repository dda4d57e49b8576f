"""The page *Live*, and what it is told."""

import time

import httpx2
import pytest

from addon.console import changes
from addon.console.requests import waterfall
from addon.control.app import ControlApp
from addon.core.summaries import CallSummary, RoundSummary, Summary
from tests.console.test_changes import EVERYTHING, kind_of
from tests.console.test_pages import HOSTILE, part
from tests.control.conftest import Exchange


async def test_text_of_others_is_text(page: httpx2.AsyncClient, app: ControlApp) -> None:
    summary = Summary("work", model=HOSTILE, operation=HOSTILE)
    app.api.recent.begin(summary)
    summary.calls.append(CallSummary(HOSTILE, {"a": HOSTILE}, call_id=HOSTILE, began=time.monotonic()))
    for ended in (False, True):
        if ended:
            summary.end = HOSTILE
            app.api.recent.end(summary)
        text = await part(page, "live")
        assert "&lt;script&gt;alert(1)" in text
        for bad in ("<script>", "<img", "\u202e", "\x1b"):
            assert bad not in text


async def test_requests_are_filtered_and_what_is_not_kept_is_counted(page: httpx2.AsyncClient, app: ControlApp) -> None:
    for number in range(103):
        app.api.recent.end(Summary(f"s{number}", status=200))
    text = await part(page, "live", session="", tool="", state="")
    assert "session s102" in text
    assert "3 older requests since the start are no longer kept" in text
    only = await part(page, "live", session="s50")
    assert "session s50 " in only
    assert "session s51 " not in only
    assert "No such requests" in await part(page, "live", state="failed")


def test_a_waterfall_has_rounds_and_calls_in_their_order() -> None:
    times = [{"began": 0.0, "seconds": 1.0}, {"began": 3.0, "seconds": 1.0}]
    call = {"name": "f", "state": "done", "began": 0.9, "seconds": 2.0, "waited": 0.0, "call_id": "call_1"}
    bars = waterfall({"seconds": 4.0, "round_times": times, "calls": [call]})
    assert [(bar.label, bar.began) for bar in bars] == [("round 1", 0.0), ("f", 0.9), ("round 2", 3.0)]
    assert bars[1].width == 300
    assert all(0 <= bar.x and bar.x + bar.width <= 600 for bar in bars)
    assert waterfall({"seconds": 1.0, "round_times": times[:1], "calls": []}) == []


def test_a_wait_before_a_call_has_a_bar_of_its_own() -> None:
    call = {"name": "f", "state": "done", "began": 1.0, "seconds": 2.0, "waited": 1.5, "call_id": "call_1"}
    record = {"seconds": 4.0, "round_times": [], "calls": [call]}
    bars = waterfall(record)
    assert [(bar.kind, bar.label, bar.began, bar.seconds) for bar in bars] == [
        ("wait", "f waits", 1.0, 1.5),
        ("call", "f", 2.5, 0.5),
    ]
    waiting = waterfall(record | {"calls": [call | {"state": "running", "waited": None}]})
    assert [(bar.kind, bar.seconds) for bar in waiting] == [("wait", 2.0)]


@pytest.mark.parametrize("name", ["live", "sessions"])
async def test_pages_of_requests_are_told_of_them(app: ControlApp, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(changes, "_PAUSE", 0.0)
    stream = Exchange(app, "/console/changes", f"page={name}")
    assert (await stream.start())["status"] == 200
    assert [kind_of(await stream.block()) for _ in range(5)] == [*EVERYTHING, "requests"]
    summary = Summary("work")
    summary.loop.append(RoundSummary(time.monotonic()))
    app.api.recent.begin(summary)
    assert kind_of(await stream.block()) == "requests"
    app.api.recent.end(summary)
    assert kind_of(await stream.block()) == "requests"
    await stream.leave()
