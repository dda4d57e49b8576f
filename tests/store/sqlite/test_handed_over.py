"""Answers that their clients have are forgotten with the next write, or soon."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store.backends import _handed_over
from store.backends.sqlite import SqliteStore
from store.base import StoreUnavailable
from store.models import UndeliveredAnswer
from tests.store.response_records import a_response


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "graft.db")
    await store.open()
    yield store
    await store.close()


async def answered(store: SqliteStore, response_id: str) -> None:
    answer = UndeliveredAnswer(response_id.encode(), "p1", {"id": response_id})
    await store.add_response(a_response(response_id), undelivered=answer)


def kept(path: Path) -> list[str]:
    """As another process would find it."""
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute("SELECT response_id FROM unsent ORDER BY seq")]


async def test_the_next_write_forgets_it(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handed_over, "_SOON", 3600.0)
    for response_id in ("r1", "r2"):
        await answered(store, response_id)
    await store.mark_handed_over("one", "r1")
    assert kept(store.path) == ["r1", "r2"]
    assert await store.take_answer("one", b"r1", window=60.0, proxy_id="p2") is None
    await answered(store, "r3")
    assert kept(store.path) == ["r2", "r3"]


async def test_it_is_forgotten_soon_without_a_write(store: SqliteStore) -> None:
    await answered(store, "r1")
    await store.mark_handed_over("one", "r1")
    async with asyncio.timeout(30):
        while kept(store.path):  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.005)


async def test_it_is_forgotten_at_the_end(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handed_over, "_SOON", 3600.0)
    await answered(store, "r1")
    await store.mark_handed_over("one", "r1")
    await store.close()
    assert kept(store.path) == []


async def test_a_write_that_fails_loses_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_handed_over, "_SOON", 0.0)
    monkeypatch.setattr(_handed_over, "_LATER", 0.0)
    await answered(store, "r1")
    failures = iter([StoreUnavailable("no"), StoreUnavailable("no")])
    write, tried = store._handed_over._write, asyncio.Event()

    def failing() -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        write()
        tried.set()

    monkeypatch.setattr(store._handed_over, "_write", failing)
    await store.mark_handed_over("one", "r1")
    async with asyncio.timeout(30):
        await tried.wait()
    assert kept(store.path) == []


async def test_undelivered_answers_of_others_are_not_looked_at(store: SqliteStore) -> None:
    """Those that broke off stay for an hour, and each may be large."""
    asked: list[Any] = store._rows("EXPLAIN QUERY PLAN SELECT 1 FROM unsent WHERE session = ? AND key = ?", "one", b"k")
    assert "unsent_key" in str(asked)
