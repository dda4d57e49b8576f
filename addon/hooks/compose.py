"""The composition root: the parts, in the order in which they are called, as one addon."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mitmproxy import hooks

from addon.hooks.grafting import Grafting
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.masking import Masking
from addon.hooks.record import Recording
from addon.hooks.routing import Routing

Hook = Callable[..., Any]


class Toolgraft:
    """Several addons as one. At each of the hooks of a request mitmproxy asks every addon whether it has it: one is
    asked for less than what five are, and traffic that is not ours hardly feels it."""

    name = "toolgraft"

    def __init__(self, parts: Sequence[object]) -> None:
        self.parts = parts
        for name in hooks.all_hooks:
            found = [hook for part in parts if (hook := getattr(part, name, None)) is not None]
            if found:
                setattr(self, name, found[0] if len(found) == 1 else _in_turn(found))


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


def build_addons() -> list[object]:
    lifecycle = Lifecycle()
    routing = Routing(lifecycle)
    grafting = Grafting(lifecycle, routing)
    return [Toolgraft([lifecycle, Masking(), routing, grafting, Recording(lifecycle, routing, grafting)])]
