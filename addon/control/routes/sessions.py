"""Sessions and their policy."""

from typing import Annotated

from fastapi import Body, Query
from starlette.responses import Response

from addon.control import views
from addon.control.describe import answers, body_example, group, nothing
from addon.control.paging import PageQuery, render_page
from addon.control.routing import Here, reply
from addon.control.views import SessionView
from store.models import Page, Policy, SessionName

router = group("sessions")


@router.get(
    "/v1/sessions",
    summary="List sessions by name",
    responses=answers({"items": [views.SESSION], "next_cursor": None}, Page[SessionView]),
)
async def list_sessions(api: Here, query: Annotated[PageQuery, Query()]) -> Response:
    """Those that something was set for."""
    page = await render_page(api.store.sessions, query, lambda found: SessionView.of(found.name, found, api.settings))
    return page.response()


@router.get("/v1/sessions/{session}", summary="Show a session", responses=answers(views.SESSION, SessionView))
async def show_session(api: Here, session: SessionName) -> Response:
    """A session that nothing was set for shows the proxy's options."""
    return reply(SessionView.of(session, await api.store.session(session), api.settings))


@router.patch(
    "/v1/sessions/{session}",
    summary="Change a session's policy",
    responses=answers(views.SESSION, SessionView),
    openapi_extra=body_example({"delivery": "placeholder", "on_pending": None}),
)
async def change_session(api: Here, session: SessionName, policy: Annotated[Policy, Body()]) -> Response:
    """Fields that are not given stay as they are; null resets one to the proxy's option."""
    async with api.session_lock:
        before = await api.store.session(session)
        changes = policy.model_dump(include=policy.model_fields_set)
        merged = (before.policy if before else Policy()).model_copy(update=changes)
        after = await api.store.put_policy(session, merged)
    return reply(SessionView.of(session, after, api.settings))


@router.delete(
    "/v1/sessions/{session}",
    summary="Forget a session",
    status_code=204,
    responses=nothing("The session is gone, with its tools, calls and turns; also where there was none."),
)
async def forget_session(api: Here, session: SessionName) -> Response:
    await api.store.delete_session(session)
    return Response(status_code=204)
