"""Keeps the freed memory of large bodies in the process: fresh pages cost more than copying."""

import ctypes

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
