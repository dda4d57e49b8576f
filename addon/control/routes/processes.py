"""The proxy's processes: one, or several with `--workers`."""

from collections.abc import Sequence

from pydantic import BaseModel, Field
from starlette.responses import Response

from addon.core.framing.documents import Document
from addon.web.access import needs
from addon.web.api import ApiDep, answers, reply, routes_of
from addon.web.context import ApiContext
from addon.web.problems import Problem

router = routes_of("processes")


class McpServer(BaseModel):
    name: str
    is_up: bool
    tools: int
    error: str | None = Field(description="Why the server is down.")
    last_error: str | None = Field(None, description="Why it was down last.")
    last_error_at: float | None = Field(None, description="When that was noticed.")


class Process(BaseModel):
    pid: int
    slot: int = Field(description="From 1. A slot keeps its number when its process is replaced.")
    requests: int = Field(description="The model requests that clients wait for now.")
    loops: int = Field(description="The loops that run now.")
    live: int = Field(description="The open Live connections.")
    outage: str = Field(description="Since when and why the process does not ask the store. Empty: it does.")
    mcp: list[McpServer]


class Processes(BaseModel):
    items: list[Process]


_SERVER = {"name": "files", "is_up": True, "tools": 3, "error": None, "last_error": None, "last_error_at": None}
_PROCESS = {"pid": 4711, "slot": 1, "requests": 2, "loops": 1, "live": 0, "outage": "", "mcp": [_SERVER]}


@router.get(
    "/v1/processes",
    summary="List the proxy's processes",
    responses=answers({"items": [_PROCESS]}, Processes, p503="The supervisor does not answer"),
)
@needs("read")
async def list_processes(api: ApiDep) -> Response:
    """What each process does now. The state of MCP servers is per process, because each starts its own. A process that
    does not answer within a second is left out."""
    found = sorted(await states(api), key=lambda one: one["slot"])
    return reply({"items": [{name: one[name] for name in Process.model_fields} for one in found]})


async def states(api: ApiContext, request_id: str = "") -> Sequence[Document]:
    """What each process says of itself, or of the request with this id. Raises Problem (503)."""
    if api.processes is None:
        return []
    try:
        return await api.processes(request_id)
    except OSError as error:
        raise Problem(503, f"{error}") from None
