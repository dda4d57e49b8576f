"""Whatever is wrong with the options, or with the addon itself, while mitmproxy loads it: one sentence in the log,
which ends the start. mitmproxy alone would serve on without the addon, and its answers would be ungrafted."""

import asyncio
import logging
import re
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # mitmproxy's filters call pyparsing by its old names
    from mitmproxy import optmanager
    from mitmproxy.addons.proxyserver import Proxyserver
    from mitmproxy.addons.script import Script
    from mitmproxy.options import Options
    from mitmproxy.test import taddons

    from addon.hooks.compose import Toolgraft
    from addon.hooks.hook_cache import Speedups
from addon.cli.serve import arguments
from addon.hooks.lifecycle import Lifecycle
from addon.options import OPTIONS

ROOT = Path(__file__).parents[2]
ENTRY = ROOT / "addon" / "entry.py"

NUMBERS = ("", "x", "-1", "1e999", "nan", " ", "inf", "-inf", "1,5", "0x10", "1" * 5000)
"""For one option of each kind of number: whole, with a fraction, of seconds, and where 0 is allowed."""
WORDS = ("", "x", "AUTO", "on off", "1", "\x00", "ä")
"""For one option with a choice of words."""
PATHS = ("", "\x00", "/nonexistent/\x1b[31m", "/dev/null/x")
WRONG: dict[str, tuple[str, ...]] = {
    "config": ("\x00", "/nonexistent/x.toml", "/dev/null/x", "/"),
    "config_trusted": ("x",),
    "reload": ("x",),
    "session": ("", "two words", ".", "ä", "x" * 65, "a/b", "\x00", "a\n"),
    "client_tools": WORDS,
    "delivery": ("x",),
    "on_pending": ("x",),
    "proof": ("x",),
    "askers": ("x",),
    "pending_timeout": (*NUMBERS, "3601"),
    "placeholder": (
        *("", "done", "{turn_id}", "{turn_id}{turn_id} done", "{names} done", "{x} {turn_id}", "{turn_id"),
        *("{turn_id} {status} {status} done", "{status}: {turn_id}"),
    ),
    "tools": PATHS,
    "mcp": PATHS,
    "mcp_pin": ("x",),
    "max_rounds": (*NUMBERS, "0", "101", "1.5"),
    "parallel": ("x", "0", "65", "1.5"),
    "max_calls": (*NUMBERS, "0", "10001"),
    "max_args": ("x", "1023"),
    "max_media": ("x", "-1"),
    "max_answer": ("x", "1023", "1e6"),
    "max_event": ("x", "1023", "1024.5"),
    "tool_timeout": ("x", "0", "3601"),
    "approval_timeout": ("x", "86401"),
    "answer_timeout": ("x", "86401"),
    "retry_window": ("x", "3601"),
    "user_headers": ("x y", "x:"),
    "keepalive": ("x", "3601"),
    "stream": ("x",),
    "drain_timeout": ("x", "3601", "-0.1"),
    "fast": ("x",),
    "log": ("x",),
    "filter": ("~~(", "~", "(", "~u [", "\x00"),
    "redirect": ("", "x", "=", "h=", "h=x", "h=ftp://a", "h=http://", "h=http://a:x", "h=http://[", "h=http://a:99999",
                 "=http://a", "a b=http://c", "h=http://a\x00", "h=http://a b", "h=http://a:0", "h=http://a?x=1"),
    "upstream": ("", "x", "ftp://a", "http://", "http://[", "http://a:x", "http://a:99999", "http://a\x00", "http://a?"),
    "model_aliases": ("", "x", "=", "=m", "a=", "a=b/c", "a b=c", "a=b c", "a=b\x00", "x" * 129 + "=m", "/a=m"),
    "lenient": ("x",),
    "control": ("", "x", "8741", ":8741", "a:", "a:x", "a:65536", "127.0.0.1:99999999999999999999", "no.such.invalid:0",
                "\x00:1", "a b:1", "x" * 300 + ":1", "ä..ö:1"),
    "token": ("a b", "ä", "\x00", "a\n"),
    "allow_origins": ("", "x", "https://a/b", "https://", "*", "https://[", "https://a:x", "null"),
    "allow_hosts": ("", "a b", "https://a", "a:1", "*"),
    "egress": ("", "a b", "https://a", "a:x", "a:99999", "a/b", "10.0.0.0/99", "[::1", "*", "a.*", "ä..ö", "a\x00"),
    "session_access": ("", "x", "=a", "a b=c", "a=", "a=b,,c", "a=\x00"),
    "store": ("x", "redis://", "none://", "sqlite://", "sqlite:///", "sqlite:///\x00", "memory://x"),
    "durability": ("x",),
    "state": ("\x00", "/dev/null", "/dev/null/x", "x" * 300, "~nobody-of-this-name/x"),
    "cache_bytes": ("x", "1048575"),
    "keep_requests": ("x", "-1", "10001"),
    "ttl": (*NUMBERS, "59"),
    "on_store_error": ("x",),
    "on_unread": ("x",),
    "max_tools": ("x", "0", "100001", "1.5"),
    "max_tool": ("x", "1023", "1 024"),
    "max_line": ("x", "1023", "4M"),
    "max_connections": ("x", "0", "7", "8.5"),
    "max_headers": ("x", "1023", "64K"),
    "header_timeout": ("x", "0", "3601"),
    "max_body": ("x", "1023"),
    "record": ("/", "/nonexistent/x", "\x00", "x" * 300),
}  # fmt: skip


NAMES = [option.name.removeprefix("graft_") for option in OPTIONS]
OF_EACH_TYPE = ("session", "redirect")
"""A text, and a list of texts."""
BY_PATH = ("config", "tools", "mcp", "store", "state", "control")
"""Options whose value alone may be named: it is a path, or an address."""


class Started:
    """mitmproxy loads the addon with these options, as on the command line and in config.yaml."""

    def __init__(self, caplog: pytest.LogCaptureFixture, *sets: str, **config: Any) -> None:
        caplog.clear()
        context = taddons.context(Proxyserver())
        context.options.set(*sets, defer=True)
        context.options.update_defer(**config)
        context.options.add_option("another", int, 1, "Of an earlier script.")
        self.servers = asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="setup_servers")
        script = Script(str(ENTRY), False)
        self.addon = script.addons[0].addons[0] if script.addons and getattr(script.addons[0], "addons", None) else None
        self.errors = [record for record in caplog.records if record.levelno >= logging.ERROR]

    @property
    def lifecycle(self) -> Lifecycle:
        assert isinstance(self.addon, Toolgraft)
        (found,) = (part for part in self.addon.parts if isinstance(part, Lifecycle))
        return found

    async def sentence(self) -> str:
        """Why the start was refused."""
        (error,) = self.errors
        assert error.exc_info is None, "a traceback"
        assert (await asyncio.wait([self.servers], timeout=5))[0], "the servers come up"
        return error.getMessage()

    async def close(self) -> None:
        self.servers.cancel()
        if isinstance(self.addon, Toolgraft):
            next(part for part in self.addon.parts if isinstance(part, Speedups)).done()
            ending = self.lifecycle.done()
            if ending is not None:
                await ending


@pytest.fixture
async def load(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Callable[..., Started]]:
    monkeypatch.setenv("TOOLGRAFT_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    started: list[Started] = []

    def loads(*sets: str, **config: Any) -> Started:
        config = {"graft_control": "127.0.0.1:0"} | config
        if any(text.partition("=")[0] == "graft_control" for text in sets) or config["graft_control"] is ...:
            del config["graft_control"]
        started.append(Started(caplog, *sets, **config))
        return started[-1]

    yield loads
    for one in started:
        await one.close()


Load = Callable[..., Started]


def test_every_option_of_the_table_has_its_wrong_values() -> None:
    assert sorted(WRONG) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
async def test_every_wrong_value_of_every_option_is_refused_by_name(name: str, load: Load) -> None:
    for value in WRONG[name]:
        print(f"{name}={value[:60]!r}: ", end="")
        started = load(f"graft_{name}={value}")
        message = await started.sentence()
        await started.close()
        print(message)
        assert re.match(rf"graft_{name}\b", message) or (value and name in BY_PATH), message
        assert len(message) < 800
        assert message.isprintable(), message


@pytest.mark.parametrize("name", OF_EACH_TYPE)
async def test_an_option_without_a_value_is_refused(name: str, load: Load) -> None:
    assert await load(f"graft_{name}").sentence() == f"graft_{name} needs a value: graft_{name}=VALUE"
    assert f"graft_{name} needs a value" in await load(**{f"graft_{name}": None}).sentence()


@pytest.mark.parametrize("name", ["session", "token"])
async def test_an_option_that_is_given_twice_is_refused_and_its_values_are_not_shown(name: str, load: Load) -> None:
    message = await load(f"graft_{name}=one-value", f"graft_{name}=another").sentence()
    assert message == f"graft_{name} is given 2 times: give it once"


@pytest.mark.parametrize("name", OF_EACH_TYPE)
async def test_structures_in_the_configuration_file_are_refused(name: str, load: Load) -> None:
    fits = {"session": "one text or number", "redirect": "a list of texts"}[name]
    for value in ({"a": 1}, [["a"]], [{"a": "b"}]):
        assert await load(**{f"graft_{name}": value}).sentence() == f"graft_{name}: must be {fits}"
    assert f"graft_{name}" in await load(**{f"graft_{name}": [None]}).sentence()


async def test_values_of_the_configuration_file_are_taken_as_people_write_them(load: Load, tmp_path: Path) -> None:
    tools = tmp_path / "some.py"
    tools.write_text('def now() -> str:\n    """The time."""\n    return ""\n')
    config = {"max_rounds": 5, "ttl": 3600.5, "stream": False, "session": 7, "tools": str(tools), "control": False}
    started = load(**{f"graft_{name}": value for name, value in config.items()}, graft_allow_hosts=["a.example", "b"])
    assert started.errors == []
    runtime = started.lifecycle.runtime
    assert runtime is not None
    settings = runtime.settings
    assert (settings.max_rounds, settings.ttl, settings.stream, settings.session) == (5, 3600.5, False, "7")
    assert (settings.tools, settings.control, settings.allow_hosts) == ((str(tools),), None, ("a.example", "b"))


@pytest.mark.parametrize("name", ["graft_sesion", "graft-session", "Graft_Session", "gaft_session", "graft_"])
async def test_an_option_that_is_misspelt_is_refused(name: str, load: Load) -> None:
    assert f"{name}: there is no such option" in await load(f"{name}=x").sentence()


async def test_an_option_without_its_prefix_ends_the_start(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    """Not at once: a script that comes later might have it."""
    started = load("client_tools=keep")
    assert started.errors == []
    await started.lifecycle.running()
    assert "client_tools: there is no such option; did you mean graft_client_tools?" in caplog.text


async def test_an_option_of_another_script_cannot_keep_the_addon_from_being_loaded_in_silence(
    load: Load,
) -> None:
    """mitmproxy keeps a value that an earlier script could not take, and stumbles over it at the next."""
    message = await load("another=x").sentence()
    assert message == "an option of another script: Failed to parse option another: not an integer: x"


@pytest.mark.parametrize("where", ["load", "configure"])
async def test_a_mistake_of_the_addons_own_ends_the_start(
    where: str, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object, **more: object) -> None:
        raise KeyError("nobody foresaw this")

    place = {"load": "take_deferred", "configure": "Runtime.start"}[where]
    monkeypatch.setattr(f"addon.hooks.lifecycle.{place}", fails)
    assert await load().sentence() == "toolgraft cannot start: KeyError: 'nobody foresaw this'"


async def test_an_addon_that_cannot_be_imported_ends_the_start(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ImportError("No module named 'msgspec'")

    monkeypatch.setattr("addon.hooks.compose.build_addons", fails)
    started = load()
    (error,) = started.errors
    assert error.exc_info is None
    assert error.getMessage().startswith("toolgraft cannot be loaded: ImportError: No module named 'msgspec'. Start it")


def test_options_that_serve_does_not_set_follow_the_configuration_file(tmp_path: Path) -> None:
    """As mitmproxy's `main` does it: what `--set` gives, then config.yaml, then flags."""
    (tmp_path / "config.yaml").write_text('mode: ["regular@9000"]\nlisten_host: 0.0.0.0\n')
    options = Options()
    options.set(*(word for word in arguments([]) if word.startswith(("mode=", "listen_host="))), defer=True)
    assert (len(options.mode), options.listen_host) == (2, "127.0.0.1")
    optmanager.load_paths(options, tmp_path / "config.yaml")
    assert (options.mode, options.listen_host) == (["regular@9000"], "0.0.0.0")


def write_config(folder: Path, text: str) -> str:
    path = folder / "toolgraft.toml"
    path.write_text(text)
    return f"graft_config={path}"


async def settings_of(started: Started) -> Any:
    assert started.errors == []
    assert started.lifecycle.runtime is not None
    found = started.lifecycle.runtime.settings
    await started.close()  # the next start may use the same state folder
    return found


async def test_the_command_line_outranks_the_environment_which_outranks_the_file_which_outranks_defaults(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"max_rounds": 3, "delivery": '"hold"', "parallel": 2, "token": '"file"'}
    lines = "\n".join(f"{name} = {value}" for name, value in options.items())
    config = write_config(tmp_path, f"[options]\n{lines}\n")
    found = await settings_of(load(config, "graft_max_rounds=4"))
    assert (found.max_rounds, found.delivery, found.parallel, found.on_pending) == (4, "hold", 2, "pass")
    assert found.token == "file"
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "environment")
    assert (await settings_of(load(config))).token is None
    assert (await settings_of(load(config, "graft_token=given"))).token == "given"
    state = f"state = {str(tmp_path / 'other')!r}"
    assert (await settings_of(load(write_config(tmp_path, f"[options]\n{state}")))).state == tmp_path / "state"
    monkeypatch.delenv("TOOLGRAFT_HOME")
    assert (await settings_of(load(write_config(tmp_path, f"[options]\n{state}")))).state == tmp_path / "other"


async def test_mitmproxys_own_config_yaml_outranks_the_file_and_the_command_line(load: Load, tmp_path: Path) -> None:
    config = write_config(tmp_path, "[options]\nmax_rounds = 3")
    found = await settings_of(load(config, "graft_max_rounds=4", graft_max_rounds=5))
    assert found.max_rounds == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[options]\n\nmax_rounds = 0", "{path}: options.max_rounds='0': must be a number from 1 to 100"),
        ("[options]\nfilter = '~('", "{path}: graft_filter='~(': must be a mitmproxy flow filter"),
        ("[options]\nstore = 'none://'", "{path}: graft_store='none://': its scheme is not one of"),
        ("[options]\nrecord = '/'", "{path}: graft_record='/': cannot be written"),
        ("[options]\ntoken = 'off'\ncontrol = '0.0.0.0:0'", "{path}: graft_token: `off` needs a loopback"),
        ("[options]\ntools = ['x.py']", "{folder}/x.py: no such file"),
        ("x", "{path}: not TOML"),
    ],
)
async def test_an_error_of_the_file_names_the_file_whoever_finds_it(
    text: str, message: str, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOOLGRAFT_TOKEN", raising=False)
    config = write_config(tmp_path, text)
    started = load(config, **({"graft_control": ...} if "control" in text else {}))
    found = await started.sentence()
    assert found.startswith(message.format(path=tmp_path / "toolgraft.toml", folder=tmp_path)), found


async def test_a_value_of_the_command_line_is_not_blamed_on_the_file(load: Load, tmp_path: Path) -> None:
    config = write_config(tmp_path, "[options]\nmax_rounds = 3")
    assert await load(config, "graft_max_rounds=0").sentence() == "graft_max_rounds='0': must be a number from 1 to 100"
