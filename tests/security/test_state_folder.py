"""The state folder belongs to its user alone: files that others left there, or could have left, are refused."""

import os
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
import typer

from addon.cli.api import client_arguments
from addon.cli.env import variables
from addon.control.app import create_app
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.state_folder import check_folder, lock_folder, write_address, write_file
from addon.tools.mcp_pins import Pins
from addon.web.own_token import load_token
from store.factory import open_url

OTHER = "Or choose another state folder"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TOOLGRAFT_HOME", str(folder))
    return folder


async def test_all_files_that_are_made_are_the_users_alone_under_any_umask(tmp_path: Path) -> None:
    state, before = tmp_path / "state", os.umask(0)
    try:
        settings = Settings(state=state)
        hold = lock_folder(state)
        token = load_token(settings, {})
        write_address(state, "http://127.0.0.1:1")
        Pins(state / "mcp_pins.json", write_file).update("files", {"read": {"description": "a"}}, lambda: None)
        store = open_url(settings.store_url, ttl=1000.0)
        await store.open()
        app = create_app(store=store, settings=settings, token=token, metrics=Metrics(), version="1")
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as client:
            made = await client.post("/v1/tokens", json={"scopes": ["read"]}, headers=headers)
            assert made.status_code == 200
        await store.save_plain("default", [b"key"])
        await store.sync()
        found = {path.name: path.stat().st_mode & 0o077 for path in state.iterdir()}
        await store.close()
        hold.release()
    finally:
        os.umask(before)
    wanted = {"token", "tokens.json", "audit.jsonl", "control.url", "mcp_pins.json", "toolgraft.db", "toolgraft.db-wal"}
    assert wanted <= found.keys()
    assert {name: mode for name, mode in found.items() if mode} == {}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_can_write_to_is_refused_and_its_token_not_taken(mode: int, state: Path) -> None:
    (state / "token").write_text("planted")
    state.chmod(mode)
    with pytest.raises(OSError, match="others can write to it") as refused:
        load_token(Settings(state=state), {})
    assert f"chmod go-w {state}" in str(refused.value)
    assert OTHER in str(refused.value)
    assert (state / "token").read_text() == "planted"


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_a_folder_that_others_can_only_look_at_is_fine(mode: int, state: Path) -> None:
    state.chmod(mode)
    assert load_token(Settings(state=state), {})


def test_a_folder_or_a_file_of_another_user_is_refused(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = os.geteuid()
    (state / "token").write_text("planted")
    owners = {state: me, state / "token": me + 1}
    real = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda path: _owned(real(path), owners.get(path, me)))
    monkeypatch.setattr(os, "geteuid", lambda: me)
    with pytest.raises(OSError, match=f"{state / 'token'}: belongs to another user"):
        load_token(Settings(state=state), {})
    owners |= {state: me + 1, state / "token": me}
    with pytest.raises(OSError, match=f"{state}: belongs to another user"):
        load_token(Settings(state=state), {})
    owners[state] = 0
    if me != 0:
        check_folder(state)  # the administrator's: it may do anything


def _owned(found: os.stat_result, uid: int) -> os.stat_result:
    return os.stat_result((*found[:4], uid, *found[5:]))


def test_a_file_that_others_can_write_to_is_refused(state: Path) -> None:
    (state / "toolgraft.db").touch(mode=0o600)
    check_folder(state)
    (state / "toolgraft.db").chmod(0o666)
    with pytest.raises(OSError, match=r"toolgraft.db: others can write to it"):
        lock_folder(state)


def test_a_folder_that_anyone_could_put_another_in_the_place_of_is_refused(state: Path) -> None:
    state.parent.chmod(0o777)
    with pytest.raises(OSError, match=f"{state.parent}: anyone can write to it"):
        load_token(Settings(state=state), {})
    state.parent.chmod(0o1777)  # as /tmp: nobody can take away what is another's
    assert load_token(Settings(state=state), {})


def test_all_folders_that_are_made_are_the_users_alone_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert load_token(Settings(state=tmp_path / "a" / "b" / "state"), {})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")} == {0}


def test_a_folder_behind_a_link_is_looked_at_where_it_is(state: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(state)
    check_folder(link)
    state.chmod(0o777)
    with pytest.raises(OSError, match=f"{state}: others can write to it"):
        check_folder(link)


@pytest.mark.parametrize(
    "command",
    [
        lambda: client_arguments(None),
        lambda: variables(session="default"),
        lambda: variables(session="default", proxy=True),
    ],
    ids=["token and address", "base URLs", "proxy and CA"],
)
def test_the_command_line_sends_nothing_to_an_address_that_others_could_have_left(
    command: Callable[[], object], state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "control.url").write_text("http://127.0.0.1:9")
    (state / "proxy.json").write_text('{"reverse": ["http://127.0.0.1:9"]}')
    state.chmod(0o777)
    with pytest.raises(typer.Exit):
        command()
    assert "others can write to it" in capsys.readouterr().err


def test_a_folder_belongs_to_one_proxy(state: Path) -> None:
    first = lock_folder(state)
    with pytest.raises(OSError, match=f"{state}: another proxy uses this state folder"):
        lock_folder(state)
    first.release()
    lock_folder(state).release()
    assert (state / "proxy.lock").stat().st_mode & 0o077 == 0
