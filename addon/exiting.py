"""The end of a process that its tools keep from ending: Python waits without a bound for tasks that swallow their
cancellation, and for threads that never come back."""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable

GRACE = 3.0  # seconds that cancelled tasks have to end in, and then once more threads

_tasks: set[asyncio.Task[None]] = set()


def exit_with_loop(left: Callable[[], list[str]]) -> None:
    """Once the event loop has cancelled what still runs in it, as it does at its end, the process has GRACE seconds to
    close it, and GRACE seconds to end; then it is ended by force, with status 0. A program that goes on without the
    loop does so. `left` names what still runs, for the message. To be called in the loop, when all else is closed."""
    task = asyncio.ensure_future(_watch(asyncio.get_running_loop(), left))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _watch(loop: asyncio.AbstractEventLoop, left: Callable[[], list[str]]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        threading.Thread(target=_end, args=(loop, left), name="end of the process", daemon=True).start()


def _end(loop: asyncio.AbstractEventLoop, left: Callable[[], list[str]]) -> None:
    pause = threading.Event()
    pause.wait(GRACE)
    if loop.is_closed():
        pause.wait(GRACE)
        if not _is_ending():
            return
    running = [*left(), *(thread.name for thread in threading.enumerate() if _is_waited_for(thread))]
    words = f"toolgraft: the process is ended though something still runs: {', '.join(running) or 'threads of a tool'}"
    last = threading.Thread(target=_say, args=(words,), daemon=True)
    last.start()
    last.join(1)  # whoever reads it may not
    os._exit(0)


def _is_ending() -> bool:
    """Whether the interpreter waits for threads: for those of executors while the main one is still alive."""
    return getattr(threading, "_SHUTTING_DOWN", False) or not threading.main_thread().is_alive()


def _is_waited_for(thread: threading.Thread) -> bool:
    return not thread.daemon and thread is not threading.main_thread()


def _say(words: str) -> None:
    with contextlib.suppress(Exception):
        print(words, file=sys.stderr, flush=True)
        sys.stdout.flush()
