"""Recorded client requests pushed through today's rewriting, offline: what would go upstream now, beside what did."""

import dataclasses
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from mitmproxy import exceptions, http, io

from addon.core.framing.documents import Document, Malformed, decode, encode, get, objects
from addon.core.security.credentials import masked
from addon.core.tools.tool_plan import Toolbox, declared_names
from addon.graft.exchange import Forward, Reply
from addon.graft.grafter import Grafter
from addon.graft.session_config import SessionConfig
from addon.hooks.record import asker_in_flow, client_sent
from addon.metrics import Metrics
from addon.settings import Settings
from addon.surfaces import Operation, match, match_path, takes_ids
from store.base import Store
from store.models import Toolset


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request. `before` is what the recording sent upstream, `after` what would be sent today: JSON documents, or
    text where a body is no JSON. `note` says what else there is to know."""

    method: str
    url: str
    session: str
    before: Document | str
    after: Document | str
    note: str = ""

    @property
    def changed(self) -> bool:
        return self.before != self.after


def flows_of(path: Path) -> list[http.HTTPFlow]:
    """The HTTP flows of a file. Raises OSError, or ValueError where mitmproxy cannot read it."""
    with path.open("rb") as file:
        try:
            return [flow for flow in io.FlowReader(file).stream() if isinstance(flow, http.HTTPFlow)]
        except exceptions.FlowReadException as error:
            raise ValueError(f"{path}: not a file of mitmproxy flows: {error}") from error


async def replay(
    path: Path, store: Store, settings: Settings, *, session: str | None, toolset: Toolset | None
) -> AsyncIterator[Replayed]:
    """Every request of the file that is a surface's, in order; of `session` alone where it is given, to which belong
    those that the recording knows no session of. `toolset` stands in for a session's tools. The store is only read:
    open it so."""
    grafter = Grafter(store, settings, Metrics())
    for flow in flows_of(path):
        request = flow.request
        target = match(request.method, request.host, request.path) or match_path(request.method, request.path)
        if target is None or target.operation is Operation.LIVE:
            continue  # of a Live connection nothing is in the request
        client = client_sent(flow)
        name = client.session or session or settings.session
        if session not in (None, name):
            continue
        config = await _session_config(grafter, name, toolset)
        body, sent = client.body, request.content or b""
        if config is not None and client.keeps:
            config = dataclasses.replace(config, client_tools="keep")
        if config is not None and not config.strips and client.grafted:
            body = _ungrafted(body, config.toolbox)
        after, note = body, ""
        if config is None:
            note = f"session {name} has no toolset: nothing is rewritten"
        else:
            outcome = await grafter.request(
                target,
                dataclasses.replace(config, on_pending="pass"),
                body,
                asker=asker_in_flow(flow),
                takes_ids=takes_ids(target, request.path),
            )
            if isinstance(outcome, Forward):
                after = outcome.body
            elif isinstance(outcome, Reply):
                after, note = outcome.body, f"answered by the proxy with {outcome.status}"
        yield Replayed(request.method, masked(request.pretty_url), name, _document(sent), _document(after), note)


def _ungrafted(body: bytes, toolbox: Toolbox) -> bytes:
    """A request that went upstream, without the toolset's tools, which stand behind those that the client kept: else
    they would be taken for the client's own, and join them once more."""
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
