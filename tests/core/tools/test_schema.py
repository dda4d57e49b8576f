"""JSON Schema ↔ Gemini Schema: converted if nothing is lost, else left unchanged."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.tools.schema import (
    Unfit,
    gemini_schema,
    is_gemini_form,
    says_nothing,
    to_declaration_schema,
    to_json_schema,
)


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def OF(**properties: Any) -> dict[str, Any]:
    return {"type": "OBJECT", "properties": properties}


STR, TEXT = {"type": "string"}, {"type": "STRING"}

# JSON Schema → Gemini Schema
FITTING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain types": (
        of(a={"type": "string"}, b={"type": "number"}, c={"type": "integer"}, d={"type": "boolean"}),
        OF(a={"type": "STRING"}, b={"type": "NUMBER"}, c={"type": "INTEGER"}, d={"type": "BOOLEAN"}),
    ),
    "annotations and required": (
        {**of(a={**STR, "title": "A", "description": "d", "default": "x"}), "required": ["a"], "description": "top"},
        {**OF(a={**TEXT, "title": "A", "description": "d", "default": "x"}), "required": ["a"], "description": "top"},
    ),
    "bounds": (
        of(
            a={"type": "integer", "minimum": 0, "maximum": 9},
            b={"type": "string", "minLength": 1, "maxLength": 4, "pattern": "^x"},
            c={"type": "array", "items": STR, "minItems": 1, "maxItems": 3},
        ),
        OF(
            a={"type": "INTEGER", "minimum": 0, "maximum": 9},
            b={"type": "STRING", "minLength": 1, "maxLength": 4, "pattern": "^x"},
            c={"type": "ARRAY", "items": TEXT, "minItems": 1, "maxItems": 3},
        ),
    ),
    "nested": (
        of(a=of(b={"type": "array", "items": of(c=STR)})),
        OF(a=OF(b={"type": "ARRAY", "items": OF(c=TEXT)})),
    ),
    "a type list with null": (of(a={"type": ["string", "null"]}), OF(a={"type": "STRING", "nullable": True})),
    "a type list of one": (of(a={"type": ["string"]}), OF(a=TEXT)),
    "anyOf with null, as pydantic writes it": (
        of(a={"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "A"}),
        OF(a={"type": "INTEGER", "default": None, "title": "A", "nullable": True}),
    ),
    "anyOf of one": (of(a={"anyOf": [STR], "description": "d"}), OF(a={"type": "STRING", "description": "d"})),
    "anyOf alone": (
        of(a={"anyOf": [STR, {"type": "integer"}]}),
        OF(a={"anyOf": [TEXT, {"type": "INTEGER"}]}),
    ),
    "an enum": (of(a={"type": "string", "enum": ["x", "y"]}), OF(a={"type": "STRING", "enum": ["x", "y"]})),
    "an enum of strings without a type": (of(a={"enum": ["x"]}), OF(a={"type": "STRING", "enum": ["x"]})),
    "a nullable enum": (
        of(a={"type": ["string", "null"], "enum": ["x", None]}),
        OF(a={"type": "STRING", "enum": ["x"], "nullable": True}),
    ),
    "const of a string": (of(a={"const": "x"}), OF(a={"type": "STRING", "enum": ["x"]})),
    "exclusive bounds of whole numbers, the closer one": (
        of(a={"type": "integer", "minimum": 4, "exclusiveMinimum": 0, "exclusiveMaximum": 9, "maximum": 20}),
        OF(a={"type": "INTEGER", "minimum": 4, "maximum": 8}),
    ),
    "formats that the service knows": (
        of(a={"type": "string", "format": "date-time"}, b={"type": "integer", "format": "int64"}),
        OF(a={"type": "STRING", "format": "date-time"}, b={"type": "INTEGER", "format": "int64"}),
    ),
    "names that look like keywords": (
        {**of(type=STR, properties=of(items=STR), enum={"type": "integer"}, nullable=STR), "required": ["type"]},
        {**OF(type=TEXT, properties=OF(items=TEXT), enum={"type": "INTEGER"}, nullable=TEXT), "required": ["type"]},
    ),
    "names in snake_case": (of(any_of=STR, min_items=STR), OF(any_of=TEXT, min_items=TEXT)),
    "a property named $ref": (of(**{"$ref": STR}), OF(**{"$ref": TEXT})),
}


@pytest.mark.parametrize("name", FITTING)
def test_a_json_schema_within_the_subset_becomes_parameters(name: str) -> None:
    schema, expected = FITTING[name]
    before = copy.deepcopy(schema)
    assert to_declaration_schema(schema) == ("parameters", expected)
    assert schema == before
    assert gemini_schema(expected) == expected


UNFITTING: dict[str, dict[str, Any]] = {
    "$schema": {**of(a=STR), "$schema": "https://json-schema.org/draft/2020-12/schema"},
    "additionalProperties": {**of(a=STR), "additionalProperties": False},
    "$ref and $defs": {**of(a={"$ref": "#/$defs/A"}), "$defs": {"A": STR}},
    "const of a number": of(a={"const": 1}),
    "const of an empty string": of(a={"type": "string", "const": ""}),
    "const beside enum": of(a={"const": "x", "enum": ["x", "y"]}),
    "oneOf": of(a={"oneOf": [STR]}),
    "several types": of(a={"type": ["string", "integer"]}),
    "no type": of(a={"description": "anything"}),
    "an empty schema": of(a={}),
    "a boolean schema": of(a=True),
    "null alone": of(a={"type": "null"}),
    "an enum of numbers": of(a={"enum": [1, 2]}),
    "an enum of integers with a type": of(a={"type": "integer", "enum": [1]}),
    "a mixed enum": of(a={"type": "string", "enum": ["a", 1]}),
    "an enum with an empty string": of(a={"type": "string", "enum": ["x", ""]}),
    "an exclusive bound of a real number": of(a={"type": "number", "exclusiveMinimum": 0}),
    "an exclusive bound that is none": of(a={"type": "integer", "exclusiveMinimum": True}),
    "an empty enum": of(a={"type": "string", "enum": []}),
    "an enum that forbids the null of its type": of(a={"type": ["string", "null"], "enum": ["x"]}),
    "an enum with a null that its type forbids": of(a={"type": "string", "enum": ["x", None]}),
    "anyOf beside other fields": of(a={"anyOf": [STR, {"type": "integer"}], "description": "d"}),
    "anyOf of several and null": of(a={"anyOf": [STR, {"type": "integer"}, {"type": "null"}]}),
    "anyOf that says again what is beside it": of(a={"anyOf": [{**STR, "title": "x"}, {"type": "null"}], "title": "y"}),
    "an array without items": of(a={"type": "array"}),
    "an array of tuples": of(a={"type": "array", "prefixItems": [STR], "items": STR}),
    "items of a boolean": of(a={"type": "array", "items": True}),
    "an inner object without properties": of(a={"type": "object"}),
    "an inner object with empty properties": of(a=of()),
    "an unknown format": of(a={"type": "string", "format": "email"}),
    "patternProperties": {**of(a=STR), "patternProperties": {"^x": STR}},
    "required that names no property": {**of(a=STR), "required": ["b"]},
    "an empty object that forbids more": {**of(), "additionalProperties": False},
    "examples": of(a={"type": "string", "examples": ["x"]}),
    "a bound of the wrong kind": of(a={"type": "string", "minLength": "1"}),
    "a word for a description": of(a={"type": "string", "description": None}),
    "not even a schema": {"type": 7, "properties": []},
}


@pytest.mark.parametrize("name", UNFITTING)
def test_a_json_schema_that_would_lose_something_is_left_untouched(name: str) -> None:
    schema = UNFITTING[name]
    before = copy.deepcopy(schema)
    found = to_declaration_schema(schema)
    assert found is not None
    assert found[0] == "parametersJsonSchema"
    assert found[1] is schema
    assert schema == before


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {}, "required": []},
        {"type": "OBJECT", "properties": {}},
    ],
)
def test_an_object_without_properties_needs_no_schema_at_all(schema: dict[str, Any]) -> None:
    assert says_nothing(schema)
    assert to_declaration_schema(schema) is None


@pytest.mark.parametrize("schema", [{"type": "string"}, of(a=STR), {"type": "object", "description": "d"}])
def test_other_schemas_are_not_empty(schema: dict[str, Any]) -> None:
    assert not says_nothing(schema)
    assert to_declaration_schema(schema) is not None


# Gemini Schema → JSON Schema
BACK: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "types": (OF(a={"type": "ARRAY", "items": TEXT}), of(a={"type": "array", "items": STR})),
    "types in small letters": (of(a=STR), of(a=STR)),
    "nullable": (OF(a={"type": "STRING", "nullable": True}), of(a={"type": ["string", "null"]})),
    "not nullable": (OF(a={"type": "STRING", "nullable": False}), of(a=STR)),
    "a nullable enum": (
        {"type": "STRING", "enum": ["x"], "nullable": True},
        {"type": ["string", "null"], "enum": ["x", None]},
    ),
    "a nullable choice": (
        {"anyOf": [TEXT, {"type": "INTEGER"}], "nullable": True},
        {"anyOf": [STR, {"type": "integer"}, {"type": "null"}]},
    ),
    "snake_case": (
        {"type": "ARRAY", "min_items": "1", "maxItems": 3, "items": {"any_of": [TEXT]}},
        {"type": "array", "minItems": 1, "maxItems": 3, "items": {"anyOf": [STR]}},
    ),
    "names that look like keywords": (
        OF(type=TEXT, nullable=TEXT, min_items=TEXT),
        of(type=STR, nullable=STR, min_items=STR),
    ),
    "unset fields": ({"type": "STRING", "format": None, "default": None}, {"type": "string", "default": None}),
    "no type": ({"type": "TYPE_UNSPECIFIED", "description": "d"}, {"description": "d"}),
    "fields that are not known": (
        {"type": "STRING", "x-mine": 1, "x_other": 2, "propertyOrdering": ["a"]},
        {"type": "string", "x-mine": 1, "x_other": 2, "propertyOrdering": ["a"]},
    ),
    "what is no schema at all": (
        {"type": 6, "anyOf": 1, "enum": "x", "items": 3, "properties": [], "minItems": "x", "nullable": True},
        {"type": 6, "anyOf": 1, "enum": "x", "items": 3, "properties": [], "minItems": "x"},
    ),
}


@pytest.mark.parametrize("name", BACK)
def test_a_gemini_schema_goes_back_to_json_schema(name: str) -> None:
    gemini, expected = BACK[name]
    before = copy.deepcopy(gemini)
    assert to_json_schema(gemini) == expected
    assert gemini == before


_names = st.sampled_from(["a", "type", "items", "properties", "any_of", "$ref"])
_leaves = st.one_of(
    st.sampled_from(["string", "number", "integer", "boolean"]).flatmap(
        lambda kind: st.sampled_from([kind, [kind, "null"]]).map(lambda t: {"type": t})
    ),
    st.just({"type": "string", "enum": ["x"], "minLength": 1}),
    st.just({"type": ["string", "null"], "enum": ["x", None]}),
    st.just({"type": "integer", "minimum": 1, "description": "d"}),
)
_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        inner.map(lambda items: {"type": "array", "items": items}),
        st.dictionaries(_names, inner, min_size=1).map(lambda p: {"type": "object", "properties": p, "required": [*p]}),
        st.lists(inner, min_size=2, max_size=3).map(lambda choices: {"anyOf": choices}),
    ),
)


@given(_schemas)
def test_a_converted_schema_converts_back(schema: dict[str, Any]) -> None:
    found = to_declaration_schema(schema)
    assert found is not None
    assert found[0] == "parameters"
    assert to_json_schema(found[1]) == schema


_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "object", "null", "array", "STRING", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "anyOf", "any_of", "enum", "required", "nullable", "minItems", "x"]
            ),
            inner,
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["type", "properties", "items", "anyOf", "enum", "nullable"]), _json))
def test_no_document_breaks_a_conversion(schema: dict[str, Any]) -> None:
    before = copy.deepcopy(schema)
    to_json_schema(schema)
    is_gemini_form(schema)
    found = to_declaration_schema(schema)
    if found is not None and found[0] == "parameters":
        assert gemini_schema(found[1]) == found[1]
    assert schema == before


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (OF(a=TEXT), True),
        ({"properties": {"a": TEXT}}, True),
        (of(a={"type": "array", "items": TEXT}), True),
        (of(a={"anyOf": [STR, TEXT]}), True),
        (of(a={"any_of": [STR]}), True),
        (of(a={"type": "array", "items": STR, "min_items": 1}), True),
        (of(a=STR), False),
        (of(STRING=STR, min_items=STR), False),
        (of(a={"type": "string", "default": "STRING", "enum": ["STRING"]}), False),
        ({"$ref": "#/x"}, False),
        ({}, False),
    ],
)
def test_a_gemini_schema_is_known_by_its_capitals_or_its_snake_case(schema: dict[str, Any], expected: bool) -> None:
    assert is_gemini_form(schema) is expected


def test_a_gemini_schema_comes_out_in_camel_case_and_capitals_without_unset_fields() -> None:
    given = {
        "type": "OBJECT",
        "title": None,
        "properties": {
            "min_items": {"type": "array", "min_items": "1", "items": {"any_of": [STR, TEXT]}, "example": None}
        },
        "property_ordering": ["min_items"],
    }
    assert gemini_schema(given) == {
        "type": "OBJECT",
        "properties": {
            "min_items": {"type": "ARRAY", "minItems": "1", "items": {"anyOf": [TEXT, TEXT]}, "example": None}
        },
        "propertyOrdering": ["min_items"],
    }


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({**OF(a=TEXT), "additionalProperties": False}, "additionalProperties"),
        (OF(a={**TEXT, "const": "x"}), "properties.a.const"),
        (OF(a={"type": "ARRAY", "items": {"$ref": "x"}}), "properties.a.items.$ref"),
        (OF(a={"anyOf": [TEXT, {"oneOf": []}]}), "properties.a.anyOf[1].oneOf"),
        (OF(a={"type": ["STRING", "NULL"]}), "properties.a.type"),
        (OF(a={"type": "TEXT"}), "properties.a.type"),
        (OF(a={"type": "STRING", "enum": [1]}), "properties.a.enum"),
        (OF(a={"type": "ARRAY", "minItems": 1, "min_items": 1}), "properties.a.min_items"),
        (OF(a={"type": "ARRAY", "minItems": -1}), "properties.a.minItems"),
        (OF(a={"type": "ARRAY", "minItems": "1" * 5000}), "properties.a.minItems"),
        (OF(a={"type": "NUMBER", "minimum": True}), "properties.a.minimum"),
        (OF(a={"type": "STRING", "nullable": "yes"}), "properties.a.nullable"),
        (OF(a="STRING"), "properties.a"),
        ({"type": "OBJECT", "properties": []}, "properties"),
        ({"type": "OBJECT", "anyOf": {}}, "anyOf"),
    ],
)
def test_a_gemini_schema_with_what_gemini_refuses_is_refused_with_its_path(schema: dict[str, Any], path: str) -> None:
    with pytest.raises(Unfit) as caught:
        gemini_schema(schema)
    assert caught.value.path == path
    assert path in str(caught.value)
