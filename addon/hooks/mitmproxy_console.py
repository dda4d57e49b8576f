"""Additions to mitmproxy's own interfaces: the commands `graft.calls`, `graft.approve` and `graft.tools`, and the
content view *Gemini*, which shows a request to a model, or its answer, as a conversation."""

import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from mitmproxy import command, contentviews, exceptions, http
from mitmproxy.contentviews import Contentview, Metadata
from mitmproxy.log import ALERT

from addon.control.routes.approvals import approve_call
from addon.core.framing.documents import Document, Malformed, decode, get
from addon.core.security.untrusted import printable
from addon.core.summaries import answer_lines, arguments, duration, request_lines, shortened
from addon.graft.upstream_answer import Decoder
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.runtime import Runtime
from addon.hooks.start_message import tool_rows
from addon.surfaces.incoming import Target
from addon.surfaces.registry import match_path
from addon.web import tasks
from addon.web.access import Access
from addon.web.problems import Problem
from store.base import Store, StoreError
from store.models import SESSION_NAME, Call, Status

logger = logging.getLogger("toolgraft")

_CONSOLE = Access("mitmproxy", frozenset({"admin"}), name="a command of mitmproxy's")
"""The name in the audit log."""
_MOST = 50
"""The most calls listed: first those that wait, then the latest."""
_LONGEST = 100


type Row = tuple[str, ...]
type _Decorator = Callable[[str], Callable[[Callable[..., Any]], Callable[..., Any]]]
_command = cast(_Decorator, command.command)


class ConsoleCommands:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle

    @_command("graft.calls")
    def calls(self) -> None:
        """List, in the event log, the calls that wait for an approval or a result, and those that the proxy runs."""
        tasks.spawn(_list(_calls(self._runtime().store)), name="a list of calls")

    @_command("graft.approve")
    def approve(self, call_id: str) -> None:
        """Approve a call that waits for it, by its ID from graft.calls. It runs now."""
        control = self._runtime().control
        if control is None:
            raise exceptions.CommandError("graft.approve needs the control API: graft_control is off")
        tasks.spawn(_report(approve_call(control.api, _CONSOLE, call_id), call_id), name="an approval")

    @_command("graft.tools")
    def tools(self, session: str = "") -> None:
        """List, in the event log, the tools of a session, by default the proxy's own (graft_session), with who runs
        their calls."""
        runtime = self._runtime()
        name = session or runtime.settings.session
        if not SESSION_NAME.fullmatch(name):
            raise exceptions.CommandError(f"{name!r} is no name of a session")
        tasks.spawn(_list(_tools(runtime, name)), name="a list of tools")

    def _runtime(self) -> Runtime:
        if self.lifecycle.runtime is None:
            raise exceptions.CommandError("toolgraft does not run")
        return self.lifecycle.runtime


async def _list(reading: Awaitable[Sequence[Row]]) -> None:
    """Log the result, because a command of mitmproxy cannot wait for the store."""
    try:
        rows = await reading
    except StoreError as error:
        logger.log(ALERT, "the store does not answer: %s", printable(str(error)))
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        logger.log(ALERT, "%s", "  ".join(map(str.ljust, row, widths)).rstrip())


async def _calls(store: Store) -> Sequence[Row]:
    rows: list[Row] = [("call", "status", "session", "tool", "arguments", "age")]
    for status in (Status.PENDING, Status.RUNNING):
        rows += [_row(call, store.clock()) for call in (await store.calls(status=status, limit=_MOST)).items]
    return rows


async def _tools(runtime: Runtime, session: str) -> Sequence[Row]:
    record = await runtime.store.session(session)
    toolset = record.toolset if record is not None else None
    rows = tool_rows(toolset, runtime.grafter.session_configs.shared, runtime.executors)
    found = [(row.name, row.source, row.run_by, row.description) for row in rows]
    return [("tool", "source", "calls", "description"), *found]


async def _report(approving: Awaitable[Any], call_id: str) -> None:
    name = shortened(call_id, _LONGEST)
    try:
        await approving
    except (Problem, StoreError) as error:
        logger.log(ALERT, "%s was not approved: %s", name, printable(str(error)))
    else:
        logger.log(ALERT, "%s is approved", name)


def _row(call: Call, now: float) -> Row:
    status = "waits for an approval" if call.approval == "waiting" else call.status.value
    name = shortened(call.name, _LONGEST)
    return call.call_id, status, call.session, name, arguments(call.args), duration(max(0.0, now - call.created_at))


def commands_of(part: object) -> Sequence[tuple[str, Any]]:
    """The commands of an addon, each with the name of its attribute."""
    return [(name, getattr(part, name)) for name, found in vars(type(part)).items() if hasattr(found, "command_name")]


_PRIORITY = 2
"""mitmproxy's own view of JSON has 1."""

_SURFACES = ("developer", "vertex", "firebase", "codeassist")
"""Surfaces with Gemini's messages, possibly in an envelope."""


class GeminiContentview(Contentview):
    """Bodies without a conversation are shown as JSON."""

    @property
    def name(self) -> str:
        return "Gemini"

    def render_priority(self, data: bytes, metadata: Metadata) -> float:
        return _PRIORITY if data and _target_of(metadata) is not None else -1

    def prettify(self, data: bytes, metadata: Metadata) -> str:
        target = _target_of(metadata)
        if target is None:
            raise ValueError("no request to Gemini")
        try:
            if isinstance(metadata.http_message, http.Response):
                lines = answer_lines(_answer_documents(data, metadata.content_type or "", target.response_path))
            else:
                document = _unwrap(decode(data), target.request_path)
                lines = request_lines(get(document, "generateContentRequest") or document)
            return "\n".join(lines)
        except (Malformed, ValueError):
            return printable(json.dumps(json.loads(data), indent=2, ensure_ascii=False), lines=True)


def _target_of(metadata: Metadata) -> Target | None:
    """The target of a message's request. Recordings have true hosts; flows of a reverse proxy may have any."""
    flow = metadata.flow
    if not isinstance(flow, http.HTTPFlow) or not isinstance(metadata.http_message, http.Message):
        return None
    target = match_path(flow.request.method, flow.request.path)
    return target if target is not None and target.surface in _SURFACES else None


def _answer_documents(data: bytes, content_type: str, path: tuple[str, ...]) -> list[Document]:
    """The response documents of an answer in any framing."""
    decoder = Decoder(content_type)
    items = [item.data for item in (*decoder.feed(data), *decoder.flush()) if item.data is not None]
    return [_unwrap(decode(one), path) for one in items or [data]]


def _unwrap(document: object, path: tuple[str, ...]) -> Document:
    """The document inside an envelope. An error has no envelope."""
    if not isinstance(document, dict):
        raise ValueError("no object")
    for key in path:
        inner = document.get(key)
        if not isinstance(inner, dict):
            break
        document = inner
    return document


def add_view() -> None:
    """Register the view with mitmproxy, whose registry is shared by all proxies of a process."""
    contentviews.add(GeminiContentview())
