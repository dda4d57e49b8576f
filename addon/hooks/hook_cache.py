"""Looks up the hooks of each event once. For each request mitmproxy asks its 36 addons for about twenty hooks, which
few of them have: half of its time. The hooks of mitmproxy's addons and toolgraft's do not change. A script may change
hooks and `addons`, its own or others', at any time: if one is loaded, mitmproxy dispatches its events itself.

`trigger_event` is replaced in one AddonManager, never in the class, and only if a trial shows that mitmproxy calls the
same hooks in the same order. `graft_fast=off` is for two cases that nothing notices: other code, such as a tools file,
that changes hooks of mitmproxy's addons after the first request, and a script that replaces methods of `AddonManager`.
"""

import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from mitmproxy import ctx, exceptions, hooks
from mitmproxy.addonmanager import AddonManager, safecall, traverse
from mitmproxy.optmanager import OptManager

from addon.hooks.lifecycle import Lifecycle

logger = logging.getLogger("toolgraft")

Table = tuple[tuple[Callable[..., Any], ...], ...]
"""The hooks of one event, grouped by addon with sub-addons. If a hook raises, the rest of its group is skipped."""

_EXPECTED = ["outer", "awaited", "halts"]
_ENTRY = Path(__file__).resolve().parent.parent / "entry.py"


class Speedups:
    """Installs the dispatcher in this mitmproxy while `graft_fast` is on. Runs last."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self._dispatcher: Dispatcher | None = None

    def configure(self, updated: set[str]) -> None:
        runtime = self.lifecycle.runtime
        if runtime is None or runtime.ending or not runtime.settings.fast:
            self.done()
        elif self._dispatcher is None and fits(ctx.master.addons):
            self._dispatcher = Dispatcher(ctx.master.addons)
        elif self._dispatcher is None:
            logger.warning(f"graft_fast has no effect: mitmproxy {version('mitmproxy')} calls hooks in another way")

    def running(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.forget()  # toolgraft replaces hooks of the dumper when it begins to run

    def done(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.uninstall()
            self._dispatcher = None


class Dispatcher:
    """Dispatches the events of one AddonManager, from construction until `uninstall`."""

    def __init__(self, manager: AddonManager) -> None:
        self._manager = manager
        # the state that the tables are valid for: the chain, and the number of registered addons
        self._addons: list[object] = []
        self._tables: dict[str, Table] | None = None
        manager.trigger_event = self.trigger_event  # type: ignore[method-assign]

    def uninstall(self) -> None:
        if vars(self._manager).get("trigger_event") == self.trigger_event:  # a script may have replaced it
            del self._manager.trigger_event

    def forget(self) -> None:
        self._addons = []

    async def trigger_event(self, event: hooks.Hook) -> None:
        table = self.table(event.name)
        if table is None:
            await AddonManager.trigger_event(self._manager, event)
        elif table:
            await invoke_addon(table, event)

    def table(self, name: str) -> Table | None:
        """The table of an event, or None if mitmproxy must look up its hooks."""
        chain = self._manager.chain
        if self._addons != (addons := [*chain, len(self._manager.lookup)]):
            self._addons = addons
            self._tables = {} if all(map(_is_known, traverse(chain))) else None
        if self._tables is None:
            return None
        if name not in self._tables:
            groups = ([getattr(addon, name, None) for addon in traverse([top])] for top in chain)
            self._tables[name] = tuple(found for group in groups if (found := tuple(filter(callable, group))))
        return self._tables[name]


async def invoke_addon(table: Table, event: hooks.Hook) -> None:
    """Named like mitmproxy's function, because tracebacks in the log begin below that name."""
    arguments = event.args()
    for group in table:
        try:
            for hook in group:
                result = hook(*arguments)
                if result is not None and inspect.isawaitable(result):
                    await result
        except exceptions.AddonHalt:
            return
        except Exception:
            with safecall():
                raise


def _is_known(addon: object) -> bool:
    """Whether the addon's hooks and `addons` change only when an addon is registered or removed."""
    if isinstance(addon, ModuleType):
        return Path(getattr(addon, "__file__", None) or "").resolve() == _ENTRY
    return type(addon).__module__.startswith(("mitmproxy.", "addon.hooks."))


def fits(manager: AddonManager) -> bool:
    """Whether the manager is mitmproxy's own, not yet modified, and calls hooks as the dispatcher does."""
    is_original = type(manager) is AddonManager and "trigger_event" not in vars(manager)
    with suppress(Exception):
        return is_original and _trial(lambda tried: None) == _trial(Dispatcher) == _EXPECTED
    return False


def _trial(prepare: Callable[[AddonManager], object]) -> list[str]:
    """The hooks that a manager calls, in order."""
    calls: list[str] = []

    def probe(hook: Callable[[object], object], *addons: object) -> object:
        return SimpleNamespace(update=hook, addons=addons)

    async def awaited(flows: object) -> None:
        calls.append("awaited")

    def halts(flows: object) -> None:
        calls.append("halts")
        raise exceptions.AddonHalt

    manager = AddonManager(SimpleNamespace(options=OptManager()))
    prepare(manager)
    outer = probe(lambda flows: calls.append("outer"), probe(awaited))
    manager.chain = [outer, probe(halts, probe(halts)), probe(halts)]
    with suppress(StopIteration):
        manager.trigger_event(hooks.UpdateHook([])).send(None)
    return calls
