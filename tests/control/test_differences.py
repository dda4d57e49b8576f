"""The diff of two texts: what it says, and that its cost is bounded."""

import json
import random

import pytest

from addon.control import differences as module
from addon.control.differences import differences


def test_equal_texts_do_not_differ() -> None:
    assert differences("a\nb\n", "a\nb", ("one", "two")) == []


def test_the_lines_are_those_of_the_whole_texts() -> None:
    """Only what differs is compared, with some lines around it."""
    draw = random.Random(5)
    for _ in range(300):
        old = [str(draw.randrange(6)) for _ in range(draw.randrange(60))]
        new = [*old]
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(new) + 1)
            new[at : at + draw.randrange(3)] = [f"new {draw.randrange(3)}"] * draw.randrange(3)
        lines = differences("\n".join(old), "\n".join(new), ("one", "two"))
        assert applied(old, lines) == new


def test_a_member_that_is_added_is_what_is_added() -> None:
    """Brackets recur: the common beginning is not taken for something new."""
    old = json.dumps({"contents": [{"parts": [{"text": "a"}]}]}, indent=1)
    new = json.dumps({"contents": [{"parts": [{"text": "a"}]}], "tools": [{"functionDeclarations": []}]}, indent=1)
    added = [line for line in differences(old, new, ("one", "two"))[3:] if line[0] != " "]
    assert added == ["+ ],", '+ "tools": [', "+  {", '+   "functionDeclarations": []', "+  }"]


def test_a_line_ends_only_where_json_has_its_ends() -> None:
    """A text could otherwise look like a line of the diff itself."""
    for character in "\u2028\u2029\x85\x0b\x0c":
        old, new = '[\n "a"\n]', f'[\n "a{character}+ b"\n]'
        assert differences(old, new, ("one", "two"))[3:] == [" [", '- "a"', f'+ "a{character}+ b"', " ]"]


def applied(old: list[str], lines: list[str]) -> list[str]:
    """The old text with the diff applied, as `patch` reads it."""
    found, at = [], 0
    for line in lines[2:]:
        if line.startswith("@@"):
            start, _, count = line.split()[1][1:].partition(",")
            first = int(start) if count == "0" else int(start) - 1
            found += old[at:first]
            at = first
        elif line[0] == "+":
            found.append(line[1:])
        else:
            assert old[at] == line[1:]
            found += [] if line[0] == "-" else [line[1:]]
            at += 1
    return found + old[at:]


@pytest.mark.parametrize("size", [5, 50])
def test_what_differs_too_much_is_not_compared(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_COMPARED", 4)
    old = ["same", *(f"a{number}" for number in range(size)), "end"]
    new = ["same", *(f"b{number}" for number in range(size)), "end"]
    lines = differences("\n".join(old), "\n".join(new), ("one", "two"))
    assert lines[2] == f"@@ -1,{size + 2} +1,{size + 2} @@"
    assert applied(old, lines) == new
