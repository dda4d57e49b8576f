"""Looks up the hooks of each event once, instead of at every event.

mitmproxy asks each of its 36 addons for the hooks of about twenty events per request, although few addons have any
given hook. This takes half of its time. Here a table holds the hooks of each event, if all addons are mitmproxy's or
toolgraft's, whose hooks do not change. A script may change hooks and `addons`, its own or others', whenever it runs. If
a script is loaded, each addon is therefore asked at each event, as mitmproxy does but with less overhead.

Two methods, `trigger_event` and `handle_lifecycle`, are replaced, and two are wrapped to notice an outdated table. This
is done in one AddonManager, never in the class, and only if mitmproxy's source is the one that this module was written
for. `trigger` and `invoke_addon_sync` always remain mitmproxy's.
"""

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from mitmproxy import ctx, exceptions, flow, hooks
from mitmproxy.addonmanager import AddonManager, safecall, traverse

from addon.hooks.addon_shortcuts import ADDON_SHORTCUTS
from addon.hooks.heap import keep_freed_memory
from addon.hooks.layer_shortcuts import LAYER_SHORTCUTS
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.sending_shortcuts import SENDING_SHORTCUTS
from addon.hooks.shortcuts import SHORTCUTS, Shortcut, take_all
from addon.hooks.source_hash import source_hash
from addon.hooks.stream_shortcuts import STREAM_SHORTCUTS

logger = logging.getLogger("toolgraft")

Hook = Callable[..., Any]
Table = tuple[tuple[Hook, ...], ...]
"""The hooks of one event. An addon and its sub-addons form a group, the rest of which is skipped if a hook raises."""

_KNOWN = (
    *("AddonManager.trigger_event", "AddonManager.handle_lifecycle", "AddonManager.register", "AddonManager.remove"),
    *("AddonManager.invoke_addon", "AddonManager._iter_hooks", "traverse", "safecall", "cut_traceback"),
    *("AddonManager.add", "AddonManager.clear"),
)
WRITTEN_FOR = "bada7e535a579aba"

ALL_SHORTCUTS = (*SHORTCUTS, *ADDON_SHORTCUTS, *STREAM_SHORTCUTS, *LAYER_SHORTCUTS, *SENDING_SHORTCUTS)

_OWN = __name__.rpartition(".")[0]
_ENTRY = Path(__file__).resolve().parent.parent / "entry.py"


def fits(manager: AddonManager) -> bool:
    """Whether the manager is the version that this module was written for, and not yet modified."""
    known = source_hash(*(f"mitmproxy.addonmanager:{name}" for name in _KNOWN)) == WRITTEN_FOR
    return known and type(manager) is AddonManager and not Dispatcher.METHODS & vars(manager).keys()


class Speedups:
    """Installs the dispatcher and the shortcuts in this mitmproxy while `graft_fast` is on. Runs last."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self._is_on = False
        self._dispatcher: Dispatcher | None = None
        self._shortcuts: list[Shortcut] = []

    def configure(self, updated: set[str]) -> None:
        runtime = self.lifecycle.runtime
        on = runtime is not None and not runtime.ending and runtime.settings.fast == "on"
        if on == self._is_on:
            return
        self.done()
        if on:
            self._begin(ctx.master.addons)

    def _begin(self, manager: AddonManager) -> None:
        self._is_on = True
        keep_freed_memory()
        if fits(manager):
            self._dispatcher = Dispatcher(manager)
        self._shortcuts = take_all(ALL_SHORTCUTS)
        skipped = [shortcut.name for shortcut in ALL_SHORTCUTS if shortcut not in self._shortcuts]
        if self._dispatcher is None:
            skipped.insert(0, "mitmproxy.addonmanager:AddonManager.trigger_event")
        if skipped:
            names = ", ".join(skipped)
            logger.warning(f"graft_fast: these methods of mitmproxy {version('mitmproxy')} are not replaced: {names}")

    def running(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.forget()  # toolgraft replaces hooks of the dumper when it begins to run

    def done(self) -> None:
        self._is_on = False
        if self._dispatcher is not None:
            self._dispatcher.uninstall()
            self._dispatcher = None
        while self._shortcuts:
            self._shortcuts.pop().release()


class Dispatcher:
    """Dispatches the events of one AddonManager, from construction until `uninstall`."""

    METHODS = frozenset({"trigger_event", "handle_lifecycle", "register", "remove"})

    def __init__(self, manager: AddonManager) -> None:
        self._manager = manager
        self._chain: list[Any] = []
        """The addons that the tables are for."""
        self._are_known = True
        self._tables: dict[str, Table | None] = {}
        """By event; None if an addon's hook is not callable, which mitmproxy logs at each event."""
        vars(manager).update({name: getattr(self, name) for name in self.METHODS})

    def uninstall(self) -> None:
        for name in self.METHODS:
            if vars(self._manager).get(name) == getattr(self, name):  # a script may have replaced it
                del vars(self._manager)[name]

    def register(self, addon: Any) -> Any:
        try:
            return AddonManager.register(self._manager, addon)
        finally:
            self.forget()

    def remove(self, addon: Any) -> None:
        try:
            AddonManager.remove(self._manager, addon)
        finally:
            self.forget()

    def forget(self) -> None:
        self._chain = []

    async def handle_lifecycle(self, event: hooks.Hook) -> None:
        message = event.args()[0]
        await self._manager.trigger_event(event)
        if isinstance(message, flow.Flow) and self._table("update") != ():
            await self._manager.trigger_event(hooks.UpdateHook([message]))

    async def trigger_event(self, event: hooks.Hook) -> None:
        table = self._table(event.name)
        if table != ():
            await invoke_addon(self._groups(event.name) if table is None else table, event)

    def _table(self, name: str) -> Table | None:
        """The table of an event, or None if each addon has to be asked."""
        if self._chain != self._manager.chain:
            self._chain = list(self._manager.chain)
            self._are_known = all(map(_is_known, traverse(self._chain)))
            self._tables = {}
        if not self._are_known:
            return None
        if name not in self._tables:
            try:
                groups = (tuple(_iter_hooks(top, name)) for top in self._chain)
                self._tables[name] = tuple(group for group in groups if group)
            except exceptions.AddonManagerError:
                self._tables[name] = None
        return self._tables[name]

    def _groups(self, name: str) -> Iterator[Iterator[Hook]]:
        """The groups that have hooks. Each addon is asked in its turn, since an earlier hook may have changed it."""
        for top in self._manager.chain:
            try:
                nothing = not getattr(top, name, None) and not hasattr(top, "addons")
            except Exception:
                nothing = False  # it raises again below, where that is logged
            if not nothing:
                yield _iter_hooks(top, name)


async def invoke_addon(groups: Iterable[Iterable[Hook]], event: hooks.Hook) -> None:
    """Named like mitmproxy's function, because tracebacks in the log begin below that name."""
    arguments = event.args()
    for group in groups:
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


def _iter_hooks(addon: Any, name: str) -> Iterator[Hook]:
    """The hooks of an addon and its sub-addons, like mitmproxy's `_iter_hooks`."""
    found = getattr(addon, name, None)
    if found:
        if callable(found):
            yield found
        elif not isinstance(found, ModuleType):
            raise exceptions.AddonManagerError(f"Addon handler {name} ({addon}) not callable")
    if hasattr(addon, "addons"):
        for part in addon.addons:
            yield from _iter_hooks(part, name)


def _is_known(addon: Any) -> bool:
    """Whether the addon's hooks and `addons` change only when an addon is registered or removed."""
    if isinstance(addon, ModuleType):
        return Path(getattr(addon, "__file__", None) or "").resolve() == _ENTRY
    defined_in = type(addon).__module__
    return defined_in.partition(".")[0] == "mitmproxy" or defined_in.rpartition(".")[0] == _OWN
