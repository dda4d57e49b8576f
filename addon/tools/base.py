"""The interface of tool sources, the records and errors that they share, and the decorator `@tool` for functions of
tools files. Those import it, so nothing heavy is imported here."""

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self, get_args, overload

Behavior = Literal["BLOCKING", "NON_BLOCKING"]
Scheduling = Literal["SILENT", "WHEN_IDLE", "INTERRUPT"]

MAX_MESSAGE = 4000  # characters of an error message for the model
MAX_NAME = 128  # characters of a tool's name, Gemini's limit; for services that allow fewer, requests shorten it

_MARK = "__toolgraft_tool__"


class ToolError(Exception):
    """A failed call. The message is for the model.

    `retryable`: the same call may succeed if it is repeated. `sent`: the call may have reached the code that does the
    work; False only if it certainly has not. A tool that is not `idempotent` is retried only if `sent` is False.
    """

    def __init__(self, message: str, *, retryable: bool = False, sent: bool = True) -> None:
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…")
        self.retryable = retryable
        self.sent = sent


def error_text(error: BaseException) -> str:
    """An exception's type and message (if any), for the model and the log. Lone surrogates are replaced."""
    message = str(error)[:MAX_MESSAGE].encode("utf-8", "replace").decode()
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


class SourceError(ValueError):
    """A source that cannot be used: its file does not import, or its configuration is wrong. The message names the
    file and the line or field, and says what is expected. Raised before or during opening, never by `call`."""


@dataclass(frozen=True, slots=True)
class RunRules:
    """How calls of one tool are run. None: the proxy's option decides.

    `timeout` and `cache_ttl` are seconds. `retries` counts attempts after the first. `after` names tools whose calls in
    the same step run first. `idempotent`: a call may run more than once, and identical calls in flight share one run.
    `redeliver`: if a worker is lost, another worker may run its call. `behavior` (BLOCKING, NON_BLOCKING) and
    `scheduling` (SILENT, WHEN_IDLE, INTERRUPT) are for the Live API. Raises ValueError for an invalid value.
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
                raise ValueError(f"{name} is {value}; it must be a number of seconds above 0")
        if self.retries is not None and self.retries < 0:
            raise ValueError(f"retries is {self.retries}; it must be 0 or more")
        for name, words in (("behavior", get_args(Behavior)), ("scheduling", get_args(Scheduling))):
            if (value := getattr(self, name)) is not None and value not in words:
                raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(words)}")
        if self.scheduling is not None and self.behavior != "NON_BLOCKING":
            raise ValueError("scheduling needs behavior='NON_BLOCKING'")

    def given(self) -> dict[str, Any]:
        """The rules that are set, as JSON."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        given = {one.name for one in fields(self) if values[one.name] != one.default}
        return {name: list(value) if name == "after" else value for name, value in values.items() if name in given}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a source: its Gemini FunctionDeclaration (camelCase, `parameters` or `parametersJsonSchema`), the JSON
    Schema of its arguments, and its rules."""

    declaration: dict[str, Any]
    schema: dict[str, Any]
    rules: RunRules = field(default_factory=RunRules)

    @property
    def name(self) -> str:
        return str(self.declaration["name"])


@dataclass(frozen=True, slots=True)
class ServerState:
    """A server of a source. `tools`: their number. `error`: why it is down. `last_error`: why it was last down, noticed
    at `last_error_at` (Unix time); None: it never was."""

    name: str
    is_up: bool
    tools: int
    error: str | None = None
    last_error: str | None = None
    last_error_at: float | None = None


class ToolSource(abc.ABC):
    """Opened with `async with` in the proxy's event loop. `name` says in messages where the tools come from.

    `changed`, if set before the source is opened, is called in the event loop after the list of tools has changed.
    """

    name: str
    changed: Callable[[], None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def name_of(self, tool: str) -> str:
        """The name of the source of a tool."""
        return self.name

    def server_states(self) -> Sequence[ServerState]:
        """The servers of this source; none if its tools run in the proxy."""
        return ()

    async def restart(self, server: str) -> bool:
        """Restart the server of this name (see `server_states`). Calls in progress there fail. Returns whether this
        source has the server, once it is up again or has failed to start."""
        return False

    @abc.abstractmethod
    async def list_tools(self) -> Sequence[Tool]:
        """The current tools. They stay the same while the source is open, unless `changed` is called."""

    @abc.abstractmethod
    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        """Run one call and return its result, of any type: the caller converts it to JSON.

        Raises ToolError with a message for the model. Cancelling the task cancels the call. The arguments have already
        been checked against the tool's schema.
        """


@dataclass(frozen=True, slots=True)
class Marked:
    """The arguments of `@tool`. None: the function's own name or docstring is used."""

    name: str | None
    description: str | None
    rules: RunRules


@overload
def tool[F: Callable[..., Any]](function: F, /) -> F: ...
@overload
def tool[F: Callable[..., Any]](
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    after: Sequence[str] = (),
    idempotent: bool = False,
    cache_ttl: float | None = None,
    approval: bool = False,
    redeliver: bool = False,
    behavior: Behavior | None = None,
    scheduling: Scheduling | None = None,
) -> Callable[[F], F]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    retries: int | None = None,
    after: Sequence[str] = (),
    idempotent: bool = False,
    cache_ttl: float | None = None,
    approval: bool = False,
    redeliver: bool = False,
    behavior: Behavior | None = None,
    scheduling: Scheduling | None = None,
) -> Any:
    """Mark a function as a tool and set how its calls are run; the function itself is unchanged.

    `@tool` or `@tool(timeout=5, …)`. `timeout` and `cache_ttl` are seconds. With `retries`, an idempotent tool is
    retried after any exception; after a ToolError only if it is `retryable`. Any other tool is retried only if the
    function has not begun, or raised a ToolError with `retryable=True, sent=False`. The other arguments are those of
    `RunRules`. Raises ValueError or TypeError for invalid arguments.
    """
    if isinstance(after, str):
        raise TypeError(f"after is {after!r}; it must be a list of names, such as [{after!r}]")
    rules = RunRules(
        timeout=timeout,
        retries=retries,
        after=tuple(after),
        idempotent=idempotent,
        redeliver=redeliver,
        cache_ttl=cache_ttl,
        approval=approval,
        behavior=behavior,
        scheduling=scheduling,
    )
    mark = Marked(name, description, rules)

    def marked(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, _MARK, mark)
        return function

    return marked if function is None else marked(function)


def mark_of(function: Callable[..., Any]) -> Marked | None:
    """The arguments of the function's `@tool`; None without `@tool`."""
    mark = getattr(function, _MARK, None)
    return mark if isinstance(mark, Marked) else None
