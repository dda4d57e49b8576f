"""Schemas that the service refuses: replaced by an equivalent if there is one, else refused here, with the path."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.tools.json_schema import fit_schema
from addon.core.tools.schema import Unfit

STR = {"type": "string"}


def of(required: str = "", /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split()}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def maybe(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


STAYS: dict[str, dict[str, Any]] = {
    "all that the service only ignores": {
        **of("a", a={"oneOf": [STR, {"not": STR}], "multipleOf": 2, "x-y": {"$ref": 1}}, b=True),
        "patternProperties": {"^x": {"const": 1}},
        "if": {"required": ["b"]},
        "unevaluatedProperties": False,
    },
    "a reference with a description, a default and its own keywords": {
        **of(a=ref("A") | {"description": "d", "default": 1, "$comment": "c"}),
        "$defs": {"A": STR},
    },
    "a property of the name $ref": of(**{"$ref": STR}),
    "a reference into a list": {**of(a={"$ref": "#/anyOf/1"}), "anyOf": [True, STR]},
    "a cycle through an optional property": {**of("a", a=ref("A")), "$defs": {"A": of(next=ref("A"))}},
    "a cycle through a list that may be empty": {
        **of("a", a=ref("A")),
        "$defs": {"A": of("many", many={"type": "array", "items": ref("A")})},
    },
    "a reference to a schema that is used twice": {
        **of("a b", a=ref("A"), b=ref("A")),
        "$defs": {"A": of("c", c=ref("B")), "B": STR},
    },
    "what is no schema": {**of(a=STR), "default": {"$ref": "#/x"}, "enum": [{"minimum": "x"}], "required": "a"},
}


@pytest.mark.parametrize("name", STAYS)
def test_an_accepted_schema_stays_unchanged(name: str) -> None:
    assert fit_schema(STAYS[name]) is STAYS[name]


# as given → as it is said to the service
SAID: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a title beside a reference": (
        {**of(a=ref("A") | {"title": "t"}), "$defs": {"A": STR}},
        {**of(a={"title": "t", "anyOf": [ref("A")]}), "$defs": {"A": STR}},
    ),
    "a title beside a reference to the same, deep down": (
        {**of(a=ref("A")), "$defs": {"A": of(b={"prefixItems": [ref("A") | {"title": "t"}]})}},
        {**of(a=ref("A")), "$defs": {"A": of(b={"prefixItems": [{"title": "t", "anyOf": [ref("A")]}]})}},
    ),
    "anyOf and oneOf beside a reference": (
        {**of(a=ref("A") | {"anyOf": [STR], "oneOf": [STR]}), "$defs": {"A": STR}},
        {**of(a={"anyOf": [STR], "oneOf": [STR], "allOf": [ref("A")]}), "$defs": {"A": STR}},
    ),
    "a reference for the whole": (
        {"$ref": "#/$defs/A", "description": "d", "$defs": {"A": of("a", a=STR)}},
        {**of("a", a=STR), "description": "d", "$defs": {"A": of("a", a=STR)}},
    ),
    "… to a reference": (
        {"$ref": "#/$defs/A", "$defs": {"A": ref("B"), "B": of(a=STR)}},
        {**of(a=STR), "$defs": {"A": ref("B"), "B": of(a=STR)}},
    ),
    "… that says something else of the same": (
        {"$ref": "#/$defs/A", "title": "t", "$defs": {"A": {**of(a=STR), "title": "A"}}},
        {"title": "t", "$defs": {"A": {**of(a=STR), "title": "A"}}, "anyOf": [ref("A")]},
    ),
    "a required property that may be null, in a cycle": (
        {**of("a", a=ref("A")), "$defs": {"A": of("x next", x=STR, next=maybe(ref("A")))}},
        {**of("a", a=ref("A")), "$defs": {"A": of("x", x=STR, next=maybe(ref("A")))}},
    ),
    "two of them in one schema": (
        {**of("a", a=ref("A")), "$defs": {"A": of("l r", l=maybe(ref("A")), r=maybe(ref("A")))}},
        {**of("a", a=ref("A")), "$defs": {"A": of("", l=maybe(ref("A")), r=maybe(ref("A")))}},
    ),
    "a required list or null, in a cycle": (
        of("a b", a=STR, b={"type": ["array", "null"], "items": {"$ref": "#"}}),
        of("a", a=STR, b={"type": ["array", "null"], "items": {"$ref": "#"}}),
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_a_refused_schema_is_replaced_by_an_equivalent_one(name: str) -> None:
    schema, expected = SAID[name]
    before = copy.deepcopy(schema)
    assert fit_schema(schema) == expected
    assert schema == before
    assert fit_schema(expected) is expected


# as given → where it is, a word of the message
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a missing definition": (of(a=ref("A")), "properties.a.$ref", "names nothing"),
    "a missing definition, deep": (
        {**of(), "$defs": {"A": {"anyOf": [STR, {"items": ref("B")}]}}},
        "$defs.A.anyOf[1].items.$ref",
        "'#/$defs/B'",
    ),
    "a file": (of(a={"$ref": "other.json"}), "properties.a.$ref", "in this schema"),
    "an address": (of(a={"$ref": "https://x.example/s.json#/a"}), "properties.a.$ref", "names nothing"),
    "a missing anchor": (of(a={"$ref": "#here"}), "properties.a.$ref", "names nothing"),
    "what is no schema": ({**of(a={"$ref": "#/title"}), "title": "t"}, "properties.a.$ref", "names nothing"),
    "far past the end of a list": (
        {**of(a={"$ref": f"#/anyOf/{'9' * 5000}"}), "anyOf": [STR]},
        "properties.a.$ref",
        "nothing",
    ),
    "past the end of a list": ({**of(a={"$ref": "#/anyOf/1"}), "anyOf": [STR]}, "properties.a.$ref", "nothing"),
    "a reference that is no string": (of(a={"$ref": 1}), "properties.a.$ref", "is 1"),
    "a whole that names itself": ({"$ref": "#"}, "$ref", "names no schema of an object"),
    "two that name each other": (
        {"$ref": "#/$defs/A", "$defs": {"A": ref("B"), "B": ref("A")}},
        "$ref",
        "names no schema of an object",
    ),
    "a whole that names true": ({"$ref": "#/$defs/A", "$defs": {"A": True}}, "$ref", "no schema of an object"),
    "every choice beside a reference": (
        {**of(a=ref("A") | {"anyOf": [], "oneOf": [], "allOf": []}), "$defs": {"A": STR}},
        "$ref",
        "leave out one of them",
    ),
    "a cycle of required properties": (
        {**of("a", a=ref("A")), "$defs": {"A": of("b", b=ref("B")), "B": of("a", a=ref("A"))}},
        "$defs.B.properties.a",
        "optional, or a list that may be empty",
    ),
    "a cycle through a list that is never empty": (
        of("a", a={"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
        "properties.a.items",
        "cycle",
    ),
    "a cycle through all other properties": (
        {**of("a", a=ref("A")), "$defs": {"A": {"anyOf": [STR, {"additionalProperties": ref("A")}]}}},
        "$defs.A.anyOf[1].additionalProperties",
        "cycle",
    ),
    "a bound of draft 4": (of(a={"exclusiveMinimum": True}), "properties.a.exclusiveMinimum", "true is of draft 4"),
    "a bound in words": (of(a={"type": "number", "maximum": "9"}), "properties.a.maximum", "must be a number"),
    "properties that are a list": ({"type": "object", "properties": [STR]}, "properties", "object of schemas"),
    "a choice of one that is no list": (of(a={"anyOf": STR}), "properties.a.anyOf", "list of schemas"),
    "a schema that is a string": (of(a="string"), "properties.a", "must be a schema"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_without_an_equivalent_is_refused_with_its_path(name: str) -> None:
    schema, path, word = REFUSED[name]
    with pytest.raises(Unfit) as caught:
        fit_schema(schema)
    assert caught.value.path == path
    assert word in caught.value.message


def test_a_schema_that_is_nested_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(Unfit, match="nested too deeply"):
        fit_schema(schema)


def test_a_long_chain_of_references_is_no_cycle() -> None:
    names = [f"A{n}" for n in range(2000)]
    defs = {a: of("next", next=ref(b)) for a, b in itertools.pairwise(names)}
    schema = {**of("a", a=ref("A0")), "$defs": {**defs, names[-1]: STR}}
    assert fit_schema(schema) is schema


_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["#", "#/$defs/a", "#/properties", "a", "array"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["$ref", "$defs", "properties", "required", "a", "anyOf", "items", "type", "title", "minimum"]
            ),
            inner,
        )
    ),
)


@given(st.dictionaries(st.sampled_from(["$ref", "$defs", "properties", "required", "anyOf", "items"]), _json))
def test_no_document_breaks_it(schema: dict[str, Any]) -> None:
    before = copy.deepcopy(schema)
    try:
        fitted = fit_schema(schema)
    except Unfit:
        return
    finally:
        assert schema == before
    assert fit_schema(fitted) is fitted
