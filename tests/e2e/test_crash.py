"""Kills at random moments, with and without a power failure; `python -m tests.crash` does any number of them."""

import secrets
from pathlib import Path

import pytest

from tests.crash.cycles import run


@pytest.mark.parametrize(("kills", "cuts_power"), [(10, False), (4, True)], ids=["process", "power"])
def test_no_promise_is_broken_by_kills_at_random_moments(kills: int, cuts_power: bool, tmp_path: Path) -> None:
    seed = secrets.randbelow(1 << 32)
    print(f"seed {seed}")
    rig = run(tmp_path, seed, kills, cuts_power=cuts_power)
    assert not rig.findings, "\n".join(f"{one.kind}: {one.who}: {one.words}" for one in rig.findings)
