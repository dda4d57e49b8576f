"""The composition root: the parts, in the order in which they are called, as one addon."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import mitmproxy.proxy.layers  # noqa: F401 - makes the hooks of flows known
from mitmproxy import hooks, http

import addon.hooks.interim  # noqa: F401 - replaces what mitmproxy does not know of HTTP
from addon.hooks.connections import Connections
from addon.hooks.dispatch import Dispatch
from addon.hooks.draining import InFlight
from addon.hooks.grafting import Grafting
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.live import LiveHooks
from addon.hooks.looping import Looping
from addon.hooks.masking import Masking
from addon.hooks.record import Recording
from addon.hooks.routing import Routing, refusal
from addon.hooks.shadow_flows import ShadowFlows
from addon.hooks.stdout import Stdout
from addon.hooks.upstream_factory import MitmUpstreamFactory
from addon.hooks.upstream_pool import UpstreamPool

Hook = Callable[..., Any]

ON_THE_WAY_UP = ("http_connect", "requestheaders", "request")
AT_ONCE = ("load", "configure", "done")
"""Hooks that mitmproxy does not always wait for."""


class Toolgraft:
    """Several addons as one. At each of the hooks of a request mitmproxy asks every addon whether it has it: one is
    asked for less than what five are, and traffic that is not ours hardly feels it. For the same reason a hook gives
    something to wait for only where there is a need to wait."""

    name = "toolgraft"

    def __init__(self, parts: Sequence[object]) -> None:
        self.parts = parts
        for name in hooks.all_hooks:
            found = [hook for part in parts if (hook := getattr(part, name, None)) is not None]
            if found:
                hook = found[0] if len(found) == 1 else _together(found) if name in AT_ONCE else _in_turn(found)
                setattr(self, name, _or_refused(hook) if name in ON_THE_WAY_UP else hook)


def _together(found: Sequence[Hook]) -> Hook:
    """One hook that calls these. Of what there is to wait for it gives the first."""

    def each(*arguments: Any) -> object:
        results = [hook(*arguments) for hook in found]
        return next((result for result in results if result is not None), None)

    return each


def _in_turn(found: Sequence[Hook]) -> Hook:
    """One hook that calls these, each when the one before it is done."""

    def each(*arguments: Any) -> Awaitable[None] | None:
        for at, hook in enumerate(found, 1):
            waiting = hook(*arguments)
            if waiting is not None:
                return rest(waiting, found[at:], arguments)
        return None

    async def rest(waiting: Awaitable[object], left: Sequence[Hook], arguments: Sequence[Any]) -> None:
        await waiting
        for hook in left:
            result = hook(*arguments)
            if result is not None:
                await result

    return each


def _or_refused(hook: Hook) -> Hook:
    """The hook; where a mistake in it raises, the request is answered here. mitmproxy would log the mistake and send
    out a request that nobody knows the state of."""

    def refuse(flow: http.HTTPFlow) -> None:
        flow.response = refusal(500, "INTERNAL", "a mistake in the proxy itself; its log says which")

    def guarded(flow: http.HTTPFlow) -> Awaitable[None] | None:
        try:
            waiting = hook(flow)
        except Exception:
            refuse(flow)
            raise
        return None if waiting is None else waited_for(waiting, flow)

    async def waited_for(waiting: Awaitable[object], flow: http.HTTPFlow) -> None:
        try:
            await waiting
        except Exception:
            refuse(flow)
            raise

    return guarded


def build_addons() -> list[object]:
    shadow_flows = ShadowFlows()
    pool = UpstreamPool()
    upstream_factory = MitmUpstreamFactory(shadow_flows, pool)
    in_flight = InFlight()
    lifecycle = Lifecycle(upstream_factory, pool, in_flight)
    shadow_flows.settings = lifecycle.settings
    routing = Routing(lifecycle, shadow_flows, in_flight)
    looping = Looping(lifecycle, routing, shadow_flows, pool)
    grafting = Grafting(lifecycle, routing, looping)
    live_hooks = LiveHooks(lifecycle, routing)
    recording = Recording(lifecycle, routing, grafting, shadow_flows)
    first = [Stdout(), lifecycle, Connections(lifecycle), Masking(), pool, upstream_factory]
    return [Toolgraft([*first, looping, routing, grafting, live_hooks, recording, in_flight, Dispatch(lifecycle)])]
