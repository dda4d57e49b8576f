"""Limits warnings whose words clients and models partly choose: logs each once, and not too many."""

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable

from addon.core.problems import problem

WARNING_WINDOW = 3600.0
"""Seconds after which a warning may be repeated."""

MOST_WARNINGS = 500
"""The most warnings in a window."""

MOST_WARNINGS_OF_A_KIND = 20
"""The most warnings that differ only after their first colon: one client must not suppress warnings about others."""

_LONGEST_WARNING = 2000
_MENTIONED_SESSIONS = 4096
"""The most sessions for which the notice about stripping is remembered."""


class Warner:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = 0.0
        self._logged: set[str] = set()
        self._kinds: Counter[str] = Counter()
        self._omitted = 0
        self._mention = functools.lru_cache(_MENTIONED_SESSIONS)(_mention_stripping)

    def mention_stripping(self, session: str) -> None:
        """Log, once for each session, that its clients' tools are left out."""
        self._mention(session)

    def warn(self, text: str) -> None:
        """Log a warning. Repetitions go to the debug log only."""
        text = text[:_LONGEST_WARNING]
        if (now := self._clock()) >= self._ends:
            self._begin(now)
        kind = text.partition(":")[0]
        if text in self._logged:
            logger.debug(text)
        elif len(self._logged) >= MOST_WARNINGS or self._kinds[kind] >= MOST_WARNINGS_OF_A_KIND:
            logger.debug(text)
            if not self._omitted:
                logger.warning("there are more warnings than can be said: others are left out for up to an hour")
            self._omitted += 1
        else:
            self._logged.add(text)
            self._kinds[kind] += 1
            logger.warning(text)

    def _begin(self, now: float) -> None:
        if self._omitted:
            logger.warning("%d warnings were left out", self._omitted)
        self._ends, self._omitted = now + WARNING_WINDOW, 0
        self._logged.clear()
        self._kinds.clear()


class ReplayWarner(Warner):
    """For replayed requests, whose warnings concern no client."""

    def mention_stripping(self, session: str) -> None:
        pass


def _mention_stripping(session: str) -> None:
    logger.info(
        "session %s: the tools of its clients are left out: graft_client_tools=keep keeps them",
        session,
        extra=problem("client_tools_removed", session=session),
    )
