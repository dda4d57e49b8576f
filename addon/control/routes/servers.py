"""MCP servers: their state, and their restart."""

from collections.abc import Sequence
from dataclasses import asdict

from pydantic import BaseModel, Field
from starlette.responses import Response

from addon.web.access import needs
from addon.web.api import ApiContext, ApiDep, CallerDep, answers, reply, routes_of
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
