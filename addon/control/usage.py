"""What sessions have used, of all processes of the proxy."""

from collections.abc import Callable
from functools import partial

from addon.control.routes.processes import states
from addon.session_usage import Usage, usage_in
from addon.web.context import ApiContext


async def usages(api: ApiContext) -> Callable[[str], Usage]:
    """Gives the usage of each session. Raises Problem (503)."""
    if not api.recent.has_siblings:
        return api.recent.usage.of
    return partial(usage_in, [state["usage"] for state in await states(api)])
