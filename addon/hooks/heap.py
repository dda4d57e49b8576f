"""Keeps the freed memory of large bodies in the process: fresh pages cost more than copying. A process that has become
idle gives it back. Also has garbage collected less often."""

import asyncio
import ctypes
import gc
import time

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h

_LARGEST = 32 * 1024 * 1024
"""Larger blocks are always given back. It is glibc's own maximum."""

_KEPT = 512 * 1024 * 1024
"""So much freed memory at the end of the heap is kept: sixteen bodies of 8 MB, each in the three forms in which it
passes. With less, each burst of such bodies takes fresh pages."""


def keep_freed_memory() -> bool:
    """Returns False if the C library is not glibc: then nothing changes."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(set_option(_M_MMAP_THRESHOLD, _LARGEST)) and bool(set_option(_M_TRIM_THRESHOLD, _KEPT))


_NEW_OBJECTS = 10_000
"""After so many more new objects than freed ones, Python looks for garbage among them. By itself it does so after
2,000: as many belong to the requests of a dozen clients, so it looks through what is in use, again and again. A
finished request is freed without it."""


def collect_less_often() -> None:
    """To be called once the process has started."""
    gc.collect()
    gc.freeze()  # imported modules stay: full collections need not traverse them every time
    gc.set_threshold(max(gc.get_threshold()[0], _NEW_OBJECTS))


_IDLE_AFTER = 30.0
"""Seconds in which an idle process has done next to nothing."""

_IDLE_SHARE = 0.02
"""The share of a core that an idle process may use, for its own upkeep."""


async def give_back_when_idle(seconds: float = _IDLE_AFTER) -> None:
    """Give freed memory back to the system whenever the process becomes idle, in a thread. Never returns, unless the C
    library cannot do it."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return
    was_busy, used = False, time.process_time()
    while True:
        await asyncio.sleep(seconds)
        used, before = time.process_time(), used
        is_busy = used - before > _IDLE_SHARE * seconds
        if was_busy and not is_busy:
            gc.collect(1)  # what is new
            await asyncio.to_thread(trim, 0)
        was_busy = is_busy
