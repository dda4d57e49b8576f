"""Stores the results of calls. Retries if the store fails, and stores a recent result again if the server loses it."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from addon.core.framing.documents import Document, decode, encode
from addon.core.history.outcomes import outcome_of
from addon.graft.late_writes import MOST_BYTES, LateWrites
from addon.graft.ledger_evidence import outcome_of_call
from addon.own_secrets import own_secrets
from addon.tools.base import MAX_MESSAGE
from store.base import AlreadyAnswered, Store, StoreError, StoreUnavailable, UnknownCall
from store.models import Call, Status

logger = logging.getLogger("toolgraft")

_LARGE = MOST_BYTES // 4
"""Results of more bytes than this are not remembered."""

_RESULT_LOST = "the call has run, and its result was lost with the store's server"


class ResultKeeper:
    """`count` is called with the status of each call whose end is stored here."""

    def __init__(
        self, store: Store, count: Callable[[str], None] = lambda status: None, late_writes: LateWrites | None = None
    ) -> None:
        self.store = store
        self.count = count
        self._late_writes = late_writes if late_writes is not None else LateWrites(store)

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

    async def flush(self, call_ids: Iterable[str]) -> None:
        """Store the pending results of these calls. Raises StoreUnavailable."""
        await self._late_writes.flush(call_ids)

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
