"""Several processes at one SQLite database."""

# ruff: noqa: ASYNC240

import signal
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteStore
from store.base import StoreUnavailable
from store.models import Policy
from tests.store.sqlite.conftest import contents, fill, refused, start


async def test_acknowledged_writes_survive_a_kill(path: Path) -> None:
    with start(path, "write") as process:
        assert process.stdout
        acknowledged = [int(process.stdout.readline()) for _ in range(300)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in process.stdout.read().splitlines() if line]
    assert process.returncode == -signal.SIGKILL
    store = SqliteStore(path)
    await store.open()
    for number in acknowledged:
        found = await store.look_up("one", keys=[b"%d" % number])
        assert found.by_key == {b"%d" % number: [f"t{number}"]}
        assert found.calls[f"c{number}"].result == number
    calls = await store.calls(limit=10**6)
    events = await store.events(after=None, limit=10**6)
    reported = [event.data["call_id"] for event in events if event.type == "call.created"]
    assert reported == [call.call_id for call in calls.items], "whole, or not at all"
    head = await store.conversation("one", "chat")
    assert head is not None
    history = await store.history("one", head)
    assert [response.response_id for response in history] == [f"r{number}" for number in range(len(history))]
    assert len(history) > acknowledged[-1]
    given = await store.given_calls("one", [f"call_{number}" for number in range(len(history) + 1)])
    assert len(given) == len(history), "whole, or not at all"
    await store.close()


async def test_a_second_process_is_refused_and_a_reader_is_not(path: Path) -> None:
    with start(path, "hold") as process:
        await refused(path, "another toolgraft uses it")
        reader = SqliteStore(path, read_only=True)
        await reader.open()
        assert await reader.session("one") is not None
        await reader.close()
        process.communicate("")
    store = SqliteStore(path)
    await store.open()
    await store.close()


async def test_a_second_store_in_this_process_is_refused(store: SqliteStore, path: Path) -> None:
    await refused(path, "another toolgraft uses it")
    await store.put_policy("one", Policy())


async def test_a_reader_sees_what_the_writer_writes_and_writes_nothing(store: SqliteStore, path: Path) -> None:
    await fill(store)
    reader = SqliteStore(path, read_only=True)
    await reader.open()
    await store.put_policy("later", Policy())
    await fill(store, "t2")
    await reader.ping()
    assert await reader.session("later") == await store.session("later")
    assert await reader.look_up("one", keys=[b"t2"]) == await store.look_up("one", keys=[b"t2"])
    assert await reader.last_event_id() == await store.last_event_id()
    assert reader.revision("one") is None, "another process writes"
    assert await reader.follow(None, None, 60) == await store.events(after=None)
    call = await store.call("one", "c-t1")
    assert await reader.wait_call(call.model_copy(update={"name": "g"}), 60) == call
    assert await reader.wait_claimable("one", ["f"], 60)
    last = await store.last_event_id()
    for attempt in (
        reader.put_policy("one", Policy()),
        reader.answer("one", "c-t1", result=1),
        reader.expire(),
        reader.follow(None, last, 1),
        reader.wait_call(call, 1),
        reader.wait_claimable("one", ["g"], 1),
    ):
        with pytest.raises(StoreUnavailable, match="read-only"):
            await attempt
    await reader.close()


async def test_a_reader_needs_a_database_and_makes_none(tmp_path: Path, path: Path) -> None:
    await refused(path, "no such file", read_only=True)
    path.touch()
    await refused(path, "not a SQLite database", read_only=True)
    assert contents(tmp_path) == {"graft.db": b""}
