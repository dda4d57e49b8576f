"""The hooks of an event, called as mitmproxy calls them: the same ones in the same order, with the same lines in the
log."""

import logging
import traceback
import types
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import mitmproxy.proxy.layers  # noqa: F401 - makes the hooks of flows known
import pytest
from mitmproxy import addons, exceptions, hooks
from mitmproxy.addonmanager import AddonManager
from mitmproxy.addons.dumper import Dumper
from mitmproxy.addons.script import Script, ScriptLoader
from mitmproxy.proxy.layers.http._hooks import HttpRequestHook, HttpResponseHook
from mitmproxy.test import taddons, tflow

from addon.hooks import hook_cache
from addon.hooks.hook_cache import Dispatcher
from tests.e2e.processes import ROOT
from tests.hooks.harness import Hooks

log = logging.getLogger("told").info


class House:
    """A mitmproxy whose addons log the hooks that are called."""

    def __init__(self, folder: Path) -> None:
        self.context = taddons.context()
        self.manager = self.context.master.addons
        self.file = folder / "script.py"

    async def request(self) -> None:
        await self.manager.handle_lifecycle(HttpRequestHook(tflow.tflow()))

    async def response(self) -> None:
        await self.manager.handle_lifecycle(HttpResponseHook(tflow.tflow(resp=True)))

    def script(self, text: str) -> Script:
        """Loaded as with `-s`."""
        self.file.write_text(
            "import logging\n\nfrom mitmproxy import ctx\n\ntold = logging.getLogger('told').info\n" + text
        )
        return load(self.manager, self.file)


def load(manager: AddonManager, file: Path) -> Script:
    script = Script(str(file), False)  # which registers what is in the file
    loader = ScriptLoader()
    loader.addons = [script]
    manager.chain.append(loader)
    return script


class Told:
    """Has the hooks that it is given, or `request`."""

    def __init__(self, name: str, *parts: object, **own: object) -> None:
        self.name = name
        if parts:
            self.addons = list(parts)
        for hook, found in own.items():
            setattr(self, hook, found)

    def __str__(self) -> str:
        return self.name

    def request(self, flow: object) -> None:
        log(f"{self.name} request")

    def update(self, flows: object) -> None:
        log(f"{self.name} update")


def raising(kind: type[Exception], *words: str) -> Callable[[object], None]:
    def hook(flow: object) -> None:
        log("raises")
        raise kind(*words)

    return hook


async def later(flow: object) -> None:
    log("later")


def awaitable(flow: object) -> Awaitable[None]:
    return later(flow)


async def parts_of_parts(house: House) -> None:
    inner = Told("inner", Told("innermost"))
    house.manager.add(Told("first", inner, Told("second")), Told("last"))
    await house.request()


async def hooks_to_be_waited_for(house: House) -> None:
    house.manager.add(Told("coroutine", request=later), Told("awaitable", request=awaitable), Told("last"))
    await house.request()


async def mistakes(house: House) -> None:
    """The parts behind it are not told, the next addon is."""
    wrong = Told("wrong", Told("behind"), request=raising(ValueError, "a mistake"))
    house.manager.add(Told("first", Told("before"), wrong, Told("after")), Told("last"))
    await house.request()
    await house.request()


async def a_halt(house: House) -> None:
    house.manager.add(Told("first"), Told("halts", Told("behind"), request=raising(exceptions.AddonHalt)), Told("last"))
    await house.request()


async def an_error_of_options(house: House) -> None:
    house.manager.add(Told("wrong", request=raising(exceptions.OptionsError, "an option")), Told("last"))
    with pytest.raises(exceptions.OptionsError, match="an option"):
        await house.request()


async def what_is_no_hook(house: House) -> None:
    house.manager.add(
        Told("nothing", request=None), Told("module", request=types), Told("text", request="text"), Told("last")
    )
    await house.request()
    await house.request()


async def addons_that_come_and_go(house: House) -> None:
    first, last = Told("first"), Told("last")
    house.manager.add(first)
    await house.request()
    house.manager.add(last)
    await house.request()
    house.manager.remove(first)
    await house.request()
    house.manager.clear()
    await house.request()


async def another_order(house: House) -> None:
    first, last = Told("first"), Told("last")
    house.manager.add(first, last)
    await house.request()
    chain = house.manager.chain
    chain.remove(last)
    chain.insert(0, last)
    await house.request()


async def every_hook_of_a_script(house: House) -> None:
    house.script(
        "from mitmproxy import hooks\n"
        "def hook(name):\n"
        "    return lambda *given: told(f'{name} {[type(one).__name__ for one in given]}')\n"
        "for name in hooks.all_hooks:\n"
        "    globals()[name] = hook(name)\n"
    )
    subject = tflow.tflow()
    for kind in list(hooks.all_hooks.values()):
        event = kind(*[subject] * len(kind.__dataclass_fields__))  # type: ignore[attr-defined]
        await house.manager.trigger_event(event)
        if event.args():
            await house.manager.handle_lifecycle(event)


async def a_script_that_is_loaded_again(house: House) -> None:
    script = house.script(
        "class One:\n"
        "    def __init__(self, number):\n"
        "        self.name = f'one {number}'\n"
        "    def request(self, flow):\n"
        "        told(f'old {self.name}')\n"
        "addons = [One(number) for number in range(2)]\n"
        "def done():\n"
        "    told('done')\n"
    )
    await house.request()
    house.file.write_text(house.file.read_text().replace("old", "another").replace("range(2)", "range(3)"))
    script.loadscript()
    await house.request()
    house.file.write_text("not Python")
    script.loadscript()
    await house.request()


async def hooks_that_a_script_sets_while_it_runs(house: House) -> None:
    house.script(
        "class Sets:\n"
        "    addons = []\n"
        "    def request(self, flow):\n"
        "        told('request')\n"
        "        self.response = lambda flow: told('response')\n"
        "        self.addons.append(Last())\n"
        "class Last:\n"
        "    def request(self, flow):\n"
        "        told('last')\n"
        "    def __getattr__(self, name):\n"
        "        if name == 'response' and len(addons[0].addons) > 1:\n"
        "            return lambda flow: told('by __getattr__')\n"
        "        raise AttributeError(name)\n"
        "def request(flow):\n"
        "    globals()['request'] = lambda flow: told('bound again')\n"
        "    told('module')\n"
        "addons = [Sets()]\n"
    )
    for _ in range(3):
        await house.response()
        await house.request()


async def hooks_that_a_script_sets_in_mitmproxy(house: House) -> None:
    own = addons.anticache.AntiCache()
    house.manager.add(own)
    house.script(
        "def request(flow):\n"
        "    told('script')\n"
        "    anticache = ctx.master.addons.get('anticache')\n"
        "    anticache.response = lambda flow: told('set')\n"
    )
    for _ in range(2):
        await house.response()
        await house.request()
    del own.response  # type: ignore[attr-defined]
    await house.response()


async def addons_that_a_hook_adds(house: House) -> None:
    house.script(
        "class New:\n"
        "    def request(self, flow):\n"
        "        told('new')\n"
        "class Adds:\n"
        "    def request(self, flow):\n"
        "        if not ctx.master.addons.get('new'):\n"
        "            ctx.master.addons.add(New())\n"
        "        else:\n"
        "            ctx.master.addons.remove(ctx.master.addons.get('new'))\n"
        "addons = [Adds()]\n"
    )
    for _ in range(3):
        await house.request()


async def what_cannot_be_waited_for(house: House) -> None:
    house.manager.add(Told("coroutine", request=later), Told("last"))
    house.manager.trigger(HttpRequestHook(tflow.tflow()))


async def a_hook_that_raises_when_it_is_looked_up(house: House) -> None:
    class Raises:
        name = "raises"

        def __getattr__(self, name: str) -> None:
            raise ValueError(name) if name == "request" else AttributeError(name)

    house.manager.add(Told("first"), Raises(), Told("last"))
    await house.request()


Scenario = Callable[[House], Awaitable[None]]

AT_REST: list[Scenario] = [
    parts_of_parts,
    hooks_to_be_waited_for,
    mistakes,
    a_halt,
    an_error_of_options,
    addons_that_come_and_go,
    another_order,
    every_hook_of_a_script,
    a_script_that_is_loaded_again,
    what_cannot_be_waited_for,
]
"""In these scenarios hooks and `addons` change only when an addon is registered or removed, so a table fits."""

CHANGING: list[Scenario] = [
    what_is_no_hook,
    hooks_that_a_script_sets_while_it_runs,
    hooks_that_a_script_sets_in_mitmproxy,
    addons_that_a_hook_adds,
    a_hook_that_raises_when_it_is_looked_up,
]


@pytest.fixture(autouse=True)
def records() -> Iterator[None]:
    """As mitmproxy makes them: the addon's have no tracebacks, but their text."""
    own = logging.getLogRecordFactory()
    logging.setLogRecordFactory(logging.LogRecord)
    yield
    logging.setLogRecordFactory(own)


async def lines(scenario: Scenario, folder: Path, caplog: pytest.LogCaptureFixture, *, fast: bool) -> list[str]:
    """The log: calls, errors, and the places of the errors."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        house = House(folder)
        dispatcher = Dispatcher(house.manager) if fast else None
        await scenario(house)
        if dispatcher is not None:
            dispatcher.uninstall()
    return [line for record in caplog.records for line in _written(record)]


def _written(record: logging.LogRecord) -> list[str]:
    where = traceback.extract_tb(record.exc_info[2]) if record.exc_info else []
    line = f"{record.name} {record.levelname} {record.getMessage()}"
    return [line, *(f"  in {frame.name}" for frame in where if frame.name not in ("_iter_hooks", "traverse"))]


@pytest.mark.parametrize("scenario", [*AT_REST, *CHANGING], ids=lambda scenario: scenario.__name__)
async def test_each_addon_is_asked_as_mitmproxy_asks_it(
    scenario: Scenario, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = await lines(scenario, tmp_path, caplog, fast=False)
    assert expected
    assert await lines(scenario, tmp_path, caplog, fast=True) == expected


@pytest.mark.parametrize("scenario", AT_REST, ids=lambda scenario: scenario.__name__)
async def test_a_table_calls_what_mitmproxy_calls(
    scenario: Scenario, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await lines(scenario, tmp_path, caplog, fast=False)
    monkeypatch.setattr(hook_cache, "_is_known", lambda addon: True)
    assert await lines(scenario, tmp_path, caplog, fast=True) == expected


def dispatcher_of(manager: AddonManager) -> Dispatcher:
    found = getattr(manager.trigger_event, "__self__", None)
    assert isinstance(found, Dispatcher)
    return found


async def test_the_addons_of_mitmproxy_and_toolgraft_have_a_table() -> None:
    with taddons.context() as context:
        context.master.addons.add(*(one for one in addons.default_addons()[1:] if type(one) is not ScriptLoader))
        context.options.update_defer(graft_control="off", graft_store="memory://")
        load(context.master.addons, ROOT / "addon" / "entry.py")
        dispatcher = dispatcher_of(context.master.addons)
        assert dispatcher.table("update") == ()
        assert dispatcher.table("request")
        context.master.addons.add(Told("unknown"))
        assert dispatcher.table("request") is None
        await context.master.addons.trigger_event(hooks.DoneHook())
        assert "trigger_event" not in vars(context.master.addons)


def test_no_addon_of_mitmproxy_sets_hooks_of_its_own() -> None:
    """Those would not be in a table that was made before."""
    with taddons.context():
        for one in [*addons.default_addons(), Dumper()]:
            assert not hooks.all_hooks.keys() & vars(one).keys() - {"done"}, one
            assert isinstance(one, ScriptLoader) or not hasattr(one, "addons")


async def test_the_table_has_the_hooks_that_toolgraft_sets_in_the_dumper(
    make: Callable[..., Hooks], tmp_path: Path
) -> None:
    hooks = make(state=str(tmp_path))
    manager, dumper = hooks.context.master.addons, Dumper()
    manager.add(dumper)
    dispatcher = dispatcher_of(manager)
    assert (dumper.websocket_end,) in (dispatcher.table("websocket_end") or ())
    await hooks.call("running")
    assert "websocket_end" in vars(dumper)
    assert (dumper.websocket_end,) in (dispatcher.table("websocket_end") or ())


async def test_graft_fast_is_for_one_mitmproxy_and_ends_with_the_addon(make: Callable[..., Hooks]) -> None:
    hooks = make()
    methods = vars(hooks.context.master.addons)
    assert "trigger_event" in methods
    hooks.set(fast="off")
    assert "trigger_event" not in methods
    hooks.set(fast="on")
    assert "trigger_event" in methods
    await hooks.done()
    assert "trigger_event" not in methods
    assert AddonManager.trigger_event.__module__ == "mitmproxy.addonmanager"


async def test_methods_of_a_script_are_left_in_place(make: Callable[..., Hooks]) -> None:
    hooks = make()
    manager = hooks.context.master.addons

    async def trigger_event(event: object) -> None:
        pass

    manager.trigger_event = trigger_event  # type: ignore[method-assign]
    hooks.set(fast="off")
    assert vars(manager)["trigger_event"] is trigger_event
    hooks.set(fast="on")
    assert vars(manager)["trigger_event"] is trigger_event


async def test_another_mitmproxy_is_left_as_it_is(
    make: Callable[..., Hooks], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def trigger_event(self: AddonManager, event: object) -> None:
        pass

    monkeypatch.setattr(AddonManager, "trigger_event", trigger_event)
    hooks = make()
    assert "trigger_event" not in vars(hooks.context.master.addons)
    assert caplog.text.count("graft_fast") == 1
