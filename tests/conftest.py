"""What all tests have in common."""

import gc
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings

# filelock's audit hook would run each time that pytest reads the code of a function.
with mock.patch.object(sys, "addaudithook"):
    import filelock  # noqa: F401

settings.register_profile("quick", max_examples=25, deadline=None, database=None)
settings.register_profile("long", max_examples=500, deadline=None, database=None)
settings.load_profile("quick")

MEMORY_DISK = Path("/dev/shm")
ROOM = 2 * 1024**3
"""Bytes that all folders of a run may take."""


def pytest_configure(config: pytest.Config) -> None:
    """Temporary folders are on a disk in memory if there is one: thousands of databases would wait for a real disk."""
    if os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > ROOM:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests themselves are many and stay: no collection of garbage looks through them, now or later.

    Of the objects of one test, most are gone with it: collections are rare."""
    gc.enable()
    gc.set_threshold(50_000, 10, 10)
    gc.freeze()
