"""The store's contract. Its parts about calls and about responses are in `store.calls` and `store.responses`.

Every method is atomic: it has happened whole, or not at all, also when the process or the machine dies in the middle
of it. What was acknowledged (the method returned) survives a crash of the process. It survives a crash of the machine,
such as a power failure, once `sync` has returned after it; what is lost else are the latest writes, never earlier ones
alone. `durability` says whether `sync` waits for the disk (`power`), or returns at once (`process`). A store in memory
survives nothing.

Writes of one session are in one total order, the order of the events they leave behind; what is promised over all
sessions is each session's order. Records are immutable values: what a method returned never changes.

Documents are JSON. What JSON cannot hold (NaN as a result, half of a surrogate pair) raises ValueError; so do calls
that are not of the turn they come with, and a `limit` below 1. Nothing is written then. NaN elsewhere is kept as null.

Sessions are isolated: no method that is given a session returns or changes a record of another one.

Events never hold the values of executors' headers, which may be secrets.

What a caller can catch: `VersionChanged`, `UnknownCall`, what says how a call stands (`AlreadyAnswered`, `NotPending`,
`LeaseLost`, `Decided`, `ProxyGone`), `UnknownResponse`, `ConversationMoved`, `BadCursor`, `CursorLost`,
`StoreUnavailable` (the backend cannot be used now; nothing was written) and, when opening, `StoreUnusable` (the message
names the path and says what to do).

A backend whose methods never suspend says so with `suspends = False`; its coroutines may then be run to their end by
`run_now` where nothing can be awaited. While another program holds what it writes to, its methods wait with the event
loop free, for some seconds at most, which count for all of them together; after these, and run by `run_now`, they raise
StoreBusy at once. The other exceptions are `sync`,
and `wait_call`, `wait_claimable` and `follow` while there is nothing to return.
"""

import abc
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, ClassVar, Literal, Self

from store.calls import Calls
from store.models import (
    CachedTools,
    Call,
    Event,
    Found,
    Page,
    Policy,
    Session,
    Snapshot,
    Toolset,
    Touched,
    Turn,
)
from store.responses import Responses

type Durability = Literal["power", "process"]

BATCH = 128
"""How many turns, and as many of what else there is, one `expire` deletes at most."""

MATCHES = 8
"""How many turns `look_up` gives for one key, unless it is told otherwise: a chat that is repeated word for word shares
its keys with every one before it, and a request must not pay for all of them."""


class StoreError(Exception):
    """What goes wrong in a store.

    StoreError
     ├─ VersionChanged     the session is at another version, `current`
     ├─ UnknownCall        no such call
     ├─ CallStateError     the call as it stands, `call`, does not take what was asked for
     │   ├─ AlreadyAnswered    it has another answer
     │   ├─ NotPending         it is run already, waits for an approval, or is final
     │   ├─ LeaseLost          the worker does not hold it (any more)
     │   ├─ Decided            it does not wait for an approval: never did, or was decided otherwise
     │   └─ ProxyGone          the proxy that waited for it is gone: the call is expired by now
     ├─ UnknownResponse    no such response in the session
     ├─ ConversationMoved  the conversation is at `head`, and not where the response goes on
     ├─ BadCursor          a cursor that no store made
     ├─ CursorLost         a cursor of events of another history, or of events that were lost
     ├─ StoreUnavailable   a backend that does not answer now
     │   ├─ StoreBusy          another program holds it; nothing was written
     │   └─ NotDurable         what was written is there, and may be lost in a power failure
     └─ StoreUnusable      a backend that cannot be opened
    """


class VersionChanged(StoreError):
    def __init__(self, name: str, current: int, expected: int) -> None:
        super().__init__(f"session {name} is at version {current}, and not at {expected}")
        self.current = current


class UnknownCall(StoreError):
    pass


class CallStateError(StoreError):
    why: ClassVar[str]

    def __init__(self, call: Call) -> None:
        stands = call.status if call.approval is None else f"{call.status}, approval: {call.approval}"
        super().__init__(f"call {call.call_id} is {stands}: {self.why}")
        self.call = call


class AlreadyAnswered(CallStateError):
    why = "its answer is another"


class NotPending(CallStateError):
    why = "nothing can be begun with it"


class LeaseLost(CallStateError):
    why = "it is not this worker's"


class Decided(CallStateError):
    why = "it does not wait for this decision"


class ProxyGone(CallStateError):
    why = "the proxy that waited for it is gone"


class UnknownResponse(StoreError):
    pass


class ConversationMoved(StoreError):
    def __init__(self, name: str, head: str | None, expected: str | None) -> None:
        stands = f"is at response {head}" if head else "does not exist"
        super().__init__(f"conversation {name} {stands}, and not {f'at {expected}' if expected else 'new'}")
        self.head = head


class BadCursor(StoreError):
    pass


class CursorLost(StoreError):
    def __init__(self, cursor: str) -> None:
        super().__init__(f"event id {cursor} is not of this store, or it lost the events up to there")


class StoreUnavailable(StoreError):
    pass


class StoreBusy(StoreUnavailable):
    pass


class NotDurable(StoreUnavailable):
    pass


class StoreUnusable(StoreError):
    pass


class _Now(threading.local):
    runs = False


_now = _Now()


def is_run_now() -> bool:
    """Whether what runs here is run by `run_now`, so that nothing can be awaited."""
    return _now.runs


def run_now[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a backend that never suspends to its end, without an event loop.

    Raises what the coroutine raises; RuntimeError where it did suspend after all (it is closed then).
    """
    before, _now.runs = _now.runs, True
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        _now.runs = before
    coroutine.close()
    raise RuntimeError("a store that says it never suspends has suspended")


def uptime() -> float:
    """Seconds since the machine was started, asleep or not: a clock that nobody can set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Store(Calls, Responses):
    suspends: ClassVar[bool] = True
    uptime: Callable[[], float] = staticmethod(uptime)
    """What leases run by, and the clock is compared with."""
    durability: Durability = "power"
    read_only: bool = False
    """Opened to look only: whatever writes raises StoreUnavailable."""
    secret: bytes
    """32 random bytes, made with the store and kept as long as it is: the key of digests. Known once it is open."""
    epoch: str
    """Names the store's own history: a store that was made anew, or lost its records, has another. Known once it is
    open."""

    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        self.ttl = ttl
        self.clock = clock

    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float], read_only: bool = False) -> Self:
        """Construct what `url` names. Raises ValueError where the URL is not one of this backend's.

        `read_only`: to look beside a process that writes; writes then raise StoreUnavailable. A backend that is
        empty when it is opened has nothing to protect and takes no notice.
        """
        raise NotImplementedError

    @abc.abstractmethod
    async def open(self) -> None:
        """Raises StoreUnusable; a database that is refused is left as it was."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Give everything back. Closing twice is fine. Waiters return."""

    @abc.abstractmethod
    async def ping(self) -> None:
        """Write something. Raises StoreUnavailable where that fails, where what is written would be lost (another file
        is in the place of the store's), and where the store has come across damage."""

    @abc.abstractmethod
    async def sync(self) -> None:
        """Return once everything that was written before survives a power failure; at once if it does already, or if
        `durability` asks for no more than the process. Many callers at once cost one wait for the disk. Raises
        NotDurable: the disk has failed. It suspends."""

    # --- sessions ---------------------------------------------------------------------------------------------
    #
    # `if_version`: write only if the session is at this version, 0 or less if it must not be there; raises
    # VersionChanged.

    async def session(self, name: str) -> Session | None:
        """The session, or None if nothing was ever set for it."""
        return (await self.snapshot(name)).record

    @abc.abstractmethod
    async def snapshot(self, session: str) -> Snapshot:
        """What holds for a session, in one read. Cheap: asked once for every request."""

    @abc.abstractmethod
    async def sessions(self, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        """Sessions by name. Raises BadCursor."""

    @abc.abstractmethod
    async def put_policy(self, name: str, policy: Policy, *, if_version: int | None = None) -> Session:
        """Replace the policy; makes the session where there is none. Event `session.updated`."""

    @abc.abstractmethod
    async def put_toolset(self, name: str, toolset: Toolset | None, *, if_version: int | None = None) -> Session:
        """Replace the toolset (None clears it); makes the session where there is none. Event `tools.updated`."""

    @abc.abstractmethod
    async def delete_session(self, name: str, *, if_version: int | None = None) -> bool:
        """Forget the session with its calls, turns, keys, cached tools, responses and conversations; False where there
        was nothing. Event `session.deleted`; the session's earlier events go with it."""

    @abc.abstractmethod
    async def put_cached_tools(self, cached: CachedTools) -> None: ...

    @abc.abstractmethod
    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None: ...

    # --- the ledger -------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def save_turn(self, turn: Turn, calls: Sequence[Call] = (), keys: Sequence[bytes] = ()) -> None:
        """Insert the turn, or replace the one of the same id (its `bound`, `broke_off` and `created_at` stay as they
        are, and its `proxy_id` if the new one has none).

        Calls that are already there are left alone: an answer may have come in between. Keys are added to those the
        turn has. Events `turn.created` or `turn.updated`, and `call.created` for each call that is new.
        """

    @abc.abstractmethod
    async def save_plain(self, session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        """Note a turn without calls by its keys, so that no other is taken for it. `chain` goes with the first of them;
        where turns that are noted under it have different ones, b"" does. No event, and no record of it: it is known
        for twice as long as records are kept, or somewhat longer. A backend may write notes together and later, as long
        as `look_up` finds them at once and a crash of the process takes none."""

    @abc.abstractmethod
    async def look_up(
        self,
        session: str,
        *,
        turn_ids: Collection[str] = (),
        keys: Collection[bytes] = (),
        known: Collection[bytes] = (),
        matches: int = MATCHES,
    ) -> Found:
        """Every turn of the session that has one of these ids or keys, with its calls; which of the keys turns without
        calls have; and of the keys in `known` no more than whether any turn with calls has them, which is cheap. Of one
        key it gives so many `matches` at most."""

    @abc.abstractmethod
    async def bind(
        self, session: str, user_key: bytes, keys: Sequence[bytes], *, exclude: Collection[str] = ()
    ) -> str | None:
        """Give the newest turn of the session that has this `user_key` and is not bound these keys, and mark it bound.
        `exclude`: ids of turns that it cannot be. Returns its id, or None where there is none. Of two callers at once,
        one gets it. Event `turn.updated`."""

    @abc.abstractmethod
    def revision(self, session: str) -> int | None:
        """A number that grows whenever `look_up` could answer differently; 0 while the session has no turns with
        calls. None: this backend cannot know (other processes write as well), so ask each time."""

    def changes(self, session: str, since: int) -> Touched | None:
        """What the writes concerned that came after this revision: what `look_up` answered of other turns and keys,
        and `bind` of other user keys, still holds. None: that is not known (any more)."""
        return None

    @abc.abstractmethod
    async def turns(self, session: str, *, limit: int = 100, cursor: str | None = None) -> Page[Turn]:
        """Turns in the order they were first saved. Raises BadCursor."""

    # --- events -----------------------------------------------------------------------------------------------
    #
    # An event's id is an opaque cursor: it stands for a place in the events of every session, and holds the store's
    # epoch. One of another epoch, or of events that were lost or have expired since, raises CursorLost; what is no such
    # id, BadCursor.
    #
    # A backend with one writer numbers the events of all sessions in the order of their commits. Whoever sees a number
    # sees all below it, so one number is a position in each session. With several writers a number may become visible
    # after a higher one: a cursor there has to hold a position for each session. Nobody but the backend reads it.

    @abc.abstractmethod
    async def last_event_id(self) -> str:
        """The cursor after which everything comes that is written from now on."""

    @abc.abstractmethod
    async def events(self, *, after: str | None, session: str | None = None, limit: int = 100) -> list[Event]:
        """Events after that one, in order; None: from the oldest that is kept. Raises CursorLost, BadCursor."""

    # --- waiting ----------------------------------------------------------------------------------------------
    #
    # Who waits is woken by what it waits for, and by nothing else. A `timeout` is in seconds; closing the store ends
    # every wait, as if the time were out.

    @abc.abstractmethod
    async def wait_call(self, call: Call, timeout: float) -> Call | None:
        """The call as soon as its record is another than this one; None when the time is out. Raises UnknownCall, also
        if the call goes meanwhile."""

    @abc.abstractmethod
    async def wait_claimable(self, session: str, names: Collection[str], timeout: float) -> bool:
        """Wait until a claim of these tools is worth a try; False when the time is out. Another may be faster."""

    @abc.abstractmethod
    async def follow(self, session: str | None, after: str | None, timeout: float, *, limit: int = 100) -> list[Event]:
        """As `events`, as soon as there are any; an empty list when the time is out."""

    # --- upkeep -----------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def clock_doubt(self) -> str:
        """Why nothing expires: the wall clock made a step of more than an hour against the machine's uptime, or against
        what the store noted last. Empty: the clock is trusted. Told by `expire`, and kept until `trust_clock`."""

    @abc.abstractmethod
    async def trust_clock(self) -> str:
        """Take the wall clock to be right from now on. Returns the doubt that there was. What was written since the
        clock was last trusted does not expire for a clock that was behind then."""

    @abc.abstractmethod
    async def expire(self) -> int:
        """Delete turns (with keys and calls), cached tools, responses and events that are older than `ttl` seconds;
        nothing while the clock is in doubt.
        A call still pending goes with its turn. A thread of responses goes as a whole, with its conversations: its age
        counts from when the last response was added to it. Returns how many records went (keys of turns with
        calls, given calls and conversations' names are not counted).
        Sessions stay. A batch of them (`BATCH`), since that is what the others wait for: to be called again until it
        returns 0."""
