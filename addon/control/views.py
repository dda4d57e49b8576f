"""The control API's views of the store's records, with an example of each.

Calls are shown as stored. Sessions are shown with their effective policy, and turns without fields that only the ledger
needs.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Self

import pydantic_core
from pydantic import BaseModel, Field, ValidationError

from addon.graft.session_config import effective_policy, shared_with
from addon.settings import Settings
from store.models import Call, Delivery, Document, Event, Policy, Session, Toolset, Turn


class SessionView(BaseModel):
    """A session and its effective policy: its own settings, and the proxy's options for the rest."""

    name: str
    client_tools: Literal["strip", "keep"]
    delivery: Delivery
    on_pending: Literal["pass", "wait", "block"]
    pending_timeout: float
    max_rounds: int
    parallel: int
    tool_timeout: float
    approval_timeout: float
    answer_timeout: float
    proof: Literal["judged", "strict"]
    askers: Literal["each", "one"]
    always_approved: list[str] = Field(
        description="The tools whose calls wait for no approval, as long as the tools stay as they are."
    )
    overrides: list[str] = Field(description="The policy fields that are set for this session.")
    origins: dict[str, Literal["session", "option", "default"]] = Field(
        description="Whether each policy field is set for this session, by an option of the proxy, or by default."
    )
    tools: int | None = Field(description="The number of tools in the session's own toolset; null: it has no toolset.")
    created_at: float | None
    updated_at: float | None

    @classmethod
    def of(cls, name: str, session: Session | None, settings: Settings, rows: Sequence[Document] = ()) -> Self:
        """`rows`: the proxy's options, each with its source."""
        policy = session.policy if session else Policy()
        own = policy.model_dump(include=set(Policy.options()), exclude_none=True)
        given = {row["name"].removeprefix("graft_") for row in rows if row["source"] != "default"}
        toolset = session.toolset if session else None
        return cls(
            name=name,
            **effective_policy(policy, settings),
            always_approved=sorted(policy.always_approved or ()),
            overrides=list(own),
            origins={
                field: "session" if field in own else "option" if field in given else "default"
                for field in Policy.options()
            },
            tools=None if toolset is None else len(toolset.declarations) + len(toolset.builtins),
            created_at=session.created_at if session else None,
            updated_at=session.updated_at if session else None,
        )


class SlotView(BaseModel):
    """One call of a step. `call_id` null: a call of the client's own tool."""

    name: str
    call_id: str | None


class StepView(BaseModel):
    """A true model Content, and its calls in order."""

    content: Document
    calls: list[SlotView]


class TurnView(BaseModel):
    """A turn as the client received it (`visible`) and as the model said it (`true`), by rounds."""

    turn_id: str
    session: str
    visible: list[Document]
    true: list[StepView]
    rounds: int
    usage: list[Document] = Field(description="usageMetadata of each round.")
    delivery: str
    delivered: bool = Field(description="Whether the client received the whole turn.")
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
    """An event's data: a turn in the form of `/v1/turns`, otherwise the stored record."""
    if not event.type.startswith("turn."):
        return event.data
    try:
        turn = Turn.model_validate_json(pydantic_core.to_json(event.data), extra="ignore")
    except ValidationError:  # written by another version: must not end the stream
        return event.data
    return TurnView.of(turn).model_dump(mode="json")


class Origin(BaseModel):
    source: str = Field(description="The tools file or the MCP server.")
    rules: Document = Field(description="How calls are run, as far as the source says.")


class ToolsView(BaseModel):
    """A toolset in Gemini's form. The rules for running a tool are in its declaration and never go upstream; values of
    executors' headers are masked."""

    tools: list[Document] | None = Field(description="null: no toolset is set for the session.")
    tool_config: Document | None
    shared: list[Document] = Field(
        description="Tools from the proxy's files and MCP servers, which the session has as well. `PUT` ignores them."
    )
    origins: dict[str, Origin] = Field(description="Of the `shared` tools, by name. `PUT` ignores them.")


def tools_view(
    toolset: Toolset | None, shared: Sequence[Document], origin: Callable[[str], Document | None]
) -> Document:
    """The toolset as a document that PUT accepts unchanged; secrets are masked. `shared`: the proxy's own tools;
    `origin` returns the `Origin` of one of them, None if the tool is gone."""
    besides = shared_with(toolset, shared)
    found = ((one["name"], origin(one["name"])) for one in besides)
    ignored = {"shared": besides, "origins": {name: known for name, known in found if known is not None}}
    if toolset is None:
        return {"tools": None, "tool_config": None, **ignored}
    rules = {name: r.model_dump(mode="json", exclude_defaults=True) for name, r in toolset.masked().rules.items()}
    declarations = [{**declaration, **rules.get(declaration["name"], {})} for declaration in toolset.declarations]
    functions: Sequence[Document] = [{"functionDeclarations": declarations}] if declarations else []
    return {"tools": [*functions, *toolset.builtins], "tool_config": toolset.tool_config, **ignored}


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
    "attempts": 1,
    "started_at": 1767225601.5,
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
    "answer_timeout": 300.0,
    "proof": "judged",
    "askers": "each",
    "always_approved": [],
    "overrides": ["delivery"],
    "tools": 1,
    "created_at": 1767225600.0,
    "updated_at": 1767225600.0,
}
USAGE: Document = {
    "session": "default",
    "since": 1767225600.0,
    "requests": 12,
    "failed": 1,
    "prompt_tokens": 14210,
    "output_tokens": 2304,
    "calls": {"done": 9, "failed": 1, "waiting": 1, "running": 0, "client": 0},
    "last_used_at": 1767229200.0,
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
SHOWN_TOOLS: Document = TOOLS | {
    "shared": [{"name": "get_time", "description": "The time in a zone."}],
    "origins": {"get_time": {"source": "MCP server 'clock'", "rules": {"timeout": 5.0}}},
}
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
