"""The store of a test file."""

from tests.databases import path, store

__all__ = ["path", "store"]
