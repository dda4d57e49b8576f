"""The composition root: the addons, in the order in which mitmproxy calls them."""

from addon.hooks.grafting import Grafting
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.masking import Masking
from addon.hooks.record import Recording
from addon.hooks.routing import Routing


def build_addons() -> list[object]:
    lifecycle = Lifecycle()
    routing = Routing(lifecycle)
    grafting = Grafting(lifecycle, routing)
    return [lifecycle, Masking(), routing, grafting, Recording(lifecycle, routing, grafting)]
