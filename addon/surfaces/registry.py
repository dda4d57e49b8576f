"""Finds the surface of a request, if any. Lists all surfaces: a new one needs one line here.

`match` runs for every request of the proxy. For other hosts it costs one look-up in a cache.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from addon.core.security.untrusted import cached_if_short
from addon.surfaces import chat, codeassist, gemini, interactions, live
from addon.surfaces.incoming import Framing, Operation, Target
from addon.surfaces.surface import Surface, Wire

# The order matters only for `match_path`: Vertex comes before Firebase for `/v1/projects/…`.
SURFACES: tuple[Surface, ...] = (
    gemini.DEVELOPER,
    gemini.VERTEX,
    gemini.FIREBASE,
    codeassist.SURFACE,
    chat.SURFACE,
    live.SURFACE,
    interactions.SURFACE,
)

_ANY_CASE = [(surface, re.compile(surface.path.pattern, re.IGNORECASE)) for surface in SURFACES]
_ENCODINGS = 3
"""The most percent-encodings of a path, one inside another, that are resolved."""

_WIRES = {surface.name: surface.wire for surface in SURFACES if surface.wire is not None}


def match(method: str, host: str, path: str) -> Target | None:
    """The target of a request by host (ignoring port and case) and path (with its query), or None."""
    surfaces = _surfaces_of(host)
    return _first(surfaces, method, path) if surfaces else None


@cached_if_short(1024)
def match_path(method: str, path: str) -> Target | None:
    """The target of a request by its path alone, for a reverse proxy, whose clients may use any host name for it."""
    return _first(SURFACES, method, path)


def is_surface_host(host: str) -> bool:
    """Whether a surface is served at this host, ignoring port and case."""
    return bool(_surfaces_of(host))


def is_surface_path(host: str, path: str) -> bool:
    """Whether a server could read a path as a surface's at this host, for any method: servers resolve dots, drop
    parameters and decode differently. Decides who may send a request; `match` decides what is rewritten."""
    surfaces = _surfaces_of(host)
    if not surfaces:
        return False
    plain = _plain(path)
    return any(any_case.fullmatch(plain) for surface, any_case in _ANY_CASE if surface in surfaces)


def _plain(path: str) -> str:
    """The path as the most lenient server reads it."""
    path = re.split("[?#]", path, maxsplit=1)[0]
    for _ in range(_ENCODINGS):
        if "%" not in path:
            break
        path = unquote(path)
    segments: list[str] = []
    for segment in re.sub(r"[\x00-\x20\x7f]", "", path).replace("\\", "/").split("/"):
        segment = segment.partition(";")[0]
        if segment == "..":
            del segments[-1:]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)


def takes_ids(target: Target, path: str) -> bool:
    """Whether the API version in a request's path supports ids of calls. Vertex's v1 does not."""
    return target.surface != "vertex" or not path.lstrip("/").startswith("v1/")


def wire_of(target: Target) -> Wire:
    """A Wire for one exchange of the request's surface."""
    return _WIRES.get(target.surface, Wire)(target)


def home_of(path: str) -> str | None:
    """The Google host for a path that identifies its surface; None for the Developer API and all other paths.

    A reverse proxy to one Gemini host uses it to serve clients of all surfaces under one base URL.
    """
    for surface in SURFACES:
        if surface.home is not None and (host := surface.home(path)) is not None:
            return host
    return None


@cached_if_short(4096)
def _surfaces_of(host: str) -> tuple[Surface, ...]:
    """The surfaces at a host. Surfaces that share a host differ by their paths."""
    name = host.lower().partition(":")[0].removesuffix(".")
    return tuple(surface for surface in SURFACES if surface.host.fullmatch(name))


def _first(surfaces: tuple[Surface, ...], method: str, path: str) -> Target | None:
    for surface in surfaces:
        if surface.method == method and (target := _target(surface, path)):
            return target
    return None


def _target(surface: Surface, path: str) -> Target | None:
    path, _, query = path.partition("?")
    found = surface.path.fullmatch(unquote(path) if "%" in path else path)
    if found is None:
        return None
    named = found.groupdict()
    operation = Operation(named.get("operation") or surface.operation)
    return Target(
        surface=surface.name,
        operation=operation,
        framing=_framing(operation, query),
        model=named.get("model") or "",
        request_path=surface.request_path,
        response_path=() if operation is Operation.COUNT else surface.response_path,
        resource=named.get("resource") or "",
        is_vertex=surface.name == "vertex" or (surface.name == "firebase" and "/locations/" in path),
    )


def _framing(operation: Operation, query: str) -> Framing:
    if operation is not Operation.STREAM:
        return Framing.JSON
    for pair in query.split("&"):
        name, _, value = unquote(pair).partition("=")
        # also `$alt=sse;enum-encoding=int`
        if name in ("alt", "$alt") and value.partition(";")[0] == "sse":
            return Framing.SSE
    return Framing.ARRAY
