"""A table of real schemas of clients: the result for each, without loss.

The check is independent of the code under test: it converts the result back to JSON Schema itself, and compares both
schemas on many valid and invalid objects.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from addon.core.framing.documents import Document
from addon.core.tools.schema import to_json_schema
from addon.core.tools.tool_forms import normalise
from addon.fake_gemini import routes
from addon.fake_gemini.service import Service

TABLE: dict[str, Document] = {
    f"{file.stem}: {case['name']}": case
    for file in sorted((Path(__file__).parent / "schemas").glob("*.json"))
    for case in json.loads(file.read_text())
}
NAME = "a_tool"


def every(test: Callable[[str], None]) -> Callable[[str], None]:
    """One test for each file of the table, which tells of every case that fails: nearly a thousand tests of their own
    would cost more than what they do."""

    @pytest.mark.parametrize("file", sorted({name.partition(":")[0] for name in TABLE}))
    def each(file: str) -> None:
        failed: list[Exception] = []
        for name in TABLE:
            if name.startswith(f"{file}:"):
                try:
                    test(name)
                except Exception as error:
                    error.add_note(name)
                    failed.append(error)
        if failed:
            raise ExceptionGroup("cases that fail", failed)

    return each


def tool(case: Document) -> Document:
    """The case's schema as a tool in the case's form."""
    schema, strict = case["schema"], {"strict": True} if case.get("strict") else {}
    forms: dict[str, Document] = {
        "openai-chat": {"type": "function", "function": {"name": NAME, "parameters": schema, **strict}},
        "openai-responses": {"type": "function", "name": NAME, "parameters": schema, **strict},
        "mcp": {"name": NAME, "inputSchema": schema},
        "gemini": {"functionDeclarations": [{"name": NAME, "parameters": schema}]},
        "gemini-json": {"functionDeclarations": [{"name": NAME, "parametersJsonSchema": schema}]},
        "bare": {"name": NAME, "parameters": schema},
    }
    return forms[case["form"]] | ({"outputSchema": case["output"]} if "output" in case else {})


def declared(case: Document) -> Document:
    (declaration,) = normalise({"tools": [tool(case)]}).declarations
    return declaration


def lowered(schema: Document) -> Document:
    """A Gemini Schema as JSON Schema, implemented separately for these tests."""
    spelled = {"any_of": "anyOf", "min_items": "minItems", "property_ordering": "propertyOrdering"}
    result: Document = {}
    for key, value in schema.items():
        match spelled.get(key, key):
            case "nullable":
                pass
            case "type" if isinstance(value, str):
                result["type"] = value.lower()
            case "properties":
                result["properties"] = {name: lowered(member) for name, member in value.items()}
            case "items" if isinstance(value, dict):
                result["items"] = lowered(value)
            case "anyOf" as name:
                result[name] = [lowered(member) for member in value]
            case "minItems" as name:
                result[name] = int(value)
            case name if value is not None or name == "default":
                result[name] = value
    if schema.get("nullable"):
        result["type"] = [result["type"], "null"]
        if "enum" in result:
            result["enum"] = [*result["enum"], None]
    return result


def meant(case: Document) -> Document:
    """The intended meaning of a case's schema, as JSON Schema."""
    schema: Document = case["schema"] or {}
    return lowered(schema) if case["form"] == "gemini" or "nullable" in json.dumps(schema) else schema


def schema_of(declaration: Document) -> Document:
    """A declaration's schema of the arguments, as JSON Schema."""
    if "parametersJsonSchema" in declaration:
        schema: Document = declaration["parametersJsonSchema"]
        return schema
    return lowered(declaration.get("parameters", {}))


def validator(schema: Document) -> Validator:
    found: Validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
    return found


ANY: list[Any] = [
    None,
    True,
    0,
    1,
    2.5,
    -1,
    7,
    "",
    "x",
    "xyz",
    "Q1",
    [],
    ["x"],
    [1, "x", True],
    {},
    {"x": "y"},
    {"x": 1},
]


def values(schema: Any, root: Document, depth: int = 4) -> list[Any]:
    """Values near a schema: some are valid, some are just invalid."""
    if not isinstance(schema, dict) or depth == 0:
        return ANY
    found = [*ANY, *schema.get("enum", ()), *([schema["const"]] if "const" in schema else ())]
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        if key in schema:
            found += [schema[key] - 1, schema[key], schema[key] + 1, schema[key] + 0.5]
    for key in ("minLength", "maxLength"):
        found += ["x" * max(schema[key] + n, 0) for n in (-1, 0, 1) if key in schema]
    if "$ref" in schema:
        registry: Registry[Any] = Registry().with_resource("", DRAFT202012.create_resource(root))
        found += values(registry.resolver().lookup(schema["$ref"]).contents, root, depth - 1)
    members = [member for key in ("anyOf", "oneOf", "allOf") for member in schema.get(key, ())]
    for member in members:
        found += values(member, root, depth)
    if isinstance(items := schema.get("items"), dict):
        some = values(items, root, depth - 1)
        counts = {0, 1, 2, 3, *(schema.get(key, 1) + n for key in ("minItems", "maxItems") for n in (-1, 0, 1))}
        found += [[fitting(items, some, root)] * max(count, 0) for count in counts] + [[value] for value in some]
    for row in (schema.get("prefixItems"), schema.get("items")):
        if isinstance(row, list):
            found.append([fitting(member, values(member, root, depth - 1), root) for member in row])
    if "properties" in schema:
        found += objects(schema["properties"], root, depth)
    needed = dict.fromkeys(schema.get("required", ()), "x")
    whole = [fitting(member, values(member, root, depth), root) for member in schema.get("allOf", ())]
    merged = {key: value for part in whole if isinstance(part, dict) for key, value in part.items()}
    return [*found, *({**needed, **value} for value in found if isinstance(value, dict)), merged]


def fitting(schema: Any, some: list[Any], root: Document) -> Any:
    """A valid value for a schema, if any: the last one, because later values are more specific."""
    fits = validator(root).evolve(schema=schema).is_valid
    return next((value for value in reversed(some) if fits(value)), None)


def objects(properties: Document, root: Document, depth: int) -> list[Document]:
    """Whole objects, and objects with one property left out, changed or added."""
    choices = {name: values(member, root, depth - 1) for name, member in properties.items()}
    whole = {name: fitting(member, choices[name], root) for name, member in properties.items()}
    less = [{key: value for key, value in whole.items() if key != name} for name in whole]
    other = [{**whole, name: value} for name in choices for value in choices[name]]
    return [whole, *less, {**whole, "more": 1}, *other, whole]


def subschemas(schema: Any) -> Iterator[Document]:
    """A schema and all its subschemas, in order."""
    if isinstance(schema, dict):
        yield schema
        for key, value in schema.items():
            if key == "properties":
                for member in value.values():
                    yield from subschemas(member)
            elif key == "anyOf":
                for member in value:
                    yield from subschemas(member)
            elif key == "items":
                yield from subschemas(value)


def takes_all(schema: Document) -> bool:
    """Whether any object is valid for a schema."""
    return not schema.get("properties") and schema.get("additionalProperties", True) is True


@every
def test_a_schema_goes_to_the_field_that_keeps_all_of_it(name: str) -> None:
    case = TABLE[name]
    declaration = declared(case)
    fields = [field for field in ("parameters", "parametersJsonSchema") if field in declaration]
    assert fields == ([case["target"]] if case["target"] else [])
    if "expected" in case:
        assert declaration[case["target"]] == case["expected"]
    elif case["target"] == "parametersJsonSchema":
        assert declaration["parametersJsonSchema"] == case["schema"]


@every
def test_the_strict_local_gemini_accepts_it(name: str) -> None:
    body = {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "tools": [{"functionDeclarations": [declared(TABLE[name])]}],
    }
    for path in (
        "/v1beta/models/gemini-2.0-flash:generateContent",
        "/v1beta/models/gemini-3-flash-preview:generateContent",
        "/v1/projects/p/locations/l/publishers/google/models/gemini-3-flash-preview:generateContent",
    ):
        route = routes.find_route(path)
        assert route is not None
        Service().generate(body, route, stream=False)


@every
def test_the_same_objects_fit_before_and_after(name: str) -> None:
    case = TABLE[name]
    before, after = meant(case), schema_of(declared(case))
    is_meant, is_said = validator(before).is_valid, validator(after).is_valid
    found = [value for schema in (before, after) for value in values(schema, schema) if isinstance(value, dict)]
    sample = {json.dumps(value): value for value in found}.values()
    assert any(map(is_meant, sample)), "the sample is no test: nothing in it fits"
    assert not all(map(is_meant, sample)) or takes_all(before), "… all of it fits"
    for value in sample:
        if case.get("eased"):
            assert is_said(value) or not is_meant(value), value
        else:
            assert is_said(value) == is_meant(value), value


@every
def test_notes_formats_and_the_order_of_properties_stay(name: str) -> None:
    case = TABLE[name]
    if case["target"] != "parameters":
        return  # it is there as it was, or as the table says
    kept = ("title", "description", "default", "example", "format", "pattern", "propertyOrdering")

    def notes(schema: Document) -> list[str]:
        return sorted(json.dumps([key, member[key]]) for member in subschemas(schema) for key in kept if key in member)

    before, after = meant(case), schema_of(declared(case))
    assert notes(after) == notes(before)
    ordered = [
        [list(member["properties"]) for member in subschemas(s) if "properties" in member] for s in (before, after)
    ]
    assert ordered[0] == ordered[1]


@every
def test_neither_the_input_nor_the_result_changes(name: str) -> None:
    document = {"tools": [tool(TABLE[name])]}
    before = copy.deepcopy(document)
    first = normalise(document)
    assert document == before
    assert json.dumps(document) == json.dumps(before), "nor the order of anything"
    normalised = normalise({"tools": [{"functionDeclarations": first.declarations}]})
    assert normalised == first
    assert json.dumps(normalised.declarations) == json.dumps(first.declarations)


@pytest.mark.parametrize("name", [name for name, case in TABLE.items() if case["target"] == "parameters"])
def test_the_way_back_is_the_one_of_these_tests(name: str) -> None:
    declaration = declared(TABLE[name])
    assert to_json_schema(declaration["parameters"]) == lowered(declaration["parameters"])


def test_the_table_covers_the_schemas_of_clients() -> None:
    assert len(TABLE) >= 70
    assert {case["form"] for case in TABLE.values()} == {
        *("openai-chat", "openai-responses", "mcp", "gemini", "gemini-json", "bare"),
    }
