"""The setup of all tests."""

import gc
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings

# filelock's audit hook would run whenever pytest reads the code of a function.
with mock.patch.object(sys, "addaudithook"):
    import filelock  # noqa: F401

settings.register_profile("quick", max_examples=25, deadline=None, database=None)
settings.register_profile("long", max_examples=500, deadline=None, database=None)
settings.load_profile("quick")

MEMORY_DISK = Path("/dev/shm")
ROOM = 2 * 1024**3
"""The most bytes of all folders of a run."""


def pytest_configure(config: pytest.Config) -> None:
    """Use a disk in memory for temporary folders, if possible: thousands of databases would wait for a real disk."""
    if os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt the collected tests, which are many and stay, from garbage collection. Make it rare, because most objects
    of a test are freed with it."""
    gc.enable()
    gc.set_threshold(50_000, 10, 10)
    gc.freeze()
