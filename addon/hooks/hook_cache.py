"""Looks up the hooks of each event once, instead of at every event.

mitmproxy asks each of its 36 addons for the hooks of about twenty events per request, although few addons have any
given hook. This takes half of its time. Here a table holds the hooks of each event, if all addons are mitmproxy's or
toolgraft's, whose hooks do not change. A script may change hooks and `addons`, its own or others', whenever it runs: if
a script is loaded, mitmproxy dispatches its events itself.

`trigger_event` is replaced, and two methods are wrapped to notice an outdated table. This is done in one AddonManager,
never in the class, and only if a trial shows that mitmproxy calls the same hooks in the same order.
"""

import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from mitmproxy import ctx, exceptions, hooks
from mitmproxy.addonmanager import AddonManager, safecall, traverse
from mitmproxy.optmanager import OptManager

from addon.hooks.lifecycle import Lifecycle

logger = logging.getLogger("toolgraft")

Hook = Callable[..., Any]
Table = tuple[tuple[Hook, ...], ...]
"""The hooks of one event. An addon and its sub-addons form a group, the rest of which is skipped if a hook raises."""

_OWN = __name__.rpartition(".")[0]
_ENTRY = Path(__file__).resolve().parent.parent / "entry.py"


class Speedups:
    """Installs the dispatcher in this mitmproxy while `graft_fast` is on. Runs last."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self.lifecycle = lifecycle
        self._is_on = False
        self._dispatcher: Dispatcher | None = None

    def configure(self, updated: set[str]) -> None:
        runtime = self.lifecycle.runtime
        on = runtime is not None and not runtime.ending and runtime.settings.fast == "on"
        if on == self._is_on:
            return
        self.done()
        self._is_on = on
        if on and fits(ctx.master.addons):
            self._dispatcher = Dispatcher(ctx.master.addons)
        elif on:
            logger.warning(f"graft_fast has no effect: mitmproxy {version('mitmproxy')} calls hooks in another way")

    def running(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.forget()  # toolgraft replaces hooks of the dumper when it begins to run

    def done(self) -> None:
        self._is_on = False
        if self._dispatcher is not None:
            self._dispatcher.uninstall()
            self._dispatcher = None


class Dispatcher:
    """Dispatches the events of one AddonManager, from construction until `uninstall`."""

    METHODS = frozenset({"trigger_event", "register", "remove"})

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

    async def trigger_event(self, event: hooks.Hook) -> None:
        table = self._table(event.name)
        if table is None:
            await AddonManager.trigger_event(self._manager, event)
        elif table:
            await invoke_addon(table, event)

    def _table(self, name: str) -> Table | None:
        """The table of an event, or None if mitmproxy has to look its hooks up."""
        if self._chain != self._manager.chain:
            self._chain = list(self._manager.chain)
            self._are_known = all(map(_is_known, traverse(self._chain)))
            self._tables = {}
        if not self._are_known:
            return None
        if name not in self._tables:
            groups = [tuple(_hooks(traverse([top]), name)) for top in self._chain]
            is_odd = any(not callable(hook) for group in groups for hook in group)
            self._tables[name] = None if is_odd else tuple(group for group in groups if group)
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


def _hooks(addons: Iterator[Any], name: str) -> Iterator[Any]:
    for addon in addons:
        found = getattr(addon, name, None)
        if found and not isinstance(found, ModuleType):
            yield found


def _is_known(addon: Any) -> bool:
    """Whether the addon's hooks and `addons` change only when an addon is registered or removed."""
    if isinstance(addon, ModuleType):
        return Path(getattr(addon, "__file__", None) or "").resolve() == _ENTRY
    defined_in = type(addon).__module__
    return defined_in.partition(".")[0] == "mitmproxy" or defined_in.rpartition(".")[0] == _OWN


class _Probe:
    """An addon of the trial. Its hooks are `running` and `update`."""

    def __init__(self, name: str, calls: list[str], *addons: "_Probe") -> None:
        self.name = name
        self.addons = list(addons)
        self._calls = calls

    def update(self, flows: object) -> Any:
        self._calls.append(self.name)
        if self.name == "halts":
            raise exceptions.AddonHalt
        return self._later() if self.name == "awaited" else None

    async def _later(self) -> None:
        self._calls.append("later")


def fits(manager: AddonManager) -> bool:
    """Whether the manager is mitmproxy's own, not yet modified, and calls hooks as the dispatcher does."""
    if type(manager) is not AddonManager or Dispatcher.METHODS & vars(manager).keys():
        return False
    try:
        return _trial(lambda tried: None) == _trial(Dispatcher)
    except Exception:
        return False


def _trial(prepare: Callable[[AddonManager], object]) -> list[str]:
    """The hooks that a manager calls, in order."""
    calls: list[str] = []
    manager = AddonManager(SimpleNamespace(options=OptManager()))
    prepare(manager)
    groups = [_Probe("outer", calls, _Probe("awaited", calls)), _Probe("halts", calls, _Probe("never", calls))]
    manager.chain = [*groups, _Probe("after", calls)]
    event: Coroutine[Any, Any, None] = manager.trigger_event(hooks.UpdateHook([]))
    try:
        event.send(None)
    except StopIteration:
        return calls
    event.close()
    raise RuntimeError("the hooks were not called at once")
