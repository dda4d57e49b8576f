"""Stores the results of calls. If the store fails, a result is kept here and storing it is retried."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from addon.core.framing.documents import Document
from addon.core.history.calls import response_of
from addon.own_secrets import own_secrets
from addon.tools.base import MAX_MESSAGE
from store.base import AlreadyAnswered, Store, StoreError, StoreUnavailable, UnknownCall
from store.models import Call, Status

logger = logging.getLogger("toolgraft")

_FIRST_PAUSE = 0.1  # seconds between the tries, doubled with each
_MAX_PAUSE = 5.0


class ResultKeeper:
    """`count` is called with the status of each call whose end is stored here."""

    def __init__(self, store: Store, count: Callable[[str], None] = lambda status: None) -> None:
        self.store = store
        self.count = count
        self._unstored: dict[str, Callable[[], Awaitable[object]]] = {}
        """Stores each result that is still missing in the store, by call id."""
        self._retries: asyncio.Task[None] | None = None

    async def store_result(
        self, session: str, call_id: str, *, result: Any = None, error: str | None = None
    ) -> Document:
        """Store a result or an error. Returns the response that counts: the first, whoever gave it."""
        if error is not None:
            error = own_secrets.redaction.text(error)[:MAX_MESSAGE].encode("utf-8", "replace").decode()
        try:
            call = await self._store(session, call_id, result, error)
            return response_of(call.result, call.error)
        except AlreadyAnswered as other:
            return response_of(other.call.result, other.call.error)
        except UnknownCall as failure:  # the call was run, and its result counts
            logger.warning("the result of a call was not stored: %s", failure)
        except StoreUnavailable as failure:
            logger.warning("the result of a call is not stored yet: %s", failure)
            self._store_later(call_id, lambda: self._store(session, call_id, result, error))
        except ValueError:  # no store accepts the result
            raise
        except Exception:  # the call was run, so the model gets its result
            logger.exception("the result of a call is not stored yet")
            self._store_later(call_id, lambda: self._store(session, call_id, result, error))
        return response_of(result, error)

    async def settle(self, session: str, call_id: str, status: Status, error: str, *, has_begun: bool) -> None:
        """End a call that nobody waits for. A final call stays unchanged. `has_begun` as in `Store.settle`."""
        try:
            await self._settle(session, call_id, status, error, has_begun)
        except StoreUnavailable:
            self._store_later(call_id, lambda: self._settle(session, call_id, status, error, has_begun))
        except StoreError as failure:
            logger.debug("a call could not be settled: %s", failure)

    async def flush(self, call_ids: Iterable[str] | None = None) -> None:
        """Store the missing results of these calls; None: of all calls. Raises StoreUnavailable."""
        for call_id in list(self._unstored) if call_ids is None else call_ids:
            if (store := self._unstored.get(call_id)) is not None:
                with contextlib.suppress(AlreadyAnswered, UnknownCall):
                    await store()
                self._unstored.pop(call_id, None)

    async def close(self) -> None:
        """Try once more, and drop the results that cannot be stored."""
        if self._retries is not None:
            self._retries.cancel()
        try:
            await self.flush()
        except StoreUnavailable as failure:
            logger.warning("the results of %d calls could not be stored: %s", len(self._unstored), failure)

    async def _store(self, session: str, call_id: str, result: Any, error: str | None) -> Call:
        call, changed = await self.store.answer(session, call_id, result=result, error=error)
        if changed:
            self.count(call.status)
        return call

    async def _settle(self, session: str, call_id: str, status: Status, error: str, has_begun: bool) -> None:
        call = await self.store.settle(session, call_id, status, error=error, has_begun=has_begun)
        if call.status is status:
            self.count(status)

    def _store_later(self, call_id: str, store: Callable[[], Awaitable[object]]) -> None:
        self._unstored.setdefault(call_id, store)
        if self._retries is None or self._retries.done():
            self._retries = asyncio.ensure_future(self._retry())

    async def _retry(self) -> None:
        pause = _FIRST_PAUSE
        while self._unstored:
            await asyncio.sleep(pause)
            try:
                await self.flush()
            except StoreUnavailable:
                pause = min(2 * pause, _MAX_PAUSE)
            except Exception:
                logger.exception("results of calls could not be stored")
                return
