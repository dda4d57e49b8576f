"""The audit log's file, which is kept open between its lines, while somebody else moves, deletes or replaces it."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from addon.web.access import OWNER
from addon.web.audit import Audit
from addon.web.problems import Problem


def actions(path: Path) -> list[str]:
    return [json.loads(line)["action"] for line in path.read_bytes().splitlines()]


async def log(audit: Audit, name: str) -> None:
    async with audit.action(OWNER, name):
        pass


def copy_over(path: Path) -> None:
    """As an editor saves: another file of the same content and name."""
    copy = path.with_suffix(".copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (lambda path: path.rename(path.with_suffix(".1")), ["after"]),
        (Path.unlink, ["after"]),
        (copy_over, ["before", "after"]),
        (lambda path: path.write_bytes(b""), ["after"]),
        (lambda path: path.parent.rename(path.parent.with_name("moved")), ["after"]),
    ],
    ids=["moved", "deleted", "replaced", "emptied", "folder moved"],
)
async def test_a_line_is_in_the_file_that_has_the_name_now(
    durable: bool, change: Callable[[Path], object], lines: list[str], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    audit = Audit(state, durable=durable)
    await log(audit, "before")
    change(state / "audit.jsonl")
    await log(audit, "after")
    await log(audit, "last")
    assert actions(state / "audit.jsonl") == [*lines, "last"]


async def test_a_link_in_the_file_s_place_is_refused(tmp_path: Path) -> None:
    audit, path = Audit(tmp_path, durable=False), tmp_path / "audit.jsonl"
    await log(audit, "before")
    moved = path.rename(tmp_path / "moved.jsonl")
    path.symlink_to(moved)
    with pytest.raises(Problem, match="audit log"):
        await log(audit, "after")
    assert actions(moved) == ["before"]


async def test_a_file_that_was_moved_is_closed(tmp_path: Path) -> None:
    audit, path = Audit(tmp_path, durable=True), tmp_path / "audit.jsonl"
    await log(audit, "before")
    for number in range(3):
        path.rename(tmp_path / f"{number}.jsonl")
        await log(audit, "after")
    assert set(open_files(tmp_path)) == {"audit.jsonl"}


def open_files(folder: Path) -> list[str]:
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists the others
            names.append(descriptor.readlink())
    return [path.name for path in names if path.is_relative_to(folder)]
