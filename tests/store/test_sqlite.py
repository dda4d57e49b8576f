"""Guarantees of the SQLite store alone: its file, its lock, its crashes."""

# Nobody else waits for this event loop, and what a thread does to a file cannot be awaited:
# ruff: noqa: ASYNC110, ASYNC221, ASYNC240

import asyncio
import itertools
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from store.backends import _checkpoints, _clocks, _sqlite_schema
from store.backends.sqlite import SqliteStore
from store.base import CursorLost, StoreUnavailable, StoreUnusable, run_now
from store.models import CachedTools, Call, Policy, Response, Toolset, Turn
from tests.permissions import modes_apply
from tests.store.records import save

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "graft.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


async def fill(store: SqliteStore, turn_id: str = "t1", text: str = "") -> None:
    call = Call(
        call_id=f"c-{turn_id}",
        session="one",
        name="f",
        args={"a": text},
        owner="workers",
        released=True,
        turn_id=turn_id,
        created_at=1,
        updated_at=1,
    )
    turn = Turn(turn_id=turn_id, session="one", visible=[], steps=[], user_key=b"\xff", created_at=2**40)
    await store.save_turn(turn, [call], [turn_id.encode()])


def a_response(number: int, *, pad: str = "") -> Response:
    """A response of a conversation in which each follows the one before it."""
    return Response(
        response_id=f"r{number}",
        session="one",
        conversation="chat",
        previous=f"r{number - 1}" if number else None,
        contents=[{"role": "user", "parts": [{"text": pad}]}],
        tools={"f": number},
        calls={f"call_{number}": {"functionCall": {"name": "f"}, "thoughtSignature": "s"}},
        document={"id": f"r{number}"},
        created_at=1.0,
    )


def contents(folder: Path) -> dict[str, bytes]:
    """All files except the lock."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix != ".lock"}


async def refused(path: Path, *words: str, read_only: bool = False) -> None:
    store = SqliteStore(path, read_only=read_only)
    with pytest.raises(StoreUnusable) as error:
        await store.open()
    for word in (str(path), *words):
        assert word in str(error.value)
    await store.close()


# --- the file -------------------------------------------------------------------------------------------------


async def test_missing_folders_and_the_database_are_made_for_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "graft"
    store = SqliteStore(folder / "graft.db")
    await store.open()
    await store.put_policy("one", Policy())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [folder, folder.parent, *folder.iterdir()]}
    assert modes.pop("state") == modes.pop("graft") == 0o700
    assert modes.keys() == {"graft.db", "graft.db-wal", "graft.db-shm", "graft.db-notes", "graft.db.lock"}
    assert set(modes.values()) == {0o600}
    await store.close()


async def test_a_clean_close_leaves_one_whole_file(store: SqliteStore, tmp_path: Path, path: Path) -> None:
    await fill(store)
    await store.close()
    assert contents(tmp_path).keys() == {"graft.db"}
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT turn_id FROM turn").fetchall() == [("t1",)]
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.close()


async def test_a_restart_keeps_everything(store: SqliteStore, path: Path) -> None:
    toolset = Toolset(declarations=[{"name": "f"}])
    await store.put_policy("one", Policy(delivery="loop"))
    session = await store.put_toolset("one", toolset)
    cached = CachedTools(session="one", cached_content="cachedContents/1", names={"f": "g"}, created_at=1)
    await store.put_cached_tools(cached)
    await fill(store)
    await store.bind("one", b"\xff", [b"bound"])
    answered, _ = await store.answer("one", "c-t1", result={"n": 2**80})
    found = await store.look_up("one", keys=[b"t1", b"bound"])
    events = await store.events(after=None)
    await store.close()

    reopened = SqliteStore(path)
    await reopened.open()
    assert await reopened.session("one") == session
    assert await reopened.cached_tools("one", "cachedContents/1") == cached
    assert await reopened.look_up("one", keys=[b"t1", b"bound"]) == found
    assert found.turns["t1"].bound
    assert await reopened.call("one", "c-t1") == answered
    assert await reopened.events(after=None) == events
    assert await reopened.last_event_id() == events[-1].event_id
    assert reopened.revision("one") != 0, "the ledger is not empty"
    await reopened.put_policy("two", Policy())
    assert [event.session for event in await reopened.events(after=events[-1].event_id)] == ["two"]
    await reopened.close()


async def test_a_restart_keeps_which_events_have_expired(tmp_path: Path) -> None:
    now = 1_000_000.0
    store = SqliteStore(tmp_path / "graft.db", ttl=1000.0, clock=lambda: now)
    store.uptime = store.clock
    await store.open()
    await save(store, "t1")
    first = (await store.events(after=None))[0].event_id
    now += 1001
    while await store.expire():
        pass
    await store.close()
    for read_only in (False, True):
        store = SqliteStore(tmp_path / "graft.db", ttl=1000.0, clock=lambda: now, read_only=read_only)
        store.uptime = store.clock
        await store.open()
        with pytest.raises(CursorLost):
            await store.events(after=first)
        await store.close()


async def test_a_restart_keeps_responses_and_conversations(store: SqliteStore, path: Path) -> None:
    for number in range(4):
        await store.add_response(a_response(number), head=a_response(number).previous)
    await store.delete_response("one", "r1")
    history, given = await store.history("one", "r3"), await store.given_calls("one", ["call_0", "call_3"])
    await store.close()

    reopened = SqliteStore(path)
    await reopened.open()
    assert await reopened.conversation("one", "chat") == "r3"
    assert await reopened.history("one", "r3") == history
    assert len(history) == 4
    assert await reopened.given_calls("one", ["call_0", "call_3"]) == given
    assert (await reopened.response("one", "r1")).document is None
    await reopened.add_response(a_response(4), head="r3")
    assert await reopened.conversation("one", "chat") == "r4"
    await reopened.close()


async def test_nothing_is_left_of_responses_that_are_gone(path: Path) -> None:
    now = 1e6
    store = SqliteStore(path, ttl=10.0, clock=lambda: now)
    await store.open()

    def rows() -> dict[str, int]:
        assert store._db
        tables = ("response", "thread", "conversation", "given_call")
        return {table: store._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}

    none = rows()
    for number in range(3):
        await store.add_response(a_response(number).model_copy(update={"conversation": None}))
    for number in range(3):
        assert rows()["thread"] == 1
        await store.delete_response("one", f"r{number}")
    assert rows() == none
    for number in range(3):
        await store.add_response(a_response(number), head=a_response(number).previous)
    now += 11
    assert await store.expire() == 3
    assert rows() == none
    await store.add_response(a_response(0))
    assert set(rows().values()) == {1}
    await store.delete_session("one")
    assert rows() == none
    await store.close()


async def test_one_store_can_be_opened_again(store: SqliteStore) -> None:
    await fill(store)
    before = store.revision("one")
    await store.close()
    await store.open()
    assert store.revision("one") not in (0, before)
    assert (await store.call("one", "c-t1")).call_id == "c-t1"


# --- files that are refused -----------------------------------------------------------------------------------


def newer(path: Path) -> None:
    with sqlite3.connect(path, autocommit=True) as db:
        db.execute("CREATE TABLE future (a)")
        db.execute("PRAGMA user_version = 99")
    db.close()


def foreign(path: Path) -> None:
    with sqlite3.connect(path, autocommit=True) as db:
        db.execute("CREATE TABLE bookmark (url)")
    db.close()


def truncated(path: Path) -> None:
    whole(path)
    path.write_bytes(path.read_bytes()[:-5000])


def scrambled(path: Path) -> None:
    whole(path)
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"\xaa" * (len(data) - 100))


def whole(path: Path) -> None:
    store = SqliteStore(path)
    run_now(store.open())
    run_now(store.put_policy("one", Policy()))
    run_now(store.close())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (newer, ["version 99", "newer toolgraft", f"version {_sqlite_schema.VERSION}"]),
        (foreign, ["another program"]),
        (truncated, ["damaged"]),
        (scrambled, ["cannot be used", "malformed"]),
        (lambda path: path.write_bytes(b"not a database at all" * 100), ["not a SQLite database"]),
        (lambda path: path.write_bytes(b"SQLite format 3\0"), ["not a SQLite database"]),
        (lambda path: path.mkdir(), ["not a file"]),
    ],
    ids=["newer", "foreign", "truncated", "scrambled", "garbage", "stump", "folder"],
)
async def test_a_file_that_cannot_be_used_is_refused_and_not_touched(
    tmp_path: Path, make: Callable[[Path], object], words: list[str]
) -> None:
    path = tmp_path / "graft.db"
    make(path)
    before = None if path.is_dir() else contents(tmp_path)
    times = path.stat().st_mtime_ns
    await refused(path, *words)
    if before is not None:
        assert contents(tmp_path) == before
    await refused(path, *words, read_only=True)
    assert path.stat().st_mtime_ns == times


async def test_a_newer_version_that_is_only_in_the_log_is_refused_and_not_touched(tmp_path: Path, path: Path) -> None:
    whole(path)
    crash = f"""
import os, sqlite3
db = sqlite3.connect({str(path)!r}, autocommit=True)
db.execute("PRAGMA user_version = 99")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", crash], check=False, timeout=30)
    (tmp_path / "graft.db-shm").unlink()
    before = contents(tmp_path)
    assert before.keys() == {"graft.db", "graft.db-wal"}
    await refused(path, "version 99")
    assert contents(tmp_path) == before


async def test_a_database_of_a_version_that_this_one_knows_is_brought_up_to_date(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(path)
    later = (*_sqlite_schema.MIGRATIONS, "CREATE TABLE more (a); INSERT INTO more VALUES (1);")
    monkeypatch.setattr(_sqlite_schema, "MIGRATIONS", later)
    monkeypatch.setattr(_sqlite_schema, "VERSION", len(later))
    await refused(path, "start the proxy once", read_only=True)
    store = SqliteStore(path)
    await store.open()
    assert await store.session("one") is not None
    await store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT a FROM more").fetchall() == [(1,)]
        assert db.execute("PRAGMA user_version").fetchone() == (len(later),)
    db.close()


async def test_the_secret_and_the_epoch_outlive_a_restart_and_differ_between_stores(path: Path, tmp_path: Path) -> None:
    known = []
    for file in (path, path, tmp_path / "another.db"):
        store = SqliteStore(file)
        await store.open()
        known.append((store.secret, store.epoch))
        await store.close()
    assert known[0] == known[1]
    assert known[0][0] != known[2][0]
    assert known[0][1] != known[2][1]
    assert len(known[0][0]) == 32


async def test_a_store_that_was_left_open_keeps_its_epoch_unless_the_machine_has_started_anew(
    store: SqliteStore, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed loses nothing. A machine may lose events, whose ids are then given again."""
    await store.put_policy("one", Policy())
    observed = await store.last_event_id()

    async def opened(name: str) -> SqliteStore:
        left = tmp_path / name
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
        reopened = SqliteStore(left)
        await reopened.open()
        return reopened

    killed = await opened("killed.db")
    assert killed.epoch == store.epoch
    assert await killed.events(after=observed) == []
    monkeypatch.setattr(_clocks, "boot", lambda: "another")
    anew = await opened("anew.db")
    assert anew.epoch != store.epoch
    with pytest.raises(CursorLost):
        await anew.events(after=observed)
    assert len(await anew.events(after=None)) == 1
    for reopened in (killed, anew):
        await reopened.close()
        before = reopened.epoch
        monkeypatch.setattr(_clocks, "boot", lambda: "yet another")
        await reopened.open()
        assert reopened.epoch == before, "it was closed, and has lost nothing"
        await reopened.close()


async def test_a_lease_outlives_a_restart(store: SqliteStore, path: Path) -> None:
    await fill(store)
    claimed = await store.claim("one", ["f"], lease=60.0, worker="w")
    assert claimed is not None
    await store.close()
    reopened = SqliteStore(path)
    await reopened.open()
    assert await reopened.call("one", claimed.call_id) == claimed
    assert 0 < (await reopened.next_lease("one", ["f"]) or 0) <= 60.0
    assert (await reopened.renew("one", claimed.call_id, "w", 60.0)).worker == "w"
    await reopened.close()


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole(path)
    later = (*_sqlite_schema.MIGRATIONS, "CREATE TABLE more (a); INSERT INTO nowhere VALUES (1);")
    with monkeypatch.context() as patch:
        patch.setattr(_sqlite_schema, "MIGRATIONS", later)
        patch.setattr(_sqlite_schema, "VERSION", len(later))
        await refused(path, "nowhere")
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM sqlite_master WHERE name = 'more'").fetchall() == []
    db.close()
    store = SqliteStore(path)
    await store.open()
    await store.close()


async def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    await refused(tmp_path / "file" / "graft.db", "folder")
    assert (tmp_path / "file").read_text() == "kept"


async def test_a_folder_or_a_file_without_write_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    path = tmp_path / "files" / "graft.db"
    path.parent.mkdir()
    whole(path)
    path.chmod(0o400)
    before = contents(path.parent)
    with modes_apply():
        await refused(folder / "graft.db", "folder")
        await refused(path, "not readable and writable")
    assert contents(path.parent) == before


async def test_a_refused_file_leaves_no_lock_behind(path: Path) -> None:
    newer(path)
    await refused(path, "99")
    path.unlink()
    store = SqliteStore(path)
    await store.open()
    await store.close()


# --- processes ------------------------------------------------------------------------------------------------

WRITER = """
import itertools, sys
from store.backends.sqlite import SqliteStore
from store.base import run_now
from store.models import Call, Policy, Response, Turn

store = SqliteStore(sys.argv[1])
run_now(store.open())
run_now(store.put_policy("one", Policy()))
print("open", flush=True)
for number in itertools.count() if sys.argv[2] == "write" else ():
    turn = Turn(turn_id=f"t{number}", session="one", visible=[], steps=[], created_at=2**40)
    call = Call(call_id=f"c{number}", session="one", name="f", args={"n": number, "pad": "x" * 5000},
                turn_id=turn.turn_id, created_at=1, updated_at=1)
    run_now(store.save_turn(turn, [call], [b"%d" % number]))
    run_now(store.answer(call.session, call.call_id, result=number))
    previous = f"r{number - 1}" if number else None
    run_now(store.add_response(Response(response_id=f"r{number}", session="one", conversation="chat",
        previous=previous, calls={f"call_{number}": {"n": number}}, document={}, created_at=1), head=previous))
    print(number, flush=True)
sys.stdin.read()
"""


def start(path: Path, mode: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout
    assert process.stdout.readline() == "open\n"
    return process


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


# --- reading beside a writer ----------------------------------------------------------------------------------


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


# --- while it runs --------------------------------------------------------------------------------------------


async def test_an_error_of_sqlite_is_unavailable_and_undoes_the_transaction(store: SqliteStore, path: Path) -> None:
    await fill(store)
    last = await store.last_event_id()
    # A trigger stands for a disk that is full in the middle of a transaction.
    with sqlite3.connect(path, autocommit=True) as db:
        db.execute("CREATE TRIGGER full BEFORE INSERT ON event BEGIN SELECT raise(ABORT, 'disk full'); END")
    for attempt in (fill(store, "t2"), store.put_policy("one", Policy()), store.answer("one", "c-t1", result=1)):
        with pytest.raises(StoreUnavailable, match="disk full"):
            await attempt
    assert await store.session("one") is None
    assert (await store.look_up("one", turn_ids=["t2"])).turns == {}
    assert (await store.call("one", "c-t1")).result is None
    assert await store.last_event_id() == last
    db.execute("DROP TRIGGER full")
    db.close()
    await fill(store, "t2")
    assert len(await store.events(after=last)) == 2


async def test_another_thread_is_told_instead_of_being_served(store: SqliteStore) -> None:
    with pytest.raises(StoreUnavailable, match="thread"):
        await asyncio.to_thread(run_now, store.ping())


async def test_the_log_is_moved_into_the_file_beside_the_writer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_checkpoints, "STEP", 1 << 18)
    monkeypatch.setattr(_checkpoints, "QUIET", 0.01)
    store = SqliteStore(path)
    await store.open()
    new = path.stat().st_size
    async with asyncio.timeout(10):
        for number in range(100):
            await fill(store, f"t{number}", "x" * 1000)
        while path.stat().st_size <= new:
            await asyncio.sleep(0.005)
    assert path.stat().st_size > new
    await store.close()


async def test_one_large_response_is_reason_enough_to_move_the_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_checkpoints, "STEP", 1 << 20)
    monkeypatch.setattr(_checkpoints, "QUIET", 0.01)
    store = SqliteStore(path)
    await store.open()
    new = path.stat().st_size
    async with asyncio.timeout(10):
        await store.add_response(a_response(0, pad="x" * (1 << 20)))
        while path.stat().st_size <= new:
            await asyncio.sleep(0.005)
    await store.close()


async def test_a_log_is_used_again_from_its_start_while_writing_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_checkpoints, "STEP", 1 << 16)
    monkeypatch.setattr(_checkpoints, "QUIET", 0.05)
    monkeypatch.setattr(_checkpoints, "LIMIT", 1 << 18)
    store = SqliteStore(path)
    await store.open()
    await fill(store)

    def generation() -> bytes:
        with path.with_name(path.name + "-wal").open("rb") as log:
            return log.read(24)[12:]

    first = generation()
    async with asyncio.timeout(20):
        for number in itertools.count():
            await fill(store, f"t{number}", "x" * 1000)
            if generation() != first:
                break
            await asyncio.sleep(0)
    await store.close()


async def test_closing_ends_the_thread(path: Path) -> None:
    before = set(threading.enumerate())
    store = SqliteStore(path)
    await store.open()
    assert set(threading.enumerate()) != before
    await store.close()
    assert set(threading.enumerate()) == before


async def test_a_look_up_and_the_lists_are_indexed(store: SqliteStore) -> None:
    """Whatever the tables hold, no statement of a request's path reads one from end to end."""
    observed: list[str] = []
    assert store._db
    store._db.set_trace_callback(observed.append)
    await fill(store)
    await fill(store)
    await store.bind("one", b"\xff", [b"key"])
    await store.look_up("one", turn_ids=["t1"], keys=[b"t1", b"none"])
    await store.hold("p1", 60.0)
    await store.release("one", "c-t1")
    await store.wait_claimable("one", ["f"], 0)
    await store.claim("one", ["f"], lease=1.0, worker="w")
    await store.next_lease("one", ["f"])
    await store.settle_lost()
    await store.drop("p2")
    await store.answer("one", "c-t1", result=1)
    begun = Turn(turn_id="t2", session="one", visible=[], steps=[], request_key=b"k", proxy_id="p1", created_at=2**40)
    await store.save_turn(begun)
    await store.mark_broken_off("one", "t2")
    assert await store.take_over("one", b"k", window=60.0, proxy_id="p1") is not None
    await store.save_turn(begun.model_copy(update={"delivered": True}))
    await store.turns("one")
    await store.calls(session="one")
    await store.events(after=None, session="one")
    for number in range(3):
        await store.add_response(a_response(number), head=a_response(number).previous)
    await store.history("one", "r2")
    await store.given_calls("one", ["call_0", "call_1", "none"])
    await store.delete_response("one", "r1")
    store._db.set_trace_callback(None)
    tables = ("turn", "call", "event", "response", "conversation", "given_call", "thread", "next", "request")
    statements = {text for text in observed if text.lstrip().startswith(("SELECT", "WITH", "UPDATE", "DELETE"))}
    assert len(statements) > 8
    for text in statements:
        for *_, step in store._db.execute(f"EXPLAIN QUERY PLAN {text}"):
            assert not step.startswith(tuple(f"SCAN {table}" for table in tables)), f"{text}: {step}"
