"""Exchanges with the service: our own in tests/data, and the recorded ones.

Those of our own have the shapes of the recordings, at least one for each tag. Their words, ids and signatures are
invented. The recordings are beside the checkout or in the folder that TOOLGRAFT_RECORDED names, if at all.
"""

import json
import lzma
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("TOOLGRAFT_RECORDED") or Path(__file__).parents[2] / "shared" / "recorded")
OWN = Path(__file__).parent / "data" / "exchanges.jsonl"
_EXCHANGES = FOLDER / "exchanges.jsonl.xz"

RECORDED = _EXCHANGES.exists()


@cache
def _lines() -> list[bytes]:
    return OWN.read_bytes().splitlines() + (lzma.decompress(_EXCHANGES.read_bytes()).splitlines() if RECORDED else [])


def exchanges() -> Iterator[dict[str, Any]]:
    return map(json.loads, _lines())


def at_least(own: int, recorded: int) -> int:
    """The least number that a test must have met: among our own exchanges, or with the recordings."""
    return recorded if RECORDED else own
