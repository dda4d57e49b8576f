"""How long a loop waits before it retries a request: as long as the refusal demands, else exponentially longer.

Pure. Reads both `Retry-After` and google.rpc.RetryInfo; the longer of the two counts.
"""

import math
import re
from collections.abc import Iterable
from email.utils import parsedate_to_datetime

from addon.core.framing.documents import Malformed, decode, objects
from addon.loop.upstream import Headers

MAX_PAUSE = 60.0
"""Seconds. If the upstream demands a longer pause, the client gets the refusal and decides itself."""

_FIRST_PAUSE = 0.2  # seconds, doubled after each attempt
_RETRIED = frozenset({429, 500, 502, 503, 504})
_DURATION = re.compile(r"(\d+(?:\.\d+)?)s")
_SECONDS = re.compile(r"\d{1,9}(?:\.\d+)?")
_RETRY_INFO = "google.rpc.RetryInfo"


def backoff(attempt: int) -> float:
    """The seconds to wait after this attempt (the first is 1), if the upstream does not demand a pause."""
    return _FIRST_PAUSE * 2.0 ** (attempt - 1)


def pause_after(status: int, headers: Headers, body: bytes, attempt: int, *, now: float) -> float | None:
    """The seconds to wait after a refusal; None if a retry is useless, or possible only after more than MAX_PAUSE.
    `now`: seconds since the epoch."""
    if status not in _RETRIED:
        return None
    requested = max((*_retry_after(headers, now), *_retry_info(body)), default=None)
    pause = backoff(attempt) if requested is None else max(requested, 0.0)
    return pause if pause <= MAX_PAUSE else None


def _retry_after(headers: Headers, now: float) -> Iterable[float]:
    for name, value in headers:
        if name.lower() != b"retry-after":
            continue
        text = value.decode("latin-1").strip()
        if _SECONDS.fullmatch(text):
            yield float(text)
            continue
        try:
            yield parsedate_to_datetime(text).timestamp() - now
        except (ValueError, OverflowError):
            continue


def _retry_info(body: bytes) -> Iterable[float]:
    """The retryDelay values of a Google error, or of a list of Google errors."""
    if _RETRY_INFO.encode() not in body:
        return
    try:
        documents = list(objects(decode(body)))
    except Malformed:
        return
    for document in documents:
        error = document.get("error")
        details = error.get("details") if isinstance(error, dict) else None
        for detail in objects(details):
            delay = detail.get("retryDelay")
            if str(detail.get("@type")).endswith(_RETRY_INFO) and isinstance(delay, str):
                match = _DURATION.fullmatch(delay)
                if match and math.isfinite(seconds := float(match[1])):
                    yield seconds
