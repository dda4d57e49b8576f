"""Approvals: decisions on calls of tools that need approval."""

from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from addon.control import views
from addon.control.call_search import waiting_calls
from addon.control.routes.calls import redaction_of
from addon.control.versions import update_session
from addon.web.access import needs
from addon.web.api import (
    ApiDep,
    CallerDep,
    OwnCall,
    OwnSession,
    answers,
    body_example,
    nothing,
    own_body,
    reply,
    routes_of,
)
from addon.web.problems import Problem, storable_json
from store.base import CallStateError, UnknownCall
from store.models import Call, Policy, Session, SessionName

router = routes_of("approvals")

_NOT_NOW = "The call is not waiting for approval, was decided differently, or has expired because its waiter is gone"


class Approval(BaseModel):
    model_config = ConfigDict(extra="forbid")

    args: dict[str, Any] | None = Field(
        None, description="Arguments that the call runs with instead of the model's. The model is told so."
    )
    always: bool = Field(
        False, description="Later calls of the tool in this session need no approval, until the tool changes."
    )


class Denial(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = Field("", max_length=1000, description="The reason, for the model.")


class Denials(Denial):
    call_ids: list[str] | None = Field(None, max_length=500, description="Only these calls.")
    session: SessionName | None = Field(None, description="Only calls of this session.")
    name: str | None = Field(None, description="Only calls of this tool.")


class Denied(BaseModel):
    """`more`: further calls match the request and still wait. Repeat the request to deny them."""

    denied: list[str] = Field(description="The ids of the calls.")
    more: bool


_MOST_DENIED = 500
"""The most calls that one request denies."""
_APPROVAL = Approval(args=None, always=False)
_DENIAL = Denial(reason="")


@router.post(
    "/v1/calls/{call_id}/approve",
    summary="Approve a call that waits for it",
    responses=answers(views.CALL | {"approval": "approved"}, Call, p404="No such call", p409=_NOT_NOW),
    openapi_extra=body_example({"args": {"city": "Bergen"}}),
)
@needs("approve")
async def approve_call(
    api: ApiDep, caller: CallerDep, call_id: OwnCall, approval: Annotated[Approval, Body()] = _APPROVAL
) -> Response:
    """The call may run now, with the model's arguments or, if `args` are given, with those. Repeating the same decision
    is accepted and changes nothing. `always` is for the scope `admin`."""
    if approval.always:
        caller.check("admin")
    before = await api.store.find_call(call_id)
    args = approval.args
    if args is not None and api.problems is not None:
        if problems := await api.problems(before.session, before.name, args):
            raise Problem(422, f"args: do not fit the parameters of {before.name}: {'; '.join(problems)}", field="args")
    version = await _version(api, before) if approval.always else ""
    changed = None if args is None else "args"
    line = {
        "session": before.session,
        "call_id": call_id,
        "tool": before.name,
        "changed": changed,
        "always": approval.always or None,
    }
    async with api.audit.action(caller, "call.approve", flush_first=True, **line):
        with storable_json():
            call = await api.store.decide(before.session, call_id, True, args=args)
        if approval.always:
            await _approve_always(api, call, version)
    await api.store.sync()
    return reply(call)


async def _version(api: ApiDep, call: Call) -> str:
    """The version of the call's tool. Raises Problem (409)."""
    version = "" if api.tool_version is None else await api.tool_version(call.session, call.name)
    if not version:
        raise Problem(409, f"always: the session no longer has tools, so {call.name} cannot be approved for good")
    return version


async def _approve_always(api: ApiDep, call: Call, version: str) -> None:
    async def change(before: Session | None, at: int) -> Session:
        policy = before.policy if before else Policy()
        approved = {**(policy.always_approved or {}), call.name: version}
        return await api.store.put_policy(
            call.session, policy.model_copy(update={"always_approved": approved}), if_version=at
        )

    await update_session(api, None, call.session, change)


@router.delete(
    "/v1/sessions/{session}/always_approved/{name}",
    summary="Let a tool's calls wait for approvals again",
    status_code=204,
    responses=nothing("Later calls of the tool need approvals as its rules say; also if it was not approved for good."),
)
async def ask_again(api: ApiDep, caller: CallerDep, request: Request, session: OwnSession, name: str) -> Response:
    async def change(before: Session | None, at: int) -> None:
        approved = dict(before.policy.always_approved or {}) if before else {}
        if before is None or approved.pop(name, None) is None:
            return
        policy = before.policy.model_copy(update={"always_approved": approved or None})
        await api.store.put_policy(session, policy, if_version=at)

    async with api.audit.action(caller, "approvals.ask", session=session, tool=name):
        await update_session(api, request, session, change)
    return Response(status_code=204)


@router.post(
    "/v1/calls/{call_id}/deny",
    summary="Deny a call that waits for an approval",
    responses=answers(views.DENIED, Call, p404="No such call", p409=_NOT_NOW),
    openapi_extra=body_example({"reason": "not in production"}),
)
@needs("approve")
async def deny_call(
    api: ApiDep, caller: CallerDep, request: Request, call_id: OwnCall, denial: Annotated[Denial, Body()] = _DENIAL
) -> Response:
    """The call never runs, and the model is told so. Repeating the same decision is accepted and changes nothing."""
    before = await api.store.find_call(call_id)
    async with api.audit.action(caller, "call.deny", session=before.session, call_id=call_id, tool=before.name):
        reason = redaction_of(request).text(denial.reason)
        call = await api.store.decide(before.session, call_id, False, reason=reason)
    if call.status != before.status:
        api.metrics.count_ended(call.status)
    await api.store.sync()
    return reply(call)


@router.post(
    "/v1/approvals/deny",
    summary="Deny all calls that wait for an approval",
    responses=answers({"denied": ["call_5f0c"], "more": False}, Denied),
    openapi_extra=body_example({"session": "default", "name": "delete_file", "reason": "not in production"}),
)
@needs("approve")
async def deny_calls(
    api: ApiDep, caller: CallerDep, request: Request, denials: Annotated[Denials, own_body(Denials)]
) -> Response:
    """These calls, those of a session, of a tool, or all: the oldest 500. A call that is decided otherwise meanwhile
    stays as it is. If the store fails, some are denied and the others still wait: repeat the request."""
    reason = redaction_of(request).text(denials.reason)
    waiting = waiting_calls(api.store, denials.session, name=denials.name)
    found = [call async for call in _first(waiting, denials.call_ids)]
    denied: list[str] = []
    for call in found[:_MOST_DENIED]:
        with suppress(CallStateError, UnknownCall):
            async with api.audit.action(
                caller, "call.deny", session=call.session, call_id=call.call_id, tool=call.name
            ):
                after = await api.store.decide(call.session, call.call_id, False, reason=reason)
            api.metrics.count_ended(after.status)
            denied.append(call.call_id)
    await api.store.sync()
    return reply(Denied(denied=denied, more=len(found) > _MOST_DENIED))


async def _first(calls: AsyncIterator[Call], call_ids: Collection[str] | None) -> AsyncIterator[Call]:
    """As many calls as one request denies, and one more if others remain. `call_ids`: only these; None: all."""
    count = 0
    async for call in calls:
        if call_ids is not None and call.call_id not in call_ids:
            continue
        yield call
        count += 1
        if count > _MOST_DENIED:
            return
