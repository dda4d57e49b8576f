"""What holds for the requests of one session: its policy over the proxy's options, and its toolset made ready."""

from dataclasses import dataclass
from typing import Literal

from addon.core.history import Rules
from addon.core.placeholder import Placeholder
from addon.core.tools import Generation, Plan, Toolbox
from addon.settings import Settings
from store.base import Store
from store.models import Session, Toolset


@dataclass(frozen=True, slots=True)
class Scope:
    record: Session
    toolbox: Toolbox
    placeholder: Placeholder
    client_tools: Literal["strip", "keep"]
    delivery: Literal["auto", "placeholder", "loop", "passthrough"]
    on_pending: Literal["pass", "wait", "block"]
    pending_timeout: float

    @property
    def session(self) -> str:
        return self.record.name

    @property
    def strips(self) -> bool:
        return self.client_tools == "strip"

    def rules(self, plan: Plan, model: Generation, *, keep_unanswered: bool, ids: bool) -> Rules:
        return Rules(plan, self.strips, model, self.placeholder, keep_unanswered, ids)


class Scopes:
    """The scopes of a store's sessions, made again when the session's record changes."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self.placeholder = Placeholder(settings.placeholder)
        self._scopes: dict[str, Scope] = {}

    async def of(self, session: str) -> Scope | None:
        """None for a session without a toolset: its traffic is not touched. Raises StoreUnavailable."""
        record = await self.store.session(session)
        if record is None or record.toolset is None:
            self._scopes.pop(session, None)
            return None
        scope = self._scopes.get(session)
        if scope is None or scope.record is not record:
            scope = self._scopes[session] = self.made_of(record, record.toolset)
        return scope

    def made_of(self, record: Session, toolset: Toolset) -> Scope:
        """The scope of a session's record with this toolset."""
        policy, options = record.policy, self.settings
        timeout = policy.pending_timeout
        return Scope(
            record=record,
            toolbox=Toolbox(toolset.declarations, toolset.builtins, toolset.tool_config),
            placeholder=self.placeholder,
            client_tools=policy.client_tools or options.client_tools,
            delivery=policy.delivery or options.delivery,
            on_pending=policy.on_pending or options.on_pending,
            pending_timeout=options.pending_timeout if timeout is None else timeout,
        )
