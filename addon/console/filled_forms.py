"""Submitted forms of the console, as requests to the control API. The fields become JSON here, because a browser would
round large numbers."""

from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, BeforeValidator, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from addon.console.forms import BadFields, Field, form_of, value_of
from addon.control.routes.calls import Answer, answer_call, check_may_answer
from addon.core.framing.documents import Document
from addon.core.tools.schema import schema_of
from addon.graft.session_config import shared_with
from addon.web.access import needs
from addon.web.api import ApiContext, ApiDep, CallerDep, OwnCall, routes_of
from addon.web.problems import Problem
from store.models import Call

router = routes_of("console")


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


type OrEmpty[T] = Annotated[T | None, BeforeValidator(_none_if_empty)]
"""A query's field that accepts an empty input."""


class Filled(BaseModel):
    """`fields`: the entered texts, by the fields' names."""

    model_config = ConfigDict(extra="forbid")

    fields: dict[str, str]


@router.post("/console/calls/{call_id}/result", include_in_schema=False)
@needs("worker")
async def answer_by_form(
    api: ApiDep, caller: CallerDep, request: Request, call_id: OwnCall, filled: Annotated[Filled, Body()]
) -> Response:
    """As the control API's `POST /v1/calls/{call_id}/result`."""
    call = await api.store.find_call(call_id)
    check_may_answer(caller, call)
    form = await answer_form(api, call)
    return await answer_call(api, caller, request, call_id, Answer.model_validate({"result": entered(form, filled)}))


async def answer_form(api: ApiContext, call: Call) -> Field | None:
    """The form of a call's result. None: its tool has no schema for it, or only JSON fits."""
    schema = schema_of(await declaration_of(api, call.session, call.name), "response")
    return None if schema is None else form_of(schema)


async def declaration_of(api: ApiContext, session: str, name: str) -> Document:
    """The session's tool of this name; empty if it has none."""
    record, _, _ = await api.store.snapshot(session)
    toolset = record.toolset if record is not None else None
    own = toolset.declarations if toolset is not None else []
    found = (one for one in [*own, *shared_with(toolset, api.shared())] if one["name"] == name)
    return next(found, {})


def entered(form: Field | None, filled: Filled) -> Any:
    """The value. Raises Problem (409, 422), with the errors by the fields' names in its member `fields`."""
    if form is None:
        raise Problem(409, "the tool has changed and no longer has a form: reload the page")
    try:
        return value_of(form, filled.fields)
    except BadFields as error:
        raise Problem(422, str(error), fields=error.problems) from None
