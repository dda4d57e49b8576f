"""Selects the handler for a session's calls of a tool, and their rules.

If the session declares a tool, the proxy's tool of the same name is ignored entirely: a mixture of the two could lose
an approval that one of them requires.
"""

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from addon.core.framing.documents import Document
from addon.core.tools.schema import schema_of
from addon.graft.session_config import SessionConfig
from addon.tools.base import RunRules, Tool
from store.models import Executor, ToolRules

_NO_RULES = ToolRules()
_encode = msgspec.json.Encoder(order="sorted").encode


class Handler(enum.Enum):
    """What runs or answers the calls of a tool."""

    SOURCE = "a tool source of the proxy"
    ENDPOINT = "an HTTP endpoint"
    WORKERS = "workers"
    NOBODY = "nobody: calls are answered by hand"


@dataclass(frozen=True, slots=True)
class Binding:
    """How the calls of a tool run. `executor`: of an HTTP endpoint. `declaration`: None for an unknown tool."""

    name: str
    handler: Handler
    rules: RunRules
    declaration: Document | None = None
    schema: Document | None = None
    executor: Executor | None = None

    @property
    def version(self) -> bytes:
        """A digest that changes with the declaration, the rules and the executor."""
        executor = None if self.executor is None else self.executor.model_dump()
        content = _encode((self.handler.value, self.declaration, self.rules, executor))
        return hashlib.blake2b(content, digest_size=16).digest()


def handler_of(config: SessionConfig, tools: Mapping[str, Tool], name: str) -> Handler:
    """The handler of a tool. Cheap, because it is called for each tool in each request."""
    if name in config.declared:
        return _handler(config.toolset.rules.get(name, _NO_RULES).executor)
    return Handler.SOURCE if name in tools else Handler.NOBODY


def binding_of(config: SessionConfig, tools: Mapping[str, Tool], name: str) -> Binding:
    """The binding of a tool. `tools`: the tools of the proxy's sources."""
    if name in config.declared:
        return _declared(config, name)
    tool = tools.get(name)
    if tool is None:
        return Binding(name, Handler.NOBODY, RunRules())
    return Binding(name, Handler.SOURCE, tool.rules, tool.declaration, tool.schema)


def _declared(config: SessionConfig, name: str) -> Binding:
    stored = config.toolset.rules.get(name, _NO_RULES)
    declaration = next((d for d in config.toolset.declarations if d["name"] == name), {})
    rules = RunRules(
        timeout=stored.timeout,
        retries=stored.retries,
        after=tuple(stored.after),
        idempotent=stored.idempotent,
        redeliver=stored.redeliver,
        cache_ttl=stored.cache_ttl or None,
        approval=stored.approval,
        behavior=stored.behavior,
        scheduling=stored.scheduling,
    )
    executor = stored.executor
    return Binding(name, _handler(executor), rules, declaration, schema_of(declaration), executor)


def _handler(executor: Executor | None) -> Handler:
    if executor is None:
        return Handler.NOBODY
    match executor.type:  # mypy reports a kind that is missing here
        case "worker":
            return Handler.WORKERS
        case "http":
            return Handler.ENDPOINT
