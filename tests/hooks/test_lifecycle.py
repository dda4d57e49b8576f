"""Options: registered from the one table, checked at the start, and once more when they change."""

import asyncio
import errno
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from mitmproxy import exceptions

from addon.options import OPTIONS
from addon.settings import Settings
from store.base import StoreUnavailable
from store.models import Call
from tests.hooks.harness import LOCAL, PATH, Hooks, request

Make = Callable[..., Hooks]


async def test_every_option_of_the_table_is_registered_as_it_says(make: Make) -> None:
    hooks = make()
    registered = {name: hooks.options._options[name] for name in hooks.options.keys() if name.startswith("graft_")}
    assert sorted(registered) == sorted(option.name for option in OPTIONS)
    for option in OPTIONS:
        found = registered[option.name]
        assert (found.typespec, found.default, found.help) == (option.typespec, option.default, option.help)


async def test_the_defaults_fit(make: Make) -> None:
    hooks = make()
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    assert runtime.settings == Settings(store="memory://", control=None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delivery": "fax"}, "graft_delivery='fax': must be one of auto, placeholder, loop, hold, passthrough"),
        ({"fast": "perhaps"}, "graft_fast='perhaps': must be one of on, off"),
        ({"session": "a b"}, "graft_session='a b': must be a name of the form"),
        ({"ttl": "1"}, "graft_ttl='1': must be a number of seconds, 60 or more"),
        ({"filter": "~~("}, "graft_filter='~~(': must be a mitmproxy flow filter"),
        ({"store": "none://"}, "graft_store='none://': its scheme is not one of"),
    ],
)
async def test_a_wrong_option_at_the_start_is_an_error_and_nothing_runs(
    options: dict[str, str], message: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = make(**options)
    assert hooks.lifecycle.runtime is None
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert message in record.getMessage()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delivery": "fax"}, "graft_delivery='fax'"),
        ({"filter": "~~("}, "graft_filter='~~('"),
        ({"ttl": "120"}, "graft_ttl cannot be changed while the proxy runs: restart it"),
        ({"store": "sqlite:///x.db"}, "graft_store cannot be changed while the proxy runs"),
        ({"control": "127.0.0.1:0"}, "graft_control cannot be changed while the proxy runs"),
    ],
)
async def test_a_wrong_change_is_refused_and_undone(options: dict[str, str], message: str, make: Make) -> None:
    hooks = make()
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    before = runtime.settings
    with pytest.raises(exceptions.OptionsError, match=message.replace("(", r"\(")):
        hooks.set(**options)
    assert hooks.lifecycle.runtime is runtime
    assert runtime.settings == before
    (name,) = options
    assert getattr(hooks.options, f"graft_{name}") != options[name]


async def test_a_change_holds_from_the_next_request_on(make: Make) -> None:
    hooks = make()
    hooks.set(session="other", filter="~u /v1beta/")
    assert hooks.lifecycle.runtime is not None
    assert hooks.lifecycle.runtime.settings.session == "other"
    assert hooks.lifecycle.filter is not None
    hooks.set(filter="")
    assert hooks.lifecycle.filter is None


async def test_what_is_said_once_is_not_said_again_after_a_change(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="toolgraft")
    hooks = make()
    for session in ("one", "other"):
        assert hooks.lifecycle.runtime is not None
        hooks.lifecycle.runtime.grafter.warner.mention_stripping("a")
        hooks.lifecycle.runtime.grafter.warn("a warning")
        hooks.set(session=session)
    lines = [record.getMessage() for record in caplog.records if record.name == "toolgraft"]
    assert lines.count("a warning") == 1
    assert len([one for one in lines if "session a: the tools of its clients are left out" in one]) == 1


async def test_a_change_holds_in_the_control_api_as_well(make: Make, tmp_path: Path) -> None:
    hooks = make(control="127.0.0.1:0", state=str(tmp_path))
    hooks.set(session="other", allow_hosts=["graft.example"])
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    assert runtime.control is not None
    assert runtime.control.api.settings is runtime.settings


async def test_an_option_that_nobody_knows_is_an_error(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    hooks = make()
    hooks.options.update_defer(graft_sesion="x")
    await hooks.done()
    hooks.lifecycle._configured = False
    hooks.set(session="again")
    assert "graft_sesion: there is no such option; did you mean graft_session?" in caplog.text
    assert hooks.lifecycle.runtime is None


async def test_a_refused_start_ends_the_start_of_mitmproxys_servers(make: Make) -> None:
    """By that time they are being started: mitmproxy loads scripts beside it."""
    servers = asyncio.get_running_loop().create_task(asyncio.Event().wait(), name="setup_servers")
    make(delivery="fax")
    await asyncio.wait([servers], timeout=5)
    assert servers.cancelled()


async def test_large_bodies_are_not_let_stream_past_the_rewriting(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    hooks = make()
    hooks.context.configure(hooks.addon, stream_large_bodies="1k")
    assert hooks.options.stream_large_bodies is None
    assert "stream_large_bodies=1k is switched off" in caplog.text


async def test_a_store_that_fails_for_once_does_not_end_its_upkeep(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    hooks = make()
    assert hooks.lifecycle.runtime is not None
    retried = asyncio.Event()
    tries = iter([StoreUnavailable("busy"), None])

    async def expire() -> int:
        error = next(tries, None)
        if error is not None:
            raise error
        retried.set()
        return 0

    monkeypatch.setattr(hooks.store, "expire", expire)
    monkeypatch.setattr("addon.hooks.runtime._UPKEEP_INTERVAL", 0.0)
    await hooks.lifecycle.runtime.serve()
    await asyncio.wait_for(retried.wait(), 5)


async def test_after_an_outage_every_proxy_renews_its_lease_before_calls_are_settled(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = make()
    assert hooks.lifecycle.runtime is not None
    steps: list[str] = []
    settled = asyncio.Event()

    async def hold(proxy_id: str, lease: float) -> None:
        steps.append("hold")
        if steps.count("hold") == 2:
            raise StoreUnavailable("not reachable")

    async def recovered(timeout: float) -> None:
        steps.append("recovered")

    async def settle_lost() -> list[Call]:
        steps.append("settle")
        if steps.count("settle") == 2:
            settled.set()
        return []

    for method in (hold, recovered, settle_lost):
        monkeypatch.setattr(hooks.store, method.__name__, method)
    monkeypatch.setattr("addon.hooks.runtime._LEASE_RENEWAL", 0.0)
    monkeypatch.setattr("addon.hooks.runtime._LEASE_PAUSE", 0.0)
    await hooks.lifecycle.runtime.serve()
    await asyncio.wait_for(settled.wait(), 5)
    assert steps[:7] == ["hold", "settle", "hold", "recovered", "hold", "hold", "settle"]


async def test_the_end_gives_the_store_back(make: Make, tmp_path: Path) -> None:
    """Another can have the file at once."""
    path = tmp_path / "state" / "toolgraft.db"
    for _ in range(2):
        hooks = make(store=f"sqlite:///{path}", state=str(tmp_path / "state"))
        assert hooks.lifecycle.runtime is not None
        await hooks.done()
        assert hooks.lifecycle.runtime is None


async def test_a_state_folder_that_cannot_be_written_any_more_keeps_nothing_from_being_given_back(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(state: Path, url: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("addon.hooks.runtime.clear_address", read_only)
    path = tmp_path / "state" / "toolgraft.db"
    for _ in range(2):
        hooks = make(store=f"sqlite:///{path}", state=str(tmp_path / "state"), control="127.0.0.1:0")
        await hooks.call("running")
        await hooks.done()
        assert hooks.lifecycle.runtime is None


@pytest.mark.parametrize("grafted", [True, False])
async def test_requests_are_refused_while_the_process_ends(
    grafted: bool, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mitmproxy serves until all addons have ended: without this they would go on as if there were no addon."""
    monkeypatch.setattr("addon.hooks.lifecycle.exit_with_loop", lambda left: None)
    hooks = make(drain_timeout="0.01")
    if grafted:
        await hooks.tools("lookup")
    begun = request(f"http://{LOCAL}{PATH}", mode="reverse:http://127.0.0.1:9")
    await hooks.call("requestheaders", begun)
    begun.live = False
    hooks.context.master.should_exit.set()
    ending = hooks.lifecycle.done()
    assert hooks.lifecycle.done() is None
    for moment in ("while it ends", "afterwards"):
        late = await hooks.ask(request(f"http://{LOCAL}/@bob{PATH}", mode="reverse:http://127.0.0.1:9"))
        assert late.response is not None, moment
        assert (late.response.status_code, late.response.headers["retry-after"]) == (503, "1")
        assert b"the proxy is ending" in (late.response.content or b"")
        other = await hooks.ask(request(f"http://{LOCAL}/v1beta/interactions", mode="reverse:http://127.0.0.1:9"))
        assert other.response is not None
        assert other.response.json()["error"]["code"] == "unavailable", "in the form of its surface"
        if ending is not None:
            await ending
    await hooks.call("request", begun)
    if grafted:
        assert begun.response is not None
        assert begun.response.status_code == 503
