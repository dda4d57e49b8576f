"""Keeps recent requests with their bodies in memory, so that they can be shown, sent again or rewritten again: at most
`graft_keep_requests` of them and MOST_BYTES. Other modules get them without secrets."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from addon.core.history.keys import asker_digest
from addon.core.security.secrets import is_secret_header, masked, secrets_in
from addon.own_secrets import own_secrets
from addon.surfaces.base import Incoming

MOST_BYTES = 64 * 1024 * 1024

_PER_REQUEST = 1024
"""The approximate memory use of a request in bytes, besides its bodies."""

_CONNECTION_HEADERS = frozenset(
    (b"host", b"connection", b"content-length", b"transfer-encoding", b"accept-encoding", b"proxy-authorization")
)
"""Headers that describe the connection, not the request."""

SECRET = "REMOVED"
"""Replaces the value of a secret header."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """A request with its secrets, and the body that went upstream (`sent`). Other modules get a `CleanRequest`."""

    incoming: Incoming
    sent: bytes

    @property
    def size(self) -> int:
        """The approximate memory use in bytes."""
        client = self.incoming.body
        return _PER_REQUEST + len(client) + (0 if self.sent is client else len(self.sent))


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """A request without secrets. `client`: the client's body, or what a front door made of it (`at_door`). `sent`: the
    body that went upstream. `headers`: only those of the request, not of the connection; SECRET replaces secret values.
    `asker`: the digest of who asked."""

    session: str
    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    client: bytes
    sent: bytes
    asker: bytes
    at_door: bool
    turn_ids: Mapping[int, str]

    @classmethod
    def of(cls, session: str, bodies: Bodies, secret: bytes) -> Self:
        """`secret`: the store's."""
        incoming = bodies.incoming
        fields = tuple(incoming.fields)
        redaction = own_secrets.combined_with(secrets_in(incoming.url, fields))
        headers = [
            (name.decode("latin-1"), SECRET if is_secret_header(name) else redaction.text(masked(_text(value), SECRET)))
            for name, value in fields
            if name.lower() not in _CONNECTION_HEADERS and not name.startswith(b":")
        ]
        client = redaction.data(incoming.body)
        return cls(
            session,
            incoming.method,
            redaction.text(masked(incoming.url, SECRET)),
            headers,
            client,
            client if bodies.sent is incoming.body else redaction.data(bodies.sent),
            asker_digest(secret, incoming.asker),
            incoming.at_door,
            incoming.turn_ids,
        )


class KeptRequests:
    """Bodies by request id, oldest first. `most`: the limit of their number."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._kept: OrderedDict[str, Bodies] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._kept

    def put(self, request_id: str, bodies: Bodies) -> None:
        self._kept[request_id] = bodies
        self.size += bodies.size
        self.shrink()

    def get(self, request_id: str) -> Bodies | None:
        return self._kept.get(request_id)

    def shrink(self) -> None:
        while self._kept and (len(self._kept) > self.most or self.size > MOST_BYTES):
            self.size -= self._kept.popitem(last=False)[1].size


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
