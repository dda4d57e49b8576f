"""Whose a call is from its birth on: what is stored of that, and who begins the call.

`addon.loop.executors` knows what can run a call, and implements `Owners`; nothing else in this package does.
"""

from collections.abc import Collection
from typing import NamedTuple, Protocol

from addon.core.answers.answer import CapturedCall
from addon.graft.session_config import SessionConfig
from store.models import Owner


class Birth(NamedTuple):
    """What a call is when it is stored.

    `error`: why it fails at once. `proxy_id`: the proxy that waits for the call. `begins`: the proxy begins it as soon
    as it is stored. `detached`: no request and no connection waits for it; once workers may have it, it is theirs
    alone, and outlives the proxy. `repeats`: the call whose answer is this one's as well, so that it does not run: an
    identical call of an answer that broke off, or the call itself, which the loop of that answer began. `unchecked`:
    the arguments may not fit, which takes too long to be told at birth.
    """

    owner: Owner = "hand"
    approval: bool = False
    redeliver: bool = False
    proxy_id: str | None = None
    error: str | None = None
    begins: bool = False
    detached: bool = False
    repeats: str | None = None
    unchecked: bool = False


class Background(Protocol):
    """The calls of a step that go on without a loop."""

    def start(self, call: CapturedCall, birth: Birth) -> None:
        """A call that does not begin is told of as well: others may come after it."""
        ...

    def complete(self) -> None:
        """No more calls can come."""
        ...


class Owners(Protocol):
    """`proxy_id` is the one under which the process holds a lease; None: it holds none."""

    @property
    def proxy_id(self) -> str | None: ...

    def can_run(self, config: SessionConfig, name: str) -> bool:
        """Whether a call of this name is run by the proxy, or by workers, and need not be answered by hand."""
        ...

    def birth(self, config: SessionConfig, call: CapturedCall, *, runs: bool) -> Birth:
        """`runs`: a loop, or a Live connection, has the call run, and waits for it."""
        ...

    def may_run_twice(self, config: SessionConfig, name: str) -> bool:
        """Whether a call of this name can be run again though it may have run."""
        ...

    def comes_after(self, config: SessionConfig, name: str) -> Collection[str]:
        """The tools whose calls of the same step come before one of this name."""
        ...

    def background(self, config: SessionConfig) -> Background: ...


class _Nothing:
    def start(self, call: CapturedCall, birth: Birth) -> None:
        assert not birth.begins

    def complete(self) -> None:
        return None


class ByHand:
    """Where nothing is run: every call is answered by hand."""

    proxy_id = None

    def can_run(self, config: SessionConfig, name: str) -> bool:
        return False

    def birth(self, config: SessionConfig, call: CapturedCall, *, runs: bool) -> Birth:
        return Birth(error=call.fault)

    def may_run_twice(self, config: SessionConfig, name: str) -> bool:
        return False

    def comes_after(self, config: SessionConfig, name: str) -> Collection[str]:
        return ()

    def background(self, config: SessionConfig) -> Background:
        return _Nothing()
