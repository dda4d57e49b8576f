"""The leases of a worker's calls, also while the proxy is away."""

import asyncio
from typing import Any

import pytest

from addon.cli import worker_client
from store.models import Status
from tests.cli.worker_bench import LEASE, Bench, Functions, echo, serve

# --- leases -----------------------------------------------------------------------------------------------------------


async def test_a_lease_is_renewed_while_the_call_runs(bench: Bench) -> None:
    go = asyncio.Event()

    async def tool(args: dict[str, Any]) -> None:
        await go.wait()

    async with serve(bench, Functions(f=tool)) as served:
        await bench.capture("c1")
        await served.until("claimed")
        loop = asyncio.get_running_loop()
        loop.call_later(1.3 * LEASE, go.set)
        other = await bench.client.post(
            "/v1/calls/claim", json={"session": "default", "names": ["f"], "wait": 1.2 * LEASE}
        )
        assert other.status_code == 204, "the lease ran out"
        assert (await bench.final("c1")).worker == "w1"


async def test_a_call_that_was_answered_elsewhere_is_cancelled(bench: Bench) -> None:
    cancelled = asyncio.Event()

    async def tool(args: dict[str, Any]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serve(bench, Functions(f=tool)) as served:
        await bench.capture("c1")
        await served.until("claimed")
        await bench.store.answer("default", "c1", error="the client has left")
        assert "failed" in (await served.until("lost", call_id="c1"))["error"]
        await asyncio.wait_for(cancelled.wait(), 5)
        await bench.capture("c2")
        await served.until("claimed", call_id="c2")


async def test_an_answer_that_comes_too_late_is_told_and_changes_nothing(bench: Bench) -> None:
    go = asyncio.Event()

    async def tool(args: dict[str, Any]) -> None:
        await go.wait()

    async with serve(bench, Functions(f=tool)) as served:
        await bench.capture("c1")
        await served.until("claimed")
        await bench.store.answer("default", "c1", result="of another")
        go.set()
        await served.until("lost", call_id="c1")
    assert (await bench.store.call("default", "c1")).result == "of another"


async def test_a_lease_is_renewed_until_the_result_is_taken(bench: Bench) -> None:
    async with serve(bench, Functions(f=echo)) as served:
        bench.line.cut_path = "/result"
        await bench.capture("c1")
        await served.until("claimed")
        other = await bench.client.post(
            "/v1/calls/claim", json={"session": "default", "names": ["f"], "wait": 1.5 * LEASE}
        )
        assert other.status_code == 204, "the lease ran out"
        bench.line.cut_path = None
        assert (await bench.final("c1")).worker == "w1"


async def test_a_call_whose_claim_was_answered_in_vain_is_given_back(bench: Bench) -> None:
    ran: list[dict[str, Any]] = []

    async def tool(args: dict[str, Any]) -> None:
        ran.append(args)

    bench.line.lost = 1
    async with serve(bench, Functions(f=tool)) as served:
        await bench.capture("c1", n=1)
        await served.until("unreachable")
        assert (await bench.final("c1")).status is Status.DONE
    assert ran == [{"n": 1}]


async def test_a_result_that_the_proxy_does_not_take_is_given_up_in_the_end(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_client, "PATIENCE", 0.1)
    async with serve(bench, Functions(f=echo)) as served:
        bench.line.cut_path = "/result"
        await bench.capture("c1")
        report = await served.until("lost", call_id="c1")
        assert "not accepted" in report["error"]
        bench.line.cut_path = None
    call = await bench.store.call("default", "c1")
    assert (call.status, call.worker) == (Status.RUNNING, "w1"), "it has run, and is not given back"


# --- a proxy that is away ---------------------------------------------------------------------------------------------


async def test_a_worker_waits_for_the_proxy_and_registers_when_it_is_there(bench: Bench) -> None:
    bench.line.is_cut = True
    async with serve(bench, Functions(f=echo), ready=False) as served:
        assert "refused" in (await served.until("unreachable"))["error"]
        bench.line.is_cut = False
        await served.until("serving")
        await bench.capture("c1")
        await bench.final("c1")


async def test_a_worker_registers_beside_the_proxy_s_own_tools(bench: Bench) -> None:
    bench.shared.append({"name": "own", "description": "The proxy's."})
    async with asyncio.timeout(10), serve(bench, Functions(f=echo)):
        (tool,) = await bench.tools()
    assert [one["name"] for one in tool["functionDeclarations"]] == ["f"]


async def test_a_worker_registers_anew_with_a_proxy_that_has_forgotten_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_client, "WAIT", 0.05)
    async with serve(bench, Functions(f=echo)) as served:
        bench.line.is_cut = True
        await served.until("unreachable")
        await bench.store.delete_session("default")
        bench.line.is_cut = False
        await served.until("serving")
        assert [f["name"] for f in (await bench.tools())[0]["functionDeclarations"]] == ["f"]


async def test_a_result_is_kept_until_the_proxy_takes_it(bench: Bench) -> None:
    go = asyncio.Event()

    async def tool(args: dict[str, Any]) -> str:
        await go.wait()
        return "kept"

    async with serve(bench, Functions(f=tool)) as served:
        await bench.capture("c1")
        await served.until("claimed")
        bench.line.is_cut = True
        go.set()
        await bench.capture("c2")  # ends the current claim's wait
        await served.until("unreachable")
        assert (await bench.store.call("default", "c1")).status is Status.RUNNING
        bench.line.is_cut = False
        assert (await bench.final("c1")).result == "kept"
