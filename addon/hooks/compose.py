"""The composition root: the parts, in the order in which they are called, as one addon."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mitmproxy import hooks, http

from addon.hooks.grafting import Grafting
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.looping import Looping
from addon.hooks.masking import Masking
from addon.hooks.record import Recording
from addon.hooks.routing import Routing, refusal
from addon.hooks.watching import Watching

Hook = Callable[..., Any]

ON_THE_WAY_UP = ("http_connect", "requestheaders", "request")


class Toolgraft:
    """Several addons as one. At each of the hooks of a request mitmproxy asks every addon whether it has it: one is
    asked for less than what five are, and traffic that is not ours hardly feels it."""

    name = "toolgraft"

    def __init__(self, parts: Sequence[object]) -> None:
        self.parts = parts
        for name in hooks.all_hooks:
            found = [hook for part in parts if (hook := getattr(part, name, None)) is not None]
            if found:
                hook = found[0] if len(found) == 1 else _in_turn(found)
                setattr(self, name, _or_refused(hook) if name in ON_THE_WAY_UP else hook)


def _in_turn(found: Sequence[Hook]) -> Hook:
    """One hook that calls these. It is async only where one of them is: some hooks must not be."""
    if any(inspect.iscoroutinefunction(hook) for hook in found):

        async def each(*arguments: Any) -> None:
            for hook in found:
                result = hook(*arguments)
                if result is not None:
                    await result

        return each

    def each_at_once(*arguments: Any) -> object:
        results = [hook(*arguments) for hook in found]
        return next((result for result in results if result is not None), None)  # a task to wait for

    return each_at_once


def _or_refused(hook: Hook) -> Hook:
    """The hook; where a mistake in it raises, the request is answered here. mitmproxy would log the mistake and send
    out a request that nobody knows the state of."""

    def refuse(flow: http.HTTPFlow) -> None:
        flow.response = refusal(500, "INTERNAL", "a mistake in the proxy itself; its log says which")

    if inspect.iscoroutinefunction(hook):

        async def guarded(flow: http.HTTPFlow) -> None:
            try:
                await hook(flow)
            except Exception:
                refuse(flow)
                raise

        return guarded

    def guarded_at_once(flow: http.HTTPFlow) -> None:
        try:
            hook(flow)
        except Exception:
            refuse(flow)
            raise

    return guarded_at_once


def build_addons() -> list[object]:
    lifecycle = Lifecycle()
    watching = Watching()
    routing = Routing(lifecycle, watching)
    looping = Looping(lifecycle, routing, watching)
    grafting = Grafting(lifecycle, routing, looping)
    recording = Recording(lifecycle, routing, grafting, watching)
    # a looping flow is put back to where it was redirected to before the redirect itself is undone
    return [Toolgraft([lifecycle, Masking(), looping, routing, grafting, recording])]
