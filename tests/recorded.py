"""The recorded exchanges with the service, beside the checkout or in the folder named by TOOLGRAFT_RECORDED."""

import json
import lzma
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(os.environ.get("TOOLGRAFT_RECORDED") or Path(__file__).parents[2] / "shared" / "recorded")
_EXCHANGES = FOLDER / "exchanges.jsonl.xz"

needs_recordings = pytest.mark.skipif(not _EXCHANGES.exists(), reason=f"no recordings: {_EXCHANGES} is not there")


@cache
def _lines() -> list[bytes]:
    return lzma.decompress(_EXCHANGES.read_bytes()).splitlines()


def exchanges() -> Iterator[dict[str, Any]]:
    return map(json.loads, _lines())
