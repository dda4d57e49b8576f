"""Workers claim calls and renew their leases. Answers go to the route of all answers (`calls`)."""

import asyncio
import contextlib
import secrets
from typing import Annotated

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from addon.control import views
from addon.web.access import Access, needs
from addon.web.api import (
    ApiContext,
    ApiDep,
    CallerDep,
    OwnCall,
    answers,
    body_example,
    nothing,
    own_body,
    reply,
    routes_of,
)
from addon.web.tasks import while_connected
from store.base import StoreError
from store.models import Call, SessionName

router = routes_of("workers")

Worker = Annotated[str, Field(min_length=1, max_length=200)]


class Claim(BaseModel):
    model_config = ConfigDict(extra="forbid")

    session: SessionName = Field(description="The session of the calls.")
    names: list[str] = Field(min_length=1, max_length=512, description="The tools that the worker can run.")
    wait: float = Field(
        0, ge=0, le=60, allow_inf_nan=False, description="If there is no call, wait up to this many seconds for one."
    )
    lease: float = Field(
        30,
        ge=1,
        le=3600,
        allow_inf_nan=False,
        description="The worker counts as lost after this many seconds without a renewal.",
    )
    worker: Worker | None = Field(
        None, description="The worker's name; if absent, one is made and returned in the call."
    )


class Renewal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    worker: Worker = Field(description="The worker that claimed the call.")
    lease: float = Field(
        30,
        ge=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds from now; 0 gives the call back.",
    )


@router.post(
    "/v1/calls/claim",
    summary="Claim a call for a worker",
    responses=nothing("No call came in time.") | answers(views.CLAIMED, Call),
    openapi_extra=body_example({"session": "default", "names": ["get_weather"], "wait": 60, "lease": 30}),
)
@needs("worker")
async def claim_call(
    api: ApiDep, caller: CallerDep, request: Request, claim: Annotated[Claim, own_body(Claim)]
) -> Response:
    """At most one call, the oldest, which then is running. Answer it or renew its lease before the lease ends.
    Otherwise the next worker that claims it gets the call, or it fails if its tool forbids that. With `wait`, a long
    poll."""
    worker = claim.worker or f"worker-{secrets.token_hex(8)}"
    call = await _claim(api, claim, worker)
    if call is None and claim.wait:
        call = await _wait_for(api, caller, request, claim, worker)
    if call is not None and not call.redeliver:
        try:
            await api.store.sync()  # a claim lost in a power failure would be repeated, and the call would run twice
        except StoreError:
            await _give_back(api, call, worker)
            raise
    return Response(status_code=204) if call is None else reply(call)


async def _claim(api: ApiContext, claim: Claim, worker: str) -> Call | None:
    return await api.store.claim(claim.session, claim.names, lease=claim.lease, worker=worker)


async def _give_back(api: ApiContext, call: Call, worker: str) -> None:
    """Return a call that did not reach the worker: otherwise it would fail at the end of its lease."""
    with contextlib.suppress(StoreError):
        await api.store.renew(call.session, call.call_id, worker, 0)


async def _wait_for(api: ApiContext, caller: Access, request: Request, claim: Claim, worker: str) -> Call | None:
    now = asyncio.get_running_loop().time
    deadline, ends = now() + claim.wait, api.ends(caller)

    async def wait() -> bool | None:
        waiting = api.store.wait_claimable(claim.session, claim.names, deadline - now())
        return await while_connected(request.receive, waiting, *ends)

    while await wait():
        if (call := await _claim(api, claim, worker)) is not None:
            return call
    return None


@router.post(
    "/v1/calls/{call_id}/renew",
    summary="Renew a worker's lease of a call, or give the call back",
    responses=answers(
        views.CLAIMED, Call, p404="No such call", p409="The call is not running, or another worker has it"
    ),
    openapi_extra=body_example({"worker": "worker-1", "lease": 30}),
)
@needs("worker")
async def renew_call(api: ApiDep, call_id: OwnCall, renewal: Annotated[Renewal, Body()]) -> Response:
    """A refused worker can stop: its answer may come too late."""
    session = (await api.store.find_call(call_id)).session
    return reply(await api.store.renew(session, call_id, renewal.worker, renewal.lease))
