"""Shows that MCP servers are starting: by an animated line on a terminal, by one line of the log elsewhere."""

import asyncio
import contextlib
import itertools
import logging
import shutil
from collections.abc import AsyncIterator
from typing import Any

from mitmproxy import ctx

from addon.core.summaries import shortened
from addon.tools.base import ToolSource

logger = logging.getLogger("toolgraft")

_PAUSE = 0.1
_QUICK = 0.3
"""Seconds within which most servers start. Nothing is shown before."""
_FRAMES, _ASCII_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "|/-\\"
_ERASE = "\r\x1b[K"


@contextlib.asynccontextmanager
async def start_progress(source: ToolSource | None) -> AsyncIterator[None]:
    """Shows progress while the body starts this source."""
    if source is None or not source.server_states():
        yield
        return
    task = asyncio.ensure_future(_show(source))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _show(source: ToolSource) -> None:
    await asyncio.sleep(_QUICK)
    handler = _terminal_handler()
    if handler is None:
        down = _down(source)
        logger.info("%s coming up: %s", _subject(len(down)), ", ".join(down))
        return
    frames = _FRAMES if "utf" in (handler.file.encoding or "").lower() else _ASCII_FRAMES

    def draw(text: str) -> None:
        with contextlib.suppress(OSError):
            handler.file.write(text)
            handler.file.flush()

    def erase(record: logging.LogRecord) -> bool:
        draw(_ERASE)  # a line of the log takes its place
        return True

    handler.addFilter(erase)
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        for frame in itertools.cycle(frames):
            down = _down(source)
            seconds = f"{clock() - began + _QUICK:.0f} s"
            line = f"{frame} {_subject(len(down))} coming up, {seconds}: {', '.join(down)}"
            draw(f"{_ERASE}{line[: shutil.get_terminal_size().columns - 1]}")
            await asyncio.sleep(_PAUSE)
    finally:
        handler.removeFilter(erase)
        draw(_ERASE)


def _down(source: ToolSource) -> list[str]:
    return [shortened(state.name, _LONGEST_NAME) for state in source.server_states() if not state.is_up]


def _subject(number: int) -> str:
    return "an MCP server is" if number == 1 else f"{number} MCP servers are"


def _terminal_handler() -> Any:
    """The handler that writes mitmdump's log to a terminal; None if there is none."""
    termlog: Any = ctx.master.addons.get("termlog")
    if termlog is None or ctx.options.graft_log == "json":
        return None
    return termlog.logger if termlog.logger.has_vt_codes and termlog.logger.file.isatty() else None
