"""The proxy goes on without its output: closed, full, or read by nobody."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import httpx2
import pytest

from addon.hooks.stdout import steady
from tests.e2e.processes import TIMEOUT, environment, until
from tests.e2e.proxies import command, sets
from tests.ports import free_port


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """The reader's end, and a file that writes into it."""
    reader, writer = os.pipe()
    yield reader, open(writer, "w", encoding="utf-8", closefd=False)
    for end in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(end)


def fill(file: TextIO) -> None:
    """Until the pipe takes no more."""
    os.set_blocking(file.fileno(), False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(file.fileno(), b"x" * 4096)
    os.set_blocking(file.fileno(), True)


def test_lines_are_written_when_they_have_their_end(pipe: tuple[int, TextIO]) -> None:
    reader, file = pipe
    file.write("before ")
    out = steady(file)
    print("one", 2, file=out)
    out.write("half")
    print(" \ud83d.", file=out)
    assert os.read(reader, 1000) == b"before one 2\nhalf \\ud83d.\n"


def test_a_reader_that_is_gone_hurts_nobody(pipe: tuple[int, TextIO]) -> None:
    reader, file = pipe
    out = steady(file)
    os.close(reader)
    for _ in range(3):
        print("a line", file=out)


def test_a_full_disk_hurts_nobody() -> None:
    with open("/dev/full", "w") as full:
        out = steady(full)
        for _ in range(3):
            print("a line", file=out)


def test_a_reader_that_reads_nothing_holds_nobody_up_and_is_told_what_it_missed(pipe: tuple[int, TextIO]) -> None:
    reader, file = pipe
    out = steady(file)
    fill(file)
    for _ in range(10_000):  # more than any pipe holds: it would never come to its end
        print("lost" * 100, file=out)
    os.set_blocking(reader, False)
    with contextlib.suppress(BlockingIOError):
        while os.read(reader, 1_000_000):
            pass
    print("found", file=out)
    assert os.read(reader, 1000) == b"[10000 lines are missing here: they could not be written]\nfound\n"


def test_a_line_that_is_longer_than_a_pipe_takes_at_once_holds_nobody_up(pipe: tuple[int, TextIO]) -> None:
    _, file = pipe
    print("x" * 1_000_000, file=steady(file))


@pytest.mark.e2e
@pytest.mark.parametrize("how", ["gone", "full", "stalled"])
def test_the_proxy_serves_without_its_output(how: str, tmp_path: Path) -> None:
    port = free_port()
    words = [*command(tmp_path, "--mode", f"regular@127.0.0.1:{port}", *sets(control="127.0.0.1:0", store="memory://"))]
    state = tmp_path / "state"
    environ = environment(tmp_path, TOOLGRAFT_HOME=str(state)) | {"PYTHONUNBUFFERED": ""}
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            [*map(str, words), "--set", "termlog_verbosity=debug"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=full if how == "full" else subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    try:
        until((state / "proxy.json").exists, "the proxy is up")
        if how == "gone":
            assert process.stdout is not None
            process.stdout.close()
        url = (state / "control.url").read_text().strip()
        with httpx2.Client(timeout=TIMEOUT) as client:
            for _ in range(400):  # each a line of the log or more: together more than a pipe holds
                assert client.get(f"http://127.0.0.1:{port}/{'x' * 300}").status_code >= 400
            assert client.get(f"{url}/healthz").status_code == 200
        process.terminate()
        assert process.wait(TIMEOUT) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
