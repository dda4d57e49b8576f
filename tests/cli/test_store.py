import json
from pathlib import Path

import pytest

from store import moving
from store.backends.memory import MemoryStore
from store.backends.sqlite import SqliteStore
from store.base import run_now
from store.models import Policy
from tests.cli.conftest import Cli, Proxy


@pytest.fixture
def database(state: Path) -> Path:
    """A store in the state folder."""
    path = state / "toolgraft.db"
    store = SqliteStore(path)
    run_now(store.open())
    run_now(store.put_policy("default", Policy()))
    run_now(store.close())
    return path


def test_a_clock_in_doubt_is_trusted(cli: Cli, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("store", "trust-clock").stdout == "the clock was trusted already\n"
    clock = proxy.store.clock
    monkeypatch.setattr(proxy.store, "clock", lambda: clock() + 8 * 24 * 3600)
    assert proxy.run(proxy.store.expire()) == 0
    assert isinstance(proxy.store, MemoryStore)
    doubt = proxy.store.clock_doubt
    assert json.loads(cli("store", "trust-clock", "--json").stdout) == {"doubt": doubt}
    assert "192.0 h ahead" in doubt


def test_the_store_of_the_state_folder_is_copied_checked_and_left_alone(
    cli: Cli, database: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    assert str(copy) in cli("backup", str(copy)).stdout
    assert "already" in cli("backup", str(copy), status=1).stderr
    for words in (["check"], ["check", "--store", f"sqlite:///{copy}"]):
        assert "nothing is wrong" in cli(*words).stdout
    assert "nothing was done" in cli("recover", status=1).stderr
    assert "has no file" in cli("check", "--store", "memory://", status=1).stderr


def test_a_damaged_store_is_told_of_and_recovered(cli: Cli, database: Path) -> None:
    content = bytearray(database.read_bytes())
    at = content.index(b'"updated_at"')
    page = at - at % 2048
    content[page : page + 64] = b"\xa5" * 64
    database.write_bytes(content)
    wrong = json.loads(cli("check", "--json", status=1).stdout)
    assert wrong["store"] == str(database)
    assert wrong["wrong"]
    done = json.loads(cli("recover", "--json").stdout)
    assert Path(done["damaged"]).exists()
    assert "nothing is wrong" in cli("check").stdout


def test_a_store_is_moved(cli: Cli, database: Path, state: Path, tmp_path: Path) -> None:
    (state / "tokens.json").write_text("{}")
    urls = [f"sqlite:///{database}", f"sqlite:///{tmp_path / 'new.db'}"]
    moved = cli("store", "move", *urls)
    assert "sessions: 1" in moved.stdout
    assert str(state / "tokens.json") in moved.stderr
    assert "not empty" in cli("store", "move", *urls, status=1).stderr
    moved_on = json.loads(cli("store", "move", urls[1], f"sqlite:///{tmp_path / 'last.db'}", "--json").stdout)
    assert moved_on["moved"]["sessions"]["count"] == 1
    assert moved_on["wrong"] == []


def test_stores_that_differ_after_a_move_are_told_of(
    cli: Cli, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*arguments: object) -> list[str]:
        return []

    urls = [f"sqlite:///{database}", f"sqlite:///{tmp_path / 'new.db'}"]
    with monkeypatch.context() as patch:
        patch.setattr(moving, "_restore_all", nothing)
        assert "sessions differ: 1 in the first store" in cli("store", "move", *urls, status=1).stderr
    assert "sessions: 1" in cli("store", "move", *urls).stdout
