"""Who owns and begins a call, decided when the call is stored.

`addon.loop.executors` knows what can run a call, and implements `Owners`.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from addon.core.answers.answer import CapturedCall
from addon.graft.late_writes import LateWrites
from addon.graft.session_config import SessionConfig
from store.base import Store
from store.models import Owner


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
