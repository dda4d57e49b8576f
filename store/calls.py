"""The store's contract about calls: who answers them, who runs them, and who waits for them.

`store.base` states what applies to the whole contract.
"""

import abc
from collections.abc import Collection, Sequence
from typing import Any

from store.models import Call, Document, Page, Status, Turn


class Calls(abc.ABC):
    # --- calls ------------------------------------------------------------------------------------------------
    #
    # A call is identified by its session and its id: each method raises UnknownCall for a call of another session.

    @abc.abstractmethod
    async def call(self, session: str, call_id: str) -> Call:
        """Raises UnknownCall."""

    @abc.abstractmethod
    async def find_call(self, call_id: str) -> Call:
        """The call of this id in any session: for callers that know only the id. Raises UnknownCall."""

    @abc.abstractmethod
    async def calls(
        self,
        *,
        session: str | None = None,
        status: Status | None = None,
        name: str | None = None,
        newest_first: bool = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[Call]:
        """Calls in the order they were first saved, or the reverse. Raises BadCursor."""

    @abc.abstractmethod
    async def calls_cursor(
        self, moment: float, *, session: str | None = None, newest_first: bool = False
    ) -> str | None:
        """The cursor of the page that begins with the first call made at `moment` or later, or, with `newest_first`,
        with the last one before it. Assumes that calls were saved in the order of their times."""

    @abc.abstractmethod
    async def answer(
        self,
        session: str,
        call_id: str,
        *,
        result: Any = None,
        error: str | None = None,
        parts: Sequence[Document] = (),
    ) -> tuple[Call, bool]:
        """Answer the call: `failed` with `error`, else `done` with `result` (which may be None: JSON null) and the
        `parts` of the functionResponse, each with base64 in its `inlineData`. Raises ValueError for other parts.

        Returns the call, and whether it changed: repeating the same answer changes nothing. Raises UnknownCall,
        AlreadyAnswered. Event `call.updated`.

        The first answer wins, in every state of the call: pending, waiting for an approval, or running, even under
        another worker's lease.
        """

    # --- running calls ----------------------------------------------------------------------------------------
    #
    # pending → running → final. Each method raises UnknownCall, and leaves an event `call.updated` if the call changed.
    #
    # A call has an owner. Workers get only released calls of owner `workers`. Two kinds of leases show who is alive: a
    # worker's lease of the call that it runs, and a proxy's lease under its own id. All times are the store's.

    @abc.abstractmethod
    async def release(self, session: str, call_id: str, *, detached: bool = False) -> Call:
        """Let workers claim the call. Idempotent, also once a worker has the call.

        `detached`: no proxy waits for the call any longer, and it survives the end of the proxy. Raises NotPending: the
        owner is not `workers`, or the call waits for an approval, is run by the proxy, or is final.
        """

    @abc.abstractmethod
    async def claim(self, session: str, names: Collection[str], *, lease: float, worker: str) -> Call | None:
        """Claim the oldest available call of these tools, for `worker` and `lease` seconds; None: none is available.

        Available calls are pending and released, or running with an expired lease and redeliverable (`Call.redeliver`).
        Lost calls that are found meanwhile are settled as `settle_lost` does. If the current toolset requires an
        approval for the tool, only approved calls are available. Of two concurrent claims, one gets the call. Raises
        ValueError: `lease` is not above 0.
        """

    @abc.abstractmethod
    async def next_lease(self, session: str, names: Collection[str]) -> float | None:
        """Seconds until the first lease of these tools' running calls expires, 0 if one has; None: no lease."""

    @abc.abstractmethod
    async def lease_left(self, session: str, call_id: str) -> float | None:
        """Seconds left of the worker's lease of the call, 0 if it expired; None: no worker has the call."""

    @abc.abstractmethod
    async def renew(self, session: str, call_id: str, worker: str, lease: float) -> Call:
        """Extend the lease to `lease` seconds from now; 0 returns the call: it is pending again.

        Raises LeaseLost if the call is not running, or held by another worker. An expired lease can be renewed until
        another worker claims the call, or it is settled. No event, unless the call is returned.
        """

    @abc.abstractmethod
    async def start(self, session: str, call_id: str, *, loop_id: str) -> Call:
        """The proxy runs the call itself: no worker gets it. Idempotent for the same loop. Raises NotPending, also if
        the call waits for an approval."""

    @abc.abstractmethod
    async def decide(
        self, session: str, call_id: str, approved: bool, *, reason: str = "", args: Document | None = None
    ) -> Call:
        """Approve the call: it stays pending and can be run, with `args` instead of the model's if they are given.
        Or deny it: it is final, and its error contains the reason, if any. Repeating the same decision changes nothing.

        Raises Decided; ProxyGone: the proxy that waited for the call has no lease, and the call has expired instead.
        """

    @abc.abstractmethod
    async def settle(self, session: str, call_id: str, status: Status, *, error: str, has_begun: bool = True) -> Call:
        """End a call that nobody will answer: `denied` or `expired`, with an error for the model. A final call is
        returned unchanged. `has_begun` False: the loop stored the call as running or started, but ended before it ran
        the call. Raises ValueError for another status."""

    # --- the proxies ------------------------------------------------------------------------------------------
    #
    # `proxy_id` of a call is the proxy with the loop, Live connection or background run that waits for it. Such a call
    # is useful only while the proxy has a lease. A backend with one writing process ends all leases of proxies when it
    # is opened: the proxies that held them are gone.

    @abc.abstractmethod
    async def hold(self, proxy_id: str, lease: float) -> None:
        """Consider the proxy alive for `lease` seconds from now, even if storing this fails. Raises ValueError: `lease`
        is not above 0."""

    @abc.abstractmethod
    async def drop(self, proxy_id: str) -> list[Call]:
        """The proxy stops: its lease ends, and its calls are settled as `settle_lost` does. Returns these calls."""

    @abc.abstractmethod
    async def settle_lost(self) -> list[Call]:
        """Settle all calls that nobody will answer, in one step, and return them.

        A call of a proxy without a lease expires if it is pending or run by the proxy itself; a worker keeps its call
        until its lease expires. A call with an expired lease of a worker fails, unless it may be redelivered.
        """

    # --- requests that are sent again -------------------------------------------------------------------------

    @abc.abstractmethod
    async def mark_broken_off(self, session: str, turn_id: str, *, proxy_id: str | None = None) -> bool:
        """Note that the answer with this turn ended unfinished now. `proxy_id`: only if this proxy has the turn. False,
        without a write: the turn does not exist, was delivered, or has this note. Event `turn.updated`."""

    @abc.abstractmethod
    async def mark_delivered(self, session: str, turn_id: str) -> bool:
        """Note that the client has the whole turn. False, without a write: the turn does not exist, or has this note.
        Event `turn.updated`."""

    @abc.abstractmethod
    async def take_over(
        self, session: str, request_key: bytes, *, window: float, proxy_id: str
    ) -> tuple[Turn, list[Call]] | None:
        """Take over the newest turn with this `request_key` that broke off at most `window` seconds ago. Returns it and
        its calls in order; None: no such turn. If the turn's proxy has lost its lease, the turn broke off when the
        proxy was last alive.

        The turn, under the same id, and its open calls then belong to the proxy `proxy_id`. Of two concurrent callers,
        one gets the turn; it can be taken over again after it breaks off again. Lost calls are settled as `settle_lost`
        does. A delivered turn is never taken over. Event `turn.updated`.

        A turn that another proxy seems to go on with may have broken off without a note: waits until that proxy renews
        its lease, before which it must make its late notes, or has lost it.
        """
