"""The records of the store, as pydantic models.

Times are seconds since the epoch (float). Documents (`dict`) are unchanged Gemini JSON, never interpreted here.
"""

import enum
import functools
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple, Self

import pydantic_core
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

SESSION_PATTERN = r"[A-Za-z0-9_.-]{1,64}"
SESSION_FORM = f"a name of the form {SESSION_PATTERN}, and not only dots"
SESSION_NAME = re.compile(rf"(?!\.+\Z){SESSION_PATTERN}")
"""For `fullmatch`. Excludes `.` and `..`, which clients resolve in URLs."""


def _not_only_dots(name: str) -> str:
    if not name.strip("."):
        raise ValueError(f"must be {SESSION_FORM}")
    return name


# pydantic's own patterns have no look-ahead
SessionName = Annotated[str, Field(pattern=f"^{SESSION_PATTERN}$"), AfterValidator(_not_only_dots)]
Document = dict[str, Any]

Delivery = Literal["auto", "placeholder", "loop", "hold", "passthrough"]

MASK = "***"


class Record(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_bytes="hex",  # a hash is not text
        val_json_bytes="hex",
    )


class Policy(Record):
    """A session's deviations from the proxy's options. None: the option applies.

    `always_approved` is not an option: it names the tools whose calls do not wait for an approval, each with the
    version (a digest in hex) that was approved. A tool that has changed since needs approvals again.
    """

    client_tools: Literal["strip", "keep"] | None = None
    delivery: Delivery | None = None
    on_pending: Literal["pass", "wait", "block"] | None = None
    pending_timeout: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] | None = None
    max_rounds: Annotated[int, Field(ge=1, le=100)] | None = None
    parallel: Annotated[int, Field(ge=1, le=64)] | None = None
    tool_timeout: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = None
    approval_timeout: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] | None = None
    answer_timeout: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] | None = None
    proof: Literal["judged", "strict"] | None = None
    askers: Literal["each", "one"] | None = None
    always_approved: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]] | None = None

    @classmethod
    def options(cls) -> list[str]:
        """The fields that stand for options of the proxy."""
        return [name for name in cls.model_fields if name != "always_approved"]


class Executor(Record):
    """Runs a tool's calls: an HTTP endpoint (`url`, with `headers`), or workers, which claim them.

    The headers' values may be secrets: only `masked` is shown.
    """

    type: Literal["http", "worker"]
    url: str | None = None
    headers: Annotated[dict[str, str], Field(repr=False)] = {}

    @model_validator(mode="after")
    def _url_only_for_http(self) -> Self:
        if self.type == "worker" and (self.url is not None or self.headers):
            raise ValueError("a worker has no url and no headers: it claims its calls")
        if self.type == "http" and not (self.url or "").lower().startswith(("http://", "https://")):
            raise ValueError("an http executor needs an http or https url")
        return self

    def masked(self) -> Self:
        return self.model_copy(update={"headers": dict.fromkeys(self.headers, MASK)})


class ToolRules(Record):
    """How the calls of one tool are run. None: as the policy says, or not at all.

    `executor` None: unless a tool source of the proxy has the tool, its calls are answered through the control API.
    `approval`: a call waits until it is approved. `after`: tools whose calls of the same step run first. `idempotent`:
    a call may run more than once, and identical calls in flight may share one run. `redeliver`: if a call's worker is
    lost, another one gets the call. `cache_ttl`, `timeout`: seconds. `retries`: tries after the first. For the Live API
    alone: `behavior`: whether the model waits for the call; `scheduling`: when it uses the result of a call that it did
    not wait for.
    """

    executor: Executor | None = None
    approval: bool = False
    after: list[str] = []
    idempotent: bool = False
    redeliver: bool = False
    cache_ttl: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    timeout: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = None
    retries: Annotated[int, Field(ge=0, le=10)] | None = None
    behavior: Literal["BLOCKING", "NON_BLOCKING"] | None = None
    scheduling: Literal["SILENT", "WHEN_IDLE", "INTERRUPT"] | None = None

    def masked(self) -> Self:
        return self.model_copy(update={"executor": self.executor.masked()}) if self.executor else self


class Toolset(Record):
    """A session's tools, already normalised.

    `declarations`: Gemini FunctionDeclarations (`name`, `description`, `parameters` or `parametersJsonSchema`, …),
    names unique. `builtins`: Gemini Tool objects without functionDeclarations (`{"googleSearch": {}}`).
    `tool_config`: a Gemini toolConfig in camelCase, or None. `rules`: by the name of a declaration, without empty ones.
    """

    declarations: list[Document] = []
    builtins: list[Document] = []
    tool_config: Document | None = None
    rules: dict[str, ToolRules] = {}

    def masked(self) -> Self:
        """A copy for display: without the values of executors' headers."""
        return self.model_copy(update={"rules": {name: rules.masked() for name, rules in self.rules.items()}})


class Session(Record):
    """`toolset` None: it was never set, or was cleared, and the session's traffic is not touched.

    Each write sets a new `version`, which is never used again, not even for a later session of the same name.
    """

    name: SessionName
    policy: Policy = Policy()
    toolset: Toolset | None = None
    version: int = 0
    created_at: float
    updated_at: float

    def masked(self) -> Self:
        """A copy for display: without the values of executors' headers."""
        return self.model_copy(update={"toolset": self.toolset.masked()}) if self.toolset else self


class Snapshot(NamedTuple):
    """The current state of a session. `record` None: nothing was ever set for it, or it was deleted; then `version` is
    0, or a different negative number after each deletion. `revision`: of the ledger."""

    record: Session | None
    version: int
    revision: int | None


class Status(enum.StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DENIED = "denied"
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        """Whether a call of this status has its answer and never changes again."""
        return self not in (Status.PENDING, Status.RUNNING)


Owner = Literal["loop", "workers", "hand"]


class Media(Record):
    """One part of a result that is not text: an image, a sound, a file. `size`: in decoded bytes; `digest`: of these
    bytes and their type, in hex."""

    mime_type: str
    size: int
    digest: str


class Call(Record):
    """One captured functionCall of a grafted tool.

    `name` is the toolset's name, even if the tool was renamed for the request. `result` is any JSON, unchanged; a
    failed call has an `error` instead. `index` is the call's place in its step, `round` the step's place in its turn.
    `gemini_id` is the id that the model gave, if any.

    `owner` is who runs the call: a loop of the proxy, `workers`, or nobody, so that it is answered by `hand`.
    `released`: workers may claim it. `redeliver`: it may run more than once, so another worker gets it if the first is
    lost. `proxy_id` is the proxy that waits for the call, None if its answer is for a later request.

    `approval` None: no approval is needed, or was no longer needed when the call ended. `loop_id` is the run of a loop
    that waits for the call. A call that a worker runs has `worker` and `lease_until`, by the store's clock; a call that
    the proxy itself runs has no lease.

    `media` describes the `parts` of the result, which have Gemini's form: `{"inlineData": {"mimeType", "data"}}`. They
    are large, so the record's JSON, events and lists omit them. They are read with a call by its id, or with its turn.

    `attempts`: how often the proxy or a worker began to run the call, without retries in one run. `started_at`: the
    time of the first attempt.

    `asked_args`: the model's arguments, if the person who approved the call changed them. `args`: those that are used.
    """

    call_id: str
    session: SessionName
    name: str
    args: Document
    asked_args: Document | None = None
    status: Status = Status.PENDING
    owner: Owner = "hand"
    released: bool = False
    redeliver: bool = False
    proxy_id: str | None = None
    result: Any = None
    error: str | None = None
    media: list[Media] = []
    parts: Annotated[list[Document], Field(exclude=True, repr=False)] = []
    turn_id: str
    gemini_id: str | None = None
    model: str = ""
    surface: str = ""
    round: int = 0
    index: int = 0
    approval: Literal["waiting", "approved", "denied"] | None = None
    worker: str | None = None
    lease_until: float | None = None
    loop_id: str | None = None
    attempts: int = 0
    started_at: float | None = None
    created_at: float
    updated_at: float

    @property
    def model_args(self) -> Document:
        return self.args if self.asked_args is None else self.asked_args


class Slot(Record):
    """One functionCall of a step. `call_id` None: a call of the client's own tool."""

    name: str
    call_id: str | None = None


class Step(Record):
    """A model Content as the model sent it (calls under the toolset's names), with a slot for each call, in order."""

    content: Document
    slots: list[Slot] = []


class Progress(Record):
    """The complete part of an unfinished answer: after this many `rounds`, the turn's first `steps` steps and `visible`
    parts. The turn's other steps and parts belong to an incomplete round. `meta`: the fields of the upstream's
    responses that all responses of the answer have."""

    steps: int
    visible: int
    rounds: int
    meta: Document = {}


class Turn(Record):
    """One entry of the ledger: what the client received (`visible`, Gemini Parts) for what really happened (`steps`).

    `chain` is the encrypted digest of the turn with all turns before it; `pair` is its key together with the one turn
    before it, b"" in records of earlier versions. `before` is the id of the entry behind the model turn before it, ""
    if that turn was not found. `delivered`: the client received the whole turn.

    `request_key` identifies the request, so that a retry finds the turn; b"": none does. `proxy_id` is the proxy that
    makes the answer, and `broke_off` the time at which the answer ended unfinished. `progress` is where a retry
    continues; None: it starts from the beginning, or the turn was delivered.
    """

    turn_id: str
    session: SessionName
    visible: list[Document]
    steps: list[Step]
    delivery: Literal["placeholder", "passthrough", "loop"] = "placeholder"
    chain: bytes = b""
    pair: bytes = b""
    before: str = ""
    delivered: bool = False
    model: str = ""
    surface: str = ""
    usage: list[Document] = []
    request_key: bytes = b""
    proxy_id: str | None = None
    broke_off: float | None = None
    progress: Progress | None = None
    created_at: float


class CachedTools(Record):
    """The grafted tools of a cachedContent. `names`: the toolset's name → the name used there."""

    session: SessionName
    cached_content: str
    names: dict[str, str]
    created_at: float


class Response(Record):
    """One answered request of a front door. `previous` is the id of the response whose history it continues.

    `contents`: the Gemini Contents that it added to that history: the client's, then the answer. `tools`: the stored
    part of its tools, in the door's own form. `calls`: for each call id that the client received, the functionCall Part
    as the model sent it. `document`: what can be retrieved; None: it was deleted, or never retrievable, and the rest is
    kept for later responses, a conversation or its calls. `turns`: the ids of its turns in the ledger; `turn_id`: the
    turn of the last Content.
    """

    response_id: str
    session: SessionName
    conversation: str | None = None
    previous: str | None = None
    contents: list[Document] = []
    tools: Document | None = None
    calls: dict[str, Document] = {}
    document: Document | None = None
    turns: list[str] = []
    turn_id: str = ""
    created_at: float


class UndeliveredAnswer(NamedTuple):
    """An answer that its client does not have yet. `key` identifies the request: a retry gets `answer`, or if that is
    None, the response's document. `proxy_id`: the proxy that hands the answer over."""

    key: bytes
    proxy_id: str
    answer: Document | None


class GivenCall(NamedTuple):
    """A call that a client of a front door received: the model's Part, and the response that contained the call."""

    part: Document
    response_id: str


class Event(Record):
    """A change of a record. `event_id` is a cursor: later events are requested with it.

    `type` is `session.updated`, `session.deleted`, `tools.updated`, `call.created`, `call.updated`, `turn.created`,
    `turn.updated`. `data` is the record as JSON (for deletions, `{"name": …}`); sessions are masked.
    """

    event_id: str
    session: SessionName
    type: str
    data: Document
    created_at: float


class Page[T](BaseModel):
    """Part of a list, in the list's order. `next_cursor` is None on the last page."""

    items: list[T]
    next_cursor: str | None = None

    @functools.cached_property
    def json_items(self) -> list[bytes]:
        """Each item as JSON, computed once: the same page is often listed many times."""
        return [pydantic_core.to_json(item) for item in self.items]


@dataclass(slots=True)
class LedgerMatches:
    """The ledger's entries for the history of one request.

    `by_key`: for each key that was found, the ids of its best turns, best first: delivered turns before others, newer
    before older. `crowded`: keys with more turns than `by_key` holds. `plain`: keys of turns without calls, each with
    the noted chain. `turns` and `calls`: the records of all these ids, and of the requested ids. `known`: the requested
    `known` keys that any turn with calls has.
    """

    by_key: dict[bytes, list[str]] = field(default_factory=dict)
    crowded: set[bytes] = field(default_factory=set)
    plain: dict[bytes, bytes] = field(default_factory=dict)
    known: set[bytes] = field(default_factory=set)
    turns: dict[str, Turn] = field(default_factory=dict)
    calls: dict[str, Call] = field(default_factory=dict)


class LedgerChanges:
    """The turns (by id) and keys that writes to a session's ledger concerned."""

    __slots__ = ("keys", "turn_ids")

    def __init__(self) -> None:
        self.turn_ids: set[str] = set()
        self.keys: set[bytes] = set()

    def is_disjoint(self, other: "LedgerChanges") -> bool:
        """Whether the two have no turn and no key in common."""
        return self.turn_ids.isdisjoint(other.turn_ids) and self.keys.isdisjoint(other.keys)
