"""Captured calls: list them, wait for them, answer them. Workers claim calls and renew their leases."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, Self

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from addon.control import views
from addon.control.call_search import CallSearch, Moment
from addon.control.paging import PageQuery, RenderedPage
from addon.core.framing.documents import Document, decode, encode
from addon.core.history.outcomes import BadPart, read_parts, redacted_parts, size_of
from addon.core.security.secrets import Redaction
from addon.monitoring.own_secrets import own_secrets
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
    own_query,
    reply,
    routes_of,
)
from addon.web.problems import Problem, storable_json
from addon.web.tasks import while_connected
from store.base import StoreError
from store.models import Call, Page, SessionName, Status


def redaction_of(request: Request) -> Redaction:
    """A redaction of the proxy's own secrets and the caller's token."""
    token = request.headers.get("authorization", "").partition(" ")[2].strip()
    return own_secrets.combined_with([token] if token else [])


def redacted(redaction: Redaction, value: Any) -> Any:
    """JSON without these secrets. Raises ValueError if the value is not JSON."""
    data = encode(value)
    without = redaction.data(data)
    return value if without == data else decode(without)


router = routes_of("calls")


class CallsQuery(PageQuery):
    session: SessionName | None = Field(None, description="Only calls of this session.")
    status: Status | None = Field(None, description="Only calls of this status.")
    name: str | None = Field(None, description="Only calls of this tool.")
    text: str = Field(
        "",
        max_length=1000,
        description="Only calls with this text in the tool's name, the id, arguments, result or error, in small "
        "letters or capitals. Of arguments and result the first 100,000 characters are searched.",
    )
    since: Moment | None = Field(None, description="Only calls from this time on: RFC 3339, or Unix time.")
    until: Moment | None = Field(None, description="Only calls before this time.")
    order: Literal["oldest", "newest"] = Field("oldest", description="Which come first.")
    wait: float = Field(
        0, ge=0, le=60, allow_inf_nan=False, description="If no call matches, wait up to this many seconds for one."
    )

    def search(self) -> CallSearch:
        return CallSearch(
            session=self.session,
            status=self.status,
            name=self.name,
            text=self.text,
            since=self.since,
            until=self.until,
            newest_first=self.order == "newest",
        )


class Answer(BaseModel):
    """Exactly one of `result` and `error`; `parts` only beside `result`."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1, "maxProperties": 2})

    result: Any = Field(None, description="What the tool returned: any JSON, stored without the proxy's secrets.")
    error: str = Field("", description="What went wrong, for the model.")
    parts: list[Document] = Field(
        [],
        examples=[[{"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}]],
        description="Images, sounds and files of the result, as parts of a functionResponse: base64 in `data`. "
        "`graft_max_media` limits their bytes, decoded.",
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if len(self.model_fields_set - {"parts"}) != 1:
            raise ValueError('must hold exactly one of "result" and "error"')
        if self.parts and "error" in self.model_fields_set:
            raise ValueError('"parts" belong to a "result", not to an "error"')
        return self


@router.get(
    "/v1/calls",
    summary="List and search calls, newest last",
    responses=answers({"items": [views.CALL], "next_cursor": None}, Page[Call]),
)
@needs("read", "approve")
async def list_calls(
    api: ApiDep, caller: CallerDep, request: Request, query: Annotated[CallsQuery, own_query(CallsQuery)]
) -> Response:
    """With `wait`, a long poll: it returns as soon as a call matches, at once if one already does, and with no items
    when the time is up. A page of a search by `text`, and with Redis by tool or status, looks at 500 calls:
    it may be empty and have a cursor."""

    search = query.search()

    async def find() -> RenderedPage:
        page = await search.page(api.store, query)
        while query.wait and not page.items and page.next_cursor is not None:
            page = await search.page(api.store, query.model_copy(update={"cursor": page.next_cursor}))
        return page

    page = await find()
    if query.wait and not page.items:
        page = await _wait_for(find, api, caller, request, query)
    return page.response()


async def _wait_for(
    find: Callable[[], Awaitable[RenderedPage]], api: ApiDep, caller: Access, request: Request, query: CallsQuery
) -> RenderedPage:
    now = asyncio.get_running_loop().time
    deadline, ends = now() + query.wait, api.ends(caller)
    while True:
        # Read before the search, so that a call stored in between ends the wait.
        last_event = await api.store.last_event_id()
        page = await find()
        if page.items:
            return page
        change = api.store.follow(query.session, last_event, deadline - now(), limit=1)
        if not await while_connected(request.receive, change, *ends):
            return page


@router.get("/v1/calls/{call_id}", summary="Show a call", responses=answers(views.CALL, Call, p404="No such call"))
@needs("read", "approve")
async def show_call(api: ApiDep, call_id: OwnCall) -> Response:
    return reply(await api.store.find_call(call_id))


@router.post(
    "/v1/calls/{call_id}/result",
    summary="Answer a call",
    responses=answers(
        views.ANSWERED,
        Call,
        p404="No such call",
        p409="The call was already answered with a different body, or waits for an approval",
    ),
    openapi_extra=body_example({"result": {"celsius": -3}}),
)
@needs("worker")
async def answer_call(
    api: ApiDep, caller: CallerDep, request: Request, call_id: OwnCall, answer: Annotated[Answer, Body()]
) -> Response:
    """Repeating the same body is accepted and changes nothing. Another body is refused: the first answer is kept. A
    call that waits for an approval takes an answer only from a caller with the scope `approve` or `admin`."""
    before = await api.store.find_call(call_id)
    check_may_answer(caller, before)
    parts = _checked_parts(answer.parts, api.settings.max_media)
    session = before.session
    line = {"session": session, "call_id": call_id, "tool": before.name}
    async with api.audit.action(caller, "call.answer", flush_first=False, **line) as line_flushed:
        with storable_json():
            if "error" in answer.model_fields_set:
                error = redaction_of(request).text(answer.error)
                call, changed = await api.store.answer(session, call_id, error=error)
            else:
                redaction = redaction_of(request)
                result, parts = redacted(redaction, answer.result), redacted_parts(parts, redaction.data)
                call, changed = await api.store.answer(session, call_id, result=result, parts=parts)
    if changed:
        api.metrics.count_ended(call.status)
    await api.store.sync()
    await line_flushed()
    return reply(call)


def _checked_parts(given: Sequence[Document], most: int) -> list[Document]:
    """The parts in their usual form. Raises Problem."""
    try:
        parts = read_parts(given)
    except BadPart as error:
        raise Problem(422, str(error), field=error.field) from None
    if (size := sum(map(size_of, parts))) > most:
        raise Problem(422, f"parts have {size} bytes, more than the {most} of graft_max_media", field="parts")
    return parts


def check_may_answer(caller: Access, call: Call) -> None:
    """A worker may not answer calls that the proxy itself runs, or before their approval. Raises Problem (403, 409)."""
    if call.owner == "loop":
        caller.check("admin")
    if call.approval == "waiting" and not caller.allows("approve"):
        raise Problem(409, "the call waits for an approval: it can be answered once it is approved")


workers = routes_of("workers")

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


@workers.post(
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
        call = await _wait_for_claim(api, caller, request, claim, worker)
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


async def _wait_for_claim(api: ApiContext, caller: Access, request: Request, claim: Claim, worker: str) -> Call | None:
    now = asyncio.get_running_loop().time
    deadline, ends = now() + claim.wait, api.ends(caller)

    async def wait() -> bool | None:
        waiting = api.store.wait_claimable(claim.session, claim.names, deadline - now())
        return await while_connected(request.receive, waiting, *ends)

    while await wait():
        if (call := await _claim(api, claim, worker)) is not None:
            return call
    return None


@workers.post(
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
