"""MCP servers: their state and restart, and their tools that are held back because they have changed."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from addon.tools.mcp_pins import ChangedAgain, NotHeldBack
from addon.web.access import needs
from addon.web.api import ApiContext, ApiDep, CallerDep, answers, body_example, nothing, reply, routes_of
from addon.web.problems import Problem

router = routes_of("servers")


class Server(BaseModel):
    name: str
    is_up: bool
    tools: int
    error: str | None = Field(description="Why the server is down.")
    last_error: str | None = Field(description="Why it was down last.")
    last_error_at: float | None = Field(description="When that was noticed.")


class Servers(BaseModel):
    items: list[Server]


_SERVER = {
    "name": "files",
    "is_up": True,
    "tools": 3,
    "error": None,
    "last_error": "the connection has ended",
    "last_error_at": 1767225600.0,
}


@router.get(
    "/v1/servers",
    summary="List the MCP servers with their state",
    responses=answers({"items": [_SERVER]}, Servers),
)
@needs("read")
async def list_servers(api: ApiDep) -> Response:
    """In the order of their configuration. `last_error` stays when the server is up again, until the proxy ends."""
    return reply({"items": servers(api)})


@router.post(
    "/v1/servers/{server:path}/restart",
    summary="Restart an MCP server",
    responses=answers(_SERVER, Server, p404="No such server"),
)
async def restart_server(api: ApiDep, caller: CallerDep, server: str) -> Response:
    """The connection to the server ends, and with it the process of a server over stdio; its calls in progress fail.
    Then the proxy connects to it again, and lists its tools again. The answer comes when the proxy has
    connected or failed to, after 15 seconds at most."""
    async with api.audit.action(caller, "server.restart", server=server):
        is_known = api.restart_server is not None and await api.restart_server(server)
    found = servers(api)
    view = next((one for one in found if one.name == server), None)
    if not is_known or view is None:
        names = ", ".join(one.name for one in found) or "none"
        raise Problem(404, f"there is no MCP server {server}; there are: {names}", field="server")
    return reply(view)


def servers(api: ApiContext) -> Sequence[Server]:
    return [Server(**asdict(state)) for state in api.server_states()]


mcp_tools = routes_of("mcp")


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


_HELD_TOOL = {"server": "files", "tool": "read", "digest": "9f86d081884c7d65"}
_HELD_ITEM = _HELD_TOOL | {"fields": ["description"], "diff": '--- accepted\n+++ now\n-"Reads."\n+"Reads all."'}


@mcp_tools.get(
    "/v1/mcp/held",
    summary="List the tools of MCP servers that are held back",
    responses=answers({"items": [_HELD_ITEM]}, HeldTools),
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


@mcp_tools.post(
    "/v1/mcp/accept",
    summary="Accept a tool of an MCP server as it is now",
    status_code=204,
    responses=nothing(
        "The tool is used as it is now.", p404="No such tool is held back", p409="The tool has changed again since"
    ),
    openapi_extra=body_example(_HELD_TOOL),
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
