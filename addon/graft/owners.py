"""Who owns and begins a call, decided when the call is stored; and how a request waits for the calls of its last step.

`addon.loop.executors` knows what can run a call, and implements `Owners`.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from addon.core.answer import CapturedCall
from addon.core.history.steps import last_step
from addon.core.history.turns import History
from addon.graft.exchange import Abandoned
from addon.graft.late_writes import LateWrites
from addon.graft.ledger_search import Hits
from addon.graft.session_config import SessionConfig
from store.base import Store, UnknownCall
from store.models import Call, Owner, Status

_LONG = 3600.0  # seconds of one wait if no deadline is set

Hangup = Callable[[], Awaitable[object]]
"""Returns when the client has hung up."""


class InitialState(NamedTuple):
    """The state of a call when it is stored.

    `error`: why the call fails immediately. `proxy_id`: the proxy that waits for the call. `begins`: the proxy begins
    the call as soon as it is stored. `detached`: no request or connection waits for the call; once workers may take it,
    it belongs to them alone, and outlives the proxy. `repeats`: the call whose answer this call shares instead of
    running: an identical call of a broken-off answer, or this call itself, begun by that answer's loop. `at_once`: the
    proxy runs the call as soon as a place is free. `loop_id`: a place is free, and this loop stores the call as
    running.
    """

    owner: Owner = "hand"
    approval: bool = False
    redeliver: bool = False
    proxy_id: str | None = None
    error: str | None = None
    begins: bool = False
    detached: bool = False
    repeats: str | None = None
    at_once: bool = False
    loop_id: str | None = None


class Background(Protocol):
    """Runs the calls of a step that no loop waits for."""

    def start(self, call: CapturedCall, initial_state: InitialState) -> None:
        """Also called for a call that does not begin: others may have to run after it."""
        ...

    def complete(self) -> None:
        """The step has no more calls."""
        ...


class Owners(Protocol):
    """`proxy_id`: the id under which this process holds a lease, or None."""

    @property
    def proxy_id(self) -> str | None: ...

    @property
    def late_writes(self) -> LateWrites:
        """The results and ends of answers that this process must still write."""
        ...

    async def catch_up(self) -> None:
        """Make the late writes, end the leases of proxies that are known to be dead, and settle their calls, so that a
        retry finds them. Raises StoreUnavailable."""
        ...

    def can_run(self, config: SessionConfig, name: str) -> bool:
        """Whether calls of this name are answered within the request: the proxy or a worker runs them, or the request
        waits for their results by hand."""
        ...

    def initial_state(self, config: SessionConfig, call: CapturedCall, *, runs: bool) -> InitialState:
        """`runs`: a loop or a Live connection waits for the call."""
        ...

    def may_run_twice(self, config: SessionConfig, name: str) -> bool:
        """Whether a call of this name may run again although it may have run already."""
        ...

    def comes_after(self, config: SessionConfig, name: str) -> Collection[str]:
        """The tools whose calls in the same step must run before calls of this name."""
        ...

    def background(self, config: SessionConfig) -> Background: ...


class _Nothing:
    def start(self, call: CapturedCall, initial_state: InitialState) -> None:
        assert not initial_state.begins

    def complete(self) -> None:
        return None


class ByHand:
    """Leaves every call to be answered by hand."""

    proxy_id = None

    def __init__(self, store: Store) -> None:
        self.late_writes = LateWrites(store)

    async def catch_up(self) -> None:
        await self.late_writes.flush()

    def can_run(self, config: SessionConfig, name: str) -> bool:
        return False

    def initial_state(self, config: SessionConfig, call: CapturedCall, *, runs: bool) -> InitialState:
        return InitialState(error=call.fault)

    def may_run_twice(self, config: SessionConfig, name: str) -> bool:
        return False

    def comes_after(self, config: SessionConfig, name: str) -> Collection[str]:
        return ()

    def background(self, config: SessionConfig) -> Background:
        return _Nothing()


async def open_calls(store: Store, session: str, call_ids: Collection[str]) -> list[Call]:
    """The calls without an answer."""
    found: list[Call] = []
    for call_id in call_ids:
        try:
            call = await store.call(session, call_id)
        except UnknownCall:  # deleted with its session
            continue
        if not call.status.final:
            found.append(call)
    return found


async def being_run(store: Store, calls: Sequence[Call], after: Callable[[str], Collection[str]]) -> list[Call]:
    """The open calls of a step that are being run. `after`: the tools that must run before a tool of this name. A call
    after one that nobody runs does not count."""
    found = [call for call in calls if await is_being_run(store, call)]
    blocking = {call.name for call in calls if call not in found}
    while waits := [one for one in found if one.status is Status.PENDING and not blocking.isdisjoint(after(one.name))]:
        found = [call for call in found if call not in waits]
        blocking.update(call.name for call in waits)
    return found


async def is_being_run(store: Store, call: Call) -> bool:
    """Whether a live proxy or worker runs the call, or will when its turn comes. A call that waits for an approval does
    not count. A call that nobody can answer any longer is settled."""
    if call.status is Status.PENDING:
        return call.proxy_id is not None and call.approval != "waiting"
    if call.lease_until is None:
        return True  # a proxy runs it; otherwise it would be settled
    if await store.lease_left(call.session, call.call_id):
        return True
    await store.settle_lost()
    return call.redeliver and call.proxy_id is not None  # as long as the proxy waits for another worker


async def until_one_changes(
    store: Store, calls: Sequence[Call], gone: asyncio.Future[Any], timeout: float | None = None
) -> bool:
    """Wait until one of these calls changes. Returns False after `timeout` seconds, or if the client is gone."""
    changes = [asyncio.ensure_future(_change(store, call, timeout)) for call in calls]
    try:
        await asyncio.wait({gone, *changes}, return_when=asyncio.FIRST_COMPLETED)
        return not gone.done() and any(one.done() and one.result() for one in changes)
    finally:
        for one in changes:
            one.cancel()


async def _change(store: Store, call: Call, timeout: float | None) -> bool:
    seconds = _LONG if timeout is None else timeout
    try:
        if call.lease_until is not None and (lease := await store.lease_left(call.session, call.call_id)):
            return await store.wait_call(call, min(seconds, lease)) is not None or lease < seconds
        return await store.wait_call(call, seconds) is not None or timeout is None
    except UnknownCall:
        return True


@dataclass(frozen=True, slots=True)
class PendingStep:
    """`look_up`: returns the current true turns of the history."""

    store: Store
    owners: Owners
    config: SessionConfig
    history: History
    look_up: Callable[[], Awaitable[Hits]]
    hangup: Hangup

    def is_pending(self, hits: Hits) -> bool:
        """Whether the last model turn is a step with an unanswered call."""
        last = last_step(self.history, hits, self.config.placeholder)
        return last is not None and bool(last.pending)

    async def wait(self, hits: Hits, timeout: float | None) -> Hits | Abandoned:
        """Wait until all calls of the step have answers: up to `timeout` seconds, or with None while any of them
        runs."""
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        gone = asyncio.ensure_future(self.hangup())
        try:
            while calls := await self._waited_for(hits, only_running=timeout is None):
                seconds = None if deadline is None else deadline - clock()
                changed = (seconds is None or seconds > 0) and await until_one_changes(self.store, calls, gone, seconds)
                if gone.done():
                    return Abandoned()
                hits = await self.look_up()
                if not changed:
                    break
        finally:
            gone.cancel()
        return await self.look_up()  # a call may just have been settled

    async def _waited_for(self, hits: Hits, *, only_running: bool) -> list[Call]:
        last = last_step(self.history, hits, self.config.placeholder)
        if last is None or not last.pending:
            return []
        calls = await open_calls(self.store, self.config.session, last.pending)
        if not only_running:
            return calls
        return await being_run(self.store, calls, functools.partial(self.owners.comes_after, self.config))
