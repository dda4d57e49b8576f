"""What a tool source is: something that lists tools and runs calls of them. One module a kind."""

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, get_args

Document = dict[str, Any]
Behavior = Literal["BLOCKING", "NON_BLOCKING"]
Scheduling = Literal["SILENT", "WHEN_IDLE", "INTERRUPT"]

MAX_MESSAGE = 4000  # characters of an error that a model is told
MAX_NAME = 128  # characters of a tool's name, as Gemini has it; where a service takes fewer, requests shorten it


class ToolError(Exception):
    """A call that failed, in words for the model.

    `retryable`: the same call may well succeed if it is tried again. `sent`: the call may have reached what does the
    work; False only where it certainly has not. A tool that is not `idempotent` is tried again only if it has not.
    """

    def __init__(self, message: str, *, retryable: bool = False, sent: bool = True) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…")
        self.retryable = retryable
        self.sent = sent


def error_text(error: BaseException) -> str:
    """An exception as a model and the log are told of it: its type, and what it says if it says anything, less what no
    text can hold."""
    words = str(error)[:MAX_MESSAGE].encode("utf-8", "replace").decode()
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


class SourceError(ValueError):
    """A source that cannot be used: a file that does not import, a configuration that is wrong. The message names the
    file and the line or the field, and says what would be right. Raised before or while it is opened, not by `call`."""


@dataclass(frozen=True, slots=True)
class RunRules:
    """How calls of one tool are run. None: as the proxy's options say.

    `timeout` and `cache_ttl` are seconds, `retries` counts tries after the first, `after` names tools whose calls of
    the same step come first, `idempotent` says that a call may run more than once, and lets identical calls in flight
    share one run, `redeliver` lets another worker have a call when the first is lost. `behavior` (BLOCKING,
    NON_BLOCKING) and `scheduling` (SILENT, WHEN_IDLE, INTERRUPT) are for the Live API. Raises ValueError for a value
    that cannot be.
    """

    timeout: float | None = None
    retries: int | None = None
    after: tuple[str, ...] = ()
    idempotent: bool = False
    cache_ttl: float | None = None
    approval: bool = False
    behavior: Behavior | None = None
    scheduling: Scheduling | None = None
    redeliver: bool = False

    def __post_init__(self) -> None:
        for name in ("timeout", "cache_ttl"):
            if (value := getattr(self, name)) is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}; it is a number of seconds above 0")
        if self.retries is not None and self.retries < 0:
            raise ValueError(f"retries is {self.retries}; it is 0 or more")
        for name, words in (("behavior", get_args(Behavior)), ("scheduling", get_args(Scheduling))):
            if (value := getattr(self, name)) is not None and value not in words:
                raise ValueError(f"{name} is {value!r}; it is one of {', '.join(words)}")
        if self.scheduling is not None and self.behavior != "NON_BLOCKING":
            raise ValueError("scheduling fits only beside behavior='NON_BLOCKING'")


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a source: its Gemini FunctionDeclaration (camelCase, `parameters` or `parametersJsonSchema`), the JSON
    Schema its arguments must fit, and how it is run."""

    declaration: Document
    schema: Document
    rules: RunRules = field(default_factory=RunRules)

    @property
    def name(self) -> str:
        return str(self.declaration["name"])


class ToolSource(abc.ABC):
    """Opened with `async with` in the proxy's event loop. `name` says where its tools come from, for messages.

    `changed`, where whoever opens the source has set it before, is called in the event loop after the list of tools
    has become another one.
    """

    name: str
    changed: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abc.abstractmethod
    async def list_tools(self) -> Sequence[Tool]:
        """Its tools as they are now. They stay the same while it is open, unless `changed` is called."""

    @abc.abstractmethod
    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        """Run one call and return its result: anything; what is not JSON is made JSON by the caller.

        Raises ToolError for what the model should know. Cancelling the task cancels the call. Arguments have been
        checked against the tool's schema before.
        """
