"""The soak test finds leaks; `python -m tests.soak` runs it for any time."""

from pathlib import Path

from tests.soak.__main__ import soaked
from tests.soak.slopes import findings

LEAKING = Path(__file__).parent / "scripts" / "leaking.py"


def test_leaks_are_found(tmp_path: Path) -> None:
    samples = soaked(tmp_path, seconds=0, seed=1, warm_up=0, arguments=("-s", str(LEAKING)))
    assert [sentence.partition(":")[0] for sentence in findings(samples)] == ["memory", "descriptors", "tasks"]
