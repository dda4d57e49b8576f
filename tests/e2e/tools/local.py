"""Tools for the tests: good ones, and every kind of bad one. Those that hang say so in the file that they are given."""

import asyncio
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
