"""A test that hangs fails by its name, with the stacks of what was running."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

HANGING = """
import asyncio
import threading


def test_in_a_lock() -> None:
    threading.Thread(target=threading.Event().wait, args=(5,), name="the other one").start()
    threading.Event().wait(60)


async def test_in_a_task() -> None:
    await asyncio.sleep(60)


def test_after_them() -> None:
    pass
"""


@pytest.mark.e2e
def test_a_test_that_hangs_is_named_with_all_stacks(tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    line += ["-p", "no:cacheprovider", "--numprocesses", "1", "--timeout", "0.3"]
    ran = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert "2 failed, 1 passed" in ran.stdout, ran.stdout + ran.stderr
    assert "FAILED test_hanging.py::test_in_a_lock - Failed: Timeout (>0.3s)" in ran.stdout
    assert "thread the other one:" in ran.stdout
    assert "await asyncio.sleep(60)" in ran.stdout
