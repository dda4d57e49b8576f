"""The records that the store keeps, as pydantic models.

Times are seconds since the epoch (float). Documents (`dict`) are Gemini JSON as it travelled, never interpreted here.
"""

import enum
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SESSION_PATTERN = r"[A-Za-z0-9_.-]{1,64}"
SESSION_FORM = f"a name of the form {SESSION_PATTERN}, and not only dots"
SESSION_NAME = re.compile(rf"(?!\.+\Z){SESSION_PATTERN}")
"""For `fullmatch`. A URL cannot address `.` and `..`: clients resolve them before they ask."""


def _not_only_dots(name: str) -> str:
    if not name.strip("."):
        raise ValueError(f"must be {SESSION_FORM}")
    return name


# pydantic's own patterns have no look-ahead
SessionName = Annotated[str, Field(pattern=f"^{SESSION_PATTERN}$"), AfterValidator(_not_only_dots)]
Document = dict[str, Any]


class Record(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_bytes="hex",  # a hash is not text
        val_json_bytes="hex",
    )


class Policy(Record):
    """What a session does differently from the proxy's options. `None` means: as the option says."""

    client_tools: Literal["strip", "keep"] | None = None
    delivery: Literal["auto", "placeholder", "loop", "passthrough"] | None = None
    on_pending: Literal["pass", "wait", "block"] | None = None
    pending_timeout: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] | None = None


class Toolset(Record):
    """A session's tools, already normalised.

    `declarations`: Gemini FunctionDeclarations (`name`, `description`, `parameters` or `parametersJsonSchema`, …),
    names unique. `builtins`: Gemini Tool objects that hold no functionDeclarations (`{"googleSearch": {}}`).
    `tool_config`: a Gemini toolConfig in camelCase, or None.
    """

    declarations: list[Document] = []
    builtins: list[Document] = []
    tool_config: Document | None = None


class Session(Record):
    """`toolset` None: no toolset was ever set (or it was cleared), and the session's traffic is not touched."""

    name: SessionName
    policy: Policy = Policy()
    toolset: Toolset | None = None
    created_at: float
    updated_at: float


class Status(enum.StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DENIED = "denied"
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        """Whether a call of this status has its answer, and so never changes again."""
        return self not in (Status.PENDING, Status.RUNNING)


class Call(Record):
    """One captured functionCall of a grafted tool.

    `name` is the toolset's name, whatever it was called in that request. `result` is what was sent, as it was sent
    (any JSON); `error` is set instead when the call failed. `index` is its place in its step, `round` the step's
    place in its turn. `gemini_id` is the id that the model gave, if any.
    """

    call_id: str
    session: SessionName
    name: str
    args: Document
    status: Status = Status.PENDING
    result: Any = None
    error: str | None = None
    turn_id: str
    gemini_id: str | None = None
    model: str = ""
    surface: str = ""
    round: int = 0
    index: int = 0
    created_at: float
    updated_at: float


class Slot(Record):
    """One functionCall of a step: `call_id` of the captured call, or None for a call of the client's own tool."""

    name: str
    call_id: str | None = None


class Step(Record):
    """A model Content as the model said it (calls under the toolset's names), and whose each call is, in order."""

    content: Document
    slots: list[Slot] = []


class Turn(Record):
    """One entry of the ledger: what the client was given (`visible`, Gemini Parts) for what really happened (`steps`).

    `user_key` is the hash of the user turn before it, by which a bare placeholder finds it. `delivered` says that
    the client was given the turn to its end. `bound` says that a bare placeholder has taken it, for good.
    """

    turn_id: str
    session: SessionName
    visible: list[Document]
    steps: list[Step]
    delivery: Literal["placeholder", "passthrough", "loop"] = "placeholder"
    user_key: bytes = b""
    delivered: bool = False
    bound: bool = False
    model: str = ""
    surface: str = ""
    usage: list[Document] = []
    created_at: float


class CachedTools(Record):
    """The grafted tools of a cachedContent, which requests that name it carry: the toolset's name → the name used."""

    session: SessionName
    cached_content: str
    names: dict[str, str]
    created_at: float


class Event(Record):
    """Something that happened, in order: `event_id` only grows over the life of a store.

    `type` is `session.updated`, `session.deleted`, `tools.updated`, `call.created`, `call.updated`, `turn.created`,
    `turn.updated`. `data` is the record as JSON (for deletions, `{"name": …}`).
    """

    event_id: int
    session: SessionName
    type: str
    data: Document
    created_at: float


class Page[T](BaseModel):
    """Part of a list, in the list's order. `next_cursor` is None on the last page."""

    items: list[T]
    next_cursor: str | None = None


class Found(BaseModel):
    """What the ledger holds of one request's history.

    `by_key`: for each key that was found, the turn ids it may mean, best first: those delivered to their end before
    the others, the newest before the older; the best `MATCHES` of them. `turns` and `calls` hold every record those
    ids (and the ids that were asked for) need.
    """

    by_key: dict[bytes, list[str]] = {}
    turns: dict[str, Turn] = {}
    calls: dict[str, Call] = {}
