"""Answers that clients have, which the SQLite store forgets with its next write: a transaction for each would cost more
than all else about it."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from store.base import StoreError

logger = logging.getLogger(__name__)

_SOON = 0.02
"""Seconds until they are forgotten at the latest, if nothing else is written."""
_LATER = 1.0
"""Seconds until the next try, if that fails."""


class HandedOver:
    """`answers`: session and id of each response. `write` forgets them in a transaction."""

    def __init__(self, write: Callable[[], None]) -> None:
        self.answers: dict[tuple[str, str], None] = {}
        self._write = write
        self._timer: asyncio.TimerHandle | None = None

    def add(self, session: str, response_id: str) -> None:
        """Raises StoreUnavailable without an event loop: it is written at once then."""
        self.answers[session, response_id] = None
        if self._timer is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._write()
        else:
            self._timer = loop.call_later(_SOON, self._flush, loop)

    def forget(self, written: Iterable[tuple[str, str]]) -> None:
        """These were written."""
        for answer in written:
            self.answers.pop(answer, None)

    def close(self) -> None:
        """Write what is left. Raises StoreUnavailable."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.answers:
            self._write()

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if not self.answers:
            return
        try:
            self._write()
        except StoreError as error:
            logger.warning("which answers their clients have is noted later: %s", error)
            self._timer = loop.call_later(_LATER, self._flush, loop)
