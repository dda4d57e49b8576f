"""The store's contract.

Every method is atomic: it has happened whole, or not at all, also when the process dies in the middle of it, and
what was acknowledged (the method returned) is still there afterwards. Writes of one store are in one total order,
the order of the events they leave behind. Records are immutable values: what a method returned never changes.

Documents are JSON. What JSON cannot hold (NaN as a result, half of a surrogate pair) raises ValueError; so do calls
that are not of the turn they come with, and a `limit` below 1. Nothing is written then. NaN elsewhere is kept as null.

Sessions are isolated: no method that is given a session returns or changes a record of another one.

Events never hold the values of executors' headers, which may be secrets.

What a caller can catch: `UnknownCall`, what says how a call stands (`AlreadyAnswered`, `NotPending`, `LeaseLost`,
`Decided`), `UnknownResponse`, `ConversationMoved`, `StoreUnavailable` (the backend cannot be used now; nothing was
written) and, when opening, `StoreUnusable` (the message names the path and says what to do).

A backend whose methods never suspend says so with `suspends = False`; its coroutines may then be run to their end by
`run_now` where nothing can be awaited. `wait` is the exception: it always suspends.
"""

import abc
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, ClassVar, Self

from store.models import (
    CachedTools,
    Call,
    Event,
    Found,
    GivenCall,
    Page,
    Policy,
    Response,
    Session,
    Status,
    Toolset,
    Turn,
)

MATCHES = 8
"""How many turns `look_up` gives for one key at most: a chat that is repeated word for word shares its keys with
every one before it, and a request must not pay for all of them."""


class StoreError(Exception):
    """What goes wrong in a store.

    StoreError
     ├─ UnknownCall        no such call
     ├─ CallStands         the call as it stands, `call`, does not take what was asked for
     │   ├─ AlreadyAnswered    it has another answer
     │   ├─ NotPending         it is run already, waits for an approval, or is final
     │   ├─ LeaseLost          the worker does not hold it (any more)
     │   └─ Decided            it does not wait for an approval: never did, or was decided otherwise
     ├─ UnknownResponse    no such response in the session
     ├─ ConversationMoved  the conversation is at `head`, and not where the response goes on
     ├─ BadCursor          a cursor that this store did not make
     ├─ StoreUnavailable   a backend that does not answer now
     └─ StoreUnusable      a backend that cannot be opened
    """


class UnknownCall(StoreError):
    pass


class CallStands(StoreError):
    why: ClassVar[str]

    def __init__(self, call: Call) -> None:
        stands = call.status if call.approval is None else f"{call.status}, approval: {call.approval}"
        super().__init__(f"call {call.call_id} is {stands}: {self.why}")
        self.call = call


class AlreadyAnswered(CallStands):
    why = "its answer is another"


class NotPending(CallStands):
    why = "nothing can be begun with it"


class LeaseLost(CallStands):
    why = "it is not this worker's"


class Decided(CallStands):
    why = "it does not wait for this decision"


class UnknownResponse(StoreError):
    pass


class ConversationMoved(StoreError):
    def __init__(self, name: str, head: str | None, expected: str | None) -> None:
        stands = f"is at response {head}" if head else "does not exist"
        super().__init__(f"conversation {name} {stands}, and not {f'at {expected}' if expected else 'new'}")
        self.head = head


class BadCursor(StoreError):
    pass


class StoreUnavailable(StoreError):
    pass


class StoreUnusable(StoreError):
    pass


def run_now[T](coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a backend that never suspends to its end, without an event loop.

    Raises what the coroutine raises; RuntimeError where it did suspend after all (it is closed then).
    """
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coroutine.close()
    raise RuntimeError("a store that says it never suspends has suspended")


class Store(abc.ABC):
    suspends: ClassVar[bool] = True
    read_only: bool = False
    """Opened to look only: whatever writes raises StoreUnavailable."""

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
        """Raises StoreUnavailable where reads or writes would."""

    # --- sessions ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def session(self, name: str) -> Session | None:
        """The session, or None if nothing was ever set for it. Cheap: asked once for every request."""

    @abc.abstractmethod
    async def sessions(self, *, limit: int = 100, cursor: str | None = None) -> Page[Session]:
        """Sessions by name. Raises BadCursor."""

    @abc.abstractmethod
    async def put_policy(self, name: str, policy: Policy) -> Session:
        """Replace the policy; makes the session where there is none. Event `session.updated`."""

    @abc.abstractmethod
    async def put_toolset(self, name: str, toolset: Toolset | None) -> Session:
        """Replace the toolset (None clears it); makes the session where there is none. Event `tools.updated`."""

    @abc.abstractmethod
    async def delete_session(self, name: str) -> bool:
        """Forget the session with its calls, turns, keys, cached tools, responses and conversations; False where there
        was nothing. Event `session.deleted`; the session's earlier events go with it."""

    @abc.abstractmethod
    async def put_cached_tools(self, cached: CachedTools) -> None: ...

    @abc.abstractmethod
    async def cached_tools(self, session: str, cached_content: str) -> CachedTools | None: ...

    # --- the ledger -------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def save_turn(self, turn: Turn, calls: Sequence[Call] = (), keys: Sequence[bytes] = ()) -> None:
        """Insert the turn, or replace the one of the same id (its `bound` and `created_at` stay as they are).

        Calls that are already there are left alone: an answer may have come in between. Keys are added to those the
        turn has. Events `turn.created` or `turn.updated`, and `call.created` for each call that is new.
        """

    @abc.abstractmethod
    async def look_up(self, session: str, *, turn_ids: Collection[str] = (), keys: Collection[bytes] = ()) -> Found:
        """The one read of a request: every turn of the session that has one of these ids or keys, with its calls."""

    @abc.abstractmethod
    async def bind(
        self, session: str, user_key: bytes, keys: Sequence[bytes], *, exclude: Collection[str] = ()
    ) -> str | None:
        """Give the newest turn of the session that has this `user_key` and is not bound these keys, and mark it bound.
        `exclude`: ids of turns that it cannot be. Returns its id, or None where there is none. Of two callers at once,
        one gets it. Event `turn.updated`."""

    @abc.abstractmethod
    def revision(self, session: str) -> int | None:
        """A number that changes whenever `look_up` could answer differently; 0 while the session's ledger is empty.
        None: this backend cannot know (other processes write as well), so ask each time."""

    @abc.abstractmethod
    async def turns(self, session: str, *, limit: int = 100, cursor: str | None = None) -> Page[Turn]:
        """Turns in the order they were first saved. Raises BadCursor."""

    # --- calls ------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def call(self, call_id: str) -> Call:
        """Raises UnknownCall."""

    @abc.abstractmethod
    async def calls(
        self,
        *,
        session: str | None = None,
        status: Status | None = None,
        name: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Call]:
        """Calls in the order they were first saved. Raises BadCursor."""

    @abc.abstractmethod
    async def answer(
        self, call_id: str, *, result: Any = None, error: str | None = None, session: str | None = None
    ) -> tuple[Call, bool]:
        """Give the call its answer: `failed` with `error`, else `done` with `result` (which may be None: JSON null).

        Returns the call, and whether this made the change: the same answer again changes nothing. Raises UnknownCall
        (also where the call is of another session than the one given), AlreadyAnswered. Event `call.updated`.

        Whoever answers first wins, whatever the call was doing: pending, waiting for an approval, or running, also
        where its lease is another's.
        """

    # --- running calls ----------------------------------------------------------------------------------------
    #
    # pending → running → final. Each raises UnknownCall, and leaves an event `call.updated` where it changed the call.

    @abc.abstractmethod
    async def claim(self, session: str, names: Collection[str], *, lease: float, worker: str) -> Call | None:
        """The oldest call of these tools that nobody runs, for `worker` and `lease` seconds; None: there is none.

        It is a pending one, or a running one whose lease ran out. A call that waits for an approval is not given,
        nor, without one, a call of a tool that needs one by the toolset as it is now. Of two claimers at once, one
        gets it. Raises ValueError: `lease` is not above 0.
        """

    @abc.abstractmethod
    async def next_lease(self, session: str, names: Collection[str]) -> float | None:
        """When the next lease of these tools' running calls runs out, by the store's clock; None: there is none."""

    @abc.abstractmethod
    async def renew(self, call_id: str, worker: str, lease: float) -> Call:
        """Have the lease run out in `lease` seconds from now; 0 gives the call back: it is pending again.

        Raises LeaseLost where the call is not running, or is another worker's. A lease that ran out can be renewed
        as long as nobody else has claimed the call. No event, but for a call that is given back.
        """

    @abc.abstractmethod
    async def start(self, call_id: str, *, loop_id: str) -> Call:
        """The proxy runs the call itself from now on: no worker gets it. Again by the same loop changes nothing.

        Raises NotPending; also where the call waits for an approval.
        """

    @abc.abstractmethod
    async def ask_approval(self, call_id: str, loop_id: str) -> Call:
        """The call waits for an approval, and that loop for the call. Again changes nothing but the loop.

        A call may also be saved as waiting from the beginning. Raises NotPending; Decided.
        """

    @abc.abstractmethod
    async def decide(self, call_id: str, approved: bool, *, reason: str = "") -> Call:
        """Approve the call: it is still pending, and can be run now. Or deny it: it is final, and its error says so,
        with the reason where there is one. The same decision again changes nothing. Raises Decided."""

    @abc.abstractmethod
    async def settle(self, call_id: str, status: Status, *, error: str) -> Call:
        """End a call that nobody will answer: `denied` or `expired`, with words for the model. A final call stays as it
        is, and is returned so. Raises ValueError for another status."""

    # --- responses and conversations --------------------------------------------------------------------------
    #
    # Each response follows one other or none, so they form trees: the threads. A conversation is a name for a place in
    # one, its head. These methods leave no events: what they keep is large, and its owner is told of it anyway.

    @abc.abstractmethod
    async def add_response(self, response: Response, *, head: str | None = None) -> None:
        """Add the response and, where it has a conversation, move that conversation's head to it.

        `head`: the response at which the conversation is, which must be the `previous` of this one; None: the
        conversation is made by this response, which may follow any other. Of two that move the same head at once, one
        does. A call id that was given before means the call of this response from now on.

        Raises ConversationMoved: the conversation is not at `head` (any more); UnknownResponse: there is no response
        `previous` in the session; ValueError: a response of this id is there already, or `head` is not as said above.

        To keep only the calls of a response (for a client that keeps its own history), add it with no contents, no
        document, no conversation and no `previous`.
        """

    @abc.abstractmethod
    async def response(self, session: str, response_id: str) -> Response:
        """The response; its `document` is None where it was deleted, and is only kept for others. Raises
        UnknownResponse."""

    @abc.abstractmethod
    async def conversation(self, session: str, name: str) -> str | None:
        """The id of the conversation's head; None: there is no such conversation."""

    @abc.abstractmethod
    async def history(self, session: str, response_id: str) -> list[Response]:
        """The responses from the beginning of the thread to this one, the oldest first.

        Only the last has its `tools` and its `document`: the others' can be large, and are None here. Raises
        UnknownResponse.
        """

    @abc.abstractmethod
    async def given_calls(self, session: str, call_ids: Collection[str]) -> dict[str, GivenCall]:
        """Those of these calls that a client of the session was given, by their ids."""

    @abc.abstractmethod
    async def delete_response(self, session: str, response_id: str) -> None:
        """Delete the response's document. The response goes with its calls as soon as nothing needs it, which is at
        once where no other follows it and no conversation is at it; and with it those before it that have no document
        and were only kept for it. Raises UnknownResponse, also where it has no document (any more)."""

    # --- events -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def last_event_id(self) -> int:
        """0 before the first event."""

    @abc.abstractmethod
    async def events(self, *, after: int, session: str | None = None, limit: int = 100) -> list[Event]:
        """Events with an id greater than `after`, in order."""

    @abc.abstractmethod
    async def wait(self, *, after: int, timeout: float, session: str | None = None) -> bool:
        """Wait until there is an event with an id greater than `after`; True at once if there is one already.
        False when `timeout` seconds have passed, or the store was closed."""

    # --- upkeep -----------------------------------------------------------------------------------------------

    @abc.abstractmethod
    async def expire(self) -> int:
        """Delete turns (with keys and calls), cached tools, responses and events that are older than `ttl` seconds.
        A call still pending goes with its turn. A thread of responses goes as a whole, with its conversations: its age
        counts from when the last response was added to it. Returns how many records went (keys, given calls and
        conversations' names are not counted).
        Sessions stay. To be called often: what is deleted at a time is what the others wait for."""
