"""Trial calls: a tool runs once, with arguments that a person gives."""

import asyncio
import json
from typing import Annotated, Any

from fastapi import Body, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from addon.control import views
from addon.core.framing.replies import PROXY_ENDING
from addon.web.access import Access, needs
from addon.web.api import ApiContext, ApiDep, CallerDep, OwnSession, answers, body_example, reply, routes_of
from addon.web.problems import Problem, storable_json
from addon.web.tasks import while_connected
from store.models import Call, Owner

router = routes_of("tries")


class Try(BaseModel):
    model_config = ConfigDict(extra="forbid")

    args: dict[str, Any] = Field(default_factory=dict, description="The arguments.")


class TryQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    wait: float = Field(
        0, ge=0, le=60, allow_inf_nan=False, description="Wait up to this many seconds for the call's end."
    )


_TRY = Try()
_EXAMPLE = views.ANSWERED | {"owner": "loop", "released": False, "surface": "try", "model": "", "gemini_id": None}


@router.post(
    "/v1/sessions/{session}/tools/{name}/try",
    summary="Try a tool",
    responses=answers(
        _EXAMPLE, Call, p404="The session has no such tool", p409="Nobody runs the tool: it has no executor"
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
