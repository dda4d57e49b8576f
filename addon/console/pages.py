"""The console's pages. Each is a frame without data, which anyone may fetch, and a part with the data, which the frame
fetches with the page's session. Changes go to the control API, so a page can do nothing that the API cannot."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from addon.console.clients import clients, read_addresses
from addon.console.rendering import LONGEST, Room, json_excerpt, page
from addon.control.paging import PageQuery, RenderedPage, render_page
from addon.control.versions import etag_of
from addon.control.views import SessionView, TurnView, tools_view
from addon.control.waiting import waiting_calls
from addon.core.framing.documents import Document
from addon.web.access import needs
from addon.web.describe import PUBLIC, Group
from addon.web.routing import ApiDep, CallerDep, DirectRoute, Query
from store.base import Store, UnknownCall
from store.models import Call, SessionName, Status

router = Group("console")

PAGES = {
    "live": "Live",
    "approvals": "Approvals",
    "calls": "Calls",
    "turns": "Turns",
    "tools": "Tools",
    "sessions": "Sessions",
    "connect": "Connect",
}
"""The pages in the navigation: the last part of each path, and its title."""

_PER_PAGE = 50
_TURNS_PER_PAGE = 20
_MOST_APPROVALS = 50
_LONGEST_APPROVAL = 4000
"""Characters of the arguments of a call in the list, which is fetched with each change. If there are more, the call is
decided at its own page."""


def _frame(name: str, title: str) -> Callable[[Request], Awaitable[Response]]:
    async def show(request: Request) -> Response:
        part = f"/console/parts/{name}"
        if query := request.url.query:
            part += f"?{query}"
        return page("frame.html", {"pages": PAGES, "name": name, "title": title, "part": part})

    return show


def _public(path: str, endpoint: Callable[..., Awaitable[Response]]) -> DirectRoute:
    return DirectRoute(path, endpoint, include_in_schema=False, openapi_extra=PUBLIC)


router.routes += [
    _public("/console", _frame("approvals", PAGES["approvals"])),
    *(_public(f"/console/{name}", _frame(name, title)) for name, title in PAGES.items()),
    _public("/console/call", _frame("call", "A call")),
    _public("/console/turn", _frame("turn", "A turn")),
]


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


def _part[H: Callable[..., Any]](name: str) -> Callable[[H], H]:
    return router.get(f"/console/parts/{name}", include_in_schema=False)


class _Session(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    session: Annotated[SessionName | None, BeforeValidator(_none_if_empty)] = None


class _Calls(_Session):
    status: Annotated[Status | None, BeforeValidator(_none_if_empty)] = None
    name: Annotated[str | None, BeforeValidator(_none_if_empty)] = None
    cursor: str | None = None


class _Cursor(BaseModel):
    """Of a list over all sessions, which a token for one session may not see."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cursor: str | None = None


class _CallId(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    call_id: str


@_part("approvals")
@needs("read", "approve")
async def approvals(api: ApiDep, caller: CallerDep, query: Annotated[_Session, Query()]) -> Response:
    listed: list[Call] = []
    count = 0
    async for call in waiting_calls(api.store, query.session):
        count += 1
        if len(listed) < _MOST_APPROVALS:
            listed.append(call)
    return page(
        "approvals.html",
        {
            "calls": listed,
            "count": count,
            "session": query.session,
            "longest": _LONGEST_APPROVAL,
            "may_decide": caller.allows("approve"),
            "may_always": caller.allows("admin"),
            "now": time.time(),
        },
    )


@_part("waiting")
@needs("read", "approve")
async def waiting_count(api: ApiDep, query: Annotated[_Session, Query()]) -> Response:
    """The number beside *Approvals*."""
    return page("waiting.html", {"count": len([None async for _ in waiting_calls(api.store, query.session)])})


@_part("calls")
@needs("read", "approve")
async def calls(api: ApiDep, query: Annotated[_Calls, Query()]) -> Response:
    fetch = partial(api.store.calls, session=query.session, status=query.status, name=query.name)
    found = await render_page(fetch, PageQuery(limit=_PER_PAGE, cursor=query.cursor))
    return page(
        "calls.html",
        {
            "calls": _items(found),
            "next_cursor": found.next_cursor,
            "query": query,
            "statuses": list(Status),
            "now": time.time(),
        },
    )


@_part("call")
@needs("read", "approve")
async def call_details(api: ApiDep, caller: CallerDep, query: Annotated[_CallId, Query()]) -> Response:
    call = await api.store.find_call(query.call_id)
    may_answer = not call.status.final and caller.allows("admin" if call.owner == "loop" else "worker")
    return page(
        "call.html",
        {
            "call": call,
            "longest": LONGEST,
            "may_answer": may_answer,
            "may_decide": caller.allows("approve"),
            "may_always": caller.allows("admin"),
            "now": time.time(),
        },
    )


class _Turns(_Session):
    cursor: str | None = None


@_part("turns")
@needs("read")
async def turns(api: ApiDep, query: Annotated[_Turns, Query()]) -> Response:
    session = query.session or api.settings.session
    fetch = partial(api.store.turns, session)
    found = await render_page(fetch, PageQuery(limit=_TURNS_PER_PAGE, cursor=query.cursor), TurnView.of)
    listed = _items(found)
    calls = {slot["call_id"] for turn in listed for step in turn["true"] for slot in step["calls"] if slot["call_id"]}
    known = {call_id: call for call_id in calls if (call := await _call_excerpt(api.store, session, call_id))}
    return page(
        "turns.html",
        {
            "session": session,
            "turns": listed,
            "calls": known,
            "room": Room(4000),
            "next_cursor": found.next_cursor,
            "now": time.time(),
        },
    )


def _items(found: RenderedPage) -> list[Document]:
    return [pydantic_core.from_json(item) for item in found.items]


async def _call_excerpt(store: Store, session: str, call_id: str) -> Document | None:
    """What a line shows of a call: the whole calls of a page of turns may be large. None: the call has expired before
    its turn."""
    try:
        call = await store.call(session, call_id)
    except UnknownCall:
        return None
    await asyncio.sleep(0)
    return {
        "call_id": call_id,
        "name": call.name,
        "status": call.status,
        "approval": call.approval,
        "took": call.updated_at - call.created_at if call.status.final else None,
        "args": json_excerpt(call.args, 300),
        "error": call.error,
        "result": json_excerpt(call.result, 300) if call.status == Status.DONE else None,
    }


@_part("tools")
@needs("read")
async def tools(api: ApiDep, caller: CallerDep, query: Annotated[_Session, Query()]) -> Response:
    session = query.session or api.settings.session
    record, version, _ = await api.store.snapshot(session)
    async with api.audit.action(caller, "tools.read", session=session):
        view = tools_view(record.toolset if record else None, api.shared())
    others = (await api.store.sessions(limit=_PER_PAGE)).items if caller.session is None else []
    names = sorted({session, *[one.name for one in others]})
    return page(
        "tools.html",
        {
            "session": session,
            "sessions": names,
            "view": view,
            "editable": {"tools": view["tools"] or [], **({"tool_config": c} if (c := view["tool_config"]) else {})},
            "may_change": caller.allows("worker"),
            "etag": etag_of(api, version),
            "now": time.time(),
        },
    )


@_part("sessions")
@needs("read")
async def sessions(api: ApiDep, caller: CallerDep, query: Annotated[_Cursor, Query()]) -> Response:
    found = await api.store.sessions(limit=_PER_PAGE, cursor=query.cursor)
    listed = [SessionView.of(one.name, one, api.settings).model_dump() for one in found.items]
    if not any(one["name"] == api.settings.session for one in listed) and query.cursor is None:
        listed.insert(0, SessionView.of(api.settings.session, None, api.settings).model_dump())
    return page(
        "sessions.html",
        {
            "sessions": listed,
            "next_cursor": found.next_cursor,
            "may_forget": caller.allows("admin"),
            "now": time.time(),
        },
    )


@_part("connect")
@needs("read", "approve")
async def connect(api: ApiDep, request: Request, query: Annotated[_Session, Query()]) -> Response:
    session = query.session or api.settings.session
    control = f"{request.url.scheme}://{request.url.netloc}"
    return page(
        "connect.html",
        {"session": session, "clients": clients(read_addresses(api.settings.state), control, session)},
    )
