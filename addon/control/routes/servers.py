"""MCP servers: their state in each of the proxy's processes, and their restart."""

from collections.abc import Sequence

from pydantic import BaseModel, Field
from starlette.responses import Response

from addon.control.routes.processes import McpServer, states
from addon.core.framing.documents import Document
from addon.web.access import needs
from addon.web.api import ApiDep, CallerDep, answers, reply, routes_of
from addon.web.context import ApiContext
from addon.web.problems import Problem

router = routes_of("servers")


class ServerInProcess(McpServer):
    slot: int = Field(description="The process's, from 1.")
    pid: int


class Server(BaseModel):
    name: str
    is_up: bool = Field(description="In every process.")
    processes: list[ServerInProcess] = Field(description="Each process of the proxy has its own connection.")


class Servers(BaseModel):
    items: list[Server]


_IN_PROCESS = {
    "name": "files",
    "is_up": True,
    "tools": 3,
    "error": None,
    "last_error": "the connection has ended",
    "last_error_at": 1767225600.0,
    "slot": 1,
    "pid": 4711,
}
_SERVER = {"name": "files", "is_up": True, "processes": [_IN_PROCESS]}


@router.get(
    "/v1/servers",
    summary="List the MCP servers with their state",
    responses=answers({"items": [_SERVER]}, Servers, p503="The supervisor does not answer"),
)
@needs("read")
async def list_servers(api: ApiDep) -> Response:
    """In the order of their configuration. `last_error` stays when the server is up again, until the proxy ends."""
    return reply({"items": await servers(api)})


@router.post(
    "/v1/servers/{server:path}/restart",
    summary="Restart an MCP server",
    responses=answers(_SERVER, Server, p404="No such server", p503="The supervisor does not answer"),
)
async def restart_server(api: ApiDep, caller: CallerDep, server: str) -> Response:
    """The connection to the server ends, and with it the process of a server over stdio; its calls in progress fail.
    Then the proxy connects anew, and its tools are listed again. The answer comes when the process that was asked has
    connected or failed to, after 15 seconds at most; with `--workers` the others may take longer."""
    async with api.audit.action(caller, "server.restart", server=server):
        try:
            is_known = api.restart_server is not None and await api.restart_server(server)
        except OSError as error:
            raise Problem(503, f"{error}") from None
    found = await servers(api)
    view = next((one for one in found if one.name == server), None)
    if not is_known or view is None:
        names = ", ".join(one.name for one in found) or "none"
        raise Problem(404, f"there is no MCP server {server}; there are: {names}", field="server")
    return reply(view)


async def servers(api: ApiContext) -> Sequence[Server]:
    """Raises Problem (503)."""
    found: dict[str, list[ServerInProcess]] = {}
    for process in sorted(await states(api), key=lambda one: int(one["slot"])):
        for state in process["mcp"]:
            found.setdefault(state["name"], []).append(_in_process(process, state))
    return [
        Server(name=name, is_up=all(one.is_up for one in processes), processes=processes)
        for name, processes in found.items()
    ]


def _in_process(process: Document, state: Document) -> ServerInProcess:
    """A process of the version before, which is about to be replaced, may not know of all fields."""
    fields = {name: state.get(name) for name in McpServer.model_fields}
    return ServerInProcess.model_validate({**fields, "slot": process["slot"], "pid": process["pid"]})
