"""Which kinds of source are imported, and when."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_kind_of_source_that_nobody_names_is_not_imported() -> None:
    says = "import sys, addon.hooks.compose; print(*sorted({'mcp', 'docstring_parser'} & sys.modules.keys()))"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", says], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == ""
