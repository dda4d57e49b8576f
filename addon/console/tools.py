"""The pages *Tools* and *Try a tool*."""

import re
import time
from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from addon.console.filled_forms import Filled, OrEmpty, declaration_of, entered
from addon.console.forms import Field, form_of
from addon.console.rendering import marked, page, whole_json
from addon.control.routes.servers import servers
from addon.control.routes.tools import Try, TryQuery, checked_changes, try_tool
from addon.control.versions import etag_of
from addon.control.views import tools_view
from addon.core.framing.documents import Document
from addon.core.tools.schema import schema_of
from addon.web.access import needs
from addon.web.api import ApiDep, CallerDep, OwnSession, own_query, routes_of
from addon.web.problems import Problem, parse, problem_of
from store.models import SessionName

router = routes_of("console")

_MOST_SESSIONS = 50
_MOST_CHANGES = 50
_LONGEST_EDITED = 1_000_000
"""The most characters of a toolset that a page can edit."""
_LINE = re.compile(r" at line ([0-9]{1,9}) column [0-9]+$")
"""The place in msgspec's message about invalid JSON."""


class _Session(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    session: OrEmpty[SessionName] = None


class _Edited(BaseModel):
    """`text`: the editor's contents. `version`: the ETag of the tools that were loaded into it."""

    model_config = ConfigDict(extra="forbid")

    text: str
    version: str = ""


class _Tool(_Session):
    name: str


@router.get("/console/parts/tools", include_in_schema=False)
@needs("read")
async def tools(api: ApiDep, caller: CallerDep, query: Annotated[_Session, own_query(_Session)]) -> Response:
    session = query.session or api.settings.session
    record, version, _ = await api.store.snapshot(session)
    async with api.audit.action(caller, "tools.read", session=session):
        view = tools_view(record.toolset if record else None, api.shared(), api.origin)
    others = (await api.store.sessions(limit=_MOST_SESSIONS)).items if caller.session is None else []
    editable = {"tools": view["tools"] or [], **({"tool_config": c} if (c := view["tool_config"]) else {})}
    names = sorted({session, *[one.name for one in others]})
    return page(
        "tools.html",
        {
            "session": session,
            "sessions": names,
            "view": view,
            "editable": whole_json(editable, _LONGEST_EDITED),
            "may_change": caller.allows("worker"),
            "may_try_all": caller.allows("admin"),
            "servers": servers(api) if caller.session is None else [],  # they belong to no session
            "may_restart": caller.allows("admin"),
            "etag": etag_of(api, version),
            "now": time.time(),
        },
    )


@router.post("/console/parts/tools-check", include_in_schema=False)
@needs("worker")
async def tools_check(
    api: ApiDep, caller: CallerDep, query: Annotated[_Session, own_query(_Session)], edited: Annotated[_Edited, Body()]
) -> Response:
    """What saving the text would change, or what is wrong with it, and where."""
    session = query.session or api.settings.session
    values: dict[str, Any] = {"problem": "", "line": None, "changes": [], "more": 0, "is_old": False}
    try:
        document = parse(edited.text.encode("utf-8", "surrogatepass"))
        changes, version = await checked_changes(api, caller, session, document)
        values |= {
            "changes": [(one, marked(one.diff.split("\n"))) for one in changes[:_MOST_CHANGES]],
            "more": len(changes) - _MOST_CHANGES,
            "is_old": edited.version != etag_of(api, version),
        }
    except Exception as error:
        problem = problem_of(error)
        if problem.status >= 500:
            raise
        line = _LINE.search(problem.detail)
        values |= {"problem": problem.detail.removeprefix("the body is "), "line": line and line[1]}
    return page("tools-check.html", values)


@router.get("/console/parts/try", include_in_schema=False)
@needs("worker")
async def try_page(api: ApiDep, caller: CallerDep, query: Annotated[_Tool, own_query(_Tool)]) -> Response:
    session = query.session or api.settings.session
    async with api.audit.action(caller, "tools.read", session=session):
        declaration = await declaration_of(api, session, query.name)
    if not declaration:
        raise Problem(404, f"session {session} has no tool {query.name}", tool=query.name)
    form, has_none = _arguments_form(declaration)
    return page("try.html", {"session": session, "tool": declaration, "form": form, "has_no_arguments": has_none})


@router.post("/console/sessions/{session}/tools/{name}/try", include_in_schema=False)
@needs("worker")
async def try_by_form(
    api: ApiDep,
    caller: CallerDep,
    request: Request,
    session: OwnSession,
    name: str,
    filled: Annotated[Filled, Body()],
) -> Response:
    """As the control API's `POST /v1/sessions/{session}/tools/{name}/try`."""
    form, _ = _arguments_form(await declaration_of(api, session, name))
    return await try_tool(api, caller, request, session, name, TryQuery(wait=0), Try(args=entered(form, filled)))


def _arguments_form(declaration: Document) -> tuple[Field | None, bool]:
    """The form of a tool's arguments, None if only JSON fits; and whether the tool takes no arguments."""
    schema = schema_of(declaration)
    if schema is None or not schema.get("properties"):
        return None, True
    form = form_of(schema)
    return (form if form is not None and form.kind == "object" else None), False
