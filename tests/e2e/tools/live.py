"""Tools for Live connections: one that the model waits for, one that it does not wait for, one that never ends."""

import asyncio
from pathlib import Path
from typing import Any

from addon.tools import tool


def weather(city: str) -> dict[str, Any]:
    """The weather of a city."""
    return {"city": city, "celsius": len(city)}


@tool(behavior="NON_BLOCKING", scheduling="WHEN_IDLE")
async def research(topic: str, file: str) -> dict[str, str]:
    """Look something up; it takes until there is that file."""
    while not _is_there(file):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return {"found": topic}


async def hang(file: str) -> None:
    """Never return, and say so."""
    _note(file, "started")
    try:
        await asyncio.Event().wait()
    finally:
        _note(file, "cancelled")


def story(letters: int) -> str:
    """Tell something long, none of it ASCII."""
    return "語" * letters


def _is_there(file: str) -> bool:
    return Path(file).exists()


def _note(file: str, word: str) -> None:
    Path(file).write_text(word)
