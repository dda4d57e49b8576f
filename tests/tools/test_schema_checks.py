"""Checks of values against JSON Schemas: what the model is told, and what a check may cost."""

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from addon.tools import schema_checks
from addon.tools.schema_checks import MAX_PROBLEMS, problems, schema_problem, weight

MOST = 0.5  # seconds of CPU: far more than any check takes, far less than one that grows without a bound


def of(member: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": member}}


def check(schema: Any, value: Any) -> list[str]:
    return problems(schema, value, "a_tool")


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "unit": {"anyOf": [{"enum": ["c", "f"]}, {"type": "null"}]},
        "place": {"anyOf": [of({"type": "integer"}), {"type": "null"}]},
        "odd name": {"type": "integer"},
    },
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"city": "Rome"}, []),
        ({"city": "Rome", "days": [1, 2.0], "unit": None}, []),
        ({}, ['"city" is a required property']),
        ({"city": 1}, ['`city`: 1 is not of type "string"']),
        ({"city": "Rome", "days": [1, "x"]}, ['`days[1]`: "x" is not of type "integer"']),
        ({"city": "Rome", "odd name": "ü"}, ['`[\'odd name\']`: "ü" is not of type "integer"']),
        (
            {"city": "Rome", "unit": "k"},
            ['`unit`: "k" is not one of "c" or "f", or `unit`: "k" is not of type "null"'],
        ),
        ({"city": "Rome", "place": {"a": "k"}}, ['`place.a`: "k" is not of type "integer"']),
        ({"city": "Rome", "x": 1}, ["Additional properties are not allowed ('x' was unexpected)"]),
        ({"city": 1, "days": 1}, ['`city`: 1 is not of type "string"', '`days`: 1 is not of type "array"']),
    ],
    ids=str,
)
def test_problems_say_where_and_what(args: dict[str, Any], expected: list[str]) -> None:
    assert check(SCHEMA, args) == expected


def test_problems_are_bounded_in_number_and_length() -> None:
    found = check(SCHEMA, {"city": "x", "days": ["y" * 100_000] * 50})
    assert len(found) == MAX_PROBLEMS
    assert max(map(len, found)) < 400
    assert all(words.endswith('… is not of type "integer"') for words in found)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strnig"}, '`type`: "strnig" is not one of'),
        (of({"type": "strnig"}), '`properties.a.type`: "strnig" is not one of'),
        ({"$ref": "#/$defs/missing"}, "'/$defs/missing' does not exist"),
        ({"properties": 5}, "`properties`: 5 is not of type"),
        ({"$schema": 5}, '5 is not of type "string"'),
        ({"$schema": ["x"]}, '["x"] is not of type "string"'),
        ({"$id": 7}, '7 is not of type "string"'),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_used_is_a_problem(schema: dict[str, Any], words: str) -> None:
    assert words in (schema_problem(schema, "a_tool") or "")
    (problem,) = check(schema, {"a": 1})
    assert problem.startswith("the tool's schema cannot be used: ")
    assert words in problem


@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-03/schema#", "http://example.com/x", "", "#"])
def test_a_schema_of_an_unknown_draft_is_read_as_one_of_the_newest(draft: str) -> None:
    assert check({"$schema": draft} | SCHEMA, {}) == ['"city" is a required property']


def test_deep_values_and_schemas_are_a_problem_and_no_crash() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert check({"$ref": "#/$defs/n", "$defs": {"n": of({"$ref": "#/$defs/n"})}}, deep) == [
        "the arguments are nested too deeply"
    ]
    schema: dict[str, Any] = {}
    for _ in range(500):
        schema = {"not": schema}
    assert check(schema, {}) == [], "or no check at all"


def test_a_schema_that_has_changed_is_read_again() -> None:
    schema: dict[str, Any] = {"required": ["a"]}
    assert check(schema, {})
    schema["required"] = []
    assert check(schema, {}) == []


@pytest.mark.parametrize(
    ("member", "value", "problem"),
    [
        ({"type": "integer", "multipleOf": 3}, 3 * 2**70, None),
        ({"type": "integer", "multipleOf": 3}, 2**70, "`a`: 1180591620717411303424 is not a multiple of 3"),
        ({"type": "number", "multipleOf": 0.5}, 2**2000, None),
        ({"enum": [1]}, 10**5000, "is not one of 1"),
        ({"type": "integer"}, 2**53 + 1, None),
        ({"type": "number", "maximum": 1e300}, float("inf"), 'is not of type "number"'),
        ({"type": "string", "maxLength": 1}, "a\ud800", '`a`: "a?" is longer than 1 character'),
        ({"type": "string", "pattern": "^a"}, "\udfff", '`a`: "?" does not match "^a"'),
        ({"additionalProperties": {"type": "string"}}, {"\ud800": 1}, "`a['?']`: 1 is not of type \"string\""),
        ({"uniqueItems": True}, [float("nan"), "\ud800", 2**80, {"b": 1}], None),
        ({"type": "string", "format": "email"}, "no address", None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_odd_numbers_and_texts_are_checked_and_never_raise(member: Any, value: Any, problem: str | None) -> None:
    found = check(of(member), {"a": value})
    assert len(found) == (problem is not None)
    if problem is not None:
        assert problem in found[0]
        found[0].encode()


# --- patterns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "fits", "misfits"),
    [(r"^\p{L}+$", "Zürich", "8"), (r"^\d{4}$", "1234", "٣٣٣٣"), ("^(a|aa)+$", "a" * 100_000, "a" * 100_000 + "!")],
)
def test_patterns_are_those_of_json_schema_and_matched_in_linear_time(pattern: str, fits: str, misfits: str) -> None:
    begun = time.thread_time()
    assert check(of({"pattern": pattern}), {"a": fits}) == []
    assert "does not match" in check(of({"pattern": pattern}), {"a": misfits})[0]
    assert check({"patternProperties": {pattern: False}}, {misfits: 1}) == []
    assert time.thread_time() - begun < MOST


@pytest.mark.parametrize("pattern", ["^(?=.*[0-9]).{3,}$", r"^(.)\1$", "(", r"\p{L}{250}"])
@pytest.mark.parametrize("draft", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}], ids=["newest", "7"])
def test_a_pattern_that_is_not_supported_is_left_out_with_a_warning(
    caplog: pytest.LogCaptureFixture, pattern: str, draft: dict[str, Any]
) -> None:
    schema = draft | {
        "properties": {"a": {"type": "string", "pattern": pattern}, "b": {"pattern": "^b"}},
        "patternProperties": {pattern: {"type": "integer"}, "^i": {"type": "integer"}},
        "additionalProperties": False,
    }
    schema_checks._read.cache_clear()
    for _ in range(2):
        assert schema_problem(schema, "a_tool") is None
        assert check(schema, {"a": "no", "any": 1}) == []
        assert check(schema, {"a": 1})
        assert check(schema, {"b": "a"})
        assert check(schema, {"i": "a"})
    words = f"the tool a_tool: the pattern {json.dumps(pattern)} in its schema is not supported, so it is not checked"
    assert caplog.messages == [words] * 2


# --- what a check may cost --------------------------------------------------------------------------------------


def choices(levels: int, key: str = "anyOf") -> dict[str, Any]:
    """Each choice offers the next choice twice, and the last one fits nothing."""
    defs: dict[str, Any] = {f"c{n}": {key: [{"$ref": f"#/$defs/c{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/c0", "$defs": defs | {f"c{levels}": {"type": "null"}}}


def unevaluated(levels: int) -> Any:
    """Each level asks what the two before it, which are alike, have looked at."""
    schema: dict[str, Any] = {"unevaluatedProperties": False}
    for _ in range(levels):
        schema = {"allOf": [schema, schema], "unevaluatedProperties": False}
    return schema


NODE = {"$ref": "#/$defs/n"}


def visits(schema: Any) -> int | None:
    found = weight(json.dumps(schema))
    return None if found is None else found.visits


COUNTED = "1[01]{%d}[2-5]"  # fits no row of zeros and ones, and the engine has to follow all states at once
BITS = "".join(random.Random(1).choices("01", k=200_000))

HEAVY: dict[str, tuple[Any, Any]] = {
    "a counted pattern": (of({"pattern": COUNTED % 5000}), {"a": BITS}),
    "a huge pattern": (of({"pattern": "(a{1000}){1000}"}), {"a": 1}),
    "a pattern with nested counts": ({"patternProperties": {"1([01]{70}[01]{30}){50}[2-5]": True}}, {BITS: 1}),
    "choices": (choices(20), {}),
    "alternatives": (choices(40, "oneOf"), {}),
    "parts": (choices(20, "allOf"), None),
    "unevaluated": (unevaluated(9), {}),
    "recursion in each of two choices": (
        NODE | {"$defs": {"n": {"anyOf": [of(NODE) | {"required": ["b"]}, of(NODE) | {"required": ["c"]}]}}},
        json.loads('{"a":' * 50 + "{}" + "}" * 50),
    ),
    "recursion at the same place": (NODE | {"$defs": {"n": {"anyOf": [NODE, {"type": "string"}]}}}, {}),
    "recursion in recursion": (
        NODE | {"$defs": {"n": {"allOf": [of(NODE), {"$ref": "#/$defs/m"}]}, "m": of({"$ref": "#/$defs/m"})}},
        {},
    ),
    "many patterns": ({"allOf": [{"pattern": r"^\w{0,400}" + str(n)} for n in range(200)]}, "x"),
    "a large schema": ({"description": "x" * 100_000}, {}),
    "a subschema with a name": ({"$defs": {"a": {"$id": "b", "$ref": "#"}}, "$ref": "#/$defs/a"}, {}),
    "an anchor": ({"$defs": {"a": {"$anchor": "b"}}, "$ref": "#b"}, {}),
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_schema_that_could_take_long_is_not_checked_with_one_warning(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema, value = HEAVY[name]
    schema_checks._read.cache_clear()
    begun = time.thread_time()
    for _ in range(2):
        assert schema_problem(schema, "a_tool") is None
        assert check(schema, value) == []
    assert time.thread_time() - begun < MOST
    (record,) = caplog.records
    assert record.getMessage().startswith("the tool a_tool: its schema is too complex or refers to other documents")


LARGE: dict[str, tuple[Any, Any, str]] = {
    "wrong items": ({"items": {"type": "integer"}}, ["y"] * 300_000, "they are not what"),
    "wrong choices": ({"items": {"anyOf": [{"type": "integer"}] * 8}}, ["y"] * 20_000, "they are not what"),
    "much": ({"items": {"anyOf": [{"type": "integer"}] * 400}}, ["y"] * 20_000, "too large to be checked"),
    "a long text for a counted pattern": (of({"pattern": COUNTED % 200}), {"a": BITS}, "too large to be checked"),
    "a wrong name beside a long text": (
        {"properties": {"text": {}, "id": {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}}},
        {"text": BITS, "id": "x"},
        '`id`: "x" does not match',
    ),
    "one wrong beside a long text": (
        {"properties": {"text": {"pattern": "(?s)^.*$"}, "mode": {"type": "integer"}}},
        {"text": "x, " * 1_000_000, "mode": "w"},
        '`mode`: "w" is not of type "integer"',
    ),
    "the deepest choices that are explained": (choices(5), {}, 'null is not of type "null"'),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_check_of_a_large_value_takes_a_bounded_time(name: str) -> None:
    schema, value, words = LARGE[name]
    begun = time.thread_time()
    (problem,) = check(schema, value)
    assert time.thread_time() - begun < MOST
    assert words.removeprefix("null") in problem


def test_large_values_that_fit_are_no_problem() -> None:
    rows = [{"id": n, "name": f"name {n}", "tags": ["a", "b"]} for n in range(20_000)]
    row = {"properties": {"id": {"type": "integer"}, "name": {"type": "string"}, "tags": {"uniqueItems": True}}}
    assert check({"items": {"$ref": "#/$defs/row"}, "$defs": {"row": row}}, rows) == []


@pytest.mark.parametrize(
    ("schema", "looks"),
    [
        (True, 1),
        ({"type": "string", "description": "x"}, 1),
        (of({"type": "integer"}), 1),
        (of({"anyOf": [{"type": "integer"}, {"type": "null"}]}), 3),
        ({"anyOf": [of({"type": "string"}), of({"type": "null"})]}, 3),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}, 6),
        ({"type": "array", "items": {"prefixItems": [{"type": "string"}], "items": False}}, 1),
        ({"enum": ["x"] * 40}, 11),
        ({"pattern": "a"}, 1),
        ({"patternProperties": {"a": {}, "b": {}}, "properties": {"c": {}}, "additionalProperties": False}, 3),
        ({"if": {"required": ["a"]}, "then": {}, "else": {}, "not": {"type": "null"}}, 5),
        ({"uniqueItems": True, "items": {}}, 2),
        (of({"$ref": "#"}), 6),
        ({"items": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, 8),
        ({"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}, 6),
        ({"$ref": "#"}, None),
        ({"$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, 6),
        ({"$id": "http://example.com/a"} | of({}), 1),
        (of({f"p{n}": {} for n in range(200)}), 1),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_the_work_that_a_schema_makes_has_a_bound_or_none(schema: Any, looks: int | None) -> None:
    assert visits(schema) == looks


def test_choices_in_choices_multiply() -> None:
    assert (visits(choices(6)) or 0) > 2**6
    assert visits(choices(10)) is None


@pytest.fixture
def slowest() -> Callable[[Any, Any], float]:
    """The time of a check that is read already."""

    def measured(schema: Any, value: Any) -> float:
        check(schema, value)
        begun = time.thread_time()
        check(schema, value)
        return time.thread_time() - begun

    return measured


@pytest.mark.parametrize("key", ["anyOf", "oneOf", "allOf"])
def test_the_heaviest_schemas_that_are_checked_are_quick(key: str, slowest: Callable[[Any, Any], float]) -> None:
    levels = max(n for n in range(20) if visits(choices(n, key)) is not None)
    assert slowest(choices(levels, key), {}) < MOST
    assert slowest({"items": choices(levels, key)}, [{}] * 400) < MOST
