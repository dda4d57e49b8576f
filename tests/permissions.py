"""Makes the modes of files apply to tests that run as root."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_VERSION = 0x20080522
_OVERRIDES = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_GET_SECUREBITS, _SET_SECUREBITS = 27, 28
_EFFECTIVE_COUNTS = 1 << 2  # SECBIT_NO_SETUID_FIXUP: access() asks for the effective capabilities too


@contextmanager
def modes_apply() -> Iterator[None]:
    """The modes of files apply to this thread, even if the user is root."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root may write everywhere")
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    bits = libc.prctl(_GET_SECUREBITS, 0, 0, 0, 0)
    if libc.capget(header, sets) or libc.prctl(_SET_SECUREBITS, bits | _EFFECTIVE_COUNTS, 0, 0, 0):
        pytest.skip("root may write everywhere, and may not give that up")
    effective = sets[0]
    sets[0] &= ~_OVERRIDES
    try:
        assert libc.capset(header, sets) == 0
        yield
    finally:
        sets[0] = effective
        assert libc.capset(header, sets) == 0
        libc.prctl(_SET_SECUREBITS, bits, 0, 0, 0)
