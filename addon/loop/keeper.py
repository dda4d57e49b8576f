"""The answers of calls on their way to the store. What the store does not take now is kept here, and tried again."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from addon.core.calls import response_of
from addon.core.documents import Document
from addon.own_secrets import own_secrets
from addon.tools.base import MAX_MESSAGE
from store.base import AlreadyAnswered, Store, StoreError, StoreUnavailable, UnknownCall
from store.models import Status

logger = logging.getLogger("toolgraft")

_FIRST_PAUSE = 0.1  # seconds between the tries, doubled with each
_MAX_PAUSE = 5.0


class AnswerKeeper:
    """`count` is told what each call that is stored here came to: its status."""

    def __init__(self, store: Store, count: Callable[[str], None] = lambda status: None) -> None:
        self.store = store
        self.count = count
        self._left: dict[str, Callable[[], Awaitable[object]]] = {}
        """What is still to be stored, by call id."""
        self._trying: asyncio.Task[None] | None = None

    async def answer(self, session: str, call_id: str, *, result: Any = None, error: str | None = None) -> Document:
        """Store an answer; the response that counts, which is the one that came first, from wherever."""
        if error is not None:
            error = own_secrets.redaction.text(error)[:MAX_MESSAGE].encode("utf-8", "replace").decode()
        try:
            await self._answer(session, call_id, result, error)
        except AlreadyAnswered as other:
            return response_of(other.call.result, other.call.error)
        except UnknownCall as failure:  # the call was run, and its answer counts
            logger.warning("the answer of a call was not stored: %s", failure)
        except StoreUnavailable as failure:
            logger.warning("the answer of a call is not stored yet: %s", failure)
            self._keep(call_id, lambda: self._answer(session, call_id, result, error))
        except ValueError:  # what no store takes
            raise
        except Exception:  # the call was run: the model is not told that it was not
            logger.exception("the answer of a call is not stored yet")
            self._keep(call_id, lambda: self._answer(session, call_id, result, error))
        return response_of(result, error)

    async def settle(self, session: str, call_id: str, status: Status, error: str) -> None:
        """End a call that nobody waits for; a final one stays as it is."""
        try:
            await self._settle(session, call_id, status, error)
        except StoreUnavailable:
            self._keep(call_id, lambda: self._settle(session, call_id, status, error))
        except StoreError as failure:
            logger.debug("a call could not be settled: %s", failure)

    async def flush(self, call_ids: Iterable[str] | None = None) -> None:
        """Store what is left of these calls; None: of all. Raises StoreUnavailable."""
        for call_id in list(self._left) if call_ids is None else call_ids:
            if (store := self._left.get(call_id)) is not None:
                with contextlib.suppress(AlreadyAnswered, UnknownCall):
                    await store()
                self._left.pop(call_id, None)

    async def close(self) -> None:
        """Try once more, and give up what the store does not take."""
        if self._trying is not None:
            self._trying.cancel()
        try:
            await self.flush()
        except StoreUnavailable as failure:
            logger.warning("the answers of %d calls could not be stored: %s", len(self._left), failure)

    async def _answer(self, session: str, call_id: str, result: Any, error: str | None) -> None:
        call, changed = await self.store.answer(session, call_id, result=result, error=error)
        if changed:
            self.count(call.status)

    async def _settle(self, session: str, call_id: str, status: Status, error: str) -> None:
        call = await self.store.settle(session, call_id, status, error=error)
        if call.status is status:
            self.count(status)

    def _keep(self, call_id: str, store: Callable[[], Awaitable[object]]) -> None:
        self._left.setdefault(call_id, store)
        if self._trying is None or self._trying.done():
            self._trying = asyncio.ensure_future(self._try())

    async def _try(self) -> None:
        pause = _FIRST_PAUSE
        while self._left:
            await asyncio.sleep(pause)
            try:
                await self.flush()
            except StoreUnavailable:
                pause = min(2 * pause, _MAX_PAUSE)
            except Exception:
                logger.exception("answers of calls could not be stored")
                return
