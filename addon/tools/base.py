"""What a tool source is: something that lists tools and runs calls of them. One module a kind."""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

Document = dict[str, Any]


class ToolError(Exception):
    """A call that failed, in words for the model. `retryable`: the same call may well succeed if it is tried again."""

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class SourceError(ValueError):
    """A source that cannot be used: a file that does not import, a configuration that is wrong. The message names the
    file and the line or the field, and says what would be right. Raised before or while it is opened, never by `call`."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How calls of one tool are run. None: as the proxy's options say.

    `timeout` and `cache_ttl` are seconds, `retries` counts tries after the first, `after` names tools whose calls of
    the same step come first, `idempotent` lets identical calls in flight share one run.
    """

    timeout: float | None = None
    retries: int | None = None
    after: tuple[str, ...] = ()
    idempotent: bool = False
    cache_ttl: float | None = None
    approval: bool = False


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of a source: its Gemini FunctionDeclaration (camelCase, `parameters` or `parametersJsonSchema`), the JSON
    Schema its arguments must fit, and how it is run."""

    declaration: Document
    schema: Document
    rules: Rules = field(default_factory=Rules)

    @property
    def name(self) -> str:
        return str(self.declaration["name"])


class ToolSource(abc.ABC):
    """Opened with `async with` in the proxy's event loop. `name` says where its tools come from, for messages."""

    name: str

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abc.abstractmethod
    async def list_tools(self) -> Sequence[Tool]:
        """Its tools, always the same ones while it is open."""

    @abc.abstractmethod
    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        """Run one call and return its result: anything; what is not JSON is made JSON by the caller.

        Raises ToolError for what the model should know. Cancelling the task cancels the call. Arguments have been
        checked against the tool's schema before.
        """
