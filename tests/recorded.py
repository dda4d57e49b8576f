"""The recorded exchanges with the service, beside the checkout or in the folder that TOOLGRAFT_RECORDED names."""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("TOOLGRAFT_RECORDED") or Path(__file__).parents[2] / "shared" / "recorded")
EXCHANGES = FOLDER / "exchanges.jsonl.xz"

needs_recordings = pytest.mark.skipif(not EXCHANGES.exists(), reason=f"no recordings: {EXCHANGES} is not there")
