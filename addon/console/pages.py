"""The console's pages, its files, and all its routes.

Each page is a frame without data, which anyone may fetch, and a part with the data, which the frame fetches with the
page's session. Changes go through the control API."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic_core
from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from addon.console import changes, connect, filled_forms, requests, sign_in, tools, turn
from addon.console.filled_forms import OrEmpty, answer_form
from addon.console.rendering import HEADERS, LONGEST, Room, json_excerpt, page
from addon.control.call_search import MOST_LOOKED_AT, Moment, waiting_calls
from addon.control.paging import PageQuery, RenderedPage, render_page
from addon.control.routes.calls import CallsQuery
from addon.control.views import SessionView, TurnView
from addon.core.framing.documents import Document
from addon.graft.turn_records import TRY
from addon.web.access import needs
from addon.web.api import ApiDep, CallerDep, ExtraRoutes, own_query, routes_of
from store.base import Store, UnknownCall
from store.models import Call, SessionName, Status

router = routes_of("console")
public = routes_of("console", is_public=True)

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
"""The most characters of a call's arguments in the list, which is fetched again with each change. A call with longer
arguments is decided at its own page."""


def _frame(name: str, title: str) -> Callable[[Request], Awaitable[Response]]:
    async def show(request: Request) -> Response:
        part = f"/console/parts/{name}"
        if query := request.url.query:
            part += f"?{query}"
        return page("frame.html", {"pages": PAGES, "name": name, "title": title, "part": part})

    return show


_FRAMES = PAGES | {"call": "A call", "turn": "A turn", "request": "A request", "try": "Try a tool"}
public.add_api_route("/console", _frame("approvals", PAGES["approvals"]), include_in_schema=False)
for _name, _title in _FRAMES.items():
    public.add_api_route(f"/console/{_name}", _frame(_name, _title), include_in_schema=False)


def _part[H: Callable[..., Any]](name: str) -> Callable[[H], H]:
    return router.get(f"/console/parts/{name}", include_in_schema=False)


class _Session(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    session: OrEmpty[SessionName] = None


class _Calls(CallsQuery):
    session: OrEmpty[SessionName] = None
    status: OrEmpty[Status] = None
    name: OrEmpty[str] = None
    since: OrEmpty[Moment] = None
    until: OrEmpty[Moment] = None
    order: Literal["oldest", "newest"] = "newest"
    limit: int = Field(_PER_PAGE, ge=1, le=1000)
    cursor: str | None = None


class _Cursor(BaseModel):
    """A page of a list of all sessions. Tokens for one session cannot get such a list."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cursor: str | None = None


class _CallId(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    call_id: str


@_part("approvals")
@needs("read", "approve")
async def approvals(api: ApiDep, caller: CallerDep, query: Annotated[_Session, own_query(_Session)]) -> Response:
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
async def waiting_count(api: ApiDep, query: Annotated[_Session, own_query(_Session)]) -> Response:
    """The number beside *Approvals*, and when the newest of these calls was made."""
    times = [call.created_at async for call in waiting_calls(api.store, query.session)]
    return page("waiting.html", {"count": len(times), "newest": max(times, default=0.0)})


@_part("calls")
@needs("read", "approve")
async def calls(api: ApiDep, caller: CallerDep, query: Annotated[_Calls, own_query(_Calls)]) -> Response:
    found = await query.search().page(api.store, query)
    return page(
        "calls.html",
        {
            "calls": _items(found),
            "next_cursor": found.next_cursor,
            "query": query,
            "statuses": list(Status),
            "looked_at": MOST_LOOKED_AT,
            "may_decide": caller.allows("approve"),
            "per_page": _PER_PAGE,
            "now": time.time(),
        },
    )


@_part("call")
@needs("read", "approve")
async def call_details(api: ApiDep, caller: CallerDep, query: Annotated[_CallId, Query()]) -> Response:
    call = await api.store.find_call(query.call_id)
    is_open = not call.status.final and call.approval != "waiting"
    may_answer = is_open and caller.allows("admin" if call.owner == "loop" else "worker")
    return page(
        "call.html",
        {
            "call": call,
            "longest": LONGEST,
            "may_answer": may_answer,
            "form": await answer_form(api, call) if may_answer else None,
            "is_try": call.surface == TRY,
            "may_decide": caller.allows("approve"),
            "may_always": caller.allows("admin"),
            "now": time.time(),
        },
    )


class _Turns(_Session):
    cursor: str | None = None


@_part("turns")
@needs("read")
async def turns(api: ApiDep, query: Annotated[_Turns, own_query(_Turns)]) -> Response:
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
            "cursor": query.cursor,
            "next_cursor": found.next_cursor,
            "now": time.time(),
        },
    )


def _items(found: RenderedPage) -> list[Document]:
    return [pydantic_core.from_json(item) for item in found.items]


async def _call_excerpt(store: Store, session: str, call_id: str) -> Document | None:
    """The fields of a call that a line shows, because whole calls may be large. None: the call expired before its
    turn."""
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


@_part("sessions")
@needs("read")
async def sessions(api: ApiDep, caller: CallerDep, query: Annotated[_Cursor, Query()]) -> Response:
    found = await api.store.sessions(limit=_PER_PAGE, cursor=query.cursor)
    rows = api.setting_rows()
    listed = [SessionView.of(one.name, one, api.settings, rows).model_dump() for one in found.items]
    if not any(one["name"] == api.settings.session for one in listed) and query.cursor is None:
        listed.insert(0, SessionView.of(api.settings.session, None, api.settings, rows).model_dump())
    return page(
        "sessions.html",
        {
            "sessions": [(one, api.recent.usage.of(one["name"])) for one in listed],
            "cursor": query.cursor,
            "next_cursor": found.next_cursor,
            "may_forget": caller.allows("admin"),
            "now": time.time(),
        },
    )


FILES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "hx-sse.min.js": "text/javascript",
}
_FOLDER = Path(__file__).with_name("static")


def _shows(name: str, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def show() -> Response:
        # `no-cache`: another version of the proxy may be at this address later.
        return FileResponse(_FOLDER / name, headers=HEADERS | {"cache-control": "no-cache"}, media_type=media_type)

    return show


for _name, _kind in FILES.items():
    public.add_api_route(f"/console/static/{_name}", _shows(_name, _kind), include_in_schema=False)


def console_routes() -> ExtraRoutes:
    """All routes of the console, which are served at the control API's port."""
    groups = sign_in, requests, connect, turn, tools, filled_forms, changes
    return ExtraRoutes(
        [*router.routes, *(route for group in groups for route in group.router.routes)],
        public=[*sign_in.public.routes, *public.routes],
    )
