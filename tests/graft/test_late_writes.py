"""What is remembered of writes that were made, for a server that loses them."""

from collections.abc import Iterable

import pytest

from addon.graft import late_writes
from addon.graft.late_writes import MOST_BYTES, LateWrites
from store.backends.memory import MemoryStore
from store.base import Traffic


class Writes:
    """`made`: the keys of the writes that were made once more."""

    def __init__(self, store: MemoryStore) -> None:
        self.now = 1000.0
        self.late = LateWrites(store, lambda: self.now)
        self.made: list[str] = []

    def remember(self, *keys: str, size: int = 0) -> None:
        for key in keys:
            self.late.remember(key, self._write(key), size)

    def _write(self, key: str) -> late_writes.Write:
        async def write() -> None:
            self.made.append(key)

        return write

    async def repeated(self) -> list[str]:
        self.made.clear()
        self.late.repeat()
        await self.late.flush()
        return self.made


@pytest.fixture
def writes() -> Writes:
    store = MemoryStore()
    store.traffic = Traffic()  # as if it had a server
    return Writes(store)


async def test_a_store_without_a_server_has_what_it_took() -> None:
    writes = Writes(MemoryStore())
    writes.remember("a")
    assert await writes.repeated() == []


async def test_writes_are_made_once_more_in_their_order_and_as_often_as_it_takes(writes: Writes) -> None:
    writes.remember("a", "b", "a")
    assert await writes.repeated() == ["b", "a"]
    assert await writes.repeated() == ["b", "a"]


async def test_what_no_longer_holds_is_not_written_once_more(writes: Writes) -> None:
    writes.remember("a", "b")
    writes.late.forget("a")
    writes.late.forget("never known")
    assert await writes.repeated() == ["b"]


@pytest.mark.parametrize("sizes", [[MOST_BYTES, 1, 1], [1, MOST_BYTES, MOST_BYTES - 1, 1]])
async def test_the_oldest_are_forgotten_so_that_the_others_fit(writes: Writes, sizes: Iterable[int]) -> None:
    for number, size in enumerate(sizes):
        writes.remember(str(number), size=size)
    last = len(list(sizes)) - 1
    assert await writes.repeated() == [str(last - 1), str(last)]


async def test_there_are_not_too_many(writes: Writes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_writes, "_MOST", 2)
    writes.remember("a", "b", "c")
    assert await writes.repeated() == ["b", "c"]


async def test_none_is_much_older_than_the_latest(writes: Writes) -> None:
    writes.remember("a")
    writes.now += 59
    writes.remember("b")
    writes.now += 3600  # the server was gone
    assert await writes.repeated() == ["a", "b"]
    writes.remember("c")
    assert await writes.repeated() == ["c"]
