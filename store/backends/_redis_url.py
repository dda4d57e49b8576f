"""The URL of a Redis store: one server, Sentinels, or nodes of a cluster.

    redis://[USER@]HOST[:PORT][/DATABASE][?prefix=NAME]
    redis+sentinel://[USER@]HOST[:PORT],HOST[:PORT],…/SERVICE[/DATABASE][?prefix=NAME]
    redis+cluster://[USER@]HOST[:PORT],HOST[:PORT],…[?prefix=NAME]

With `rediss` instead of `redis`, connections use TLS; `?ca=FILE` names the authorities to trust. The password is never
in the URL, which process lists show: it is taken from the environment.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

PASSWORD = "TOOLGRAFT_REDIS_PASSWORD"
"""The environment variable with the password."""

_FORMS = "use redis://HOST:PORT/DATABASE, redis+sentinel://HOST:PORT,HOST:PORT/SERVICE or redis+cluster://HOST:PORT,HOST:PORT"
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

Kind = Literal["server", "sentinel", "cluster"]


class Address(NamedTuple):
    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    tls: bool
    ca: str | None
    user: str | None
    password: str | None
    service: str
    database: int
    prefix: str

    @property
    def name(self) -> str:
        """For messages: without user and password."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        kind = "" if self.kind == "server" else f"+{self.kind}"
        path = f"/{self.service}" if self.service else ""
        database = f"/{self.database}" if self.database else ""
        return f"{'rediss' if self.tls else 'redis'}{kind}://{hosts}{path}{database}"


def read(url: str, environ: Mapping[str, str]) -> Address:
    """Raises ValueError, whose message does not contain the URL."""
    scheme, _, rest = url.partition("://")
    base, _, kind = scheme.partition("+")
    kind = kind or "server"
    if base not in ("redis", "rediss") or kind not in get_args(Kind):
        raise ValueError(_FORMS)
    try:
        parts = urlsplit(f"redis://{rest}")
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        login, _, hosts = parts.netloc.rpartition("@")
        user, has_password, _ = login.partition(":")
        if has_password:
            raise ValueError(f"a password does not belong in the URL: put it in {PASSWORD}")
        addresses = tuple(_host(one, 26379 if kind == "sentinel" else 6379) for one in hosts.split(","))
        service, database = _path(kind, [unquote(part) for part in parts.path.split("/")[1:] if part])
    except ValueError as error:
        raise ValueError(str(error) if PASSWORD in str(error) else _FORMS) from None
    if unknown := set(query) - {"prefix", "ca"}:
        raise ValueError(f"{', '.join(sorted(unknown))}: only prefix and ca can follow the question mark")
    prefix = query.get("prefix", "toolgraft")
    if not _PREFIX.fullmatch(prefix):
        raise ValueError("prefix must consist of letters, digits and _ . : -")
    if kind == "server" and len(addresses) > 1:
        raise ValueError("several hosts are for redis+sentinel:// and redis+cluster://")
    if kind == "cluster" and database:
        raise ValueError(
            "a Redis Cluster has no databases but 0: leave the number out, and name stores by ?prefix=NAME"
        )
    return Address(
        kind=kind,  # type: ignore[arg-type]
        hosts=addresses,
        tls=base == "rediss",
        ca=query.get("ca"),
        user=unquote(user) or None,
        password=environ.get(PASSWORD) or None,
        service=service,
        database=database,
        prefix=prefix,
    )


def _host(text: str, port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.path:
        raise ValueError("a host is missing")
    return parts.hostname, parts.port or port


def _path(kind: str, parts: list[str]) -> tuple[str, int]:
    if kind == "sentinel" and not parts:
        raise ValueError("the service is missing")
    service = parts.pop(0) if kind == "sentinel" else ""
    database = int(parts.pop(0)) if parts else 0
    if parts or database < 0:
        raise ValueError("too long")
    return service, database
