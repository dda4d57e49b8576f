"""The setup of all tests."""

import asyncio
import gc
import io
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Generator
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
PATIENCE = 600
"""Seconds after which an e2e test fails. The limit of all others is in pyproject.toml."""
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


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("e2e") and not item.get_closest_marker("timeout"):
        item.add_marker(pytest.mark.timeout(PATIENCE))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the stacks to the report of a test whose time is over. pytest-timeout prints those of threads to the
    terminal, which the workers of xdist do not have."""
    report = yield
    if report.failed and "from pytest-timeout" in report.longreprtext:
        report.sections.append(("stacks of threads and tasks", _stacks()))
    return report


def _stacks() -> str:
    written = io.StringIO()
    frames = sys._current_frames()
    for thread in threading.enumerate():
        print(f"thread {thread.name}:", file=written)
        traceback.print_stack(frames.get(thread.ident or 0), file=written)
    for task in [found for found in gc.get_objects() if isinstance(found, asyncio.Task) and not found.done()]:
        task.print_stack(file=written)
    return written.getvalue()
