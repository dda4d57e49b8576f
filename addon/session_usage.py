"""What each session has used since the proxy was started, from the facts of the log's lines. It is kept in memory
alone."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from addon.core.summaries import CALL_STATES, Summary

_MOST_SESSIONS = 1000
"""Clients name sessions, as many as they like."""


@dataclass(slots=True)
class Usage:
    """Of requests that have ended. `since`: Unix time from which on all of them are counted. `calls`: by the state that
    each had when its request ended. `last_used_at`: Unix time of the last end; None: there was none."""

    since: float
    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CALL_STATES, 0))
    last_used_at: float | None = None

    def count(self, summary: Summary, now: float) -> None:
        self.requests += 1
        self.failed += summary.has_failed
        self.prompt_tokens += summary.prompt
        self.output_tokens += summary.output
        for call in summary.calls:
            self.calls[call.state] += 1
        self.last_used_at = now


class SessionUsage:
    """The usage by session. Of more than `most` sessions, those that were used last are known."""

    def __init__(self, most: int = _MOST_SESSIONS) -> None:
        self._most = most
        self._since = time.time()
        self._by_session: OrderedDict[str, Usage] = OrderedDict()

    def count(self, summary: Summary) -> None:
        """The request has ended."""
        summary.count_end()
        now = time.time()
        usage = self._by_session.get(summary.session)
        if usage is None:
            usage = self._by_session[summary.session] = Usage(self._since)
            if len(self._by_session) > self._most:
                self._by_session.popitem(last=False)
                self._since = now  # a session that is not known now may have been used before
        usage.count(summary, now)
        self._by_session.move_to_end(summary.session)

    def of(self, session: str) -> Usage:
        return self._by_session.get(session) or Usage(self._since)
