"""Shared by HTTP requests and WebSockets: the check of credentials, and the request log."""

from __future__ import annotations

from collections.abc import Mapping

from addon.fake_gemini import errors
from addon.fake_gemini.errors import Json, Refused
from addon.fake_gemini.routes import Route


class Log:
    """The latest requests, ``{method, path, headers, body, status, error}``: at most ``keep``, and ``keep_bytes``."""

    def __init__(self, keep: int = 2000, keep_bytes: int = 64 << 20) -> None:
        self.requests: list[Json] = []
        self.accepted = 0
        self.refused = 0
        self._sizes: list[int] = []
        self._total = 0
        self._keep, self._keep_bytes = keep, keep_bytes

    def add(self, entry: Json, size: int) -> None:
        """Add a request, and drop the oldest beyond the limits."""
        if entry["status"] < 400:
            self.accepted += 1
        else:
            self.refused += 1
        self.requests.append(entry)
        self._sizes.append(size)
        self._total += size
        while len(self.requests) > 1 and (len(self.requests) > self._keep or self._total > self._keep_bytes):
            del self.requests[0]
            self._total -= self._sizes.pop(0)

    def clear(self) -> None:
        """Forget the requests, but not the counts."""
        self.requests.clear()
        self._sizes.clear()
        self._total = 0


def check_key(headers: Mapping[str, str], query: Mapping[str, str], route: Route) -> None:
    """Check the API key or bearer token. Raises ``Refused``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    live = route.method == "BidiGenerateContent"  # also accepts tokens for a single session
    bearer = token.strip() if scheme.lower() in (("bearer", "token") if live else ("bearer",)) else ""
    key = headers.get("x-goog-api-key") or query.get("key") or (live and query.get("access_token")) or ""
    if route.surface == "chat" and not bearer:
        raise Refused("Missing or invalid Authorization header.")
    if not key and not bearer:
        raise errors.no_key(route.surface)
    if route.surface == "codeassist" and not bearer:
        raise errors.key_not_supported()
    if (bearer or key).startswith(("bad", "invalid")):
        service = "generativelanguage" if route.surface in ("developer", "interactions", "chat") else "aiplatform"
        raise errors.invalid_key(f"{service}.googleapis.com")
