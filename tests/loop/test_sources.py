"""What is imported only when it is needed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
def test_neither_a_kind_of_source_that_nobody_names_nor_what_only_describes_the_api_is_imported() -> None:
    late = "{'mcp', 'docstring_parser', 'fastapi'}"
    says = f"import sys, addon.hooks.compose; print(*sorted({late} & sys.modules.keys()))"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", says], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == ""
