"""Proxies of one state folder: who is dead is known before anyone notices it by a connection."""

import contextlib
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from addon.loop import siblings
from addon.loop.executors import Executors
from addon.loop.siblings import Siblings
from store.backends.memory import MemoryStore
from store.models import Status
from tests.store.records import save

SIBLING = """
import socket, sys
from pathlib import Path
from addon.loop.siblings import Siblings

listener = socket.socket(fileno=int(sys.argv[2]))
connections = [listener.accept()[0] for _ in range(int(sys.argv[3]))]
Siblings(Path(sys.argv[1]), "proxy-2").join()
more = [listener.accept()[0] for _ in range(int(sys.argv[3]))]
for one in more:
    one.sendall(b"!")
sys.stdin.read()
"""


@contextlib.contextmanager
def sibling(folder: Path, count: int) -> Iterator[tuple["subprocess.Popen[bytes]", list[socket.socket]]]:
    """A living one, with connections that it had before it joined, and later ones."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        command = [sys.executable, "-c", SIBLING, str(folder), str(listener.fileno()), str(count)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        connections = [socket.create_connection(listener.getsockname(), timeout=30) for _ in range(2 * count)]
        try:
            assert all(one.recv(1) == b"!" for one in connections[count:])
            yield process, connections
        finally:
            process.kill()
            process.communicate()
            for one in connections:
                one.close()


def test_a_sibling_is_dead_as_soon_as_any_of_its_connections_is_closed(tmp_path: Path) -> None:
    own = Siblings(tmp_path / "processes", "proxy-1")
    own.join()
    with sibling(tmp_path / "processes", 20) as (process, connections):
        assert own.dead() == []
        process.kill()
        for one in (connections[0], connections[-1]):
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b""
            assert own.dead() == ["proxy-2"]
    own.forget("proxy-2")
    assert own.dead() == []


def test_who_leaves_is_not_dead_and_nothing_is_left(tmp_path: Path) -> None:
    own, other = (Siblings(tmp_path / "processes", f"proxy-{number}") for number in (1, 2))
    assert own.dead() == [], "there is no folder yet"
    own.join()
    other.join()
    other.leave()
    other.leave()
    assert own.dead() == []
    own.leave()
    assert [*(tmp_path / "processes").iterdir()] == []


def test_the_folder_is_read_again_only_after_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "processes"
    own = Siblings(folder, "proxy-1")
    own.join()
    with sibling(folder, 1) as (process, _):
        monkeypatch.setattr(siblings, "_TICK", 0)
        for _ in range(2):
            assert own.dead() == []
        with monkeypatch.context() as patch:
            patch.setattr(os, "listdir", None)
            assert own.dead() == []
            process.kill()
            process.wait()
            assert own.dead() == ["proxy-2"]
        (folder / "proxy-3").touch()
        assert sorted(own.dead()) == ["proxy-2", "proxy-3"]
        for name in ("proxy-2", "proxy-3"):
            own.forget(name)
        assert own.dead() == []
    before = len(os.listdir("/proc/self/fd"))
    own.leave()
    assert len(os.listdir("/proc/self/fd")) < before


def test_a_file_that_cannot_be_opened_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "processes"
    own = Siblings(folder, "proxy-1")
    own.join()
    monkeypatch.setattr(siblings, "_TICK", -1)
    with sibling(folder, 1) as (process, _):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.open("/dev/null", os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, limits[1]))  # room for one: to read the folder
        (folder / "proxy-3").touch()
        try:
            own.dead()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        process.kill()
        process.wait()
        assert sorted(own.dead()) == ["proxy-2", "proxy-3"]
    own.leave()


def test_a_proxy_that_joins_within_the_tick_of_a_reading_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "processes"
    own = Siblings(folder, "proxy-1")
    own.join()
    before = os.stat(folder)
    assert own.dead() == []
    (folder / "proxy-2").touch()
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert own.dead() == ["proxy-2"]
    own.leave()


def test_who_leaves_while_it_is_asked_for_is_not_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "processes"
    own = Siblings(folder, "proxy-1")
    own.join()
    with sibling(folder, 1) as (process, _):
        assert own.dead() == []
        process.kill()
        process.wait()
        (folder / "proxy-2").unlink()  # as it does before it ends the lock
        monkeypatch.setattr(own, "_read", lambda: True)  # the folder was read right before
        assert own.dead() == []
    own.leave()


async def test_calls_of_a_dead_sibling_are_settled_and_it_is_forgotten(tmp_path: Path) -> None:
    store = MemoryStore()
    await store.open()
    folder = tmp_path / "processes"
    folder.mkdir()
    (folder / "proxy-2").touch()
    ended: list[str] = []
    executors = Executors(store, count=ended.append, siblings=Siblings(folder, "proxy-1"))
    for proxy in ("proxy-2", "proxy-3"):
        await store.hold(proxy, 60.0)
        await save(store, proxy, call={"owner": "loop", "proxy_id": proxy})
    await executors.catch_up()
    assert (await store.call("one", "c-proxy-2")).status is Status.EXPIRED
    assert (await store.call("one", "c-proxy-3")).status is Status.PENDING
    assert ended == [Status.EXPIRED]
    assert [*folder.iterdir()] == []
    await executors.close()
