import asyncio
import json
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteStore
from store.models import Policy
from tests.cli.conftest import Cli


@pytest.fixture
def database(state: Path) -> Path:
    """A store in the state folder."""
    path = state / "toolgraft.db"

    async def fill() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.put_policy("default", Policy())
        await store.close()

    asyncio.run(fill())
    return path


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
