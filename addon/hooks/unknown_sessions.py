"""Logs, once for each name, that a client named a session without tools: the name may be misspelt."""

import difflib

from addon.core.problems import problem
from addon.web import tasks
from store.base import Store, StoreError

_MOST_MENTIONED = 100
"""The most names that are logged. Limited because clients choose them."""

_MOST_SEARCHED = 1000
"""The most sessions that are searched for the nearest name."""


class UnknownSessions:
    def __init__(self) -> None:
        self._mentioned: set[str] = set()

    def mention(self, session: str, store: Store) -> None:
        """Starts the check and returns immediately."""
        if session in self._mentioned or len(self._mentioned) >= _MOST_MENTIONED:
            return
        self._mentioned.add(session)
        tasks.spawn(_mention(session, store), name="a session without tools")


async def _mention(session: str, store: Store) -> None:
    try:
        page = await store.sessions(limit=_MOST_SEARCHED)
    except StoreError:
        return  # an outage is reported elsewhere
    names = [other.name for other in page.items if other.toolset is not None and other.name != session]
    nearest = next(iter(difflib.get_close_matches(session, names, 1)), "")
    logger.warning(
        "session %s has no tools, and its requests pass unchanged%s",
        session,
        f": did the client mean {nearest}?" if nearest else "",
        extra=problem("session_without_tools", session=session, nearest=nearest),
    )
