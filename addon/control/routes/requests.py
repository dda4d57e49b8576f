"""The last requests to models, while they run and after: the fields of the log's lines. They are not stored."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from addon.control.routes.processes import states
from addon.recent_requests import MOST
from addon.web.access import needs
from addon.web.describe import Group, answers
from addon.web.routing import ApiContext, ApiDep, Query, reply
from store.models import SessionName

router = Group("requests")

State = Literal["running", "done", "failed"]


class RequestCall(BaseModel):
    name: str
    call_id: str = Field(description="Empty: the call is not the proxy's.")
    arguments: str = Field(description="The values, as far as 80 characters reach. Secrets are left out.")
    state: str = Field(description="`running`, `done`, `failed`, `waiting` or `client`.")
    began: float | None = Field(description="Seconds after the request began; null: unknown.")
    seconds: float | None = Field(description="How long the request has waited for the call; null: unknown.")


class RoundTime(BaseModel):
    began: float = Field(description="Seconds after the request began.")
    seconds: float


class RequestRecord(BaseModel):
    """What the log's line about the request tells."""

    request_id: str
    state: State
    began_at: float = Field(description="Unix time.")
    seconds: float = Field(description="So far, if it runs.")
    session: str
    surface: str
    operation: str
    model: str
    added_tools: int
    removed_client_tools: int
    calls: list[RequestCall]
    rounds: int = Field(description="The requests to the model.")
    round_times: list[RoundTime] = Field(description="Those of a loop, in order. Empty: there was no loop.")
    streamed: bool
    prompt_tokens: int
    output_tokens: int
    status: int | None = Field(description="null: the client has got none.")
    end: str = Field(description="Why the answer broke off. Empty: it did not.")


class RequestRecords(BaseModel):
    items: list[RequestRecord]


class RequestsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    session: SessionName | None = Field(None, description="Only requests of this session.")
    tool: str | None = Field(None, description="Only requests with a call of this tool.")
    state: State | None = Field(None, description="Only requests in this state.")
    limit: int = Field(MOST, ge=1, le=1000, description="The most requests to list.")


_CALL = {
    "name": "get_weather",
    "call_id": "call_5d0c2f",
    "arguments": "Oslo",
    "state": "done",
    "began": 0.8,
    "seconds": 0.5,
}
_REQUEST = {
    "request_id": "req_9f3c02d10000002a",
    "state": "done",
    "began_at": 1793870000.0,
    "seconds": 1.9,
    "session": "default",
    "surface": "developer",
    "operation": "streamGenerateContent",
    "model": "gemini-3-flash-preview",
    "added_tools": 2,
    "removed_client_tools": 1,
    "calls": [_CALL],
    "rounds": 2,
    "round_times": [{"began": 0.0, "seconds": 0.8}, {"began": 1.3, "seconds": 0.6}],
    "streamed": True,
    "prompt_tokens": 1234,
    "output_tokens": 310,
    "status": 200,
    "end": "",
}


@router.get(
    "/v1/requests",
    summary="List the last requests to models, newest first",
    responses=answers({"items": [_REQUEST]}, RequestRecords, p503="The supervisor does not answer"),
)
@needs("read")
async def list_requests(api: ApiDep, query: Annotated[RequestsQuery, Query()]) -> Response:
    """Requests that run, and the last 100 of each process that have ended, from memory: a restart forgets them."""
    return reply({"items": await records(api, query)})


async def records(api: ApiContext, query: RequestsQuery) -> Sequence[dict[str, Any]]:
    """Newest first. Raises Problem (503)."""
    if api.recent.has_siblings:
        each = [one for state in await states(api) for one in state["recent"]]
        found = sorted(each, key=lambda one: float(one["began_at"]), reverse=True)
    else:
        found = api.recent.records()
    return [
        one
        for one in found
        if query.session in (None, one["session"])
        and query.state in (None, one["state"])
        and (query.tool is None or any(call["name"] == query.tool for call in one["calls"]))
    ][: query.limit]
