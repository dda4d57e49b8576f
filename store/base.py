"""The store's contract, with `store.calls`.

Every method is atomic: it takes effect as a whole or not at all, even if the process or the machine dies meanwhile.
Once a method has returned, its write survives a crash of the process. Once a later `sync` has returned, it also
survives a power failure. Without `sync`, only the latest writes can be lost, never earlier ones alone.
`durability`: `sync` waits for the disk (`power`), or returns immediately (`process`). A store in memory survives
nothing.

The writes of a session have one total order, the order of their events. Over all sessions, only the order within each
session is guaranteed. Records are immutable: a returned record never changes.

Documents are JSON. ValueError, with nothing written, is raised for values that are not JSON (NaN as a result, half of a
surrogate pair), for calls that are saved with another turn than their own, and for a `limit` below 1. NaN in other
places is stored as null.

Sessions are isolated: a method with a session never returns or changes a record of another session.

Events never contain the values of executors' headers, which may be secrets.

Errors for callers: `VersionChanged`, `UnknownCall`, the states of a call (`AlreadyAnswered`, `NotPending`, `LeaseLost`,
`Decided`, `ProxyGone`), `UnknownResponse`, `ConversationMoved`, `BadCursor`, `CursorLost`, `StoreUnavailable` (the
backend cannot be used now; nothing was written) and, when opening, `StoreUnusable` (the message names the path and says
what to do).

While another program locks the database of a SQLite store, its methods wait asynchronously, all together for a few
seconds at most. After that they raise StoreBusy without waiting.
"""

import abc
import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Literal, Self, get_args

from store.budget import Budget
from store.calls import Calls
from store.models import (
    CachedTools,
    Call,
    Document,
    Event,
    GivenCall,
    LedgerChanges,
    LedgerMatches,
    Page,
    Policy,
    Response,
    Session,
    Snapshot,
    Toolset,
    Turn,
    UndeliveredAnswer,
)

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The upper bounds of the histogram's buckets, in seconds."""

type BreakerState = Literal["closed", "open", "half_open"]
"""`closed`: the server is asked. `open`: it is not. `half_open`: only a probe asks it."""

type Failure = Literal["timeout", "connection", "refused", "skipped"]
"""`refused`: the server answered with an error. `skipped`: the breaker was open, or opened during the operation."""


class Traffic:
    """Since the start of the process. `buckets`: the answers by their time, the last ones without a bound. `seconds`:
    the time of all answers."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self.failures: Counter[Failure] = Counter(dict.fromkeys(get_args(Failure.__value__), 0))
        self.running = 0
        """The number of operations that wait for an answer."""
        self.connections: Callable[[], int] = lambda: 0
        """Returns the number of open connections."""
        self.state: BreakerState = "closed"
        self.openings = 0

    def answered(self, seconds: float) -> None:
        """Count an operation that was answered after this time."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


type Durability = Literal["power", "process"]

BATCH = 128
"""The number of turns, and of other records, that one `expire` deletes at most."""

MATCHES = 8
"""The number of turns that `look_up` returns for one key by default: a chat that is repeated word for word shares its
keys with all chats before it, and a request must not pay for all of them."""


class StoreError(Exception):
    """An error of the store.

    StoreError
     ├─ VersionChanged     the session is at another version, `current`
     ├─ UnknownCall        no such call
     ├─ CallStateError     the state of the call, `call`, does not allow the operation
     │   ├─ AlreadyAnswered    already answered differently
     │   ├─ NotPending         already running, waiting for an approval, or final
     │   ├─ LeaseLost          the worker does not hold the call, or no longer
     │   ├─ Decided            not waiting for an approval: never was, or already decided differently
     │   └─ ProxyGone          the proxy that waited for the call is gone: the call has expired
     ├─ UnknownResponse    no such response in the session
     ├─ ConversationMoved  the conversation is at `head`, not at the response's `previous`
     ├─ BadCursor          not a cursor of a store
     ├─ CursorLost         a cursor of another store's events, or of lost events
     ├─ StoreUnavailable   the backend does not work now; nothing was written, except as stated below
     │   ├─ StoreBusy          another program locks it; nothing was written
     │   ├─ OutcomeUnknown     the write was sent, and no reply says whether it was made
     │   │   └─ TakeOverUnknown    so the answer `taken` may have been taken over
     │   └─ NotDurable         written, but a power failure, or the end of a server, may lose it
     └─ StoreUnusable      the backend cannot be opened
    """


class VersionChanged(StoreError):
    def __init__(self, name: str, current: int, expected: int) -> None:
        super().__init__(f"session {name} is at version {current}, not {expected}")
        self.current = current


class UnknownCall(StoreError):
    pass


class CallStateError(StoreError):
    why: ClassVar[str]

    def __init__(self, call: Call) -> None:
        state = call.status if call.approval is None else f"{call.status}, approval: {call.approval}"
        super().__init__(f"call {call.call_id} is {state}: {self.why}")
        self.call = call


class AlreadyAnswered(CallStateError):
    why = "already answered differently"


class NotPending(CallStateError):
    why = "already running, waiting for an approval, or final"


class LeaseLost(CallStateError):
    why = "not held by this worker"


class Decided(CallStateError):
    why = "not waiting for this decision"


class ProxyGone(CallStateError):
    why = "the proxy that waited for it is gone"


class UnknownResponse(StoreError):
    pass


class ConversationMoved(StoreError):
    def __init__(self, name: str, head: str | None, expected: str | None) -> None:
        state = f"is at response {head}" if head else "does not exist"
        super().__init__(f"conversation {name} {state}, and not {f'at {expected}' if expected else 'new'}")
        self.head = head


class BadCursor(StoreError):
    pass


class CursorLost(StoreError):
    def __init__(self, cursor: str) -> None:
        super().__init__(f"event id {cursor} is not from this store, or the events after it were lost")


class StoreUnavailable(StoreError):
    pass


class StoreBusy(StoreUnavailable):
    pass


class OutcomeUnknown(StoreUnavailable):
    pass


class TakeOverUnknown(OutcomeUnknown):
    """`taken`: the id of a turn or response. Nobody else finds it until it is marked as broken off, or not handed
    over."""

    def __init__(self, message: str, taken: str) -> None:
        super().__init__(message)
        self.taken = taken


class NotDurable(StoreUnavailable):
    pass


class StoreUnusable(StoreError):
    pass


def uptime() -> float:
    """Seconds since the machine was started, including sleep: a clock that cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Store(Calls):
    uptime: Callable[[], float] = staticmethod(uptime)
    """The clock for leases, and the reference for the wall clock."""
    durability: Durability = "power"
    read_only: bool = False
    """Opened for reading only: writes raise StoreUnavailable."""
    indexes_calls: bool = True
    """Whether `calls` finds the calls of a tool, and final calls, without reading others."""
    secret: bytes
    """32 random bytes, created with the store and kept for its lifetime: the key of digests. Set once it is open."""
    epoch: str
    """Identifies the store's history: a new store, or one that lost records, has another. Set once it is open."""
    traffic: Traffic | None = None
    """The exchanges with the backend's server, if it has one."""

    def __init__(self, *, ttl: float = 7 * 24 * 3600, clock: Callable[[], float] = time.time) -> None:
        self.ttl = ttl
        self.clock = clock
        self.remember_within(Budget())

    def remember_within(self, budget: Budget) -> None:
        """Replace the caches of records and writes by empty ones within this budget."""

    @classmethod
    def from_url(cls, url: str, *, ttl: float, clock: Callable[[], float], read_only: bool = False) -> Self:
        """Construct the store of `url`. Raises ValueError if the URL does not fit this backend.

        `read_only`: for reading beside a process that writes; writes then raise StoreUnavailable. Ignored by a backend
        that is always empty when it is opened.
        """
        raise NotImplementedError

    @abc.abstractmethod
    async def open(self) -> None:
        """Raises StoreUnusable; a refused database is left unchanged."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Release all resources. Idempotent. Waiters return."""

    @abc.abstractmethod
    async def ping(self) -> None:
        """Write a test value. Raises StoreUnavailable if that fails, if writes would be lost (the store's file was
        replaced), or if the store has found damage."""

    @abc.abstractmethod
    async def sync(self) -> None:
        """Return once all earlier writes survive a power failure; without waiting if `durability` is `process`.
        Concurrent callers share one wait for the disk. Raises NotDurable: the disk has failed."""

    async def confirm(self) -> None:
        """Return once a replica has all earlier writes, so that they survive the loss of the primary. Returns
        immediately if the store has no replicas, or if `durability` is `process`. Raises NotDurable."""

    @property
    def outage(self) -> str:
        """Since when and why the backend is not asked and all methods raise StoreUnavailable; empty: it is asked."""
        return ""

    async def recovered(self, timeout: float) -> None:
        """After StoreUnavailable: return once the backend may work again, or after `timeout` seconds."""
        await asyncio.sleep(timeout)

    on_change: Callable[[str], None] | None = None
    """Called with a session's name when this process may have written its tools, or another process has."""

    on_reconnected: Callable[[], None] | None = None
    """Called after an outage of the backend's server, if it has one: the server may have lost the latest writes, or be
    another one that never had them."""

    # --- sessions ---------------------------------------------------------------------------------------------
    #
    # `if_version`: write only if the session is at this version, 0 or less if it must not exist; else raises
    # VersionChanged.

    async def session(self, name: str) -> Session | None:
        """The session, or None if nothing was ever set for it."""
        return (await self.snapshot(name)).record

    @abc.abstractmethod
    async def snapshot(self, session: str) -> Snapshot:
        """The session and its versions, in one read. Cheap: called for every request."""

    @abc.abstractmethod
    async def sessions(self, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        """Sessions by name. Raises BadCursor."""

    @abc.abstractmethod
    async def put_policy(self, name: str, policy: Policy, *, if_version: int | None = None) -> Session:
        """Replace the policy; creates the session if needed. Event `session.updated`."""

    @abc.abstractmethod
    async def put_toolset(self, name: str, toolset: Toolset | None, *, if_version: int | None = None) -> Session:
        """Replace the toolset (None clears it); creates the session if needed. Event `tools.updated`."""

    @abc.abstractmethod
    async def delete_session(self, name: str, *, if_version: int | None = None) -> bool:
        """Delete the session with its calls, turns, keys, cached tools, responses, conversations and earlier events.
        False if nothing was found. Event `session.deleted`."""

    @abc.abstractmethod
    async def put_cached_tools(self, cached: CachedTools) -> None: ...

    @abc.abstractmethod
    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None: ...

    # --- the ledger -------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def save_turn(self, turn: Turn, calls: Sequence[Call] = (), keys: Sequence[bytes] = ()) -> None:
        """Insert the turn, or replace the turn of the same id (`broke_off` and `created_at` are kept, and `proxy_id` if
        the new turn has none).

        Existing calls stay unchanged: they may have been answered since. Keys are added to the turn's keys. Events
        `turn.created` or `turn.updated`, and `call.created` for each new call.
        """

    @abc.abstractmethod
    async def save_plain(self, session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
        """Note the keys of a turn without calls, so that no other turn is taken for it. `chain` is stored with the
        first key, or b"" if turns noted under that key have different chains. No event, no record: a note is kept for
        at least twice as long as records. A backend may write notes together and later, if `look_up` finds them at
        once and a crash of the process loses none. (The proxy itself does not wait for a note: see
        `PlainNotes`.)"""

    @abc.abstractmethod
    async def look_up(
        self,
        session: str,
        *,
        turn_ids: Collection[str] = (),
        keys: Collection[bytes] = (),
        known: Collection[bytes] = (),
        matches: int = MATCHES,
    ) -> LedgerMatches:
        """Look up the turns with one of these ids or keys, at most `matches` for each key, with their calls, and the
        keys of turns without calls. `known`: keys that are only checked for whether any turn with calls has them, which
        is cheaper."""

    @abc.abstractmethod
    def revision(self, session: str) -> int | None:
        """A number that grows whenever the results of `look_up` may change; 0 while the session has no turns with
        calls. None: unknown, because other processes write too."""

    def changes(self, session: str, since: int) -> LedgerChanges | None:
        """The turns and keys written after this revision, as of this process's last `snapshot` of the session. At that
        time, earlier results of `look_up` for other turns and keys were still valid. None: unknown."""
        return None

    @abc.abstractmethod
    async def turns(self, session: str, *, limit: int = 100, cursor: str | None = None) -> Page[Turn]:
        """Turns in the order they were first saved. Raises BadCursor."""

    # Each response follows another one or none, so responses form trees: the threads. A conversation names a response,
    # its head. These methods leave no events: the documents are large, and their owner gets them anyway.

    @abc.abstractmethod
    async def add_response(
        self, response: Response, *, head: str | None = None, undelivered: UndeliveredAnswer | None = None
    ) -> None:
        """Add the response and, if it has a conversation, move the conversation's head to it.

        `head`: the current head of the conversation, which must be this response's `previous`; None: this response
        creates the conversation, and may follow any response. Of two concurrent moves of a head, one succeeds. A call
        id that was used before then refers to the call of this response.

        `undelivered`: the answer is kept with the response until it is handed over, in case the request is sent again.

        Raises ConversationMoved: the head of the conversation is not `head`; UnknownResponse: the session has no
        response `previous`; ValueError: the response exists already, or `head` is not its `previous`.

        To store only the calls of a response (for a client that keeps its own history), add it without contents,
        document, conversation and `previous`.
        """

    @abc.abstractmethod
    async def take_back(self, session: str, response_id: str, *, head: str | None = None) -> None:
        """Undo `add_response` with this `head`: delete the response with its calls and its undelivered answer, and move
        its conversation, if still at the response, back to `head`. Later responses keep their history. Raises
        UnknownResponse."""

    @abc.abstractmethod
    async def response(self, session: str, response_id: str) -> Response:
        """The response; `document` is None if it was deleted, and the response is kept for others. Raises
        UnknownResponse."""

    @abc.abstractmethod
    async def responses(self, session: str, response_ids: Collection[str]) -> dict[str, Response]:
        """As `response`: the existing ones, by id."""

    @abc.abstractmethod
    async def conversation(self, session: str, name: str) -> str | None:
        """The id of the conversation's head; None: no such conversation."""

    @abc.abstractmethod
    async def lock_conversation(self, session: str, name: str, *, holder: str, proxy_id: str) -> bool:
        """Lock the conversation, which need not exist, for `holder`: a request at the proxy `proxy_id`. The lock ends
        with `unlock_conversation`, or when the proxy has no lease. False: another holder has it. Idempotent."""

    @abc.abstractmethod
    async def unlock_conversation(self, session: str, name: str, *, holder: str) -> None:
        """End the lock of this holder. Does nothing if the holder has no lock."""

    @abc.abstractmethod
    async def history(self, session: str, response_id: str) -> list[Response]:
        """The responses from the beginning of the thread to this one, oldest first.

        Only the last one has its `tools` and `document`: these can be large, and are None in the others. Raises
        UnknownResponse.
        """

    @abc.abstractmethod
    async def given_calls(self, session: str, call_ids: Collection[str]) -> dict[str, GivenCall]:
        """The calls among these ids that a client of the session received, by id."""

    @abc.abstractmethod
    async def delete_response(self, session: str, response_id: str) -> None:
        """Delete the response's document. The response and its calls are deleted once no other response follows it and
        no conversation has it as head; then also earlier responses without a document that were only kept for it.
        Raises UnknownResponse, also if the response has no document."""

    # --- undelivered answers: as answers of loops that broke off, see `store.calls` ---------------------------

    @abc.abstractmethod
    async def mark_handed_over(self, session: str, response_id: str) -> None:
        """Note that the client has the answer, so that the same request counts as a new one. The note may be written a
        little later, and is lost if the process ends before that. Idempotent."""

    @abc.abstractmethod
    async def mark_not_handed_over(self, session: str, response_id: str) -> None:
        """Note that handing over the answer failed now. Does nothing if the answer does not exist, or has this note."""

    @abc.abstractmethod
    async def take_answer(
        self, session: str, key: bytes, *, window: float, proxy_id: str, waits: bool = True
    ) -> tuple[str, Document | None] | None:
        """Take the newest undelivered answer to the request with this key that broke off at most `window` seconds ago,
        with its response's id; None: no such answer. If the answer's proxy has lost its lease, the answer broke off
        when the proxy was last alive.

        The answer then belongs to the proxy `proxy_id`. Of two concurrent callers, one gets it; it can be taken again
        after it breaks off again. Answers are kept for an hour. `waits`: as `take_over` does.
        """

    # --- events -----------------------------------------------------------------------------------------------
    #
    # An event's id is an opaque cursor: a position in the events of every session, with the store's epoch. A cursor of
    # another epoch, or of events that were lost or have expired, raises CursorLost; anything else that is not an event
    # id raises BadCursor.
    #
    # A backend with one writer numbers the events of all sessions in the order of their commits: a reader that sees a
    # number sees all lower ones, so one number is a position in each session. With several writers a number may become
    # visible after a higher one: a cursor then needs a position for each session. Only the backend reads cursors.

    @abc.abstractmethod
    async def last_event_id(self) -> str:
        """The cursor after which all later events come."""

    @abc.abstractmethod
    async def events(self, *, after: str | None, session: str | None = None, limit: int = 100) -> list[Event]:
        """The events after that cursor, in order; None: from the oldest event. Raises CursorLost, BadCursor."""

    # --- waiting ----------------------------------------------------------------------------------------------
    #
    # A waiter is woken only by the writes that it waits for. A `timeout` is in seconds; closing the store ends every
    # wait like a timeout.

    @abc.abstractmethod
    async def wait_call(self, call: Call, timeout: float) -> Call | None:
        """The call as soon as its record differs from this one; None after the timeout. Raises UnknownCall, also if the
        call is deleted meanwhile."""

    @abc.abstractmethod
    async def wait_claimable(self, session: str, names: Collection[str], timeout: float) -> bool:
        """Wait until a claim of these tools may succeed; False after the timeout. Another worker may be faster."""

    @abc.abstractmethod
    async def follow(self, session: str | None, after: str | None, timeout: float, *, limit: int = 100) -> list[Event]:
        """As `events`, but waits for the first one; an empty list after the timeout."""

    # --- upkeep -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def expire(self) -> int:
        """Delete turns (with keys and calls), cached tools, responses and events that are older than `ttl` seconds;
        nothing for a day after a jump of the wall clock by more than an hour, compared with the machine's uptime.

        Pending calls are deleted with their turn. A thread of responses is deleted as a whole, with its conversations,
        by the age of its last response. Sessions stay. Returns the number of deleted records (without keys of turns
        with calls, given calls, and conversations).

        Deletes one batch (`BATCH`), so that other methods do not wait long: call it again until it returns 0."""
