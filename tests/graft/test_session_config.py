"""What holds for a session: its policy over the options, made again when it is at another version."""

import asyncio
import time

import pytest

from addon.core.framing.documents import encode
from addon.graft import session_config
from addon.graft.exchange import Forward
from addon.graft.grafter import Grafter
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.surfaces.incoming import Incoming
from store.base import Store, StoreUnavailable
from store.budget import Budget
from store.models import Snapshot, Toolset
from tests.contents import call, user
from tests.graft.conftest import SEARCH, WEATHER, Graft, answer, target


async def test_a_policy_stands_over_the_options(store: Store) -> None:
    graft = Graft(store, client_tools="keep", delivery="passthrough", on_pending="wait", pending_timeout=7)
    await graft.tools(WEATHER)
    config = await graft.session_config()
    assert (config.client_tools, config.delivery, config.on_pending, config.pending_timeout) == (
        "keep",
        "passthrough",
        "wait",
        7,
    )
    await graft.tools(WEATHER, client_tools="strip", delivery="placeholder", on_pending="block", pending_timeout=0)
    config = await graft.session_config()
    assert (config.client_tools, config.delivery, config.on_pending, config.pending_timeout) == (
        "strip",
        "placeholder",
        "block",
        0,
    )
    assert config.strips


async def test_a_scope_is_made_again_only_when_the_record_changes(graft: Graft) -> None:
    await graft.tools(WEATHER)
    first = await graft.session_config()
    assert await graft.session_config() is first
    await graft.tools(SEARCH)
    second = await graft.session_config()
    assert second is not first
    assert list(second.toolbox.names) == ["search"]


async def test_sessions_have_scopes_of_their_own(graft: Graft) -> None:
    await graft.tools(WEATHER)
    await graft.tools(SEARCH, session="other")
    assert list((await graft.session_config()).toolbox.names) == ["get_weather"]
    assert list((await graft.session_config("other")).toolbox.names) == ["search"]
    assert await graft.grafter.session_config("none") is None


async def test_shared_tools_join_a_session_s_own_but_not_an_empty_toolset(graft: Graft) -> None:
    graft.grafter.session_configs.share([SEARCH])
    assert list((await graft.session_config()).toolbox.names) == ["search"], "no toolset was ever set"
    await graft.tools(WEATHER)
    assert list((await graft.session_config()).toolbox.names) == ["get_weather", "search"]
    assert (await graft.session_config()).declared == {"get_weather"}
    await graft.tools()
    assert list((await graft.session_config()).toolbox.names) == []
    await graft.store.put_toolset("default", None)
    assert list((await graft.session_config()).toolbox.names) == ["search"]


async def test_a_request_reads_what_holds_for_its_session_once(graft: Graft, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record, its version and the ledger's revision, in one."""
    await graft.tools(WEATHER)
    first = await graft.session_config()
    visible_turn = await graft.ask([user("hi")], answer(call()))
    (one,) = await graft.calls()
    await graft.store.answer(one.session, one.call_id, result={"t": 1})
    config = await graft.session_config()
    assert config.toolbox is first.toolbox, "what was made of the session is kept"
    assert config.revision != first.revision

    def asked(session: str) -> int | None:
        raise AssertionError("the config holds it")

    monkeypatch.setattr(graft.store, "revision", asked)
    outcome = await graft.grafter.request(
        Incoming(target(), config.session, encode({"contents": [user("hi"), visible_turn, user("so?")]})), config
    )
    assert isinstance(outcome, Forward)
    assert b"functionCall" in outcome.body


async def test_sessions_that_clients_make_up_are_not_remembered_for_ever(store: Store) -> None:
    grafter = Grafter(store, Settings(), Metrics(), [SEARCH], budget=Budget(100_000))
    for number in range(100):
        config = await grafter.session_config(f"made-up-{number}")
        assert config is not None
        assert config.session == f"made-up-{number}"
        assert 0 < grafter.budget.sizes()["session configs"] < 40_000
    assert len(grafter.session_configs._configs) < 20
    assert await grafter.session_config("made-up-99") is config


@pytest.fixture
async def shared(store: Store) -> Grafter:
    """A grafter that has met the session default without tools."""
    grafter = Grafter(store, Settings(), Metrics())
    assert await grafter.session_config("default") is None
    return grafter


async def test_a_busy_event_loop_is_not_taken_for_a_store_that_is_gone(
    shared: Grafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_config, "_PATIENCE", 0.05)
    read, loop = shared.store.snapshot, asyncio.get_running_loop()

    async def busy(session: str) -> Snapshot:
        for _ in range(8):
            loop.call_soon(time.sleep, 0.03)
            await asyncio.sleep(0)
        return await read(session)

    monkeypatch.setattr(shared.store, "snapshot", busy)
    await shared.store.put_toolset("default", Toolset(declarations=[WEATHER]))
    config = await shared.session_config("default")
    assert config is not None
    assert config.declared == {WEATHER["name"]}


async def test_a_session_that_had_no_tools_passes_in_an_outage_only(
    shared: Grafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(session: str) -> Snapshot:
        raise StoreUnavailable("the session cannot be read")

    monkeypatch.setattr(shared.store, "snapshot", fails)
    with pytest.raises(StoreUnavailable, match="cannot be read"):
        await shared.session_config("default")
    monkeypatch.setattr(type(shared.store), "outage", "not reachable")
    assert await shared.session_config("default") is None


async def test_a_session_that_had_no_tools_before_a_change_does_not_pass_in_an_outage(
    shared: Grafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared.store.on_change is not None
    read = shared.store.snapshot

    async def late(session: str) -> Snapshot:
        found = await read(session)
        shared.store.on_change(session)  # type: ignore[misc]  # another process has written meanwhile
        return found

    async def fails(session: str) -> Snapshot:
        raise StoreUnavailable("not reachable")

    for before in (None, late):
        if before is None:
            shared.store.on_change("default")
        else:
            monkeypatch.setattr(shared.store, "snapshot", before)
            assert await shared.session_config("default") is None
        monkeypatch.setattr(shared.store, "snapshot", fails)
        monkeypatch.setattr(type(shared.store), "outage", "not reachable")
        with pytest.raises(StoreUnavailable):
            await shared.session_config("default")
        monkeypatch.setattr(type(shared.store), "outage", "")


async def test_a_front_door_keeps_the_client_s_tools_and_has_a_config_for_any_session(graft: Graft) -> None:
    grafter = graft.grafter
    bare = await grafter.door_config("bare")
    assert (bare.client_tools, bare.flattens, list(bare.toolbox.names)) == ("keep", True, [])
    assert await grafter.door_config("bare") is bare, "it is made once"
    assert await grafter.session_config("bare") is None, "other traffic of the session is not touched"
    await graft.tools(WEATHER, client_tools="strip", session="bare")
    changed = await grafter.door_config("bare")
    assert (changed.client_tools, list(changed.toolbox.names)) == ("keep", ["get_weather"])
    through_the_proxy = await graft.session_config("bare")
    assert (through_the_proxy.client_tools, through_the_proxy.flattens) == ("strip", False)
