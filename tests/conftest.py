"""What all tests have in common."""

import gc

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """The tests themselves are not looked through again at each collection of garbage: they are many, and stay."""
    gc.collect()
    gc.freeze()
