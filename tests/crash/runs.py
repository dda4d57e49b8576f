"""The runs of tools: each run appends a line to one file before its work, and another one after it.

A line is written by one `write` to a file opened for appending, so a killed process leaves whole lines. Every call of
the model has a unique `mark` among its arguments; a repeated request makes calls with the same marks.
"""

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

VARIABLE = "CRASH_RUNS"
"""The environment variable that names the file."""


class Run(NamedTuple):
    """`done` is False in the line before the work. `at` is the time in seconds since the epoch."""

    mark: str
    tool: str
    done: bool
    pid: int
    at: float


def result(mark: str) -> dict[str, str]:
    """The result of a run, which depends only on the mark, so that a lost or mixed-up result is noticed."""
    return {"mark": mark, "value": hashlib.sha256(mark.encode()).hexdigest()[:16]}


def work(tool: str, mark: str, seconds: float) -> dict[str, str]:
    with _noted(tool, mark):
        time.sleep(seconds)
    return result(mark)


async def work_async(tool: str, mark: str, seconds: float) -> dict[str, str]:
    with _noted(tool, mark):
        await asyncio.sleep(seconds)
    return result(mark)


def read(path: Path) -> list[Run]:
    if not path.exists():
        return []
    return [Run(*json.loads(line)) for line in path.read_text().splitlines()]


@contextmanager
def _noted(tool: str, mark: str) -> Iterator[None]:
    path = os.environ[VARIABLE]
    _append(path, Run(mark, tool, False, os.getpid(), time.time()))
    yield
    _append(path, Run(mark, tool, True, os.getpid(), time.time()))


def _append(path: str, run: Run) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, json.dumps(run).encode() + b"\n")
    finally:
        os.close(file)
