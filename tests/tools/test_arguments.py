"""Checks of arguments against a schema."""

import json
from typing import Any

import pytest

from addon.tools.arguments import MAX_PROBLEMS, check, schema_problem

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "unit": {"anyOf": [{"enum": ["c", "f"]}, {"type": "null"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("args", "problems"),
    [
        ({"city": "Rome"}, []),
        ({"city": "Rome", "days": [1, 2.0], "unit": None}, []),
        ({}, ["'city' is a required property"]),
        ({"city": 1}, ["`city`: 1 is not of type 'string'"]),
        ({"city": "Rome", "days": [1, "x"]}, ["`days[1]`: 'x' is not of type 'integer'"]),
        ({"city": "Rome", "unit": "k"}, ["`unit`: 'k' is not valid under any of the given schemas"]),
        ({"city": "Rome", "x": 1}, ["Additional properties are not allowed ('x' was unexpected)"]),
        ({"city": 1, "days": 1}, ["`city`: 1 is not of type 'string'", "`days`: 1 is not of type 'array'"]),
    ],
    ids=str,
)
def test_problems_say_where_and_what(args: dict[str, Any], problems: list[str]) -> None:
    assert check(SCHEMA, args) == problems


def test_problems_are_bounded_in_number_and_length() -> None:
    problems = check(SCHEMA, {"city": "x", "days": ["y" * 100_000] * 50})
    assert len(problems) == MAX_PROBLEMS
    assert max(map(len, problems)) < 400


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "strnig"}, "not a JSON Schema"),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, "cannot be used"),
        ({"$ref": "#/$defs/missing"}, "cannot be used"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_used_is_a_problem_and_is_never_fetched(schema: dict[str, Any], words: str) -> None:
    (problem,) = check(schema, {})
    assert words in problem


def test_deep_arguments_are_a_problem_and_no_crash() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"a": {"$ref": "#/$defs/n"}}}}}
    assert check(schema, deep) == ["the arguments are nested too deeply"]


def test_a_schema_that_has_changed_is_read_anew() -> None:
    schema: dict[str, Any] = {"required": ["a"]}
    assert check(schema, {})
    schema["required"] = []
    assert check(schema, {}) == []


def test_an_error_in_a_schema_is_reported_with_its_place() -> None:
    assert schema_problem(json.dumps(SCHEMA)) is None
    problem = schema_problem('{"properties": {"a": {"type": "strnig"}}}')
    assert problem is not None
    assert problem.startswith("properties.a.type: 'strnig'")


@pytest.mark.parametrize(
    ("member", "value", "problem"),
    [
        ({"type": "integer", "multipleOf": 3}, 3 * 2**70, None),
        ({"type": "integer", "multipleOf": 3}, 2**70, "`a`: 1180591620717411303424 is not a multiple of 3"),
        ({"type": "number", "multipleOf": 0.5}, 2**2000, "cannot be checked against the tool's schema: OverflowError"),
        ({"enum": [1]}, 10**5000, "cannot be checked against the tool's schema: ValueError"),
        ({"type": "integer"}, 2**53 + 1, None),
        ({"type": "number", "maximum": 1e300}, float("inf"), "`a`: inf is greater than the maximum of 1e+300"),
        ({"type": "string", "maxLength": 1}, "a\ud800", "`a`: 'a\\ud800' is too long"),
        ({"type": "string", "pattern": "^a"}, "\udfff", "`a`: '\\udfff' does not match '^a'"),
        ({"additionalProperties": {"type": "string"}}, {"\ud800": 1}, "`a['?']`: 1 is not of type 'string'"),
        ({"uniqueItems": True}, [float("nan"), "\ud800", 2**80, {"b": 1}], None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_and_texts_that_are_not_usual_are_checked_or_refused_and_never_raise(
    member: Any, value: Any, problem: str | None
) -> None:
    problems = check({"type": "object", "properties": {"a": member}}, {"a": value})
    assert len(problems) == (problem is not None)
    if problem is not None:
        assert problem in problems[0]
        problems[0].encode()


@pytest.mark.parametrize("schema", [{"$schema": 5}, {"$schema": ["x"]}, {"$id": 7}])
def test_a_schema_that_nobody_foresaw_is_a_problem_and_no_crash(schema: Any) -> None:
    assert schema_problem(json.dumps(schema))
    assert check(schema, {"a": 1})
