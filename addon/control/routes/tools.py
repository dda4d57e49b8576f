"""A session's toolset, and trial calls: a tool runs once, with arguments that a person gives."""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Body, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from addon.control import views
from addon.control.tool_changes import ToolChange, restore_masked, tool_changes
from addon.control.versions import IF_MATCH, IF_NONE_MATCH, update_session, with_etag
from addon.core.framing.documents import Document
from addon.core.framing.replies import PROXY_ENDING
from addon.graft.session_config import shared_with, toolset_of
from addon.web.access import Access, needs
from addon.web.api import ApiContext, ApiDep, CallerDep, OwnSession, answers, body_example, nothing, reply, routes_of
from addon.web.problems import Problem, storable_json
from addon.web.tasks import while_connected
from store.models import Call, Owner, Session, Toolset

router = routes_of("tools")
_IGNORED = ("shared", "origins")
"""Members of `GET`'s answer that `PUT` accepts and ignores."""


class Checked(BaseModel):
    changes: list[ToolChange] = Field(description="Empty: nothing would change.")


_CHECKED = {
    "changes": [
        {
            "part": "declaration",
            "name": "get_weather",
            "change": "changed",
            "diff": '@@ -1,4 +1,4 @@\n {\n-  "name": "get_weather"\n+  "name": "get_weather",\n+  "timeout": 5.0\n }',
        }
    ]
}

_BODY = {
    "type": "object",
    "properties": {
        "tools": {"type": "array", "items": {"type": "object"}},
        "tool_config": {"type": "object", "description": "Gemini's toolConfig."},
        "toolConfig": {"type": "object", "description": "The same, in Gemini's spelling."},
        "tool_choice": {"anyOf": [{"type": "string"}, {"type": "object"}], "description": "OpenAI's."},
        "shared": {"description": "As shown by `GET`; ignored."},
        "origins": {"description": "As shown by `GET`; ignored."},
    },
    "required": ["tools"],
    "additionalProperties": False,
}


@router.get(
    "/v1/sessions/{session}/tools",
    summary="Show a session's tools, in Gemini's form",
    responses=answers(views.SHOWN_TOOLS, views.ToolsView, p404="The session has no tools at all"),
)
@needs("read", "worker")
async def show_tools(api: ApiDep, caller: CallerDep, session: OwnSession) -> Response:
    """The `ETag` identifies the session's version, including its policy; values of executors' headers are masked.
    `shared`: tools from the proxy's files and MCP servers, which the session has in addition to its own; `origins` says
    which file or server each is from, and its rules."""
    record, version, _ = await api.store.snapshot(session)
    toolset, shared = record.toolset if record is not None else None, api.shared()
    if toolset is None and not shared:
        raise Problem(404, f"session {session} has no toolset: its traffic passes unchanged")
    async with api.audit.action(caller, "tools.read", session=session):
        return with_etag(reply(views.tools_view(toolset, shared, api.origin)), api, version)


@router.put(
    "/v1/sessions/{session}/tools",
    summary="Set a session's tools",
    responses=answers(views.SHOWN_TOOLS, views.ToolsView, p412="The session has changed since"),
    openapi_extra={**body_example(views.TOOLS, _BODY), "parameters": [IF_MATCH, IF_NONE_MATCH]},
)
@needs("worker")
async def set_tools(
    api: ApiDep, caller: CallerDep, request: Request, session: OwnSession, document: Annotated[Any, Body()]
) -> Response:
    """`{"tools": […]}` with `tool_config` or `tool_choice`. Each tool has the form of Gemini, OpenAI chat, OpenAI
    Responses, MCP or a bare declaration, with the rules for running it beside its name: `executor`, `approval`,
    `after`, `idempotent`, `redeliver`, `cache_ttl`, `timeout`, `retries`. The header value `***` stands for the stored
    value. A bad tool is a 422 that names the tool and the field, and nothing is changed."""
    toolset = _read(document)

    async def replace(stored: Session | None, version: int) -> Session:
        whole = _whole(api, caller, stored, toolset)
        return await api.store.put_toolset(session, whole, if_version=version)

    async with api.audit.action(
        caller, "tools.set", session=session, tools=[one["name"] for one in toolset.declarations]
    ):
        after = await update_session(api, request, session, replace)
    assert after.toolset is not None
    return with_etag(reply(views.tools_view(after.toolset, api.shared(), api.origin)), api, after.version)


@router.delete(
    "/v1/sessions/{session}/tools",
    summary="Clear a session's tools",
    status_code=204,
    responses=nothing(
        "The session's own toolset is removed. It may still have tools from the proxy's files and servers.",
        p412="The session has changed since",
    ),
    openapi_extra={"parameters": [IF_MATCH]},
)
async def clear_tools(api: ApiDep, caller: CallerDep, request: Request, session: OwnSession) -> Response:
    async def clear(stored: Session | None, version: int) -> None:
        if stored is not None and stored.toolset is not None:
            await api.store.put_toolset(session, None, if_version=version)

    async with api.audit.action(caller, "tools.clear", session=session):
        await update_session(api, request, session, clear)
    return Response(status_code=204)


@router.post(
    "/v1/sessions/{session}/tools/check",
    summary="Say what setting a session's tools would change",
    responses=answers(_CHECKED, Checked),
    openapi_extra=body_example(views.TOOLS, _BODY),
)
@needs("worker")
async def check_tools(
    api: ApiDep, caller: CallerDep, session: OwnSession, document: Annotated[Any, Body()]
) -> Response:
    """The checks of `PUT`, with its refusals, and nothing is changed. The `ETag` is that of the session, for `PUT`'s
    `If-Match`."""
    changes, version = await checked_changes(api, caller, session, document)
    return with_etag(reply(Checked(changes=changes)), api, version)


async def checked_changes(api: ApiContext, caller: Access, session: str, document: Any) -> tuple[list[ToolChange], int]:
    """The changes that `document` would make, and the session's version. Raises Problem, BadTool, ValidationError."""
    toolset = _read(document)
    record, version, _ = await api.store.snapshot(session)
    whole = _whole(api, caller, record, toolset)
    async with api.audit.action(caller, "tools.check", session=session):
        return tool_changes(record.toolset if record else None, whole), version


def _read(document: Any) -> Toolset:
    """Raises Problem (400), BadTool, ValidationError."""
    with storable_json():
        json.dumps(document, allow_nan=False)
    if isinstance(document, dict):
        document = {name: value for name, value in document.items() if name not in _IGNORED}
    return toolset_of(document)


def _whole(api: ApiContext, caller: Access, stored: Session | None, toolset: Toolset) -> Toolset:
    """The toolset with the stored values of masked secrets. Raises Problem (403, 422)."""
    before = stored.toolset if stored else None
    whole = restore_masked(toolset, before)
    if not caller.allows("admin"):
        _check_worker(before, whole, api.shared())
    return whole


def _check_worker(stored: Toolset | None, after: Toolset, shared: Sequence[Document]) -> None:
    """Raises Problem (403) if tools other than workers' would change: a worker's token may set only those. `shared`:
    the proxy's own tools."""
    before = stored or Toolset()

    def others(toolset: Toolset) -> Toolset:
        workers = {name for name, rule in toolset.rules.items() if rule.executor and rule.executor.type == "worker"}
        return toolset.model_copy(
            update={
                "declarations": [one for one in toolset.declarations if one["name"] not in workers],
                "rules": {name: rule for name, rule in toolset.rules.items() if name not in workers},
            }
        )

    for name, rule in before.rules.items():
        if rule.approval and not (name in after.rules and after.rules[name].approval):
            raise Problem(403, f"this token cannot remove the approval that {name} needs", tool=name)
    remaining = {one["name"] for one in shared_with(after, shared)}
    for name in (one["name"] for one in shared_with(stored, shared)):
        if name not in remaining:
            raise Problem(
                403, f"this token cannot remove or replace {name}, which is one of the proxy's own tools", tool=name
            )
    if others(before) != others(after):
        raise Problem(403, "this token may set only tools that workers run")


tries = routes_of("tries")


class Try(BaseModel):
    model_config = ConfigDict(extra="forbid")

    args: dict[str, Any] = Field(default_factory=dict, description="The arguments.")


class TryQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    wait: float = Field(
        0, ge=0, le=60, allow_inf_nan=False, description="Wait up to this many seconds for the call's end."
    )


_TRY = Try()
_TRIED = views.ANSWERED | {"owner": "loop", "released": False, "surface": "try", "model": "", "gemini_id": None}


@tries.post(
    "/v1/sessions/{session}/tools/{name}/try",
    summary="Try a tool",
    responses=answers(
        _TRIED, Call, p404="The session has no such tool", p409="Nobody runs the tool: it has no executor"
    ),
    openapi_extra=body_example({"args": {"city": "Oslo"}}),
)
@needs("worker")
async def try_tool(
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    session: OwnSession,
    name: str,
    query: Annotated[TryQuery, Query()],
    trial: Annotated[Try, Body()] = _TRY,
) -> Response:
    """The tool's executor runs the call, by the tool's rules: the arguments are checked, it waits for an approval if
    the tool needs one, and ends by the tool's timeout. The call is stored with the surface `try`, and belongs to no
    conversation. Without `wait`, or when the time is up, the answer is the call as it is then; `GET /v1/calls/{id}`
    shows its end. What the proxy itself runs is for the scope `admin`."""
    with storable_json():
        json.dumps(trial.args, allow_nan=False)

    def check(owner: Owner) -> None:
        if owner == "loop":
            caller.check("admin")

    if api.draining:
        raise Problem(503, PROXY_ENDING)
    if api.try_tool is None:
        raise Problem(409, "no tools run here")
    async with api.audit.action(caller, "tool.try", session=session, tool=name):
        call = await api.try_tool(session, name, trial.args, check)
    await api.store.sync()
    if query.wait:
        call = await _ended(api, caller, request, call, query.wait)
    return reply(call)


async def _ended(api: ApiContext, caller: Access, request: Request, call: Call, seconds: float) -> Call:
    """The call when it has ended, or after these seconds."""
    now = asyncio.get_running_loop().time
    deadline, ends = now() + seconds, api.ends(caller)
    while not call.status.final and (left := deadline - now()) > 0:
        if (changed := await while_connected(request.receive, api.store.wait_call(call, left), *ends)) is None:
            break
        call = changed
    return call
