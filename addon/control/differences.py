"""Compares two texts as a unified diff. The time grows with the square of the changed lines, so these are limited."""

import difflib
from collections.abc import Sequence

_CONTEXT = 3
"""Equal lines shown around a change."""
_MOST_COMPARED = 2000
"""The most lines of a text that are compared, without the common beginning and end. Of more, the diff shows all of the
first text as removed, and all of the second as added."""

type _Change = tuple[str, int, int, int, int]
"""Like difflib's opcodes."""


def differences(old: str, new: str, names: tuple[str, str]) -> list[str]:
    """The lines of the unified diff, without line ends; [] if the texts are equal. `names`: of the two texts."""
    before, after = _lines(old), _lines(new)
    if before == after:
        return []
    lines = [f"--- {names[0]}", f"+++ {names[1]}"]
    for group in _Comparison(None, before, after).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        lines.append(f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@")
        for kind, old_from, old_to, new_from, new_to in group:
            if kind == "equal":
                lines += [f" {line}" for line in before[old_from:old_to]]
                continue
            lines += [f"-{line}" for line in before[old_from:old_to]]
            lines += [f"+{line}" for line in after[new_from:new_to]]
    return lines


def _lines(text: str) -> list[str]:
    """Unlike `str.splitlines`, does not split at characters that may be in a JSON string."""
    return text.removesuffix("\n").split("\n") if text else []


class _Comparison(difflib.SequenceMatcher[str]):
    """Compares the lines between the common beginning and the common end."""

    a: Sequence[str]
    b: Sequence[str]

    def get_opcodes(self) -> list[_Change]:  # type: ignore[override]
        before, after = self.a, self.b
        begin = _common(before, after)
        end = _common(before[begin:][::-1], after[begin:][::-1])
        old, new = before[begin : len(before) - end], after[begin : len(after) - end]
        changes: list[_Change] = [("equal", 0, begin, 0, begin)] if begin else []
        if max(len(old), len(new)) <= _MOST_COMPARED:
            changes += [
                (kind, old_from + begin, old_to + begin, new_from + begin, new_to + begin)
                for kind, old_from, old_to, new_from, new_to in difflib.SequenceMatcher(None, old, new).get_opcodes()
            ]
        else:
            changes.append(("replace", begin, begin + len(old), begin, begin + len(new)))
        if end:
            changes.append(("equal", len(before) - end, len(before), len(after) - end, len(after)))
        return changes


def _range(start: int, stop: int) -> str:
    """A range of lines for a diff's head. An empty one is named by the line before it."""
    return f"{start + 1 if stop > start else start},{stop - start}"


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of equal lines at the beginning."""
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count
