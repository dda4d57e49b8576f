"""Which Python the scripts choose."""

import pytest

from tests.scripts.conftest import Checkout

pytestmark = pytest.mark.e2e


def test_without_a_python_the_message_says_what_to_install(bare: Checkout) -> None:
    out, err = bare.run(status=1)
    assert out == []
    assert "Python 3.13 or newer is needed" in err
    assert all(way in err for way in ("apt", "brew", "uv python install", "pyenv install"))
    assert not (bare.root / ".venv").exists()


def chosen(checkout: Checkout) -> str:
    """The version that a set-up took, from its one line."""
    _, err = checkout.run()
    assert err.startswith("toolgraft: setting up .venv with Python ")
    assert err.count("\n") == 1
    return err.split()[6]


def test_the_version_that_python_version_names_is_preferred_wherever_it_is(bare: Checkout) -> None:
    bare.python("3.14.1")
    bare.python("3.15.0", bare.bin / "python3")
    bare.python("3.13.2", bare.home / ".pyenv/versions/3.13.2/bin/python")
    assert chosen(bare) == "3.13.2"


def test_names_lie_so_the_interpreter_is_asked(bare: Checkout) -> None:
    bare.python("3.11.2", bare.bin / "python3.13")
    bare.python("3.12.1", bare.bin / "python3")
    bare.python("3.14.0", bare.bin / "python")
    assert chosen(bare) == "3.14.0"


def test_versions_that_are_too_old_count_as_none(bare: Checkout) -> None:
    bare.python("3.11.2", bare.bin / "python3")
    bare.python("3.12.9", bare.home / ".pyenv/versions/3.12.9/bin/python")
    bare.run(status=1)


def test_a_shim_that_only_complains_is_passed_over(bare: Checkout) -> None:
    bare.script(bare.bin / "python3.13", "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    bare.python("3.13.2", bare.home / "elsewhere/versions/3.13.2/bin/python")
    bare.extra["PYENV_ROOT"] = str(bare.home / "elsewhere")
    assert chosen(bare) == "3.13.2"


def test_a_later_folder_of_path_is_looked_at_as_well(bare: Checkout) -> None:
    bare.python("3.10.0", bare.bin / "python3")
    bare.python("3.14.2", bare.home / "more bin/python3")
    bare.extra["PATH"] = f"{bare.bin}:{bare.home / 'more bin'}"
    assert chosen(bare) == "3.14.2"


def test_uv_s_own_interpreters_are_found(bare: Checkout) -> None:
    bare.python("3.13.7", bare.home / ".local/share/uv/python/cpython-3.13.7-linux-x86_64-gnu/bin/python3")
    assert chosen(bare) == "3.13.7"
