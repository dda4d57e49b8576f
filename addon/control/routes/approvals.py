"""Approvals: decisions on calls of tools that need approval."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from addon.control import views
from addon.control.secrets import redaction_of
from addon.control.versions import update_session
from addon.web.access import needs
from addon.web.describe import Group, answers, body_example, nothing
from addon.web.problems import Problem, storable_json
from addon.web.routing import ApiDep, Body, CallerDep, reply
from store.models import Call, Policy, Session, SessionName

router = Group("approvals")

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
    api: ApiDep, caller: CallerDep, call_id: str, approval: Annotated[Approval, Body()] = _APPROVAL
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
            await _approve_always(api, call)
    await api.store.sync()
    return reply(call)


async def _approve_always(api: ApiDep, call: Call) -> None:
    version = "" if api.tool_version is None else await api.tool_version(call.session, call.name)
    if not version:
        raise Problem(409, f"always: the session no longer has tools, so {call.name} cannot be approved for good")

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
async def ask_again(api: ApiDep, caller: CallerDep, request: Request, session: SessionName, name: str) -> Response:
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
    api: ApiDep, caller: CallerDep, request: Request, call_id: str, denial: Annotated[Denial, Body()] = _DENIAL
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
