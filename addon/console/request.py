"""The page *A request*: the client's body beside the body sent to the model, as curl, and as it would be sent now."""

import asyncio
import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from addon.console.live import waterfall
from addon.console.rendering import LONGEST, marked, page
from addon.control.differences import differences
from addon.control.routes.requests import curl_of, find_bodies, find_record, replayed
from addon.core.framing.documents import Malformed, decode
from addon.monitoring.recent_requests import CleanRequest
from addon.web.access import needs
from addon.web.api import ApiContext, ApiDep, own_query, routes_of
from addon.web.problems import Problem
from store.models import SessionName

router = routes_of("console")

_MOST_COMPARED = 1024 * 1024
"""The page shows the differences of bodies with at most this many bytes together. Comparing blocks the event loop."""


class _RequestId(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    request_id: str
    session: SessionName | None = None


@router.get("/console/parts/request", include_in_schema=False)
@needs("read")
async def request(api: ApiDep, query: Annotated[_RequestId, own_query(_RequestId)]) -> Response:
    record = find_record(api, query.request_id, query.session)
    return page("request.html", {"request": record, "bars": waterfall(record), **await bodies_of(api, record)})


@router.get("/console/parts/replay", include_in_schema=False)
@needs("read")
async def replay(api: ApiDep, query: Annotated[_RequestId, own_query(_RequestId)]) -> Response:
    found = await replayed(api, query.request_id, query.session)
    return page("replay.html", {"replayed": found, "lines": marked(found.differences)})


async def bodies_of(api: ApiContext, record: dict[str, Any]) -> dict[str, Any]:
    """A request's bodies for the page: `kept`, None if they are not available, and `why_not`; `curl` by side, None if
    too long or not text; `lines`, the marked diff, None if the bodies are too long."""
    try:
        found = find_bodies(api, record["request_id"], record["session"])
    except Problem as problem:
        return {"kept": None, "why_not": problem.detail, "curl": {}, "lines": None}
    await asyncio.sleep(0)
    is_small = found.client is found.sent or len(found.client) + len(found.sent) <= _MOST_COMPARED
    return {
        "kept": found,
        "why_not": "",
        "curl": {"sent": _curl(api, found, "sent"), "client": _curl(api, found, "client")},
        "lines": marked(_differences(found)) if is_small else None,
    }


def _curl(api: ApiContext, found: CleanRequest, side: str) -> str | None:
    if len(found.client if side == "client" else found.sent) > LONGEST:
        return None
    try:
        return curl_of(api, found, side)
    except Problem:
        return None


def _differences(found: CleanRequest) -> list[str]:
    if found.client is found.sent:
        return []
    return differences(_lines(found.client), _lines(found.sent), ("client", "sent"))


def _lines(body: bytes) -> str:
    """The body with one line for each value, for a diff."""
    try:
        return json.dumps(decode(body), indent=1, ensure_ascii=False)
    except (Malformed, RecursionError):
        return body.decode("utf-8", "replace")
