"""What runs a session's calls of a tool, and by which rules: found by the session's toolset and the proxy's sources.

Nothing of the proxy's tool counts for a name that the session declares itself: an approval that either asks for must
not be lost by mixing the two.
"""

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from addon.core.documents import Document
from addon.core.schema import to_json_schema
from addon.graft.scope import Scope
from addon.tools.base import RunRules, Tool
from store.models import Executor, ToolRules

_NO_RULES = ToolRules()
_encode = msgspec.json.Encoder(order="sorted").encode


class Runs(enum.Enum):
    """What runs the calls of a tool."""

    SOURCE = "a tool source of the proxy"
    ENDPOINT = "an HTTP endpoint"
    WORKERS = "workers"
    NOBODY = "nobody: calls are answered by hand"


@dataclass(frozen=True, slots=True)
class Binding:
    """`executor` is the endpoint's; `declaration` is None for a tool that is not known."""

    name: str
    runs: Runs
    rules: RunRules
    declaration: Document | None = None
    schema: Document | None = None
    executor: Executor | None = None

    @property
    def version(self) -> bytes:
        """Changes whenever the declaration, the rules or the executor do."""
        executor = None if self.executor is None else self.executor.model_dump()
        stated = _encode((self.runs.value, self.declaration, self.rules, executor))
        return hashlib.blake2b(stated, digest_size=16).digest()


def runs_of(scope: Scope, tools: Mapping[str, Tool], name: str) -> Runs:
    """What runs the calls of a tool: all that is asked of each tool in each request."""
    if name in scope.declared:
        return _runs(scope.toolset.rules.get(name, _NO_RULES).executor)
    return Runs.SOURCE if name in tools else Runs.NOBODY


def binding(scope: Scope, tools: Mapping[str, Tool], name: str) -> Binding:
    """`tools` are those of the proxy's sources."""
    if name in scope.declared:
        return _declared(scope, name)
    tool = tools.get(name)
    if tool is None:
        return Binding(name, Runs.NOBODY, RunRules())
    return Binding(name, Runs.SOURCE, tool.rules, tool.declaration, tool.schema)


def _declared(scope: Scope, name: str) -> Binding:
    given = scope.toolset.rules.get(name, _NO_RULES)
    declaration = next((d for d in scope.toolset.declarations if d["name"] == name), {})
    rules = RunRules(
        timeout=given.timeout,
        retries=given.retries,
        after=tuple(given.after),
        idempotent=given.idempotent,
        redeliver=given.redeliver,
        cache_ttl=given.cache_ttl or None,
        approval=given.approval,
        behavior=given.behavior,
        scheduling=given.scheduling,
    )
    executor = given.executor
    return Binding(name, _runs(executor), rules, declaration, _schema(declaration), executor)


def _runs(executor: Executor | None) -> Runs:
    if executor is None:
        return Runs.NOBODY
    return Runs.WORKERS if executor.type == "worker" else Runs.ENDPOINT


def _schema(declaration: Document) -> Document | None:
    """The JSON Schema that a declaration asks of the arguments."""
    if "parametersJsonSchema" in declaration:
        schema: Document = declaration["parametersJsonSchema"]
        return schema
    return to_json_schema(declaration["parameters"]) if "parameters" in declaration else None
