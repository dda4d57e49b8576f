"""SQLite stores in files."""

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteStore
from store.base import StoreUnusable
from store.models import Call, Policy, Turn
from tests.databases import path, store

__all__ = ["path", "store"]

ROOT = Path(__file__).parents[3]


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
    turn = Turn(turn_id=turn_id, session="one", visible=[], steps=[], request_key=b"\xff", created_at=2**40)
    await store.save_turn(turn, [call], [turn_id.encode()])


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


def whole(path: Path) -> None:
    async def fill() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.put_policy("one", Policy())
        await store.close()

    with ThreadPoolExecutor(1) as thread:  # callers may have an event loop
        thread.submit(asyncio.run, fill()).result()


WRITER = """
import asyncio, itertools, sys
from store.backends.sqlite import SqliteStore
from store.models import Call, Policy, Response, Turn

store = SqliteStore(sys.argv[1])

async def main():
    await store.open()
    await store.put_policy("one", Policy())
    print("open", flush=True)
    for number in itertools.count() if sys.argv[2] == "write" else ():
        turn = Turn(turn_id=f"t{number}", session="one", visible=[], steps=[], created_at=2**40)
        call = Call(call_id=f"c{number}", session="one", name="f", args={"n": number, "pad": "x" * 5000},
                    turn_id=turn.turn_id, created_at=1, updated_at=1)
        await store.save_turn(turn, [call], [b"%d" % number])
        await store.answer(call.session, call.call_id, result=number)
        previous = f"r{number - 1}" if number else None
        await store.add_response(Response(response_id=f"r{number}", session="one", conversation="chat",
            previous=previous, calls={f"call_{number}": {"n": number}}, document={}, created_at=1), head=previous)
        print(number, flush=True)

asyncio.run(main())
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
