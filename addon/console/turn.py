"""The page *A turn*: the visible turn beside its true turns, with the differences marked."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from addon.console.rendering import LONGEST, Room, page
from addon.console.requests import bodies_of
from addon.control.routes.requests import RequestsQuery, records
from addon.control.routes.sessions import find_turn
from addon.control.views import TurnView
from addon.core.framing.documents import Document
from addon.web.access import needs
from addon.web.api import ApiDep, own_query, routes_of
from store.models import Call, SessionName, Step

router = routes_of("console")


class _TurnId(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    turn_id: str
    session: SessionName | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """`text`: for a part that is only text; otherwise `json`. `mark`: the proxy's change; "": none."""

    text: str | None
    json: Document
    mark: str


@router.get("/console/parts/turn", include_in_schema=False)
@needs("read")
async def turn(api: ApiDep, query: Annotated[_TurnId, own_query(_TurnId)]) -> Response:
    found, calls = await find_turn(api.store, query.session or api.settings.session, query.turn_id)
    passes = found.delivery == "passthrough"
    query_of_turn = RequestsQuery(session=found.session, tool=None, state=None, turn_id=found.turn_id, limit=1)
    requests = records(api, query_of_turn)
    return page(
        "turn.html",
        {
            "turn": TurnView.of(found).model_dump(mode="json"),
            "visible": [visible_part(one, found.turn_id) for one in found.visible],
            "steps": [{"parts": true_parts(step, passes=passes), "calls": _calls(step, calls)} for step in found.steps],
            "room": Room(8000),
            "longest": LONGEST,
            "now": time.time(),
            "request": requests[0] if requests else None,
            **(await bodies_of(api, requests[0]) if requests else {}),
        },
    )


def visible_part(part: Document, turn_id: str) -> Part:
    is_placeholder = isinstance(text := part.get("text"), str) and turn_id in text
    return _part(part, "put in: the text in place of the calls" if is_placeholder else "")


def true_parts(step: Step, *, passes: bool) -> list[Part]:
    """The model's parts of a round. `passes`: the client receives the calls."""
    parts = step.content.get("parts")
    found = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    own = [slot.call_id is None for slot in step.slots]  # the client's own, in the order of the calls
    marked, number = [], 0
    for part in found:
        mark = ""
        if "functionCall" in part:
            is_clients = number < len(own) and own[number]
            number += 1
            mark = "" if passes or is_clients else "taken out: the client does not see this call"
        marked.append(_part(part, mark))
    return marked


def _part(part: Document, mark: str) -> Part:
    text = part.get("text")
    return Part(text if isinstance(text, str) and len(part) == 1 else None, part, mark)


def _calls(step: Step, calls: Mapping[str, Call]) -> list[dict[str, Any]]:
    return [
        {"name": slot.name, "call_id": slot.call_id, "record": calls.get(slot.call_id or "")} for slot in step.slots
    ]
