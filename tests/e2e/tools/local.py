"""Tools for the tests: good ones, and every kind of bad one. Hanging tools report their start in the file that is their
argument."""

import asyncio
import resource
import threading
import time
from pathlib import Path
from typing import Any

from addon.tools import tool


def weather(city: str) -> dict[str, Any]:
    """The weather of a city."""
    return {"city": city, "celsius": len(city)}


def hour() -> dict[str, int]:
    """The hour."""
    return {"hour": 12}


async def pause(seconds: float, label: str) -> dict[str, str]:
    """Take some time."""
    await asyncio.sleep(seconds)
    return {"label": label}


def broken(message: str) -> None:
    """Raise."""
    raise ValueError(message)


@tool(timeout=0.2)
async def endless() -> None:
    """Never return."""
    await asyncio.Event().wait()


def huge() -> str:
    """Return 5 MB."""
    return "x" * (5 * 1024 * 1024)


def raw() -> bytes:
    """Return bytes."""
    return b"\x89PNG\xff"


def no_json() -> object:
    """Return something that is not JSON."""
    return object()


def jot(file: str, word: str) -> dict[str, str]:
    """Write a word into the file."""
    _note(file, word)
    return {"wrote": word}


async def gate(file: str) -> dict[str, str]:
    """Say in the file that it has begun, and return when there is a file of that name with `.open` behind it."""
    _note(file, "begun")
    while not Path(f"{file}.open").exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)
    _note(file, "ended")
    return {"went": "through"}


def fill_disk(file: str) -> dict[str, str]:
    """Have every write of this process to a file fail, until there is a file of that name."""

    def free() -> None:
        while not Path(file).exists():
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)

    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, unlimited[1]))
    threading.Thread(target=free, daemon=True).start()
    return {"disk": "full"}


@tool(idempotent=True)
async def hang(file: str) -> None:
    """Never return, and say so."""
    _note(file, "started")
    try:
        await asyncio.Event().wait()
    finally:
        _note(file, "cancelled")


@tool(approval=True)
def delete(path: str, file: str) -> dict[str, str]:
    """Delete something, if it is allowed; what was run is noted in the file."""
    _note(file, f"deleted {path}")
    return {"deleted": path}


def _note(file: str, word: str) -> None:
    with Path(file).open("a") as out:
        print(word, file=out)
