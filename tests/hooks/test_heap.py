"""Freed memory is kept where the C library can be told so."""

import ctypes
import platform

import pytest

from addon.hooks.heap import keep_freed_memory


def test_glibc_takes_both_options() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")


@pytest.mark.parametrize("library", [object(), None], ids=["another library", "none"])
def test_other_libraries_stay_as_they_are(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: object) -> object:
        if library is None:
            raise OSError
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert not keep_freed_memory()
