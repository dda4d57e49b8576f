"""The ledger: the turns that clients received, and the true turns behind them."""

import functools
from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from addon.control import views
from addon.control.paging import PageQuery, render_page
from addon.control.views import TurnView
from addon.web.access import needs
from addon.web.api import ApiDep, answers, own_query, reply, routes_of
from addon.web.problems import Problem
from store.base import Store
from store.models import Call, Page, SessionName, Turn

router = routes_of("turns")


class TurnsQuery(PageQuery):
    session: SessionName | None = Field(None, description="The session; the proxy's own (`graft_session`) if absent.")


@router.get(
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


@router.get(
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
