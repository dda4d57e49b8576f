"""Creates the routes of the front doors, which are served at the control API's port."""

from collections.abc import Callable, Mapping

from addon.core.summaries import Summary
from addon.gateway import compatible, gemini, responses
from addon.gateway.compatible import CompatibleRoutes
from addon.gateway.conversation_routes import ConversationRoutes
from addon.gateway.conversations import Conversations
from addon.gateway.downloads import Download
from addon.gateway.engine import Engine, UpstreamFactory
from addon.gateway.failures import in_google_s_words, in_openai_s_words
from addon.gateway.front_door import paths_of
from addon.gateway.gemini import GeminiRoutes
from addon.gateway.response_socket import socket_route
from addon.gateway.responses import ResponsesRoutes
from addon.graft.grafter import Grafter
from addon.loop.executors import Executors
from addon.monitoring.recent_requests import Bodies
from addon.web.api import ExtraRoutes
from store.base import Store

_KEYS = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
"""Environment variables for the Gemini API key, in the order of precedence."""


def key_of(environ: Mapping[str, str]) -> str:
    """The Gemini API key for callers that send none; empty if the environment has none."""
    return next((value for name in _KEYS if (value := environ.get(name, "").strip())), "")


def gateway_routes(
    *,
    store: Store,
    grafter: Callable[[], Grafter],
    executors: Executors,
    upstreams: UpstreamFactory,
    environ: Mapping[str, str],
    report: Callable[[Summary], None] = lambda summary: None,
    begun: Callable[[Summary, Bodies], None] = lambda summary, bodies: None,
    download: Download | None = None,
) -> ExtraRoutes:
    """`download` fetches files that requests name by URLs. `begun` is called when a turn's request is rewritten,
    `report` at the end of each turn."""
    engine = Engine(grafter, executors, upstreams, report, begun)
    conversations, key = Conversations(store, executors), key_of(environ)
    door = ResponsesRoutes(engine, conversations, key, download)
    routes = [
        *door.routes(),
        socket_route(door, door.turns),
        *ConversationRoutes(conversations, download).routes(),
        *CompatibleRoutes(engine, conversations, key).routes(),
        *GeminiRoutes(engine, conversations, key).routes(),
    ]
    openai = (responses.PATH, *compatible.PREFIXES)
    dialects = dict.fromkeys(openai, in_openai_s_words) | {gemini.PATH: in_google_s_words}
    return ExtraRoutes(routes, dialects=dialects, paths=paths_of(routes))
