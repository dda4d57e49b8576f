"""The results of calls in the store: stores them, waits for those that workers and people give, and logs calls that
failed or that a person must answer or approve."""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from addon.core.answer import CapturedCall
from addon.core.framing.documents import Document, decode, encode
from addon.core.history.outcomes import outcome_of
from addon.core.summaries import arguments, problem, shortened
from addon.graft.late_writes import MOST_BYTES, LateWrites
from addon.graft.ledger_evidence import outcome_of_call
from addon.monitoring.own_secrets import own_secrets
from addon.tools.base import MAX_MESSAGE
from store.base import AlreadyAnswered, Store, StoreError, StoreUnavailable, UnknownCall
from store.models import Call, Status

logger = logging.getLogger("toolgraft")

_LONGEST_NAME = 64
_LONGEST_ERROR = 300

_LARGE = MOST_BYTES // 4
"""Results of more bytes than this are not remembered."""

_MAX_WORKERS = 4  # workers that may claim a call, one after another
_TAKEOVER = 1.0  # seconds for another worker to claim a call whose lease expired
_LONG = 3600.0  # seconds of one wait without a time limit
_RESULT_LOST = "the call has run, and its result was lost with the store's server"


def report_failure(session: str, call: CapturedCall, error: str) -> None:
    name, why = shortened(call.name, _LONGEST_NAME), shortened(error, _LONGEST_ERROR)
    logger.warning(
        "session %s: %s failed: %s",
        session,
        name,
        why,
        extra=problem("tool_failed", session=session, call=call.call_id, tool=name, error=why),
    )


def report_waiting(session: str, call: CapturedCall, *, needs_approval: bool) -> None:
    """Log the command that answers or approves the call."""
    name, args = shortened(call.name, _LONGEST_NAME), arguments(call.args)
    what, command = ("an approval", "approve {}") if needs_approval else ("its result", "answer {}")
    command = f"toolgraft {command.format(call.call_id)}"
    logger.warning(
        "session %s: %s(%s) waits for %s: %s",
        session,
        name,
        args,
        what,
        command,
        extra=problem(
            "approval_needed" if needs_approval else "result_needed",
            session=session,
            call=call.call_id,
            tool=name,
            arguments=args,
            command=command,
        ),
    )


class CallResults:
    """`count` is called with the status of each call whose end is stored here."""

    def __init__(self, store: Store, late_writes: LateWrites, count: Callable[[str], None]) -> None:
        self.store = store
        self.count = count
        self._late_writes = late_writes

    # --- storing ----------------------------------------------------------------------------------------------

    async def store_result(
        self,
        session: str,
        call_id: str,
        *,
        result: Any = None,
        error: str | None = None,
        parts: Sequence[Document] = (),
    ) -> Document:
        """Store a result or an error. Returns the outcome that counts: the first one given."""
        if error is not None:
            error = own_secrets.redaction.text(error)[:MAX_MESSAGE].encode("utf-8", "replace").decode()
        try:
            call = await self._store(session, call_id, result, error, parts)
            return outcome_of_call(call)
        except AlreadyAnswered as other:
            return outcome_of_call(other.call)
        except UnknownCall as failure:  # the call has run, and its result counts
            logger.warning("the result of a call was not stored: %s", failure)
        except StoreUnavailable as failure:
            logger.warning("the result of a call is not stored yet: %s", failure)
            self._late_writes.add(call_id, lambda: self._store(session, call_id, result, error, parts))
        except ValueError:  # no store accepts the result
            raise
        except Exception:  # the call has run, so the model gets its result
            logger.exception("the result of a call is not stored yet")
            self._late_writes.add(call_id, lambda: self._store(session, call_id, result, error, parts))
        return outcome_of(result, error, parts)

    async def settle(self, session: str, call_id: str, status: Status, error: str, *, has_begun: bool) -> Call | None:
        """End a call that nobody waits for. A final call stays unchanged. `has_begun` as in `Store.settle`. Returns the
        stored call; None: the store failed."""
        try:
            return await self._settle(session, call_id, status, error, has_begun)
        except StoreUnavailable:
            self._late_writes.add(call_id, lambda: self._settle(session, call_id, status, error, has_begun))
        except StoreError as failure:
            logger.debug("a call could not be settled: %s", failure)
        return None

    async def _store(
        self, session: str, call_id: str, result: Any, error: str | None, parts: Sequence[Document]
    ) -> Call:
        try:
            call, changed = await self.store.answer(session, call_id, result=result, error=error, parts=parts)
        except UnknownCall:  # a server that replaces this one may know the call
            self._remember_answer(session, call_id, result, error, parts)
            raise
        self._remember_answer(session, call_id, result, error, parts)
        if changed:
            self.count(call.status)
        return call

    def _remember_answer(
        self, session: str, call_id: str, result: Any, error: str | None, parts: Sequence[Document]
    ) -> None:
        encoded = encode(result)
        size = len(encoded) + sum(len(part["inlineData"]["data"]) for part in parts)
        if size > _LARGE:
            encoded, error, parts, size = b"null", _RESULT_LOST, (), 0

        async def write() -> None:
            await self.store.answer(session, call_id, result=decode(encoded), error=error, parts=parts)

        self._late_writes.remember(call_id, write, size)

    async def _settle(self, session: str, call_id: str, status: Status, error: str, has_begun: bool) -> Call:
        settle = partial(self.store.settle, session, call_id, status, error=error, has_begun=has_begun)
        try:
            call = await settle()
        except UnknownCall:
            self._late_writes.remember(call_id, settle)
            raise
        if call.status is status:  # otherwise it was already final
            self._late_writes.remember(call_id, settle)
            self.count(status)
        return call

    # --- waiting ----------------------------------------------------------------------------------------------

    async def final_call(self, session: str, call_id: str, timeout: float = math.inf) -> Call | None:
        """The call once it is final; None after `timeout` seconds."""
        return await self._until(session, call_id, timeout, lambda call: call.status.final)

    async def decision(self, session: str, call_id: str, timeout: float) -> Call | None:
        """The call once it no longer waits for an approval; None after `timeout` seconds."""
        return await self._until(
            session, call_id, timeout, lambda call: call.status.final or call.approval != "waiting"
        )

    async def final_call_of_worker(self, session: str, call_id: str, seconds: float, *, claim_timeout: float) -> Call:
        """The call once it has a result; the open call if the time runs out.

        A worker must claim the call within `claim_timeout` seconds, and give its result within another `seconds`. A
        call whose worker is lost fails, unless it may be redelivered: then the time starts again with the next worker,
        for up to _MAX_WORKERS workers. If the time runs out before the lease of a silent worker does, such a call waits
        until the lease ends, plus _TAKEOVER for another worker.
        """
        clock = asyncio.get_running_loop().time
        worker: str | None = None
        lease: float | None = None  # the end of the worker's first lease, until it is renewed
        workers, deadline = 0, clock() + claim_timeout
        call = await self.store.call(session, call_id)
        while not call.status.final:
            if _has_worker(call) and call.worker != worker and workers < _MAX_WORKERS:
                worker, lease, workers, deadline = call.worker, call.lease_until, workers + 1, clock() + seconds
            lease_left = await self.store.lease_left(session, call_id) if _has_worker(call) else None
            remaining = deadline - clock()
            if remaining <= 0 and lease is not None and call.lease_until == lease and call.redeliver:
                remaining = min(lease_left or 0, seconds) + _TAKEOVER
                lease, deadline = None, clock() + remaining
            if remaining <= 0:
                return call
            if lease_left == 0 and not call.redeliver:
                await self.store.settle_lost()
            changed = await self.store.wait_call(call, min(remaining, lease_left or remaining, _LONG))
            call = changed or await self.store.call(session, call_id)
        return call

    async def _until(
        self, session: str, call_id: str, timeout: float, condition: Callable[[Call], bool]
    ) -> Call | None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        call = await self.store.call(session, call_id)
        while not condition(call):
            remaining = deadline - clock()
            if remaining <= 0:
                return None
            call = await self.store.wait_call(call, min(remaining, _LONG)) or call
        return call


def _has_worker(call: Call) -> bool:
    return call.status is Status.RUNNING and call.lease_until is not None
