"""The ledger: the turns that clients received, and the true turns behind them."""

import functools
from typing import Annotated

from pydantic import Field
from starlette.responses import Response

from addon.control import views
from addon.control.paging import PageQuery, render_page
from addon.control.views import TurnView
from addon.web.access import needs
from addon.web.describe import Group, answers
from addon.web.routing import ApiDep, Query
from store.models import Page, SessionName

router = Group("turns")


class TurnsQuery(PageQuery):
    session: SessionName | None = Field(None, description="The session; the proxy's own (`graft_session`) if absent.")


@router.get(
    "/v1/turns",
    summary="List a session's turns, newest last",
    responses=answers({"items": [views.TURN], "next_cursor": None}, Page[TurnView]),
)
@needs("read")
async def list_turns(api: ApiDep, query: Annotated[TurnsQuery, Query()]) -> Response:
    fetch = functools.partial(api.store.turns, query.session or api.settings.session)
    return (await render_page(fetch, query, TurnView.of)).response()
