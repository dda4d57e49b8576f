"""The worker with an in-process control API: registering tools, and running, losing and returning calls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.cli import worker_calls, worker_client
from addon.cli.control_client import Refused
from addon.cli.worker_client import Worker, with_tools, worker_declaration
from addon.control.app import create_app
from addon.metrics import Metrics
from addon.settings import Settings
from store.backends.memory import MemoryStore
from store.base import Store
from store.models import Call, Status, Step, Turn

TOOLS = "/v1/sessions/default/tools"
LEASE = 1.0  # the shortest allowed


@dataclass
class Rules:
    timeout: float | None = None
    retries: int | None = None
    after: tuple[str, ...] = ()
    idempotent: bool = False
    redeliver: bool = False
    cache_ttl: float | None = None
    approval: bool = False
    behavior: str | None = None
    scheduling: str | None = None


@dataclass
class Tool:
    declaration: dict[str, Any]
    rules: Rules


class Flaky(Exception):
    retryable = True

    def __init__(self, sent: bool) -> None:
        self.sent = sent


class Functions:
    """A source of async functions that take their arguments as a dict."""

    def __init__(self, **functions: Callable[[dict[str, Any]], Awaitable[Any]]) -> None:
        self.functions = functions
        self.rules: dict[str, Rules] = {}

    async def list_tools(self) -> Sequence[Tool]:
        return [Tool({"name": name}, self.rules.get(name, Rules())) for name in self.functions]

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        return await self.functions[name](dict(args))


class Line(httpx2.AsyncBaseTransport):
    """A connection to the proxy that can be cut."""

    def __init__(self, app: Any) -> None:
        self._proxy = httpx2.ASGITransport(app)
        self.is_cut = False
        self.cut_path: str | None = None
        """Requests for paths that end so do not arrive."""
        self.lost = 0
        """How many answers to claims are still to be lost on their way."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if self.is_cut or (self.cut_path is not None and path.endswith(self.cut_path)):
            raise httpx2.ConnectError("refused")
        answer = await self._proxy.handle_async_request(request)
        if self.lost and path.endswith("/claim") and answer.status_code == 200:
            self.lost -= 1
            raise httpx2.ReadError("broken")
        return answer


class Bench:
    """A proxy with its store, for workers."""

    def __init__(self, store: Store, state: Path) -> None:
        self.store = store
        settings = Settings(state=state, max_body=4096)
        self.shared: list[dict[str, Any]] = []  # the proxy's own tools
        app = create_app(
            store=store, settings=settings, token="t", metrics=Metrics(), version="1", shared=lambda: self.shared
        )
        self.line = Line(app)
        self.client = self.client_of("t")

    def client_of(self, token: str) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            transport=self.line, base_url="http://127.0.0.1:8741", headers={"Authorization": f"Bearer {token}"}
        )

    async def capture(self, call_id: str, name: str = "f", **args: Any) -> None:
        call = Call(
            call_id=call_id,
            session="default",
            name=name,
            args=args,
            owner="workers",
            released=True,
            turn_id=call_id,
            created_at=1e9,
            updated_at=1e9,
        )
        content = {"role": "model", "parts": [{"functionCall": {"name": name, "args": args}}]}
        turn = Turn(turn_id=call_id, session="default", visible=[], steps=[Step(content=content)], created_at=1e9)
        await self.store.save_turn(turn, [call])

    async def final(self, call_id: str) -> Call:
        """The call, as soon as it is answered."""
        async with asyncio.timeout(10):
            call = await self.store.call("default", call_id)
            while not call.status.final:
                call = await self.store.wait_call(call, 10) or call
            return call

    async def tools(self) -> list[Any]:
        tools: list[Any] = (await self.client.get(TOOLS)).json()["tools"]
        return tools


class Served:
    """A running worker and its events."""

    def __init__(self, worker: Worker, events: asyncio.Queue[dict[str, Any]]) -> None:
        self.events = events
        self.stop, self.hurry = asyncio.Event(), asyncio.Event()
        self.task = asyncio.ensure_future(worker.run(self.stop, self.hurry))

    async def until(self, event: str, **fields: Any) -> dict[str, Any]:
        """The next event of this kind."""
        async with asyncio.timeout(10):
            while True:
                report = await self.events.get()
                if report.items() >= {"event": event, **fields}.items():
                    return report

    async def end(self, *, hurry: bool = False) -> None:
        self.stop.set()
        if hurry:
            self.hurry.set()
        async with asyncio.timeout(10):
            await self.task


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    store = MemoryStore()
    await store.open()
    bench = Bench(store, tmp_path)
    yield bench
    await bench.client.aclose()
    await store.close()


@asynccontextmanager
async def serve(
    bench: Bench, source: Functions, *, name: str = "w1", concurrency: int = 4, ready: bool = True
) -> AsyncIterator[Served]:
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    worker = Worker(
        source,
        bench.client,
        session="default",
        name=name,
        concurrency=concurrency,
        lease=LEASE,
        report=events.put_nowait,
    )
    served = Served(worker, events)
    if ready:
        await served.until("serving")
    try:
        yield served
    finally:
        await served.end(hurry=True)


async def echo(args: dict[str, Any]) -> Any:
    return args


async def for_ever(args: dict[str, Any]) -> Any:
    await asyncio.Event().wait()


# --- tools ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "fields"),
    [
        (Rules(), {}),
        (Rules(timeout=2.0, retries=0, cache_ttl=1.5), {"timeout": 2.0, "retries": 0, "cache_ttl": 1.5}),
        (Rules(after=("g",), idempotent=True, approval=True), {"after": ["g"], "idempotent": True, "approval": True}),
    ],
)
def test_a_tool_is_declared_with_its_rules(rules: Rules, fields: dict[str, Any]) -> None:
    declaration = {"name": "f", "description": "d"}
    assert worker_declaration(Tool(declaration, rules)) == {**declaration, "executor": {"type": "worker"}, **fields}


async def test_tools_are_registered_beside_those_of_others(bench: Bench) -> None:
    other = {"name": "g", "executor": {"type": "http", "url": "https://a.example", "headers": {"Key": "s3cret"}}}
    former = {"name": "f", "description": "old", "executor": {"type": "worker"}, "timeout": 3}
    document = {"tools": [former, other, {"googleSearch": {}}], "tool_choice": "required"}
    await bench.client.put(TOOLS, json=document)
    async with serve(bench, Functions(f=echo, h=echo)):
        answer = (await bench.client.get(TOOLS)).json()
    session = await bench.store.session("default")
    assert session is not None
    assert session.toolset is not None
    worker = {"executor": {"type": "worker"}}
    masked = {**other, "executor": {**other["executor"], "headers": {"Key": "***"}}}  # type: ignore[dict-item]
    assert answer["tools"] == [
        {"functionDeclarations": [{"name": "f", **worker}, masked, {"name": "h", **worker}]},
        {"googleSearch": {}},
    ]
    assert answer["tool_config"]["functionCallingConfig"] == {"mode": "ANY"}
    executor = session.toolset.rules["g"].executor
    assert executor is not None
    assert executor.headers == {"Key": "s3cret"}


async def test_a_token_for_workers_of_one_session_is_all_that_a_worker_needs(bench: Bench) -> None:
    other = {"name": "g", "executor": {"type": "http", "url": "https://a.example", "headers": {"Key": "s3cret"}}}
    await bench.client.put(TOOLS, json={"tools": [other]})
    grant = {"scopes": ["worker"], "session": "default"}
    made = (await bench.client.post("/v1/tokens", json=grant)).json()
    await bench.client.aclose()
    bench.client = bench.client_of(made["token"])
    async with serve(bench, Functions(f=echo)):
        await bench.capture("call_1", x=1)
        assert (await bench.final("call_1")).result == {"x": 1}


async def test_tools_that_are_registered_already_are_left_alone(bench: Bench) -> None:
    async with serve(bench, Functions(f=echo)):
        pass
    before = await bench.store.last_event_id()
    async with serve(bench, Functions(f=echo)):
        assert await bench.store.last_event_id() == before


async def test_workers_that_start_at_once_all_get_their_tools_in(bench: Bench) -> None:
    sources = [Functions(**{f"f{n}": echo}) for n in range(4)]
    async with (
        serve(bench, sources[0], ready=False) as one,
        serve(bench, sources[1], ready=False) as two,
        serve(bench, sources[2], ready=False) as three,
        serve(bench, sources[3], ready=False) as four,
    ):
        for served in (one, two, three, four):
            await served.until("serving")
        (functions,) = await bench.tools()
    assert {f["name"] for f in functions["functionDeclarations"]} == {"f0", "f1", "f2", "f3"}


@pytest.mark.parametrize("executor", [None, {"type": "http", "url": "https://a.example"}])
def test_a_name_that_is_another_tool_s_is_refused(executor: Any) -> None:
    existing = {"name": "f"} if executor is None else {"name": "f", "executor": executor}
    with pytest.raises(Refused, match="already has a tool f"):
        with_tools({"tools": [{"functionDeclarations": [existing]}]}, [{"name": "f", "executor": {"type": "worker"}}])


def test_a_tool_of_the_proxy_s_own_is_not_replaced() -> None:
    with pytest.raises(Refused, match="the proxy itself has a tool f"):
        with_tools({"tools": [], "shared": [{"name": "f"}]}, [{"name": "f", "executor": {"type": "worker"}}])


async def test_a_refusal_of_the_proxy_ends_the_worker_in_its_words(bench: Bench) -> None:
    source = Functions(f=echo)
    source.rules["f"] = Rules(after=("nobody",))
    served = Served(worker_of(bench.client, source), asyncio.Queue())
    with pytest.raises(Refused, match="'nobody'"):
        await served.task


async def test_a_token_that_is_not_known_ends_the_worker(bench: Bench) -> None:
    async with bench.client_of("other") as client:
        served = Served(worker_of(client, Functions(f=echo)), asyncio.Queue())
        with pytest.raises(Refused) as refused:
            await served.task
    assert refused.value.status == 401


def worker_of(client: httpx2.AsyncClient, source: Functions) -> Worker:
    return Worker(source, client, session="default", name="w", concurrency=1, lease=LEASE, report=lambda event: None)


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
    monkeypatch.setattr(worker_calls, "PATIENCE", 0.1)
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
        await asyncio.sleep(0)
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
