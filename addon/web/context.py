"""The state that all handlers of the control API and of the front doors share."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

from addon.core.framing.documents import Document
from addon.metrics import Metrics
from addon.recent_requests import RecentRequests
from addon.settings import Settings
from addon.tools.base import ServerState
from addon.tools.mcp_pins import Pins
from addon.web.access import ANYONE, OWNER, Access
from addon.web.audit import Audit
from addon.web.page_sessions import PageSessions
from addon.web.tokens import Tokens
from store.base import Store
from store.models import Call, Owner

type TryTool = Callable[[str, str, Document, Callable[[Owner], None]], Awaitable[Call]]
"""Takes the session, the tool's name, the arguments, and a function that raises if the caller may not try tools that
this owner runs. Raises Problem, StoreError."""


@dataclass(slots=True, kw_only=True)
class ApiContext:
    """`settings` is replaced when options change. `draining`: the proxy is about to end and starts no new turns.
    `active_requests`: the front doors' requests in progress. `ending`: set when the server stops, which ends long
    answers."""

    store: Store
    settings: Settings
    metrics: Metrics
    version: str
    tokens: Tokens
    audit: Audit
    page_sessions: PageSessions | None = None
    """None: no token is required."""
    pins: Pins | None = None
    shared: Callable[[], Sequence[Document]] = tuple
    """The declarations of the proxy's own tools."""
    origin: Callable[[str], Document | None] = lambda name: None
    """The source and the rules of one of these tools (`addon.control.views.Origin`)."""
    setting_rows: Callable[[], Sequence[Document]] = tuple
    """The proxy's options, each with its value and where it is set, without secrets."""
    server_states: Callable[[], Sequence[ServerState]] = tuple
    """The state of each MCP server."""
    recent: RecentRequests = field(default_factory=RecentRequests)
    """The last requests to models."""
    problems: Callable[[str, str, Document], Awaitable[Sequence[str]]] | None = None
    """The problems of arguments, by the schema of a session's tool."""
    tool_version: Callable[[str, str], Awaitable[str]] | None = None
    """The digest of a session's tool."""
    try_tool: TryTool | None = None
    """Starts a trial call of a session's tool."""
    restart_server: Callable[[str], Awaitable[bool]] | None = None
    """Restarts an MCP server. False: no such server."""
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    draining: bool = False
    active_requests: int = 0

    def has_ended(self, scope: Scope) -> bool:
        """Whether a page sent this request, and its session has ended since. Raises OSError."""
        return self.page_sessions is not None and self.page_sessions.has_ended(dict(scope.get("headers", ())))

    def ends(self, caller: Access) -> Sequence[asyncio.Event]:
        """The events that end a long answer to this caller."""
        return [self.ending] if caller in (OWNER, ANYONE) else [self.ending, self.tokens.end(caller)]
