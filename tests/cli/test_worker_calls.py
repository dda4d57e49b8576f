"""The calls that a worker runs, and its end."""

import asyncio
from typing import Any

import pytest

from addon.cli import worker_client
from addon.tools import Image
from store.models import Status
from tests.cli.worker_bench import Bench, Functions, Rules, echo, serve


class Flaky(Exception):
    retryable = True

    def __init__(self, sent: bool) -> None:
        self.sent = sent


async def for_ever(args: dict[str, Any]) -> Any:
    await asyncio.Event().wait()


# --- calls ------------------------------------------------------------------------------------------------------------


async def test_calls_are_run_and_answered(bench: Bench) -> None:
    await bench.capture("before", city="Oslo")
    async with serve(bench, Functions(f=echo)) as served:
        assert (await bench.final("before")).result == {"city": "Oslo"}
        await bench.capture("after", city="Rome")
        call = await bench.final("after")
        assert (call.status, call.result, call.worker) == (Status.DONE, {"city": "Rome"}, "w1")
        report = await served.until("answered", call_id="after")
    assert (report["name"], report["status"]) == ("f", "done")
    assert served.task.done()


async def test_calls_of_other_tools_are_left_alone(bench: Bench) -> None:
    async with serve(bench, Functions(f=echo)):
        await bench.capture("c0", name="g")
        await bench.capture("c1")
        await bench.final("c1")
        assert (await bench.store.call("default", "c0")).status is Status.PENDING


async def test_images_in_a_result_are_sent_as_its_parts(bench: Bench) -> None:
    async def tool(args: dict[str, Any]) -> Any:
        return {"shot": Image(b"\x89PNG\r\n"), "width": 3}

    async with serve(bench, Functions(f=tool)):
        await bench.capture("c1")
        call = await bench.final("c1")
    assert (call.status, call.result) == (Status.DONE, {"shot": "[part 1: image/png]", "width": 3})
    assert call.parts == [{"inlineData": {"mimeType": "image/png", "data": "iVBORw0K"}}]


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (ValueError("no such city"), "no such city"),
        (ValueError(), "ValueError"),
        (ValueError("\ud800"), "?"),
        (object(), "serialize"),
        ("\ud800", "surrogate"),
        ("x" * 5000, "cannot be sent"),
    ],
    ids=["an exception", "without words", "of no UTF-8", "not JSON", "no UTF-8", "too large"],
)
async def test_a_call_that_fails_is_answered_with_why(bench: Bench, outcome: Any, error: str) -> None:
    async def tool(args: dict[str, Any]) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with serve(bench, Functions(f=tool)) as served:
        await bench.capture("c1")
        call = await bench.final("c1")
        assert call.status is Status.FAILED
        assert error in (call.error or "")
        assert (await served.until("answered"))["status"] == "failed"


async def test_a_call_that_takes_longer_than_its_tool_may_is_ended(bench: Bench) -> None:
    source = Functions(f=for_ever)
    source.rules["f"] = Rules(timeout=0.01)
    async with serve(bench, source):
        await bench.capture("c1")
        assert (await bench.final("c1")).error == "f took longer than 0.01 s"


@pytest.mark.parametrize(
    ("retries", "idempotent", "sent", "tries"),
    [
        (None, True, True, 1),
        (1, True, True, 2),
        (2, True, True, 3),
        (2, False, True, 1),
        (2, False, False, 3),
    ],
)
async def test_a_retryable_call_is_tried_as_often_as_the_tool_says(
    bench: Bench, retries: int | None, idempotent: bool, sent: bool, tries: int
) -> None:
    tried = 0

    async def flaky(args: dict[str, Any]) -> int:
        nonlocal tried
        tried += 1
        if tried < 3:
            raise Flaky(sent)
        return tried

    source = Functions(f=flaky)
    source.rules["f"] = Rules(retries=retries, idempotent=idempotent)
    async with serve(bench, source):
        await bench.capture("c1")
        assert (await bench.final("c1")).status is (Status.DONE if tries == 3 else Status.FAILED)
    assert tried == tries


async def test_as_many_calls_run_at_once_as_are_wanted(bench: Bench) -> None:
    go, full, running, most = asyncio.Event(), asyncio.Event(), 0, 0

    async def tool(args: dict[str, Any]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await go.wait()
        running -= 1

    async with serve(bench, Functions(f=tool), concurrency=3):
        for number in range(5):
            await bench.capture(f"c{number}")
        await asyncio.wait_for(full.wait(), 5)
        assert [(await bench.store.call("default", f"c{n}")).status for n in (3, 4)] == [Status.PENDING] * 2
        go.set()
        for number in range(5):
            await bench.final(f"c{number}")
    assert most == 3


async def test_workers_share_the_work(bench: Bench) -> None:
    numbers: list[int] = []

    async def tool(args: dict[str, Any]) -> None:
        numbers.append(args["n"])
        await asyncio.sleep(0)

    async with serve(bench, Functions(f=tool), name="w1"), serve(bench, Functions(f=tool), name="w2"):
        for number in range(20):
            await bench.capture(f"c{number}", n=number)
        calls = [await bench.final(f"c{number}") for number in range(20)]
    assert sorted(numbers) == list(range(20))
    assert {call.worker for call in calls} == {"w1", "w2"}


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_a_worker_that_is_stopped_finishes_what_it_runs_and_takes_no_more(bench: Bench) -> None:
    go = asyncio.Event()

    async def tool(args: dict[str, Any]) -> str:
        await go.wait()
        return "finished"

    async with serve(bench, Functions(f=tool)) as served:
        await bench.capture("c1")
        await served.until("claimed")
        served.stop.set()
        await bench.capture("c2")
        asyncio.get_running_loop().call_later(0.05, go.set)
        await served.task
    assert (await bench.store.call("default", "c1")).result == "finished"
    assert (await bench.store.call("default", "c2")).status is Status.PENDING
    assert (await served.until("stopped")) == {"event": "stopped"}


@pytest.mark.parametrize("hurry", [True, False])
@pytest.mark.parametrize("rules", [Rules(idempotent=True), Rules(redeliver=True)])
async def test_an_unfinished_call_that_may_run_twice_is_given_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, hurry: bool, rules: Rules
) -> None:
    monkeypatch.setattr(worker_client, "GRACE", 60.0 if hurry else 0.05)
    source = Functions(f=for_ever)
    source.rules["f"] = rules
    async with serve(bench, source) as served:
        await bench.capture("c1")
        await served.until("claimed")
        await served.end(hurry=hurry)
        await served.until("returned", call_id="c1")
    call = await bench.store.call("default", "c1")
    assert (call.status, call.worker) == (Status.PENDING, None)
    async with serve(bench, Functions(f=echo), name="w2"):
        assert (await bench.final("c1")).worker == "w2"


async def test_an_unfinished_call_that_must_not_run_twice_is_answered(bench: Bench) -> None:
    async with serve(bench, Functions(f=for_ever)) as served:
        await bench.capture("c1")
        await served.until("claimed")
        await served.end(hurry=True)
        await served.until("abandoned", call_id="c1")
    call = await bench.store.call("default", "c1")
    assert call.status is Status.FAILED
    assert "may have run" in (call.error or "")


async def test_a_worker_stops_while_the_proxy_is_away(bench: Bench) -> None:
    async with serve(bench, Functions(f=for_ever)) as served:
        await bench.capture("c1")
        await served.until("claimed")
        bench.line.is_cut = True
        await served.end(hurry=True)
        await served.until("lost", call_id="c1")
