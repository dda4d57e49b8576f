"""Tools of MCP servers that are held back because they have changed."""

from typing import Annotated

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from addon.tools.mcp_pins import ChangedAgain, NotHeldBack
from addon.web.api import ApiDep, CallerDep, answers, body_example, nothing, reply, routes_of
from addon.web.problems import Problem

router = routes_of("mcp")


class HeldTool(BaseModel):
    server: str
    tool: str = Field(description="The tool's name at the server.")
    digest: str = Field(description="The digest of the tool's current description.")
    fields: list[str] = Field(description="The changed fields.")
    diff: str = Field(
        description="The difference between the accepted and the current description, one line per field."
    )


class HeldTools(BaseModel):
    items: list[HeldTool]


class Accepted(BaseModel):
    model_config = ConfigDict(extra="forbid")

    server: str
    tool: str
    digest: str


_EXAMPLE = {"server": "files", "tool": "read", "digest": "9f86d081884c7d65"}
_HELD = _EXAMPLE | {"fields": ["description"], "diff": '--- accepted\n+++ now\n-"Reads."\n+"Reads all."'}


@router.get(
    "/v1/mcp/held",
    summary="List the tools of MCP servers that are held back",
    responses=answers({"items": [_HELD]}, HeldTools),
)
async def list_held(api: ApiDep) -> Response:
    """A tool whose description, schemas or annotations have changed since they were first seen is neither shown to
    models nor run until it is accepted. With `graft_mcp_pin=off` no tool is held back."""
    found = api.pins.held_back() if api.pins is not None else []
    return reply(
        {
            "items": [
                {"server": one.server, "tool": one.tool, "digest": one.digest, "fields": one.fields, "diff": one.diff}
                for one in found
            ]
        }
    )


@router.post(
    "/v1/mcp/accept",
    summary="Accept a tool of an MCP server as it is now",
    status_code=204,
    responses=nothing(
        "The tool is used as it is now.", p404="No such tool is held back", p409="The tool has changed again since"
    ),
    openapi_extra=body_example(_EXAMPLE),
)
async def accept(api: ApiDep, caller: CallerDep, accepted: Annotated[Accepted, Body()]) -> Response:
    """`digest`: from `GET /v1/mcp/held`. If the tool has changed again since, the answer is a 409."""
    try:
        if api.pins is None:
            raise NotHeldBack("no tool is held back: graft_mcp_pin is off, or there is no graft_mcp")
        async with api.audit.action(caller, "tool.accept", **accepted.model_dump()):
            api.pins.accept(accepted.server, accepted.tool, accepted.digest)
    except NotHeldBack as error:
        raise Problem(404, str(error)) from None
    except ChangedAgain as error:
        raise Problem(409, str(error)) from None
    except OSError as error:
        raise Problem(503, f"the tool stays held back: {error.strerror or error}") from None
    return Response(status_code=204)
