"""A session's toolset."""

import json
from typing import Annotated, Any

from fastapi import Body
from starlette.responses import Response

from addon.control import views
from addon.control.describe import answers, body_example, group, nothing
from addon.control.problems import Problem, kept_as_json
from addon.control.routing import Here, reply
from addon.core.toolset import normalise
from store.models import SessionName, Toolset

router = group("tools")


@router.get(
    "/v1/sessions/{session}/tools",
    summary="Show a session's tools, in Gemini's form",
    responses=answers(views.TOOLS, views.ToolsView, p404="No toolset is set for the session"),
)
async def show_tools(api: Here, session: SessionName) -> Response:
    found = await api.store.session(session)
    if found is None or found.toolset is None:
        raise Problem(404, f"session {session} has no toolset: its traffic is not touched")
    return reply(views.tools_view(found.toolset))


@router.put(
    "/v1/sessions/{session}/tools",
    summary="Set a session's tools",
    responses=answers(views.TOOLS, views.ToolsView),
    openapi_extra=body_example(views.TOOLS),
)
async def set_tools(api: Here, session: SessionName, document: Annotated[Any, Body()]) -> Response:
    """`{"tools": […]}` with `tool_config` or `tool_choice`. Each tool in Gemini, OpenAI chat, OpenAI Responses, MCP
    or bare-declaration form. A bad one is a 422 that names the tool and the field, and nothing is changed."""
    with kept_as_json():
        json.dumps(document, allow_nan=False)
    tools = normalise(document)
    toolset = Toolset(
        declarations=list(tools.declarations), builtins=list(tools.builtins), tool_config=tools.tool_config
    )
    await api.store.put_toolset(session, toolset)
    return reply(views.tools_view(toolset))


@router.delete(
    "/v1/sessions/{session}/tools",
    summary="Clear a session's tools",
    status_code=204,
    responses=nothing("The session has no toolset: its traffic is not touched any more."),
)
async def clear_tools(api: Here, session: SessionName) -> Response:
    found = await api.store.session(session)
    if found is not None and found.toolset is not None:
        await api.store.put_toolset(session, None)
    return Response(status_code=204)
