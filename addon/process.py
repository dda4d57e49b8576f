"""Raises the process's limit of open files, and ends the process even if a tool hangs.

Each connection needs a file descriptor. At its end, Python waits for tasks that ignore their cancellation, and for
threads that never return.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable

_TARGET = 65_536


def raise_descriptor_limit() -> int:
    """Raise the soft limit of descriptors as far as possible. Returns the number available."""
    try:
        import resource
    except ImportError:
        return _TARGET
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _TARGET if hard == resource.RLIM_INFINITY else min(hard, _TARGET)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return _TARGET if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (ValueError, OSError):
        return soft
    return target


def control_connections(most: int, descriptors: int) -> int:
    """The most connections for the control API: `graft_max_connections`, or an eighth of few descriptors."""
    return min(most, max(descriptors // 8, 4))


GRACE = 3.0  # seconds for cancelled tasks to end, and then the same for threads

_tasks: set[asyncio.Task[None]] = set()


def exit_with_loop(still_running: Callable[[], list[str]]) -> None:
    """When the event loop has ended and cancelled its tasks, give the process GRACE seconds to close the loop and GRACE
    seconds to exit, then end it by force with status 0. A program that continues without the loop is not ended.
    `still_running` names running calls for the message. Call this in the loop, when all else is closed."""
    task = asyncio.ensure_future(_watch(asyncio.get_running_loop(), still_running))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _watch(loop: asyncio.AbstractEventLoop, still_running: Callable[[], list[str]]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        threading.Thread(target=_end, args=(loop, still_running), name="end of the process", daemon=True).start()


def _end(loop: asyncio.AbstractEventLoop, still_running: Callable[[], list[str]]) -> None:
    pause = threading.Event()
    pause.wait(GRACE)
    if loop.is_closed():
        pause.wait(GRACE)
        if not _is_ending():
            return
    running = [*still_running(), *(thread.name for thread in threading.enumerate() if _is_waited_for(thread))]
    message = (
        f"toolgraft: ending the process although something still runs: {', '.join(running) or 'threads of a tool'}"
    )
    last = threading.Thread(target=_print, args=(message,), daemon=True)
    last.start()
    last.join(1)  # the reader of the output may be gone
    os._exit(0)


def _is_ending() -> bool:
    """Whether the interpreter waits for threads. It waits for executors' threads while the main thread is alive."""
    return getattr(threading, "_SHUTTING_DOWN", False) or not threading.main_thread().is_alive()


def _is_waited_for(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread()


def _print(message: str) -> None:
    with contextlib.suppress(Exception):
        print(message, file=sys.stderr, flush=True)
        sys.stdout.flush()
