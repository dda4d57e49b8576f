"""The part of the store's contract that is about calls: who answers them, who runs them, and who waits for them.

What holds for all of the contract is said in `store.base`.
"""

import abc
from collections.abc import Collection
from typing import Any

from store.models import Call, Page, Status, Turn


class Calls(abc.ABC):
    # --- calls ------------------------------------------------------------------------------------------------
    #
    # A call is known by its session and its id: each method raises UnknownCall for a call of another session.

    @abc.abstractmethod
    async def call(self, session: str, call_id: str) -> Call:
        """Raises UnknownCall."""

    @abc.abstractmethod
    async def find_call(self, call_id: str) -> Call:
        """The call of this id, whatever its session: for whoever was given nothing but the id. Raises UnknownCall."""

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
        self, session: str, call_id: str, *, result: Any = None, error: str | None = None
    ) -> tuple[Call, bool]:
        """Give the call its answer: `failed` with `error`, else `done` with `result` (which may be None: JSON null).

        Returns the call, and whether this made the change: the same answer again changes nothing. Raises UnknownCall,
        AlreadyAnswered. Event `call.updated`.

        Whoever answers first wins, whatever the call was doing: pending, waiting for an approval, or running, also
        if its lease is another's.
        """

    # --- running calls ----------------------------------------------------------------------------------------
    #
    # pending → running → final. Each raises UnknownCall, and leaves an event `call.updated` where it changed the call.
    #
    # A call has an owner, and only a call of the workers that was released is ever given to one. Two leases say who is
    # alive: a worker's, of the call that it runs, and a proxy's, under the proxy's own id. All times are the store's.

    @abc.abstractmethod
    async def release(self, session: str, call_id: str, *, detached: bool = False) -> Call:
        """Let workers claim the call from now on. Again changes nothing, nor does it once a worker has the call.

        `detached`: no proxy waits for the call any longer; it stays the workers' when the proxy is gone. Raises
        NotPending: the call is not the workers', waits for an approval, is run by the proxy, or is final.
        """

    @abc.abstractmethod
    async def claim(self, session: str, names: Collection[str], *, lease: float, worker: str) -> Call | None:
        """The oldest call of these tools that a worker may have, for `worker` and `lease` seconds; None: there is none.

        It is a released one that is pending, or a running one whose lease ran out and that may be delivered again
        (`Call.redeliver`). Calls that it comes across and that are lost are settled as `settle_lost` does. A call of
        a tool that needs an approval by the toolset as it is now is not given without one. Of two claimers at once,
        one gets it. Raises ValueError: `lease` is not above 0.
        """

    @abc.abstractmethod
    async def next_lease(self, session: str, names: Collection[str]) -> float | None:
        """The seconds until a lease of these tools' running calls runs out, 0 if one has; None: there is none."""

    @abc.abstractmethod
    async def lease_left(self, session: str, call_id: str) -> float | None:
        """The seconds left of the worker's lease of the call, 0 if it ran out; None: no worker has the call."""

    @abc.abstractmethod
    async def renew(self, session: str, call_id: str, worker: str, lease: float) -> Call:
        """Have the lease run out in `lease` seconds from now; 0 gives the call back: it is pending again.

        Raises LeaseLost where the call is not running, or is another worker's. A lease that ran out can be renewed
        as long as nobody else has claimed the call, and it was not settled. No event, but for a call that is given
        back.
        """

    @abc.abstractmethod
    async def start(self, session: str, call_id: str, *, loop_id: str) -> Call:
        """The proxy runs the call itself from now on: no worker gets it. Again by the same loop changes nothing.

        Raises NotPending; also where the call waits for an approval.
        """

    @abc.abstractmethod
    async def ask_approval(self, session: str, call_id: str, *, loop_id: str) -> Call:
        """The call waits for an approval, and that loop for the call. Again changes nothing but the loop.

        A call may also be saved as waiting from the beginning. Raises NotPending; Decided.
        """

    @abc.abstractmethod
    async def decide(self, session: str, call_id: str, approved: bool, *, reason: str = "") -> Call:
        """Approve the call: it is still pending, and can be run now. Or deny it: it is final, and its error says so,
        with the reason where there is one. The same decision again changes nothing.

        Raises Decided; ProxyGone: the proxy that waited for the call has no lease, and the call was expired instead.
        """

    @abc.abstractmethod
    async def settle(self, session: str, call_id: str, status: Status, *, error: str) -> Call:
        """End a call that nobody will answer: `denied` or `expired`, with words for the model. A final call stays as it
        is, and is returned so. Raises ValueError for another status."""

    # --- the proxies ------------------------------------------------------------------------------------------
    #
    # A call that a proxy's loop, Live connection or background run waits for has its `proxy_id`. Such a call is worth
    # something as long as the proxy has a lease. A backend that only one process writes ends all leases of proxies
    # when it is opened: whoever had one is gone.

    @abc.abstractmethod
    async def hold(self, proxy_id: str, lease: float) -> None:
        """The proxy is alive, and is taken to be for `lease` seconds from now; also where noting it raises. Raises
        ValueError: `lease` is not above 0."""

    @abc.abstractmethod
    async def drop(self, proxy_id: str) -> list[Call]:
        """The proxy stops: its lease ends, and its calls are settled as `settle_lost` does. Returns these."""

    @abc.abstractmethod
    async def settle_lost(self) -> list[Call]:
        """Settle every call that nobody will answer any more, in one step, and return them as they are now.

        A call of a proxy without a lease is expired, pending or run by the proxy itself; one that a worker runs stays
        the worker's until its lease is out. A call whose worker has let its lease run out is failed, unless it may be
        delivered again. Nothing is ever handed on to a worker by this.
        """

    # --- requests that are sent again -------------------------------------------------------------------------

    @abc.abstractmethod
    async def broke_off(self, session: str, turn_id: str) -> bool:
        """Note that the answer with this turn has ended unfinished, at the time of the store. False, and nothing is
        noted: there is no such turn, it was delivered, or this was noted before. Event `turn.updated`."""

    @abc.abstractmethod
    async def delivered(self, session: str, turn_id: str) -> bool:
        """Note that the client has all of the turn. False, and nothing is noted: there is no such turn, or this was
        noted before. Event `turn.updated`."""

    @abc.abstractmethod
    async def take_over(
        self, session: str, request_key: bytes, *, window: float, proxy_id: str
    ) -> tuple[Turn, list[Call]] | None:
        """The newest turn with this `request_key` that broke off at most `window` seconds ago, with its calls in order;
        None: there is none. A turn whose proxy has no lease any more broke off when the proxy was last alive.

        The turn is the proxy's `proxy_id` from now on, its open calls as well, and goes on under its own id. Of two
        that ask at once, one gets it; it can be taken over again once it has broken off again. Calls that are lost are
        settled as `settle_lost` does. A turn that was delivered is never taken over. Event `turn.updated`.
        """
