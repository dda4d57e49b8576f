"""Rewrites recorded client requests again, offline, and compares the results with the recorded upstream requests."""

import dataclasses
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from addon.core.framing.documents import Document, Malformed, decode, encode, get, objects
from addon.core.security.secrets import masked
from addon.core.tools.tool_plan import Toolbox, declared_names
from addon.graft.exchange import Abandoned, Forward
from addon.graft.grafter import Grafter, ReplayWarner
from addon.graft.session_config import SessionConfig
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.surfaces.incoming import Incoming, Target
from addon.surfaces.registry import takes_ids
from store.base import Store, StoreUnavailable
from store.models import Call, Toolset


class ClientRequest(NamedTuple):
    """The client's request. `grafted`: the recording lacks it, and `body` is what went upstream. `session`: None if the
    recording does not name one. `keeps_tools`: the client's tools are kept whatever the session's policy says.
    `at_door`: it came through a front door. `turn_ids`: as in `Incoming`."""

    body: bytes
    grafted: bool
    session: str | None
    keeps_tools: bool
    at_door: bool = False
    turn_ids: Mapping[int, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A recorded upstream request. `client`: the client's request; `asker`: who asked, or its digest."""

    target: Target
    method: str
    path: str
    url: str
    body: bytes
    client: ClientRequest
    asker: str | bytes


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """`before`: the recorded upstream request. `after`: the request that would be sent now. Both are JSON documents, or
    text if the body is not JSON. `note`: further remarks."""

    method: str
    url: str
    session: str
    before: Document | str
    after: Document | str
    note: str = ""

    @property
    def changed(self) -> bool:
        return self.before != self.after


class _ReadOnly:
    """The reading part of a store."""

    read_only = True
    _READS = frozenset(
        {
            *("cached_tools", "call", "changes", "clock", "lease_left", "look_up", "outage", "revision", "secret"),
            *("snapshot", "wait_call"),
        }
    )

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name not in self._READS:
            raise StoreUnavailable(f"read-only: {name} is not available")
        return getattr(self._store, name)

    async def settle_lost(self) -> Sequence[Call]:
        return ()


def read_only(store: Store) -> Store:
    """A view of an open store for `replay` that writes nothing."""
    return cast(Store, _ReadOnly(store))


async def replay(
    requests: Iterable[RecordedRequest],
    store: Store,
    settings: Settings,
    *,
    session: str | None,
    toolset: Toolset | None,
    shared: Sequence[Document] = (),
) -> AsyncIterator[ReplayedRequest]:
    """Replay the requests in order.

    If `session` is given, only its requests are replayed, including requests without a recorded session. `toolset`
    replaces the sessions' tools. `shared`: the declarations of the proxy's tools. The store must be read-only: opened
    so, or wrapped by `read_only`."""
    grafter = Grafter(store, settings, Metrics(), shared, warner=ReplayWarner())
    for request in requests:
        client = request.client
        name = client.session or session or settings.session
        if session not in (None, name):
            continue
        config = await _session_config(grafter, name, toolset, at_door=client.at_door)
        body = client.body
        if config is not None and client.keeps_tools:
            config = dataclasses.replace(config, client_tools="keep")
        if config is not None and not config.strips and client.grafted:
            body = _ungrafted(body, config.toolbox)
        after, note = body, ""
        if config is None:
            note = f"session {name} has no toolset: nothing is rewritten"
        else:
            outcome = await grafter.request(
                Incoming(
                    request.target,
                    name,
                    body,
                    asker=request.asker,
                    takes_ids=takes_ids(request.target, request.path),
                    turn_ids=client.turn_ids,
                ),
                dataclasses.replace(config, on_pending="pass"),
                hangup=_at_once,
            )
            if isinstance(outcome, Forward):
                after = outcome.body
            elif isinstance(outcome, Abandoned):
                note = "calls of its last step are running: replay it when they have ended"
            else:
                after, note = outcome.body, f"answered by the proxy with {outcome.status}"
        yield ReplayedRequest(
            request.method, masked(request.url), name, _document(request.body), _document(after), note
        )


def _ungrafted(body: bytes, toolbox: Toolbox) -> bytes:
    """Removes the toolset's tools, which follow the client's own, from a request that went upstream. Otherwise they
    would be taken for the client's and added a second time."""
    document = _document(body)
    tools = list(objects(get(document, "tools"))) if isinstance(document, dict) else []
    ours = re.compile(f"(?:{'|'.join(map(re.escape, toolbox.names))})(?:_g\\d+)?")
    if not tools or not any(ours.fullmatch(name) for name in declared_names(tools[-1])):
        return body
    tools.pop()
    for builtin in reversed(toolbox.builtins):
        if tools and tools[-1] == builtin:
            tools.pop()
    assert isinstance(document, dict)
    kept = {key: value for key, value in document.items() if key != "tools"}
    return encode({**kept, "tools": tools} if tools else kept)


async def _session_config(
    grafter: Grafter, session: str, toolset: Toolset | None, *, at_door: bool
) -> SessionConfig | None:
    if toolset is None:
        if at_door:
            return await grafter.door_config(session)
        return await grafter.session_config(session)
    return grafter.session_configs.build(session, await grafter.store.snapshot(session), toolset)


async def _at_once() -> None:
    """A hangup that has already happened, so that a replay never waits."""


def _document(body: bytes) -> Document | str:
    try:
        document = decode(body)
    except Malformed:
        return body.decode("utf-8", "replace")
    return document if isinstance(document, dict) else body.decode("utf-8", "replace")
