"""Pages of calls that were listed, kept until a call of their session is written: clients poll the same lists.

For a backend whose process is the only writer. Bounded: large pages are not kept.
"""

from collections.abc import Iterable

from store.models import Call, Page, Status

type Filters = tuple[Status | None, str | None, bool, int, str | None]
"""The status, the tool, whether the newest come first, the limit and the cursor that were asked for."""

_LARGEST = 8192
"""The size of a page that is kept, in characters of its records."""

_SESSIONS, _OF_SESSION = 16, 4
"""The number of sessions with pages, and of pages of each."""


class CallPages:
    def __init__(self) -> None:
        self._pages: dict[str | None, dict[Filters, Page[Call]]] = {}

    def get(self, session: str | None, filters: Filters) -> Page[Call] | None:
        """`session` None: calls of all sessions."""
        pages = self._pages.get(session)
        return pages.get(filters) if pages else None

    def keep(self, session: str | None, filters: Filters, page: Page[Call], size: int) -> None:
        """`size`: of the page's records."""
        if size > _LARGEST:
            return
        if session not in self._pages and len(self._pages) >= _SESSIONS:
            self._pages.clear()
        pages = self._pages.setdefault(session, {})
        if len(pages) >= _OF_SESSION:
            pages.clear()
        pages[filters] = page

    def forget(self, sessions: Iterable[str]) -> None:
        """Calls of these sessions were written or deleted."""
        if not self._pages:
            return
        for session in sessions:
            self._pages.pop(session, None)
            self._pages.pop(None, None)

    def clear(self) -> None:
        self._pages.clear()
