"""Captured calls: list them, wait for them, answer them."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from addon.control import views
from addon.control.paging import PageQuery, RenderedPage, render_page
from addon.control.secrets import redacted, redaction_of
from addon.web.access import Access, needs
from addon.web.describe import Group, answers, body_example
from addon.web.disconnect import DisconnectWatcher
from addon.web.problems import storable_json
from addon.web.routing import ApiDep, Body, CallerDep, Query, reply
from store.models import Call, Page, SessionName, Status

router = Group("calls")


class CallsQuery(PageQuery):
    session: SessionName | None = Field(None, description="Only calls of this session.")
    status: Status | None = Field(None, description="Only calls of this status.")
    name: str | None = Field(None, description="Only calls of this tool.")
    wait: float = Field(
        0, ge=0, le=60, allow_inf_nan=False, description="If no call matches, wait up to this many seconds for one."
    )


class Answer(BaseModel):
    """Exactly one of `result` and `error`."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"minProperties": 1, "maxProperties": 1})

    result: Any = Field(None, description="What the tool returned: any JSON, stored without the proxy's secrets.")
    error: str = Field("", description="What went wrong, for the model.")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if len(self.model_fields_set) != 1:
            raise ValueError('must hold exactly one of "result" and "error"')
        return self


@router.get(
    "/v1/calls",
    summary="List calls, newest last",
    responses=answers({"items": [views.CALL], "next_cursor": None}, Page[Call]),
)
@needs("read", "approve")
async def list_calls(
    api: ApiDep, caller: CallerDep, request: Request, query: Annotated[CallsQuery, Query()]
) -> Response:
    """With `wait`, a long poll: it returns as soon as a call matches, at once if one already does, and with no items
    when the time is up."""

    fetch = functools.partial(api.store.calls, session=query.session, status=query.status, name=query.name)

    async def find() -> RenderedPage:
        return await render_page(fetch, query)

    page = await find()
    if query.wait and not page.items:
        page = await _wait_for(find, api, caller, request, query)
    return page.response()


async def _wait_for(
    find: Callable[[], Awaitable[RenderedPage]], api: ApiDep, caller: Access, request: Request, query: CallsQuery
) -> RenderedPage:
    now = asyncio.get_running_loop().time
    deadline = now() + query.wait
    async with DisconnectWatcher(request.receive, *api.ends(caller)) as watcher:
        while True:
            # read before the search, so that a call stored in between ends the wait at once
            last_event = await api.store.last_event_id()
            page = await find()
            if page.items:
                return page
            if not await watcher.wait(api.store.follow(query.session, last_event, deadline - now(), limit=1)):
                return page


@router.get("/v1/calls/{call_id}", summary="Show a call", responses=answers(views.CALL, Call, p404="No such call"))
@needs("read", "approve")
async def show_call(api: ApiDep, call_id: str) -> Response:
    return reply(await api.store.find_call(call_id))


@router.post(
    "/v1/calls/{call_id}/result",
    summary="Answer a call",
    responses=answers(
        views.ANSWERED, Call, p404="No such call", p409="The call was already answered with a different body"
    ),
    openapi_extra=body_example({"result": {"celsius": -3}}),
)
@needs("worker")
async def answer_call(
    api: ApiDep, caller: CallerDep, request: Request, call_id: str, answer: Annotated[Answer, Body()]
) -> Response:
    """Repeating the same body is accepted and changes nothing. Another body is refused: the first answer is kept."""
    before = await api.store.find_call(call_id)
    if before.owner == "loop":
        caller.check("admin")  # a worker may not answer calls that the proxy itself runs
    session = before.session
    line = {"session": session, "call_id": call_id, "tool": before.name}
    async with api.audit.action(caller, "call.answer", flush_first=False, **line) as line_flushed:
        with storable_json():
            if "error" in answer.model_fields_set:
                error = redaction_of(request).text(answer.error)
                call, changed = await api.store.answer(session, call_id, error=error)
            else:
                result = redacted(redaction_of(request), answer.result)
                call, changed = await api.store.answer(session, call_id, result=result)
    if changed:
        api.metrics.count_ended(call.status)
    await api.store.sync()
    await line_flushed()
    return reply(call)
