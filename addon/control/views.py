"""What the control API shows of the store's records, and an example of each.

Calls are shown as they are kept. Sessions and turns are shown in other words than the store's: with what holds in
effect, and without what only the ledger needs.
"""

from collections.abc import Sequence
from typing import Literal, Self

import pydantic_core
from pydantic import BaseModel, Field, ValidationError

from addon.graft.session_config import shared_with
from addon.settings import Settings
from store.models import Call, Document, Event, Policy, Session, Toolset, Turn


class SessionView(BaseModel):
    """A session and its policy as it holds: what was set for it, and the proxy's options for the rest."""

    name: str
    client_tools: Literal["strip", "keep"]
    delivery: Literal["auto", "placeholder", "loop", "passthrough"]
    on_pending: Literal["pass", "wait", "block"]
    pending_timeout: float
    max_rounds: int
    parallel: int
    tool_timeout: float
    approval_timeout: float
    overrides: list[str] = Field(description="The policy fields that were set for this session itself.")
    tools: int | None = Field(description="How many tools the session's own toolset holds; null: it has none.")
    created_at: float | None
    updated_at: float | None

    @classmethod
    def of(cls, name: str, session: Session | None, settings: Settings) -> Self:
        policy = session.policy if session else Policy()
        chosen = policy.model_dump(exclude_none=True)
        toolset = session.toolset if session else None
        return cls(
            name=name,
            **{field: chosen.get(field, getattr(settings, field)) for field in Policy.model_fields},
            overrides=list(chosen),
            tools=None if toolset is None else len(toolset.declarations) + len(toolset.builtins),
            created_at=session.created_at if session else None,
            updated_at=session.updated_at if session else None,
        )


class SlotView(BaseModel):
    """`call_id` null: a call of the client's own tool."""

    name: str
    call_id: str | None


class StepView(BaseModel):
    """A model Content as the model said it, and its calls in order."""

    content: Document
    calls: list[SlotView]


class TurnView(BaseModel):
    """What a client was given for a turn (`visible`), and what the model really said (`true`), round by round."""

    turn_id: str
    session: str
    visible: list[Document]
    true: list[StepView]
    rounds: int
    usage: list[Document] = Field(description="usageMetadata, round by round.")
    delivery: str
    delivered: bool = Field(description="Whether the client was given the turn to its end.")
    model: str
    surface: str
    created_at: float

    @classmethod
    def of(cls, turn: Turn) -> Self:
        return cls(
            turn_id=turn.turn_id,
            session=turn.session,
            visible=turn.visible,
            true=[
                StepView(content=s.content, calls=[SlotView(name=c.name, call_id=c.call_id) for c in s.slots])
                for s in turn.steps
            ],
            rounds=len(turn.steps),
            usage=turn.usage,
            delivery=turn.delivery,
            delivered=turn.delivered,
            model=turn.model,
            surface=turn.surface,
            created_at=turn.created_at,
        )


def event_data(event: Event) -> Document:
    """What an event tells: of a turn what `/v1/turns` shows of it, of anything else the record as it is kept."""
    if not event.type.startswith("turn."):
        return event.data
    try:
        turn = Turn.model_validate_json(pydantic_core.to_json(event.data), extra="ignore")
    except ValidationError:  # of another version, which is no reason to end the stream
        return event.data
    return TurnView.of(turn).model_dump(mode="json")


class ToolsView(BaseModel):
    """A toolset in Gemini's form. How a tool is run stands in its declaration, and never goes upstream; values of
    executors' headers are masked."""

    tools: list[Document] | None = Field(description="null: the session has no toolset of its own.")
    tool_config: Document | None
    shared: list[Document] = Field(
        description="Tools of the proxy's files and MCP servers that the session has besides. `PUT` ignores it."
    )


def tools_view(toolset: Toolset | None, shared: Sequence[Document]) -> Document:
    """The toolset as a document that PUT takes back unchanged; secrets are masked. `shared`: the proxy's own tools."""
    besides = shared_with(toolset, shared)
    if toolset is None:
        return {"tools": None, "tool_config": None, "shared": besides}
    rules = {name: r.model_dump(mode="json", exclude_defaults=True) for name, r in toolset.masked().rules.items()}
    declarations = [{**declaration, **rules.get(declaration["name"], {})} for declaration in toolset.declarations]
    functions: Sequence[Document] = [{"functionDeclarations": declarations}] if declarations else []
    return {"tools": [*functions, *toolset.builtins], "tool_config": toolset.tool_config, "shared": besides}


class Health(BaseModel):
    status: Literal["ok"]
    version: str


CALL: Document = Call(
    call_id="call_5d0c2f",
    session="default",
    name="get_weather",
    args={"city": "Oslo"},
    owner="workers",
    released=True,
    turn_id="turn_4f2a91",
    gemini_id="x1",
    model="gemini-3-flash",
    surface="developer",
    created_at=1767225600.0,
    updated_at=1767225600.0,
).model_dump(mode="json")
CLAIMED: Document = CALL | {
    "status": "running",
    "worker": "worker-1",
    "lease_until": 1767225631.5,
    "updated_at": 1767225601.5,
}
DENIED: Document = CALL | {
    "status": "denied",
    "approval": "denied",
    "error": "the call was denied: not in production",
    "updated_at": 1767225604.2,
}
ANSWERED: Document = CALL | {"status": "done", "result": {"celsius": -3}, "updated_at": 1767225604.2}
SESSION: Document = {
    "name": "default",
    "client_tools": "strip",
    "delivery": "placeholder",
    "on_pending": "pass",
    "pending_timeout": 30.0,
    "max_rounds": 10,
    "parallel": 8,
    "tool_timeout": 30.0,
    "approval_timeout": 300.0,
    "overrides": ["delivery"],
    "tools": 1,
    "created_at": 1767225600.0,
    "updated_at": 1767225600.0,
}
DECLARATION: Document = {
    "name": "get_weather",
    "description": "The weather of a city, now.",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
}
TOOLS: Document = {
    "tools": [{"functionDeclarations": [DECLARATION | {"executor": {"type": "worker"}, "timeout": 5.0}]}],
    "tool_config": {"functionCallingConfig": {"mode": "AUTO"}},
}
SHOWN_TOOLS: Document = TOOLS | {"shared": [{"name": "get_time", "description": "The time in a zone."}]}
TURN: Document = {
    "turn_id": "turn_4f2a91",
    "session": "default",
    "visible": [{"text": "Tool call completed: get_weather [turn_4f2a91]"}],
    "true": [
        {
            "content": {
                "role": "model",
                "parts": [{"functionCall": {"name": "get_weather", "args": {"city": "Oslo"}}}],
            },
            "calls": [{"name": "get_weather", "call_id": "call_5d0c2f"}],
        }
    ],
    "rounds": 1,
    "usage": [{"totalTokenCount": 42}],
    "delivery": "placeholder",
    "delivered": True,
    "model": "gemini-3-flash",
    "surface": "developer",
    "created_at": 1767225600.0,
}
