"""Streamed arguments, and the limits of a step."""

import contextlib
from typing import Any

import pytest

from addon.core.arguments import Assembly, Bounds, Limits
from addon.core.framing.documents import MAX_DEPTH, Document
from addon.core.tools.tool_forms import BadTool, Position, check_depth


@pytest.mark.parametrize(
    ("pieces", "args"),
    [
        ([("$.a", "x"), ("$.a", "y")], {"a": "xy"}),
        ([("$.a.b.c", 1)], {"a": {"b": {"c": 1}}}),
        ([("$.a[0]", 1), ("$.a[1]", 2), ("$.a[1]", 3)], {"a": [1, 3]}),
        ([("$.a[0][0].b", "x"), ("$.a[0][0].b", "y")], {"a": [[{"b": "xy"}]]}),
        ([('$["a b"]["c.d"]', 1), ("$['e']", 2)], {"a b": {"c.d": 1}, "e": 2}),
        ([("$.a[2]", 1)], {"a": []}),
        ([("$.a", 1), ("$.a.b", 2)], {"a": 1}),
        ([("$.a", 1), ("$.a[0]", 2)], {"a": 1}),
        ([("$", 1), ("", 1)], {}),
        ([("$.a", "x"), ("$.a", 1), ("$.a", "y")], {"a": "y"}),
        ([("$.a", "x"), ("$.a.b", 1), ("$.a", "y")], {"a": "xy"}),
        ([("$.a[0]", "x"), ("$.a[1]", "y"), ("$.a[0]", "z")], {"a": ["xz", "y"]}),
    ],
)
def test_pieces_of_arguments(pieces: list[tuple[str, Any]], args: Document) -> None:
    found = Assembly(1000)
    for path, value in pieces:
        kind = "stringValue" if isinstance(value, str) else "numberValue"
        found.put({"jsonPath": path, kind: value})
    assert found.done() == args
    assert not found.is_too_long


def test_pieces_beyond_the_limit_are_not_kept() -> None:
    found = Assembly(10)
    for text in ("abc", "def", "ghi"):
        found.put({"jsonPath": "$.a", "stringValue": text})
    assert found.is_too_long
    assert found.done() == {"a": "abc"}


def test_a_string_that_exists_already_grows() -> None:
    found = Assembly(100)
    found.update({"a": "x"})
    found.put({"jsonPath": "$.a", "stringValue": "y"})
    assert found.done() == {"a": "xy"}


def test_arguments_are_counted_over_a_step() -> None:
    bounds = Bounds(Limits(10, 30))
    assert bounds.fault({"a": "x" * 10}) is None
    assert "more than 30 bytes" in str(bounds.fault({"a": "x" * 10}))
    assert bounds.fault({"a": 1}) is None, "what was left out does not count"
    assert bounds.fault(None) is None
    assert "more than 30 bytes" in str(bounds.fault({}, is_too_long=True))


@pytest.mark.parametrize("inner", [{}, [], {"a": 1}, [None]], ids=str)
@pytest.mark.parametrize(("depth", "fits"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False), (5000, False)])
def test_arguments_and_declarations_have_the_same_maximum_depth(depth: int, fits: bool, inner: Any) -> None:
    value = inner
    for _ in range(depth - 1):
        value = {"a": value}
    assert (Bounds(Limits(10, 10_000)).fault(value) is None) is fits
    refused = contextlib.nullcontext() if fits else pytest.raises(BadTool, match=f"deeper than {MAX_DEPTH} levels")
    with refused:
        check_depth(value, Position("", ""))


def test_the_first_call_beyond_the_limit_gets_the_error() -> None:
    bounds = Bounds(Limits(2, 100))
    errors = []
    while not bounds.are_exceeded:
        errors.append(bounds.take())
    assert errors[:2] == [None, None]
    assert "more than 2 calls in one step" in str(errors[2])
    assert len(errors) == 3
