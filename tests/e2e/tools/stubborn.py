"""Tools that do not end when they are cancelled. Each reports its start in the file that is its argument."""

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from addon import process
from addon.loop import executors

process.GRACE = 0.5  # tests wait for them
executors._GRACE = 0.5


async def swallow(file: str) -> None:
    """Swallow each cancellation."""
    _started(file)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


def sleep(file: str) -> None:
    """Sleep in a thread of the proxy's."""
    _started(file)
    time.sleep(3600)


async def pool(file: str) -> None:
    """Sleep in a thread of the event loop's."""
    _started(file)
    await asyncio.to_thread(time.sleep, 3600)


def leave(file: str) -> None:
    """Leave a thread of its own behind, and wait for it."""
    _started(file)
    thread = threading.Thread(target=time.sleep, args=(3600,))
    thread.start()
    thread.join()


def own_pool(file: str) -> None:
    """Leave a pool of threads behind."""
    _started(file)
    ThreadPoolExecutor().submit(time.sleep, 3600).result()


def _started(file: str) -> None:
    Path(file).touch()
