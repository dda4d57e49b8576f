"""Warnings about what clients and models do, who choose some of the words: each is said once, and not too many are."""

import logging
import time
from collections import Counter
from collections.abc import Callable

logger = logging.getLogger("toolgraft")

WINDOW = 3600.0
"""Seconds after which everything may be said again."""

MOST = 500
"""Warnings in a window."""

MOST_OF_A_KIND = 20
"""Those that differ only behind their first colon: one client must not silence what is to be said of others."""

_LONGEST = 2000


class Warner:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = 0.0
        self._said: set[str] = set()
        self._kinds: Counter[str] = Counter()
        self._left_out = 0

    def warn(self, text: str) -> None:
        """Say it; the same thing again only in the debug log."""
        text = text[:_LONGEST]
        if (now := self._clock()) >= self._ends:
            self._begin(now)
        kind = text.partition(":")[0]
        if text in self._said:
            logger.debug(text)
        elif len(self._said) >= MOST or self._kinds[kind] >= MOST_OF_A_KIND:
            logger.debug(text)
            if not self._left_out:
                logger.warning("there are more warnings than can be said: others are left out for up to an hour")
            self._left_out += 1
        else:
            self._said.add(text)
            self._kinds[kind] += 1
            logger.warning(text)

    def _begin(self, now: float) -> None:
        if self._left_out:
            logger.warning("%d warnings were left out", self._left_out)
        self._ends, self._left_out = now + WINDOW, 0
        self._said.clear()
        self._kinds.clear()
