"""The supervisor with real processes, which answer each connection with their pid."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import Process, environment, until
from tests.ports import free_port

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="--workers needs Linux"),
]

SERVER = Path(__file__).with_name("server.py")
RUN = (
    "import sys; from addon.supervisor.supervisor import supervise; sys.exit(supervise(int(sys.argv[1]), sys.argv[2:]))"
)

type Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a supervisor. `port`: of its processes; `failing`: the slot whose starts fail."""
    started: list[Process] = []

    def starts(count: int, port: int, *failing: int, folder: Path = tmp_path) -> Process:
        command: list[str | Path] = [sys.executable, "-c", RUN, str(count), sys.executable, SERVER, str(port), folder]
        started.append(Process("supervisor", [*command, *map(str, failing)], environment(tmp_path)))
        return started[-1]

    yield starts
    for process in started:
        process.stop()


def ask(port: int, line: str) -> Any:
    """What a process answers on a new connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(f"{line}\n".encode())
        return json.loads(connection.makefile().readline())


def pid_at(port: int) -> int:
    """The pid of the process that answers a new connection."""
    return int(ask(port, "pid"))


def ask_others(port: int) -> Any:
    """The states as another process gives them: a connection to the stopped one is given up."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=3) as connection:
            connection.sendall(b"states\n")
            return json.loads(connection.makefile().readline())
    except TimeoutError:
        return []


def all_up(supervisor: Process, count: int, after: int = 0) -> dict[int, int]:
    """The pid of each slot, once `count` slots have said that they are up."""

    def found() -> dict[int, int]:
        lines = [re.match(r"slot (\d+) pid (\d+)", line) for line in supervisor.lines[after:]]
        pids = {int(line[1]): int(line[2]) for line in lines if line}
        return pids if len(pids) == count else {}

    return until(found, f"{count} processes:\n{supervisor.log}")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_processes_share_a_port(start: Start) -> None:
    port = free_port()
    pids = all_up(start(3, port), 3)
    until(lambda: {pid_at(port) for _ in range(30)} == set(pids.values()), "connections of every process")


def test_each_process_gives_the_states_of_all(start: Start) -> None:
    port = free_port()
    pids = all_up(start(3, port), 3)
    until(lambda: ask(port, "states") == sorted(pids.values()), "the states of all")
    os.kill(pids[2], signal.SIGSTOP)  # it does not answer, and is left out
    try:
        until(lambda: ask_others(port) == sorted([pids[0], pids[1]]), "the states of the others")
    finally:
        os.kill(pids[2], signal.SIGCONT)


def test_a_question_reaches_each_process(start: Start) -> None:
    port = free_port()
    all_up(start(3, port), 3)
    until(lambda: ask(port, "restart files") == [{"restart": "files"}] * 3, "the answers of all")


def test_the_states_of_many_processes_need_not_fit_into_one_message(start: Start) -> None:
    port = free_port()
    pids = all_up(start(8, port), 8)
    until(lambda: ask(port, "states") == sorted(pids.values()), "the states of all")


def test_port_0_is_the_same_port_for_all(start: Start) -> None:
    supervisor = start(2, 0)
    all_up(supervisor, 2)
    assert len({line.rpartition(" ")[2] for line in supervisor.lines if line.startswith("slot")}) == 1


def test_a_killed_process_is_started_again_and_its_connections_wait(start: Start) -> None:
    port = free_port()
    supervisor = start(2, port)
    pids, mark = all_up(supervisor, 2), supervisor.mark()
    os.kill(pids[1], signal.SIGKILL)
    answered = {pid_at(port) for _ in range(20)}  # without a refused connection
    after = all_up(supervisor, 1, mark)
    assert pids[1] not in answered
    assert answered <= {pids[0], after[1]}
    assert f"process {pids[1]} of slot 2 was ended by SIGKILL: another one is started" in supervisor.log


def test_sighup_replaces_each_process_without_a_refused_connection(start: Start) -> None:
    port = free_port()
    supervisor = start(2, port)
    pids, mark = all_up(supervisor, 2), supervisor.mark()
    os.kill(supervisor.pid, signal.SIGHUP)
    until(lambda: pid_at(port) and "every process was replaced" in supervisor.log, "the replacement")
    new = all_up(supervisor, 2, mark)
    assert not set(new.values()) & set(pids.values())
    assert {pid_at(port) for _ in range(20)} <= set(new.values())
    assert not any(is_alive(pid) for pid in pids.values())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    supervisor = start(2, 0)
    pids = all_up(supervisor, 2)
    (tmp_path / "control.url").write_text("http://127.0.0.1:1")
    os.kill(supervisor.pid, number)
    assert supervisor.wait() == 0
    assert not any(is_alive(pid) for pid in pids.values())
    assert not (tmp_path / "control.url").exists()


def test_a_process_that_is_stuck_is_killed_at_the_end(start: Start, tmp_path: Path) -> None:
    (tmp_path / "ends_within").write_text("1")
    supervisor = start(2, 0)
    stuck = all_up(supervisor, 2)[1]
    os.kill(stuck, signal.SIGSTOP)
    assert supervisor.stop() == 1
    assert f"process {stuck} has not ended within 1 s: it was killed" in "\n".join(supervisor.lines)
    assert not is_alive(stuck)


def test_a_signal_while_processes_start_ends_all(start: Start) -> None:
    """Wherever in the start, or in a replacement, the signal comes."""
    for wait in (None, r"slot 0 pid", "replace"):
        supervisor = start(2, 0)
        if wait is None:
            until(lambda: children(supervisor.pid), "the first process")  # noqa: B023 - called in this round
        elif wait == "replace":
            pids = all_up(supervisor, 2)
            os.kill(supervisor.pid, signal.SIGHUP)
            until(lambda: set(children(supervisor.pid)) - set(pids.values()), "a new process")  # noqa: B023
        else:
            supervisor.wait_for(wait)
        born = children(supervisor.pid)
        os.kill(supervisor.pid, signal.SIGTERM)
        assert supervisor.wait(10) == 0, supervisor.log
        assert not any(is_alive(pid) for pid in born), wait
        assert "Traceback" not in supervisor.log


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_processes_end_with_a_killed_supervisor(start: Start) -> None:
    supervisor = start(2, 0)
    pids = all_up(supervisor, 2)
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: not any(is_alive(pid) for pid in pids.values()), "the end of the processes")


def test_a_failing_first_process_ends_the_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "failures").write_text("1")
    supervisor = start(3, 0, 0)
    assert supervisor.wait() == 3
    assert supervisor.lines == []


def test_a_process_that_fails_later_is_tried_again(start: Start, tmp_path: Path) -> None:
    (tmp_path / "failures").write_text("2")
    supervisor = start(2, 0, 1)
    all_up(supervisor, 2)
    assert supervisor.log.count("of slot 2 ended with status 3: another one is started") == 2


def test_a_process_that_ends_at_once_is_started_with_longer_and_longer_pauses(start: Start) -> None:
    port = free_port()
    supervisor = start(2, port, -1)
    until(lambda: supervisor.log.count("of slot 2 ended with status 7") >= 3, "the third end")
    (pid,) = {int(line.split()[3]) for line in supervisor.lines if line.startswith("slot 0")}
    assert {pid_at(port) for _ in range(20)} == {pid}, "its slot gets no connections meanwhile"


def test_connections_wait_for_the_next_process_after_two_that_were_killed(start: Start) -> None:
    port = free_port()
    supervisor = start(2, port)
    first = all_up(supervisor, 2)[1]
    os.kill(first, signal.SIGKILL)

    def latest() -> int:
        return [int(line.split()[3]) for line in supervisor.lines if line.startswith("slot 1")][-1]

    until(lambda: latest() != first, "the second process")
    second = latest()
    os.kill(second, signal.SIGSTOP)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(20)]
        os.kill(second, signal.SIGKILL)
        for connection in connections:
            connection.sendall(b"pid\n")
        answered = {int(stack.enter_context(connection.makefile()).readline()) for connection in connections}
    assert len(answered) == 2
    assert not answered & {first, second}


def test_a_reload_that_fails_leaves_the_processes(start: Start, tmp_path: Path) -> None:
    (tmp_path / "failures").write_text("0")
    port = free_port()
    supervisor = start(2, port, 1)
    pids = all_up(supervisor, 2)
    (tmp_path / "failures").write_text("1")
    os.kill(supervisor.pid, signal.SIGHUP)
    supervisor.wait_for("the new process does not serve")
    assert is_alive(pids[1])
    until(lambda: pid_at(port) == pids[1], "an answer of the old process")


def test_a_port_in_use_and_a_folder_in_use_are_told(start: Start, tmp_path: Path) -> None:
    port = free_port()
    all_up(start(2, port), 2)
    second, third = start(2, port, folder=_made(tmp_path / "other")), start(2, 0)
    assert second.wait() == 1
    assert second.lines == ["cannot start: [Errno 98] Address already in use"]
    assert third.wait() == 1
    assert "another proxy uses this state folder" in third.log


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
