"""`toolgraft serve --workers N` with real mitmdumps."""

import sys
from pathlib import Path

import pytest

from tests.e2e.processes import Process, environment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="--workers needs Linux"),
]


def test_a_store_of_one_process_is_refused_at_once(tmp_path: Path) -> None:
    serve = [sys.executable, "-P", "-m", "addon", "serve", "--workers", "2", "--set", "graft_store=memory://"]
    process = Process("supervisor", [*serve, "--mode", "regular@0"], environment(tmp_path))
    assert process.wait() == 1
    assert "graft_store='memory://': several processes (--workers) need a store that they can share" in process.log
    assert process.log.count("several processes") == 1
