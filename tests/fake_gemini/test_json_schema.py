"""The JSON Schemas that the service refuses, with its messages, and those that it accepts."""

from __future__ import annotations

from typing import Any

import pytest

from addon.fake_gemini.errors import Refused
from addon.fake_gemini.rules import check_schema

Json = dict[str, Any]
UNDEFINED = "reference to undefined schema at "
LOOP = "but a ref loop of required fields was found at "


def of(required: str = "", /, **properties: Any) -> Json:
    return {"type": "object", "properties": properties, "required": required.split()}


def ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{name}"}


REFUSED: dict[str, tuple[Any, str]] = {
    "no object": ([], "the schema at top-level must be an object"),
    "properties that are a list": ({"properties": []}, "value for properties at top-level must be an object"),
    "a bound that is none": (
        of(a={"items": {"exclusiveMinimum": True}}),
        "value at properties.a.items.exclusiveMinimum must be a number",
    ),
    "a bound of the whole": ({"minimum": "1"}, "value at minimum must be a number"),
    "a missing definition": (of(a={"anyOf": [{}, ref("A")]}), UNDEFINED + "properties.a.anyOf.1"),
    "a missing anchor": (of(a={"$ref": "#x"}), UNDEFINED + "properties.a"),
    "an address": (of(a={"$ref": "https://x.example/s"}), UNDEFINED + "properties.a"),
    "a reference that is none": (of(a={"$ref": None}), UNDEFINED + "properties.a"),
    "a reference to a definition of old for the whole": (
        {"$ref": "#/definitions/A", "definitions": {"A": of()}},
        UNDEFINED + "top-level",
    ),
    "a loop of required properties": (
        {**of(a=ref("A")), "$defs": {"A": of("b", b=ref("B")), "B": of("a", a=ref("A"))}},
        LOOP + "$defs.B.properties.a",
    ),
    "a required property that may be null": (
        {**of(a=ref("A")), "$defs": {"A": of("n", n={"anyOf": [ref("A"), {"type": "null"}]})}},
        LOOP + "$defs.A.properties.n.anyOf.0",
    ),
    "a loop that begins at the whole": (of("a", a={"$ref": "#"}), LOOP + "properties.a"),
    "a list that is never empty": (
        {**of(a=ref("A")), "$defs": {"A": of("n", n={"type": "array", "minItems": 1, "items": ref("A")})}},
        LOOP + "$defs.A.properties.n.items",
    ),
    "a list or null": (
        {**of(a=ref("A")), "$defs": {"A": of("n", n={"type": ["array", "null"], "items": ref("A")})}},
        LOOP + "$defs.A.properties.n.items",
    ),
    "all other properties": (
        {**of(a=ref("A")), "$defs": {"A": {"anyOf": [{}, {"additionalProperties": ref("A")}]}}},
        LOOP + "$defs.A.anyOf.1.additionalProperties",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_words_of_the_service(name: str) -> None:
    schema, message = REFUSED[name]
    with pytest.raises(Refused) as caught:
        check_schema(schema, vertex=False)
    assert message in str(caught.value)


PASSES: dict[str, Json] = {
    "keywords it ignores": {
        **of(a={"const": 1, "pattern": "(", "x-y": 1}, b=True, c={"not": {}}),
        "if": {},
        "allOf": [{}],
        "patternProperties": {"x": False},
        "dependentRequired": {"a": ["b"]},
    },
    "kinds it does not look at": of(a={"type": [], "enum": [], "required": "x", "format": "mine"}),
    "a loop through an optional property": {**of("a", a=ref("A")), "$defs": {"A": of(n=ref("A"))}},
    "a loop through a list that may be empty": {
        **of("a", a=ref("A")),
        "$defs": {"A": of("n", n={"type": "array", "items": ref("A")})},
    },
    "a loop through the whole": of("a", a={"type": "array", "items": {"$ref": "#"}}),
    "a definition that is used twice": {
        **of("a b", a=ref("A"), b=ref("A")),
        "$defs": {"A": of("c", c=ref("B")), "B": {}},
    },
    "a reference to a definition for the whole": {**ref("A"), "title": "t", "$defs": {"A": of()}},
    "definitions of old": {**of(a={"$ref": "#/definitions/A"}), "definitions": {"A": {}}},
    "a pointer to a place": of("a", a={}, b={"$ref": "#/properties/a"}),
    "an anchor and an $id": {"$id": "x", **of(a={"$ref": "#here"}), "$defs": {"A": {"$anchor": "here"}}},
    "a pointer with signs": {**of(a={"$ref": "#/$defs/a~1b%20c"}), "$defs": {"a/b c": {}}},
    "a title beside a reference": {**of(a={**ref("A"), "title": "t"}), "$defs": {"A": {}}},
}


@pytest.mark.parametrize("name", PASSES)
def test_lets_pass_what_the_service_lets_pass(name: str) -> None:
    check_schema(PASSES[name], vertex=False)


def test_vertex_takes_a_description_and_a_default_beside_a_reference_and_nothing_else() -> None:
    definitions: Json = {"$defs": {"A": {}}}
    check_schema({**of(a={**ref("A"), "description": "d", "default": 1}), **definitions}, vertex=True)
    with pytest.raises(Refused, match=r"Schema.ref '#/\$defs/A' was set alongside unsupported fields."):
        check_schema({**of(a={**ref("A"), "title": "t"}), **definitions}, vertex=True)
