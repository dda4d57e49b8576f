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
"""For `fullmatch`. A URL cannot address `.` and `..`: clients resolve them before they ask."""


def _not_only_dots(name: str) -> str:
    if not name.strip("."):
        raise ValueError(f"must be {SESSION_FORM}")
    return name


# pydantic's own patterns have no look-ahead
SessionName = Annotated[str, Field(pattern=f"^{SESSION_PATTERN}$"), AfterValidator(_not_only_dots)]
Document = dict[str, Any]

Delivery = Literal["auto", "placeholder", "loop", "hold", "passthrough"]

MASK = "***"
"""Shown instead of a secret."""


class Record(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_bytes="hex",  # a hash is not text
        val_json_bytes="hex",
    )


class Policy(Record):
    """What a session does differently from the proxy's options. `None` means: as the option says.

    `always_approved` is no option: the tools whose calls wait for no approval, by name. Each has the version (a digest
    in hex) that it had when somebody said so; a tool that has changed since needs approvals again.
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
    always_approved: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]] | None = None

    @classmethod
    def options(cls) -> list[str]:
        """The fields that stand for options of the proxy."""
        return [name for name in cls.model_fields if name != "always_approved"]


class Executor(Record):
    """What runs a tool's calls: an HTTP endpoint (`url`, with `headers` sent along), or workers, which claim them.

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

    `executor` None: a manual tool, whose calls are answered through the control API, unless a tool source of the
    proxy has it. `approval`: a call waits until it is approved. `after`: tools whose calls of the same step come
    first. `idempotent`: a call may run more than once, and identical calls in flight may share one run. `redeliver`:
    a call goes to another worker when the one that had it is lost. `cache_ttl`, `timeout`: seconds. `retries`: tries
    after the first. `behavior`, `scheduling`: for the Live API alone, whether the model waits for the call, and
    when it takes up the answer of one that it did not wait for.
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
    names unique. `builtins`: Gemini Tool objects that hold no functionDeclarations (`{"googleSearch": {}}`).
    `tool_config`: a Gemini toolConfig in camelCase, or None. `rules`: by the name of a declaration; those that say
    nothing are left out.
    """

    declarations: list[Document] = []
    builtins: list[Document] = []
    tool_config: Document | None = None
    rules: dict[str, ToolRules] = {}

    def masked(self) -> Self:
        """A copy for display: without the values of executors' headers."""
        return self.model_copy(update={"rules": {name: rules.masked() for name, rules in self.rules.items()}})


class Session(Record):
    """`toolset` None: no toolset was ever set (or it was cleared), and the session's traffic is not touched.

    `version` is another after each write, and is never given again, also not to a session of the same name.
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
        """Whether a call of this status has its answer, and so never changes again."""
        return self not in (Status.PENDING, Status.RUNNING)


Owner = Literal["loop", "workers", "hand"]


class Media(Record):
    """One part of a result that is not text: an image, a sound, a file. `size`: bytes, decoded; `digest`: of them and
    their type, in hex."""

    mime_type: str
    size: int
    digest: str


class Call(Record):
    """One captured functionCall of a grafted tool.

    `name` is the toolset's name, whatever it was called in that request. `result` is what was sent, as it was sent
    (any JSON); `error` is set instead when the call failed. `index` is its place in its step, `round` the step's
    place in its turn. `gemini_id` is the id that the model gave, if any.

    `owner` is who runs the call: a loop of the proxy, `workers`, or nobody, so that it is answered by `hand`.
    `released`: workers may claim it. `redeliver`: another worker gets it if the first is lost, since it may run more
    than once. `proxy_id` is the proxy that waits for the call, None if its answer is for a later request.

    `approval` None: nobody is asked, or was not any more when the call came to its end. `loop_id` is the run of a loop
    that waits for the call. A running call that a worker has holds `worker` and `lease_until`, by the store's clock;
    one that the proxy itself runs has no lease.

    `media` describes the `parts` of the result, which are Gemini's: `{"inlineData": {"mimeType", "data"}}`. They are
    large, so they are no part of the record's JSON: neither events nor lists have them. A call that is read by its id,
    or with its turn, has them.

    `attempts`: how often the proxy or a worker began to run it; retries within one run are not counted. `started_at`:
    when that was first, after the call had waited for its turn, an approval and a worker.

    `asked_args`: the model's arguments, if the person who approved the call has changed them. `args` are those it runs
    with.
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
        """The arguments as the model gave them."""
        return self.args if self.asked_args is None else self.asked_args


class Slot(Record):
    """One functionCall of a step: `call_id` of the captured call, or None for a call of the client's own tool."""

    name: str
    call_id: str | None = None


class Step(Record):
    """A model Content as the model said it (calls under the toolset's names), and whose each call is, in order."""

    content: Document
    slots: list[Slot] = []


class Progress(Record):
    """How far the loop of an answer has come: after this many `rounds` these `steps` and these parts (`visible`) of its
    turn are complete, the first ones; what the turn has more is of a round that is not. `meta`: the fields of the
    upstream's responses that all of the answer's have."""

    steps: int
    visible: int
    rounds: int
    meta: Document = {}


class Turn(Record):
    """One entry of the ledger: what the client was given (`visible`, Gemini Parts) for what really happened (`steps`).

    `user_key` is the key of the user turn before it, by which a bare placeholder finds it; b"": none does. `chain` says
    what stood before it, to those who know the store's secret; `pair` is the one of its keys that it has with the user
    turn before it, b"" in records of earlier versions. `delivered` says that the client was
    given the turn to its end. `bound` says that a bare placeholder has taken it, for good.

    `request_key` tells the request from every other, so that one that is sent again finds the turn; b"": it is not
    looked for. `proxy_id` is the proxy that makes the answer, and `broke_off` the time at which it ended unfinished.
    `progress` is where a request that is sent again goes on; None: nowhere yet, or the turn was delivered.
    """

    turn_id: str
    session: SessionName
    visible: list[Document]
    steps: list[Step]
    delivery: Literal["placeholder", "passthrough", "loop"] = "placeholder"
    user_key: bytes = b""
    chain: bytes = b""
    pair: bytes = b""
    delivered: bool = False
    bound: bool = False
    model: str = ""
    surface: str = ""
    usage: list[Document] = []
    request_key: bytes = b""
    proxy_id: str | None = None
    broke_off: float | None = None
    progress: Progress | None = None
    created_at: float


class CachedTools(Record):
    """The grafted tools of a cachedContent, which requests that name it carry: the toolset's name → the name used."""

    session: SessionName
    cached_content: str
    names: dict[str, str]
    created_at: float


class Response(Record):
    """One answered request of a front door. `previous` is the id of the response whose history it goes on with.

    `contents`: the Gemini Contents that it added to that history, what the client sent and then what it was given.
    `tools`: what is kept of its tools, in the door's own form. `calls`: for each call id that the client was given,
    the functionCall Part as the model said it. `document`: what can be retrieved; None: it was deleted, or never to
    be retrieved, and is kept for what others need of it: their history, a conversation's place, its calls. `turns`: the
    ids of the turns of the ledger that it holds, `turn_id` the one whose answer is the last of the Contents.
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
    """An answer that its client does not have yet. `key` identifies the request, so that the same request, sent again,
    gets `answer`; None: the response's document says all of it. `proxy_id`: the proxy that hands the answer over."""

    key: bytes
    proxy_id: str
    answer: Document | None


class GivenCall(NamedTuple):
    """A call that a client of a front door received: the model's Part, and the response that contained the call."""

    part: Document
    response_id: str


class Event(Record):
    """Something that happened, in order. `event_id` is a cursor: what comes after the event is asked for by it.

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
        """Each item as JSON. Made once, since a page of records that do not change is listed many times."""
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
