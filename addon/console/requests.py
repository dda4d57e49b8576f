"""The page *Live*, the last requests to models as they happen, each with its rounds and calls in order; and the page *A
request*: the client's body beside the body sent to the model, as curl, and as it would be sent now."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from addon.console.filled_forms import OrEmpty
from addon.console.rendering import LONGEST, marked, page
from addon.control.differences import differences
from addon.control.routes.requests import RequestsQuery, State, curl_of, find_bodies, find_record, records, replayed
from addon.core.framing.documents import Malformed, decode
from addon.monitoring.recent_requests import CleanRequest
from addon.web.access import needs
from addon.web.api import ApiContext, ApiDep, own_query, routes_of
from addon.web.problems import Problem
from store.models import SessionName

router = routes_of("console")

_MOST_BARS = 24
_WIDTH = 600.0
"""The width of a waterfall, in SVG units."""
_NARROWEST = 3.0
_SHORTEST_WAIT = 0.05
"""Seconds: a longer wait before a call gets a separate bar."""
_STATES = ("running", "done", "failed")


class _Live(RequestsQuery):
    session: OrEmpty[SessionName] = None
    tool: OrEmpty[str] = None
    state: OrEmpty[State] = None
    limit: int = Field(50, ge=1, le=1000)


@dataclass(frozen=True, slots=True)
class Bar:
    """`kind`: `round`, `call`, or `wait` (the time before a call runs). `state`: of a call. `x`, `width`: of _WIDTH."""

    kind: str
    label: str
    state: str
    began: float
    seconds: float
    x: float
    width: float
    call_id: str = ""


@router.get("/console/parts/live", include_in_schema=False)
@needs("read")
async def live(api: ApiDep, query: Annotated[_Live, own_query(_Live)]) -> Response:
    requests = [(one, waterfall(one)) for one in records(api, query)]
    values = {"requests": requests, "query": query, "states": _STATES, "forgotten": api.recent.forgotten}
    return page("live.html", values)


def waterfall(record: Mapping[str, Any]) -> list[Bar]:
    """The bars of a request's rounds and calls, in the order of their starts. Empty if it has one round and no call."""
    if len(record["round_times"]) < 2 and not record["calls"]:
        return []
    found = sorted(_bars(record), key=lambda bar: bar.began)
    return found[:_MOST_BARS]


def _bars(record: Mapping[str, Any]) -> Iterator[Bar]:
    whole = max(record["seconds"], 0.001)

    def place(began: float, seconds: float) -> tuple[float, float]:
        x = min(began / whole, 1.0) * (_WIDTH - _NARROWEST)
        return round(x, 1), round(max(_NARROWEST, min(seconds / whole * _WIDTH, _WIDTH - x)), 1)

    for number, one in enumerate(record["round_times"], 1):
        yield Bar("round", f"round {number}", "", one["began"], one["seconds"], *place(one["began"], one["seconds"]))
    for call in record["calls"]:
        if call["began"] is not None:
            began, seconds = call["began"], call["seconds"] or 0.0
            waited = seconds if call["waited"] is None and call["state"] == "running" else call["waited"] or 0.0
            if waited >= _SHORTEST_WAIT:
                yield Bar("wait", f"{call['name']} waits", "", began, waited, *place(began, waited), call["call_id"])
                began, seconds = began + waited, seconds - waited
                if call["waited"] is None:
                    continue  # not run yet
            yield Bar("call", call["name"], call["state"], began, seconds, *place(began, seconds), call["call_id"])


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
