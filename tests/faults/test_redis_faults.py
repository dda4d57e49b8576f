"""Faults of a real Redis while the stores of two proxies are under load, and both run loops: what was acknowledged is
there afterwards, and no call ran twice. Each test prints its figures."""

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from addon.graft.exchange import Forward
from addon.surfaces.incoming import Framing
from addon.web import tasks
from store.backends.redis import RedisStore
from store.base import CallStateError, StoreUnavailable, UnknownCall
from store.factory import open_url
from store.models import Call, Status
from tests.contents import model, user
from tests.loop.conftest import Proxy
from tests.ports import free_port
from tests.store import servers
from tests.store.records import a_call, a_turn
from tests.store.routes import Route

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PLAYERS = 8
CHATS = 4
SOON = 30.0
AOF = ("--appendonly", "yes", "--appendfsync")


class Load:
    """`acknowledged`: the results of calls that their senders take for stored. `runs`: how often each call ran."""

    def __init__(self, *stores: RedisStore, loops: "Loops") -> None:
        self.stores = stores
        self.loops = loops
        self.acknowledged: dict[str, str] = {}
        self.runs: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.beginnings = 0
        self._ends = False

    async def during(self, fault: Callable[[], Awaitable[None]]) -> None:
        """Play before, during and after the fault. Ends when all players have had all their calls answered."""
        players = [asyncio.ensure_future(self._play(number)) for number in range(PLAYERS)]
        players += [asyncio.ensure_future(self.loops.play(number, lambda: self._ends)) for number in range(CHATS)]
        try:
            await self.progress(200)
            await fault()
            await self.progress(200)
        finally:
            self._ends = True
            await asyncio.gather(*players)

    async def progress(self, more: int) -> None:
        target = len(self.acknowledged) + more
        async with asyncio.timeout(2 * SOON):
            while len(self.acknowledged) < target:  # noqa: ASYNC110 - it is changed by all players
                await asyncio.sleep(0.01)

    async def _play(self, number: int) -> None:
        while not self._ends:
            self.beginnings += 1
            one = a_call(
                f"c{number}-{self.beginnings}", f"t{number}-{self.beginnings}", f"s{number}",
                owner="workers", released=True,
            )  # fmt: skip
            try:
                await self._once(one)
            except (StoreUnavailable, CallStateError, UnknownCall) as error:
                self.errors[type(error).__name__] += 1
                await asyncio.sleep(0.01)

    async def _once(self, one: Call) -> None:
        """A call that one proxy saves, and workers at both want; the first of them runs it."""
        saver, claimer = random.sample(self.stores, 2)
        await saver.save_turn(a_turn(one.turn_id, one.session, one), [one])
        claims = await asyncio.gather(
            self._claim(saver, one, "w1"), self._claim(claimer, one, "w2"), return_exceptions=True
        )
        for claim in claims:
            if isinstance(claim, BaseException):
                raise claim

    async def _claim(self, store: RedisStore, one: Call, worker: str) -> None:
        claimed = await store.claim(one.session, [one.name], lease=600.0, worker=worker)
        if claimed is None:
            return
        await store.sync()
        self.runs[claimed.call_id] += 1
        async with asyncio.timeout(2 * SOON):
            while True:  # a worker sends its result until it is accepted
                try:
                    await store.answer(claimed.session, claimed.call_id, result=claimed.call_id)
                    await store.sync()
                    break
                except StoreUnavailable as error:
                    self.errors[type(error).__name__] += 1
                    await asyncio.sleep(0.05)
        self.acknowledged[claimed.call_id] = claimed.session

    async def lost(self) -> list[str]:
        found = []
        for call_id, session in self.acknowledged.items():
            try:
                call = await self._call(session, call_id)
            except UnknownCall:
                found.append(call_id)
                continue
            if call.status is not Status.DONE or call.result != call_id:
                found.append(call_id)
        return found

    async def _call(self, session: str, call_id: str) -> Call:
        async with asyncio.timeout(SOON):
            while True:
                try:
                    return await self.stores[0].call(session, call_id)
                except StoreUnavailable:
                    await asyncio.sleep(0.05)

    async def check(self, name: str, *, loses_turns: bool = False) -> None:
        """`loses_turns`: the server that took the last turns is gone, and chats go on without these calls."""
        lost = await self.lost()
        twice = [call_id for call_id, times in self.runs.items() if times > 1]
        print(
            f"\n{name}: {self.beginnings} calls begun, {sum(self.runs.values())} run, "
            f"{len(self.acknowledged)} acknowledged, {len(lost)} of them lost, {len(twice)} run twice; "
            f"refused: {dict(self.errors)}"
        )
        loops = self.loops
        twice += [mark for mark, times in loops.runs.items() if times > 1]
        print(
            f"loops: {loops.runs.total()} calls run, {loops.repeated} requests repeated, "
            f"errors in place of results: {dict(+loops.errors)}, results that the next request lacks: {len(loops.lost)}"
        )
        assert not twice
        assert not lost
        assert loses_turns or not loops.lost, "the model has what the client was told"
        assert loops.runs


ERRORS = "may have run", "could not be run"
"""What the model may be told instead of a result."""


class Loops:
    """Chats with a tool that must not run twice. Each request goes to either proxy, and comes again until it is
    answered. `runs`: how often each mark's call ran."""

    def __init__(self, proxies: Sequence[Proxy]) -> None:
        self.proxies = proxies
        self.runs: Counter[str] = Counter()
        self.repeated = 0
        self.errors: Counter[str] = Counter()
        self.lost: list[str] = []
        self._marks = itertools.count()

    async def open(self) -> None:
        for number, proxy in enumerate(self.proxies):
            proxy.executors.proxy_id = f"p{number}"
            proxy.tools.add("mark", self._mark)
            await proxy.store.hold(f"p{number}", 3600)
            await proxy.executors.open()
            proxy.grafter.session_configs.share([tool.declaration for tool in proxy.executors.tools.values()])

    async def _mark(self, name: str) -> str:
        self.runs[name] += 1
        await asyncio.sleep(0.005)
        return f"done {name}"

    async def play(self, number: int, is_over: Callable[[], bool]) -> None:
        """One chat after the other, of four questions; then its results have to be with the model."""
        chats = itertools.count()
        while not is_over():
            history: list[Document] = [user(f"Chat {next(chats)} of {number}."), model("Yes.")]
            reported: dict[str, str] = {}
            for _ in range(4):
                name = f"m{next(self._marks)}"
                question = user(f'call mark {{"name": "{name}"}}')
                text = await self._insist([*history, question])
                reported[name] = next(words for words in (f"done {name}", *ERRORS) if words in text)
                self.errors[reported[name]] += reported[name] in ERRORS
                history += [question, model(text)]
            known = await self._insist([*history, user("repeat the results")])
            for name, words in reported.items():
                # of a call that is said not to have run, the model may know more by now
                if words not in known and not (words in ERRORS and f"done {name}" in known):
                    self.lost.append(f"{words} of {name} is not in {known}")

    async def _insist(self, contents: list[Document]) -> str:
        async with asyncio.timeout(3 * SOON):
            while (text := await self._ask(random.choice(self.proxies), contents)) is None:
                self.repeated += 1
                await asyncio.sleep(0.05)
        return text

    async def _ask(self, proxy: Proxy, contents: list[Document]) -> str | None:
        target, url = proxy.target(Framing.SSE, "developer", "gemini-3-flash-preview")
        try:
            outcome = await proxy.outcome({"contents": contents}, target, url)
        except StoreUnavailable:
            return None
        if not isinstance(outcome, Forward):
            return None
        runner, played = proxy.runner_of(outcome, target, url, Framing.SSE)
        async for out in runner.output():
            played.take(out)
        await runner.settle_handover()
        return played.text if played.finishes else None


@asynccontextmanager
async def loaded(url: str) -> AsyncIterator[Load]:
    """Two stores, as those of two proxies."""
    async with AsyncExitStack() as stack:
        gemini = await stack.enter_async_context(StrictGemini())
        stores, proxies = [], []
        for _ in range(2):
            store = open_url(url, ttl=100_000.0)
            assert isinstance(store, RedisStore)
            await store.open()
            stack.push_async_callback(store.close)
            stores.append(store)
            proxies.append(Proxy(store=store))
            proxies[-1].url = gemini.url
            stack.push_async_callback(proxies[-1].close)
        loops = Loops(proxies)
        await loops.open()
        stack.push_async_callback(tasks.cancel, *(tasks.spawn(renewed(one), name="a lease") for one in proxies))
        yield Load(*stores, loops=loops)
        assert gemini.refused == []


async def renewed(proxy: Proxy) -> None:
    """Keep the proxy's lease, as the runtime does."""
    while True:
        await asyncio.sleep(0.5)
        with suppress(StoreUnavailable):
            await proxy.executors.catch_up()
            await proxy.store.hold(str(proxy.executors.proxy_id), 3600)


async def test_a_server_that_is_stopped_for_five_seconds() -> None:
    async def fault() -> None:
        with servers.stopped(port):
            await asyncio.sleep(5)

    with servers.running(servers.program_under_test()) as port:
        async with loaded(f"redis://127.0.0.1:{port}") as load:
            await load.during(fault)
            await load.check("SIGSTOP for 5 s")


@pytest.mark.parametrize(
    ("how", "fsync"), [(signal.SIGKILL, "always"), (signal.SIGKILL, "everysec"), (signal.SIGTERM, "everysec")]
)
async def test_a_server_that_ends_and_is_started_with_its_log(how: signal.Signals, fsync: str, tmp_path: Path) -> None:
    """The machine goes on, so what the server wrote without flushing is in its file."""
    port, program = free_port(), servers.program_under_test()
    with ExitStack() as stack:

        async def fault() -> None:
            os.kill(servers.pid_of(port), how)
            await _until(lambda: not servers.listens(port))
            start()

        def start() -> None:
            stack.enter_context(servers.running(program, *AOF, fsync, "--dir", str(tmp_path), port=port))

        start()
        async with loaded(f"redis://127.0.0.1:{port}") as load:
            await load.during(fault)
            await load.check(f"{how.name}, appendfsync {fsync}")


async def test_a_server_that_is_full() -> None:
    async def fault() -> None:
        used = int(servers.answer_of(port, "INFO", "memory").partition("used_memory:")[2].split()[0])
        servers.answer_of(port, "CONFIG", "SET", "maxmemory", str(used + 100_000))
        async with asyncio.timeout(60):
            while not load.errors["StoreUnavailable"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        servers.answer_of(port, "CONFIG", "SET", "maxmemory", "0")

    with servers.running(servers.program_under_test(), "--maxmemory-policy", "noeviction") as port:
        async with loaded(f"redis://127.0.0.1:{port}") as load:
            await load.during(fault)
            await load.check("maxmemory, noeviction, for 2 s")


async def test_connections_that_are_cut_within_writes() -> None:
    with servers.running(servers.program_under_test()) as port:
        async with Route(port) as route, loaded(f"redis://127.0.0.1:{route.port}") as load:

            async def fault() -> None:
                for _ in range(200):
                    route.cut_writes_after = random.randrange(1, 20_000)
                    await asyncio.sleep(0.01)
                route.cut_writes_after = None
                assert route.cuts > 10

            await load.during(fault)
            await load.check(f"connections cut, {route.cuts} within a write")


async def test_connections_that_are_cut_within_replies() -> None:
    with servers.running(servers.program_under_test()) as port:
        async with Route(port) as route, loaded(f"redis://127.0.0.1:{route.port}") as load:

            async def fault() -> None:
                for _ in range(200):
                    route.cut_after = random.randrange(1, 20_000)
                    await asyncio.sleep(0.01)
                    if random.random() < 0.2:
                        servers.answer_of(port, "CLIENT", "KILL", "TYPE", "normal")
                route.cut_after = None
                assert route.cuts > 10

            await load.during(fault)
            await load.check(f"connections cut, {route.cuts} within a reply")


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_proxy_whose_clock_is_an_hour_off(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks the machine's clock, which is one clock for both here, gets either proxy's."""
    right = time.time

    async def fault() -> None:
        monkeypatch.setattr(time, "time", lambda: right() + random.choice((0, 3600 * hours)))
        await load.progress(200)

    with servers.running(servers.program_under_test()) as port:
        async with loaded(f"redis://127.0.0.1:{port}") as load:
            await load.during(fault)
            await load.check(f"one clock {hours} h off")
            assert not load.errors
            assert not load.loops.repeated


async def test_a_failover_by_sentinel(tmp_path: Path) -> None:
    config, program = tmp_path / "sentinel.conf", servers.program_under_test()
    with ExitStack() as stack:
        primary = stack.enter_context(servers.running(program, "--repl-diskless-sync-delay", "0"))
        following = ("--repl-diskless-sync-delay", "0", "--replicaof", "127.0.0.1", str(primary))
        replicas = [stack.enter_context(servers.running(program, *following)) for _ in range(2)]
        # With less, a server that waits for a core on a loaded machine is taken for dead, and another failover follows.
        config.write_text(
            f"sentinel monitor main 127.0.0.1 {primary} 1\nsentinel down-after-milliseconds main 1000\n"
            "sentinel failover-timeout main 3000\n"
        )
        await _until(lambda: servers.answer_of(primary, "INFO", "replication").count("state=online") == 2)
        sentinel = stack.enter_context(
            servers.running(servers.program_under_test(), str(config), "--sentinel", options_first=True)
        )
        await _until(lambda: "slaves=2" in servers.answer_of(sentinel, "INFO", "sentinel"))

        async def fault() -> None:
            os.kill(servers.pid_of(primary), signal.SIGKILL)

        async with loaded(f"redis+sentinel://127.0.0.1:{sentinel}/main") as load:
            await load.during(fault)
            roles = [servers.answer_of(port, "INFO", "replication") for port in replicas]
            assert any("role:master" in role for role in roles)  # two for a moment, if Sentinel changes its mind
            await load.check("failover by Sentinel, two replicas", loses_turns=True)


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not is_so():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
