"""Sessions and their policy, and the ledger: the turns that clients received, and the true turns behind them."""

import functools
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

from fastapi import Body, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from addon.control import views
from addon.control.paging import PageQuery, render_page
from addon.control.versions import IF_MATCH, update_session, with_etag
from addon.control.views import SessionView, TurnView
from addon.web.access import needs
from addon.web.api import ApiDep, CallerDep, OwnSession, answers, body_example, nothing, own_query, reply, routes_of
from addon.web.problems import Problem
from store.base import Store
from store.models import Call, Page, Policy, Session, SessionName, Turn

router = routes_of("sessions")


@router.get(
    "/v1/sessions",
    summary="List sessions by name",
    responses=answers({"items": [views.SESSION], "next_cursor": None}, Page[SessionView]),
)
@needs("read")
async def list_sessions(api: ApiDep, query: Annotated[PageQuery, Query()]) -> Response:
    """Sessions that have a policy or a toolset."""
    settings, rows = api.settings, api.setting_rows()
    page = await render_page(api.store.sessions, query, lambda found: SessionView.of(found.name, found, settings, rows))
    return page.response()


@router.get("/v1/sessions/{session}", summary="Show a session", responses=answers(views.SESSION, SessionView))
@needs("read")
async def show_session(api: ApiDep, session: OwnSession) -> Response:
    """A session without a policy shows the proxy's options. The `ETag` identifies the session's version,
    including its tools."""
    record, version, _ = await api.store.snapshot(session)
    return with_etag(reply(SessionView.of(session, record, api.settings, api.setting_rows())), api, version)


class CallCounts(BaseModel):
    """By the state that each call had when its request ended."""

    done: int
    failed: int
    waiting: int = Field(description="For an answer by hand or a worker.")
    running: int = Field(description="Nobody knows their end.")
    client: int = Field(description="The client ran them.")


class UsageView(BaseModel):
    """The usage of the session's ended requests."""

    session: str
    since: float = Field(description="Unix time from which on everything is counted, as a rule the proxy's start.")
    requests: int
    failed: int = Field(description="Those of `requests` whose client got no good answer.")
    prompt_tokens: int
    output_tokens: int
    calls: CallCounts
    last_used_at: float | None = Field(description="Unix time of the last end of a request. null: there was none.")


@router.get(
    "/v1/sessions/{session}/usage",
    summary="Show what a session has used since the start",
    responses=answers(views.USAGE, UsageView),
)
@needs("read")
async def show_usage(api: ApiDep, session: OwnSession) -> Response:
    """Requests, tokens and calls of a session, from memory: a restart forgets them, and only the 1000 sessions that
    were used last are known. Open Live connections are not counted yet, and only Gemini
    tells tokens in a form that is counted."""
    return reply({"session": session, **asdict(api.recent.usage.of(session))})


@router.patch(
    "/v1/sessions/{session}",
    summary="Change a session's policy",
    responses=answers(views.SESSION, SessionView, p412="The session has changed since"),
    openapi_extra={**body_example({"delivery": "placeholder", "on_pending": None}), "parameters": [IF_MATCH]},
)
async def change_session(
    api: ApiDep, caller: CallerDep, request: Request, session: OwnSession, policy: Annotated[Policy, Body()]
) -> Response:
    """Absent fields stay unchanged; null resets a field to the proxy's option."""
    changes = policy.model_dump(include=policy.model_fields_set)

    async def change(before: Session | None, version: int) -> Session:
        merged = (before.policy if before else Policy()).model_copy(update=changes)
        return await api.store.put_policy(session, merged, if_version=version)

    async with api.audit.action(caller, "session.change", session=session, policy=sorted(changes)):
        after = await update_session(api, request, session, change)
    return with_etag(reply(SessionView.of(session, after, api.settings, api.setting_rows())), api, after.version)


@router.delete(
    "/v1/sessions/{session}",
    summary="Forget a session",
    status_code=204,
    responses=nothing(
        "The session is deleted, with its tools, calls and turns; also if it did not exist.",
        p412="The session has changed since",
    ),
    openapi_extra={"parameters": [IF_MATCH]},
)
async def forget_session(api: ApiDep, caller: CallerDep, request: Request, session: OwnSession) -> Response:
    async def forget(_: Session | None, version: int) -> None:
        await api.store.delete_session(session, if_version=version)

    async with api.audit.action(caller, "session.forget", session=session):
        await update_session(api, request, session, forget)
    return Response(status_code=204)


turns = routes_of("turns")


class TurnsQuery(PageQuery):
    session: SessionName | None = Field(None, description="The session; the proxy's own (`graft_session`) if absent.")


@turns.get(
    "/v1/turns",
    summary="List a session's turns, newest last",
    responses=answers({"items": [views.TURN], "next_cursor": None}, Page[TurnView]),
)
@needs("read")
async def list_turns(api: ApiDep, query: Annotated[TurnsQuery, own_query(TurnsQuery)]) -> Response:
    fetch = functools.partial(api.store.turns, query.session or api.settings.session)
    return (await render_page(fetch, query, TurnView.of)).response()


class TurnQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    session: SessionName | None = Field(None, description="The session; the proxy's own (`graft_session`) if absent.")


@turns.get(
    "/v1/turns/{turn_id}",
    summary="Show a turn",
    responses=answers(views.TURN, TurnView, p404="The session has no such turn"),
)
@needs("read")
async def show_turn(api: ApiDep, turn_id: str, query: Annotated[TurnQuery, own_query(TurnQuery)]) -> Response:
    return reply(TurnView.of((await find_turn(api.store, query.session or api.settings.session, turn_id))[0]))


async def find_turn(store: Store, session: str, turn_id: str) -> tuple[Turn, Mapping[str, Call]]:
    """The turn, and its calls by id. Raises Problem (404)."""
    found = await store.look_up(session, turn_ids=[turn_id])
    if turn_id not in found.turns:
        raise Problem(404, f"the session {session} has no such turn")
    return found.turns[turn_id], found.calls
