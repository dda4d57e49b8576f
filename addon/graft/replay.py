"""Rewrites recorded client requests again, offline, and compares what would go upstream now with what did."""

import dataclasses
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from addon.core.framing.documents import Document, Malformed, decode, encode, get, objects
from addon.core.security.credentials import masked
from addon.core.tools.tool_plan import Toolbox, declared_names
from addon.graft.exchange import Forward, Reply
from addon.graft.grafter import Grafter
from addon.graft.session_config import SessionConfig
from addon.metrics import Metrics
from addon.settings import Settings
from addon.surfaces import Target, takes_ids
from store.base import Store
from store.models import Toolset


class ClientRequest(NamedTuple):
    """What the client sent. `grafted`: the recording lacks it, and `body` is what went upstream. `session`: None if the
    recording does not name one. `keeps_tools`: the client's tools are kept whatever the session does with tools."""

    body: bytes
    grafted: bool
    session: str | None
    keeps_tools: bool


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request as it went upstream. `client`: as the client sent it; `asker`: who asked, or the digest of it."""

    target: Target
    method: str
    path: str
    url: str
    body: bytes
    client: ClientRequest
    asker: str | bytes


@dataclass(frozen=True, slots=True)
class ReplayedRequest:
    """`before` is what the recording sent upstream, `after` what would be sent now: JSON documents, or text if a body
    is not JSON. `note` says what else there is to know."""

    method: str
    url: str
    session: str
    before: Document | str
    after: Document | str
    note: str = ""

    @property
    def changed(self) -> bool:
        return self.before != self.after


async def replay(
    requests: Iterable[RecordedRequest],
    store: Store,
    settings: Settings,
    *,
    session: str | None,
    toolset: Toolset | None,
) -> AsyncIterator[ReplayedRequest]:
    """Replay the requests in order.

    If `session` is given, only its requests are replayed; requests without a recorded session count as its own.
    `toolset` replaces the sessions' tools. The store is only read: open it read-only."""
    grafter = Grafter(store, settings, Metrics())
    for request in requests:
        client = request.client
        name = client.session or session or settings.session
        if session not in (None, name):
            continue
        config = await _session_config(grafter, name, toolset)
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
                request.target,
                dataclasses.replace(config, on_pending="pass"),
                body,
                asker=request.asker,
                takes_ids=takes_ids(request.target, request.path),
            )
            if isinstance(outcome, Forward):
                after = outcome.body
            elif isinstance(outcome, Reply):
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


async def _session_config(grafter: Grafter, session: str, toolset: Toolset | None) -> SessionConfig | None:
    if toolset is None:
        return await grafter.session_config(session)
    return grafter.session_configs.build(session, await grafter.store.snapshot(session), toolset)


def _document(body: bytes) -> Document | str:
    try:
        document = decode(body)
    except Malformed:
        return body.decode("utf-8", "replace")
    return document if isinstance(document, dict) else body.decode("utf-8", "replace")
