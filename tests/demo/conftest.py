"""Checks that a demo leaves nothing behind."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A separate home and temporary folder. Afterwards, checks that both are empty and nothing runs."""
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    temporary.mkdir()
    set_here = {"HOME": str(home), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    yield {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **set_here}
    assert not list(home.iterdir())
    assert not list(temporary.iterdir())
    with_environments = subprocess.run(["ps", "axeww"], capture_output=True, text=True, check=True).stdout
    assert str(home) not in with_environments  # the MCP server gets HOME too
    assert str(temporary) not in with_environments
