"""The usage of each session since the proxy was started, counted from ended requests. In memory only."""

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from addon.core.summaries import CALL_STATES, Summary

_MOST_SESSIONS = 1000
"""Limited because clients choose session names."""


@dataclass(slots=True)
class Usage:
    """Counts of ended requests. `since`: Unix time from which on all are counted. `calls`: by the state of each call
    when its request ended. `last_used_at`: Unix time of the last end, or None."""

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
    """The usage by session. If there are more than `most` sessions, the last used are kept."""

    def __init__(self, most: int = _MOST_SESSIONS) -> None:
        self._most = most
        self._since = time.time()
        self._by_session: OrderedDict[str, Usage] = OrderedDict()

    def count(self, summary: Summary) -> None:
        summary.count_end()
        now = time.time()
        usage = self._by_session.get(summary.session)
        if usage is None:
            usage = self._by_session[summary.session] = Usage(self._since)
            if len(self._by_session) > self._most:
                self._by_session.popitem(last=False)
                self._since = now  # a session that is no longer known may have been used before
        usage.count(summary, now)
        self._by_session.move_to_end(summary.session)

    def of(self, session: str) -> Usage:
        return self._by_session.get(session) or Usage(self._since)
