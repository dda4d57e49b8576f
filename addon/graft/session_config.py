"""The configuration of one session: the proxy's options, its policy, and its prepared toolset."""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from addon.core.framing.documents import Document, memory_of
from addon.core.history.placeholder import Placeholder
from addon.core.history.rewriting import RewriteRules
from addon.core.model_names import Generation
from addon.core.tools.tool_forms import normalise
from addon.core.tools.tool_plan import Toolbox, ToolPlan
from addon.settings import Settings
from store.base import Store, StoreUnavailable
from store.budget import Budget, Share
from store.models import Delivery, Policy, Snapshot, ToolRules, Toolset


@dataclass(frozen=True, slots=True)
class SessionConfig:
    session: str
    version: int  # the session's; 0: nothing was ever set
    revision: int | None  # the ledger's, when the request arrived
    toolset: Toolset
    declared: frozenset[str]  # the names that the session itself declares
    toolbox: Toolbox
    placeholder: Placeholder
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
    always_approved: Mapping[str, str]  # the versions of tools whose calls need no approval, by name
    max_tool_calls: int | None = None  # for the whole answer, from the request
    flattens: bool = False  # whether undeclared calls in the history become text, as with `strip`

    @property
    def strips(self) -> bool:
        return self.client_tools == "strip"

    @property
    def loops(self) -> bool:
        """Whether the proxy may answer calls within the request."""
        return self.delivery in ("auto", "loop", "hold")

    @property
    def holds(self) -> bool:
        """Whether a request waits for results by hand."""
        return self.delivery == "hold"

    def rules(self, plan: ToolPlan, model: Generation, *, ids: bool, keeps_history: bool = False) -> RewriteRules:
        strip = (self.strips or self.flattens) and not keeps_history
        keeps_pending = not plan.rewrites and not keeps_history
        signs = self.revision != 0 and model is not None  # a model without a version may be an older one
        return RewriteRules(plan, strip, model, self.placeholder, ids, keeps_history, keeps_pending, signs)


def effective_policy(policy: Policy, settings: Settings) -> dict[str, Any]:
    """Each option of the policy, or the proxy's option if the session does not set it."""
    own = policy.model_dump(exclude_none=True)
    return {field: own.get(field, getattr(settings, field)) for field in Policy.options()}


def shared_with(toolset: Toolset | None, shared: Sequence[Document]) -> list[Document]:
    """The proxy's own tools that a session with this toolset also has. An empty toolset excludes them, and a session's
    tool hides a shared tool of the same name."""
    if toolset is not None and not toolset.declarations and not toolset.builtins:
        return []
    own = {declaration["name"] for declaration in toolset.declarations} if toolset is not None else set()
    return [declaration for declaration in shared if declaration["name"] not in own]


_PATIENCE = 0.25
"""Seconds that a request waits for an unresponsive store if its session had no tools at the last read."""

_STEPS = 5
"""The number of steps of that time, so that steps in which the event loop was busy do not count."""

_SIZE = 2048
"""The approximate memory use of a configuration in bytes, besides its own tools."""


class _Key(NamedTuple):
    session: str
    at_door: bool = False


class SessionConfigs:
    """The configurations of a store's sessions, each rebuilt when its session's version changes. `shared`: declarations
    that every session has besides its own. A session with an empty toolset has none of them, and strips everything.

    Sessions without tools are cached too (None), so that an outage of the store does not affect them."""

    def __init__(self, store: Store, settings: Settings, budget: Budget, shared: Sequence[Document] = ()) -> None:
        self.store = store
        self.settings = settings
        self.placeholder = Placeholder(settings.placeholder)
        self._configs: Share[_Key, SessionConfig | None] = budget.share("session configs", 1 / 16)
        self._overdue: asyncio.Future[Snapshot] | None = None
        """A read that a request no longer waits for. Until it ends, no other session without tools waits."""
        self._changes = 0
        store.on_change = self._forget_absence
        self.share(shared)

    def _forget_absence(self, session: str) -> None:
        """Drop the record that the session has no tools: it may have some now."""
        self._changes += 1
        key = _Key(session)
        if key in self._configs and self._configs.get(key) is None:
            self._configs.pop(key)

    def expected(self, session: str) -> SessionConfig | None:
        """The configuration that the session had last; None if it had none."""
        return self._configs.get(_Key(session))

    async def of(self, session: str) -> SessionConfig | None:
        """None: the session has no toolset, and its traffic is not touched. Raises StoreUnavailable."""
        key, changes = _Key(session), self._changes
        if key in self._configs and self._configs.get(key) is None:
            snapshot = await self._snapshot_soon(session)
            if snapshot is None:
                return None
        else:
            snapshot = await self.store.snapshot(session)
        if (snapshot.record is None or snapshot.record.toolset is None) and not self.shared:
            if changes == self._changes:  # otherwise it may have been read before a change
                self._configs.put(key, None, len(session))
            else:
                self._configs.pop(key)
            return None
        return self._current(key, snapshot)

    async def at_door(self, session: str) -> SessionConfig:
        """The configuration for requests at a front door, also if the session has no tools. The client's tools are
        kept, because clients of a front door declare them on purpose. Calls of tools that are no longer declared become
        text in the history. Raises StoreUnavailable."""
        return self._current(_Key(session, at_door=True), await self.store.snapshot(session))

    def _current(self, key: _Key, snapshot: Snapshot) -> SessionConfig:
        config = self._configs.get(key)
        if config is None or config.version != snapshot.version:
            toolset = snapshot.record.toolset if snapshot.record is not None else None
            config = self.build(key.session, snapshot, toolset)
            if key.at_door:
                config = dataclasses.replace(config, client_tools="keep", flattens=True)
            self._configs.put(key, config, self._size(config))
        elif config.revision != snapshot.revision:
            config = dataclasses.replace(config, revision=snapshot.revision)
            self._configs.replace(key, config)
        return config

    async def _snapshot_soon(self, session: str) -> Snapshot | None:
        """The snapshot; None if the store does not answer soon, or was not asked. Raises StoreUnavailable."""
        if self._overdue is not None and not self._overdue.done():
            return None
        loop = asyncio.get_running_loop()
        reading = asyncio.Task(self.store.snapshot(session), loop=loop, eager_start=True, name="a session's snapshot")
        if not reading.done():
            reading.add_done_callback(lambda read: read.cancelled() or read.exception())  # maybe nobody awaits it
            await _wait_awake(reading, _PATIENCE)
        if not reading.done():
            self._overdue = reading
            return None
        try:
            return reading.result()
        except StoreUnavailable:
            if self.store.outage:
                return None
            raise

    def share(self, declarations: Sequence[Document]) -> None:
        """Replace the tools that every session has."""
        self.shared = declarations
        self._shared_toolbox = Toolbox(declarations)
        self._configs.clear()

    def _size(self, config: SessionConfig) -> int:
        """In bytes. The tools are held decoded and, for each kind of model, as JSON."""
        toolbox = config.toolbox
        if toolbox is self._shared_toolbox:
            return _SIZE
        return _SIZE + 3 * memory_of(toolbox.declarations, toolbox.builtins, toolbox.tool_config)

    def build(self, session: str, snapshot: Snapshot, toolset: Toolset | None) -> SessionConfig:
        """The configuration of a session with this toolset, or None without one. The snapshot gives only the policy."""
        policy = snapshot.record.policy if snapshot.record is not None else Policy()
        if toolset is None:
            toolset, toolbox = Toolset(), self._shared_toolbox
        else:
            tools = [*toolset.declarations, *shared_with(toolset, self.shared)]
            toolbox = Toolbox(tools, toolset.builtins, toolset.tool_config)
        own = frozenset(declaration["name"] for declaration in toolset.declarations)
        return SessionConfig(
            session=session,
            version=snapshot.version,
            revision=snapshot.revision,
            toolset=toolset,
            declared=own,
            toolbox=toolbox,
            placeholder=self.placeholder,
            always_approved=policy.always_approved or {},
            **effective_policy(policy, self.settings),
        )


async def _wait_awake(reading: asyncio.Future[Any], seconds: float) -> None:
    """Wait for the reading, at most for these seconds. Time in which the event loop was busy does not count, because it
    says nothing about the store."""
    clock = asyncio.get_running_loop().time
    step, left = seconds / _STEPS, _STEPS
    while left and not reading.done():
        began = clock()
        await asyncio.wait({reading}, timeout=step)
        if clock() - began < 2 * step:
            left -= 1


def toolset_of(document: object) -> Toolset:
    """`document`: `{"tools": […]}`, optionally with `tool_config` or `tool_choice`; see `normalise`. Raises BadTool, or
    ValidationError for a rule."""
    tools = normalise(document)
    return Toolset(
        declarations=list(tools.declarations),
        builtins=list(tools.builtins),
        tool_config=tools.tool_config,
        rules={name: ToolRules.model_validate(rules) for name, rules in tools.rules.items()},
    )
