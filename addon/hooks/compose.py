"""The composition root: creates the parts and joins them, in order, into one addon."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import mitmproxy.proxy.layers  # noqa: F401 - registers the hooks of flows
from mitmproxy import hooks, http

from addon.hooks.draining import InFlight
from addon.hooks.grafting import Grafting
from addon.hooks.hook_cache import Speedups
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.live import LiveHooks
from addon.hooks.log_lines import LogLines, RequestLines
from addon.hooks.looping import Looping
from addon.hooks.messages import answer, refusal
from addon.hooks.mitmproxy_console import ConsoleCommands, add_view, commands_of
from addon.hooks.recording_writer import Recording
from addon.hooks.reloading import Reloading
from addon.hooks.routing import Routing
from addon.hooks.secrets import Masking
from addon.hooks.upstream_flows import MitmUpstreamFactory, ShadowFlows, UpstreamPool

Hook = Callable[..., Any]

REQUEST_HOOKS = ("http_connect", "requestheaders", "request")
UNAWAITED_HOOKS = ("load", "configure", "done")
"""Hooks whose result mitmproxy does not always await."""


class Toolgraft:
    """Several addons as one. mitmproxy queries each addon for each hook of a request, so a single addon slows foreign
    traffic less. For the same reason a hook returns an awaitable only if it must wait."""

    name = "toolgraft"

    def __init__(self, parts: Sequence[object]) -> None:
        self.parts = parts
        for name in hooks.all_hooks:
            found = [hook for part in parts if (hook := getattr(part, name, None)) is not None]
            if found:
                hook = (
                    found[0] if len(found) == 1 else _all_at_once(found) if name in UNAWAITED_HOOKS else _in_turn(found)
                )
                setattr(self, name, _refusing_on_error(hook) if name in REQUEST_HOOKS else hook)
        for part in parts:
            for name, command in commands_of(part):  # mitmproxy looks for commands among an addon's attributes
                setattr(self, f"command_{name}", command)


def _all_at_once(found: Sequence[Hook]) -> Hook:
    """One hook that calls all of these immediately. Returns the first awaitable, if any."""

    def each(*arguments: Any) -> object:
        results = [hook(*arguments) for hook in found]
        return next((result for result in results if result is not None), None)

    return each


def _in_turn(found: Sequence[Hook]) -> Hook:
    """One hook that calls these one after the other, each when the previous one is done."""

    def each(*arguments: Any) -> Awaitable[None] | None:
        for at, hook in enumerate(found, 1):
            waiting = hook(*arguments)
            if waiting is not None:
                return rest(waiting, found[at:], arguments)
        return None

    async def rest(waiting: Awaitable[object], remaining: Sequence[Hook], arguments: Sequence[Any]) -> None:
        await waiting
        for hook in remaining:
            result = hook(*arguments)
            if result is not None:
                await result

    return each


def _refusing_on_error(hook: Hook) -> Hook:
    """The hook, which refuses its request on an error. mitmproxy would send the request in an unknown state."""

    def refuse(flow: http.HTTPFlow) -> None:
        answer(flow, refusal(500, "INTERNAL", "a mistake in the proxy itself; its log says which"))

    def guarded(flow: http.HTTPFlow) -> Awaitable[None] | None:
        try:
            waiting = hook(flow)
        except Exception:
            refuse(flow)
            raise
        return None if waiting is None else awaiting(waiting, flow)

    async def awaiting(waiting: Awaitable[object], flow: http.HTTPFlow) -> None:
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
    looping = Looping(lifecycle, shadow_flows, pool)
    grafting = Grafting(lifecycle, routing, looping)
    live_hooks = LiveHooks(lifecycle, routing)
    recording = Recording(lifecycle, routing, grafting, shadow_flows)
    reloading = Reloading(lifecycle)
    lines = RequestLines(lifecycle, routing, grafting, shadow_flows)
    first = [lifecycle, LogLines(), Masking(), pool, upstream_factory]
    last = [Speedups(lifecycle), lines, ConsoleCommands(lifecycle), reloading]
    add_view()
    return [Toolgraft([*first, looping, routing, grafting, live_hooks, recording, in_flight, *last])]
