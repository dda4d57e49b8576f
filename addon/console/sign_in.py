"""Sign-in of pages: with a token, or with a single-use link."""

from typing import Annotated

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from addon.web.access import OWNER, Access, needs
from addon.web.api import ApiContext, ApiDep, CallerDep, reply, routes_of
from addon.web.page_sessions import SESSION_TTL, PageSessions, cookie_name
from addon.web.problems import Problem

router = routes_of("console")
public = routes_of("console", is_public=True)


class Link(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: str = Field(max_length=100)


@router.post("/console/session", include_in_schema=False)
@needs("read", "approve")
async def sign_in(api: ApiDep, request: Request, caller: CallerDep) -> Response:
    """With the rights of the bearer token."""
    return _opened(_sessions(api), request, caller)


@public.post("/console/session/link", include_in_schema=False)
async def sign_in_by_link(api: ApiDep, request: Request, link: Annotated[Link, Body()]) -> Response:
    sessions = _sessions(api)
    if not sessions.use_link(link.code):
        raise Problem(401, "this link was used, or is too old. `toolgraft console` prints another")
    return _opened(sessions, request, OWNER)


@router.delete("/console/session", include_in_schema=False)
@needs("read", "approve")
async def sign_out(api: ApiDep, request: Request) -> Response:
    _sessions(api).end(_headers(request))
    response = Response(status_code=204)
    response.delete_cookie(cookie_name(_headers(request)), "/", httponly=True, samesite="strict")
    return response


@router.post("/console/links", include_in_schema=False)
async def new_link(api: ApiDep) -> Response:
    """The part of the console's URL that signs in once."""
    return reply({"path": f"/console#{_sessions(api).new_link()}"})


def _sessions(api: ApiContext) -> PageSessions:
    if api.page_sessions is None:
        raise Problem(409, "no token is required here (graft_token=off), so there is nothing to sign in to")
    return api.page_sessions


def _opened(sessions: PageSessions, request: Request, access: Access) -> Response:
    session = sessions.open(access)
    response = reply({"page_key": session.page_key})
    response.set_cookie(
        cookie_name(_headers(request)), session.cookie, SESSION_TTL, path="/", httponly=True, samesite="strict"
    )
    return response


def _headers(request: Request) -> dict[bytes, bytes]:
    return dict(request.scope["headers"])
