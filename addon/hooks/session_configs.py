"""The configuration of a flow's session."""

from mitmproxy import http

from addon.graft.exchange import Reply
from addon.graft.grafter import EXCHANGE_FAILED
from addon.graft.session_config import SessionConfig
from addon.hooks.messages import answer, response_of
from addon.hooks.routing import Route
from addon.hooks.runtime import Runtime


async def session_config_of(flow: http.HTTPFlow, route: Route, runtime: Runtime) -> SessionConfig | None:
    """None if the session has no tools, or if its configuration cannot be read: then the flow gets an error as its
    response, unless the settings let it pass unchanged."""
    try:
        return await runtime.grafter.session_config(route.session)
    except EXCHANGE_FAILED as error:
        outcome = runtime.grafter.failure_outcome(route.target, b"", error)
        if isinstance(outcome, Reply):
            answer(flow, response_of(outcome))
        return None
