"""SQLite databases of tests."""

import tempfile
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path

import pytest

from store.backends import _sqlite_file
from store.backends.sqlite import SqliteStore
from store.base import Store


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graft.db")
        _sqlite_file.create(path, _sqlite_file.VERSION).close()
        return path.read_bytes()


def database_in(folder: Path) -> str:
    """The URL of the folder's database. A new one is a copy, which is faster than creating its tables."""
    path = folder / "graft.db"
    if not path.exists():
        path.write_bytes(_empty())
        path.chmod(0o600)
    return f"sqlite:///{path}"


def notes_in(store: Store) -> int:
    """The number of notes of turns without calls, in a store in SQLite."""
    assert isinstance(store, SqliteStore)
    assert store._db
    count: int = store._db.execute("SELECT count(*) FROM plain_key").fetchone()[0]
    return count


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "graft.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    database_in(path.parent)
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()
