"""The store of a file."""

from tests.databases import path, store

__all__ = ["path", "store"]
