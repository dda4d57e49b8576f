"""A session's toolset."""

import json
from typing import Annotated, Any

import xxhash
from fastapi import Body
from starlette.requests import Request
from starlette.responses import Response

from addon.control import views
from addon.control.describe import answers, body_example, group, nothing
from addon.control.masks import unmasked
from addon.control.problems import Problem, kept_as_json
from addon.control.routing import Api, Here, reply
from addon.core.toolset import normalise
from store.models import SessionName, ToolRules, Toolset

router = group("tools")


_PUT_EXTRA = {
    **body_example(views.TOOLS),
    "parameters": [
        {
            "name": "If-Match",
            "in": "header",
            "description": "The ETag of the tools that are replaced: refused (412) where they are others by now.",
            "schema": {"type": "string"},
        },
        {
            "name": "If-None-Match",
            "in": "header",
            "description": "`*`: refused (412) where the session has a toolset.",
            "schema": {"type": "string", "const": "*"},
        },
    ],
}


@router.get(
    "/v1/sessions/{session}/tools",
    summary="Show a session's tools, in Gemini's form",
    responses=answers(views.TOOLS, views.ToolsView, p404="No toolset is set for the session"),
)
async def show_tools(api: Here, session: SessionName) -> Response:
    """The `ETag` stands for the tools as they are; values of executors' headers are masked."""
    toolset = await _toolset(api, session)
    if toolset is None:
        raise Problem(404, f"session {session} has no toolset: its traffic is not touched")
    return _shown(toolset)


@router.put(
    "/v1/sessions/{session}/tools",
    summary="Set a session's tools",
    responses=answers(views.TOOLS, views.ToolsView, p412="The tools are others by now"),
    openapi_extra=_PUT_EXTRA,
)
async def set_tools(api: Here, request: Request, session: SessionName, document: Annotated[Any, Body()]) -> Response:
    """`{"tools": […]}` with `tool_config` or `tool_choice`. Each tool in Gemini, OpenAI chat, OpenAI Responses, MCP
    or bare-declaration form, with how it is run beside its name: `executor`, `approval`, `after`, `idempotent`,
    `cache_ttl`, `timeout`, `retries`. A header's value of `***` is the one that is kept. A bad tool is a 422 that
    names it and the field, and nothing is changed."""
    with kept_as_json():
        json.dumps(document, allow_nan=False)
    tools = normalise(document)
    toolset = Toolset(
        declarations=list(tools.declarations),
        builtins=list(tools.builtins),
        tool_config=tools.tool_config,
        rules={name: ToolRules.model_validate(rules) for name, rules in tools.rules.items()},
    )
    async with api.session_lock:
        kept = await _toolset(api, session)
        _check_unchanged(request, kept)
        toolset = unmasked(toolset, kept)
        await api.store.put_toolset(session, toolset)
    return _shown(toolset)


async def _toolset(api: Api, session: str) -> Toolset | None:
    found = await api.store.session(session)
    return found.toolset if found else None


def _shown(toolset: Toolset) -> Response:
    answer = reply(views.tools_view(toolset))
    answer.headers["ETag"] = _tag(answer.body)
    return answer


def _tag(shown: bytes | memoryview) -> str:
    return f'"{xxhash.xxh3_64_hexdigest(shown)}"'


def _check_unchanged(request: Request, kept: Toolset | None) -> None:
    """Raises Problem (412): the caller has seen other tools than those that are there."""
    wanted = request.headers.get("if-match")
    if wanted is not None and (kept is None or wanted != _shown(kept).headers["ETag"]):
        raise Problem(412, "If-Match: the tools are others by now; read them again", field="If-Match")
    if request.headers.get("if-none-match") == "*" and kept is not None:
        raise Problem(412, "If-None-Match: the session has a toolset by now; read it", field="If-None-Match")


@router.delete(
    "/v1/sessions/{session}/tools",
    summary="Clear a session's tools",
    status_code=204,
    responses=nothing("The session has no toolset: its traffic is not touched any more."),
)
async def clear_tools(api: Here, session: SessionName) -> Response:
    async with api.session_lock:
        if await _toolset(api, session) is not None:
            await api.store.put_toolset(session, None)
    return Response(status_code=204)
