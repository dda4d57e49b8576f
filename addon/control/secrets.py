"""Removes secrets from data that callers store: a worker may repeat its token."""

from typing import Any

from starlette.requests import Request

from addon.core.framing.documents import decode, encode
from addon.core.security.secrets import Redaction
from addon.own_secrets import own_secrets


def redaction_of(request: Request) -> Redaction:
    """A redaction of the proxy's own secrets and the caller's token."""
    token = request.headers.get("authorization", "").partition(" ")[2].strip()
    return own_secrets.combined_with([token] if token else [])


def redacted(redaction: Redaction, value: Any) -> Any:
    """JSON without these secrets. Raises ValueError if the value is not JSON."""
    data = encode(value)
    without = redaction.data(data)
    return value if without == data else decode(without)
