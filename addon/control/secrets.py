"""Takes secrets out of what callers have stored: a worker may repeat the token that it was given."""

from typing import Any

from starlette.requests import Request

from addon.core.framing.documents import decode, encode
from addon.core.security.redaction import Redaction
from addon.own_secrets import own_secrets


def redaction_of(request: Request) -> Redaction:
    """For the proxy's own secrets and the caller's token."""
    token = request.headers.get("authorization", "").partition(" ")[2].strip()
    return own_secrets.combined_with([token] if token else [])


def redacted(redaction: Redaction, value: Any) -> Any:
    """JSON without these secrets. Raises ValueError for what is not JSON."""
    data = encode(value)
    without = redaction.data(data)
    return value if without == data else decode(without)
