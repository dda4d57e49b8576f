"""Converts between JSON Schema and Gemini's Schema, the OpenAPI subset with upper-case types that `parameters` takes.

A JSON Schema becomes a Gemini Schema only if nothing is lost and every model is known to accept the result. Otherwise
it stays unchanged, for `parametersJsonSchema` (see `json_schema`). The order of properties is kept, because models
follow it. Keys under `properties` are users' names, never keywords. Pure: no schema is changed in place. These
functions recurse; the caller must bound the depth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from addon.core.framing.documents import camel

type Schema = dict[str, Any]

TYPES = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")

# The service refuses other formats of strings, and ignores other formats of numbers.
_FORMATS = {
    "STRING": ("date-time", "enum"),
    "NUMBER": ("float", "double"),
    "INTEGER": ("int32", "int64"),
}
_ANNOTATIONS = frozenset({"title", "description", "default", "example"})
# For integers, an exclusive bound equals the inclusive bound next to it.
_EXCLUSIVE: dict[str, tuple[str, int, Callable[[int, int], int]]] = {
    "exclusiveMinimum": ("minimum", 1, max),
    "exclusiveMaximum": ("maximum", -1, min),
}


def _is_count(value: Any) -> bool:
    if isinstance(value, str):  # proto JSON writes an int64 as a string
        return value.isascii() and value.isdigit() and len(value) < 20
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength")
_PLAIN: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("format", "title", "description", "pattern"), ("a string", _is_string)),
    **dict.fromkeys(("enum", "required", "propertyOrdering"), ("a list of strings", _is_names)),
    **dict.fromkeys(_COUNTS, ("a whole number", _is_count)),
    **dict.fromkeys(("minimum", "maximum"), ("a number", _is_number)),
    **dict.fromkeys(("default", "example"), ("any value", lambda value: True)),
    "nullable": ("true or false", _is_bool),
}
FIELDS = (*_PLAIN, "type", "items", "properties", "anyOf")
"""The fields of a Gemini Schema. The service refuses others: `Unknown name "…": Cannot find field.`"""


class Unfit(ValueError):
    """The schema cannot be a Gemini Schema. `path`: the position of the problem in the schema ("" for the schema)."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


def to_declaration_schema(schema: Schema) -> tuple[Literal["parameters", "parametersJsonSchema"], Schema] | None:
    """The declaration field for a JSON Schema, and the schema's form there; None if it needs no field.

    `parameters` gets an equivalent Gemini Schema, `parametersJsonSchema` the schema itself. An object schema without
    properties is left out, because older models refuse it in `parameters`.
    """
    if says_nothing(schema):
        return None
    try:
        return "parameters", _converted(schema, "")
    except Unfit:
        return "parametersJsonSchema", schema


def says_nothing(schema: Schema) -> bool:
    """Whether a schema, in either form, is an object without properties, as for a function without arguments."""
    return (
        schema.keys() <= {"type", "properties", "required"}
        and str(schema.get("type", "object")).lower() == "object"
        and not schema.get("properties")
        and not schema.get("required")
    )


def to_json_schema(gemini: Schema) -> Schema:
    """Convert a Gemini Schema, with fields in camelCase or snake_case, to a JSON Schema. Unknown fields are kept."""
    schema: Schema = {}
    for key, value in gemini.items():
        name = camel(key)
        if value is None and name not in ("default", "example"):
            continue
        if name == "type" and isinstance(value, str):
            if value.upper() != "TYPE_UNSPECIFIED":
                schema["type"] = value.lower()
        elif name == "properties" and isinstance(value, dict):
            schema[name] = {key: _member_to_json_schema(member) for key, member in value.items()}
        elif name == "items":
            schema[name] = _member_to_json_schema(value)
        elif name == "anyOf" and isinstance(value, list):
            schema[name] = [_member_to_json_schema(member) for member in value]
        elif name in _COUNTS and isinstance(value, str) and _is_count(value):
            schema[name] = int(value)
        elif name != "nullable":
            schema[name if name in FIELDS else key] = value
    if gemini.get("nullable") is True:
        _allow_null(schema)
    return schema


def schema_of(declaration: Schema, field: Literal["parameters", "response"] = "parameters") -> Schema | None:
    """The JSON Schema of a function's arguments or response; None if its declaration has none."""
    schema = declaration.get(f"{field}JsonSchema")
    if isinstance(schema, dict):
        return schema
    schema = declaration.get(field)
    return to_json_schema(schema) if isinstance(schema, dict) else None


def is_gemini_form(schema: Schema) -> bool:
    """Whether a schema is written as a Gemini Schema: an upper-case type or a snake_case field at any depth."""
    if schema.get("type") in TYPES or any("_" in key and camel(key) in FIELDS for key in schema):
        return True
    members = [schema.get("items")]
    if isinstance(properties := schema.get("properties"), dict):
        members += properties.values()
    if isinstance(choices := schema.get("anyOf"), list):
        members += choices
    return any(is_gemini_form(member) for member in members if isinstance(member, dict))


def gemini_schema(schema: Schema, path: str = "") -> Schema:
    """Normalise a Gemini Schema: camelCase fields and upper-case types. Raises Unfit.

    Checks the fields and the types of their values. Fields that are null are removed.
    """
    if not isinstance(schema, dict):
        raise Unfit(path, "must be an object (a Schema)")
    result: Schema = {}
    for key, value in schema.items():
        name, at = camel(key), join_path(path, key)
        if name not in FIELDS:
            raise Unfit(at, f"is no field of a Gemini Schema; its fields are {', '.join(sorted(FIELDS))}")
        if name in result:
            raise Unfit(at, f"is given in both spellings, {name} and {key}")
        if value is None and name not in ("default", "example"):
            continue
        result[name] = _gemini_value(name, value, at)
    return result


def _gemini_value(name: str, value: Any, at: str) -> Any:
    if name == "type":
        if not isinstance(value, str) or value.upper() not in TYPES:
            raise Unfit(at, f"must be one of {', '.join(TYPES)}")
        return value.upper()
    if name == "items":
        return gemini_schema(value, at)
    if name == "properties":
        if not isinstance(value, dict):
            raise Unfit(at, "must be an object of Schemas")
        return {key: gemini_schema(member, join_path(at, key)) for key, member in value.items()}
    if name == "anyOf":
        if not isinstance(value, list):
            raise Unfit(at, "must be a list of Schemas")
        return [gemini_schema(member, f"{at}[{i}]") for i, member in enumerate(value)]
    expected, fits = _PLAIN[name]
    if not fits(value):
        raise Unfit(at, f"must be {expected}")
    return value


def _converted(schema: Any, path: str) -> Schema:
    """The Gemini Schema that is equivalent to a JSON Schema. Raises Unfit if there is none."""
    if not isinstance(schema, dict):
        raise Unfit(path, "must be an object")
    if "anyOf" in schema:
        return _converted_choice(schema, path)
    kind, nullable = _type(schema, path)
    result: Schema = {"type": kind}
    for key, value in schema.items():
        at = join_path(path, key)
        if key in ("type", "nullable"):
            continue
        if key == "items":
            result[key] = _converted(value, at)
        elif key == "properties" and isinstance(value, dict):
            result[key] = {name: _converted(member, join_path(at, name)) for name, member in value.items()}
        elif key == "enum":
            result[key] = _enum(value, nullable, at)
        elif key == "const" and "enum" not in schema:
            result["enum"] = _enum([value], nullable, at)
        elif key not in _EXCLUSIVE or kind != "INTEGER":
            result[key] = _plain(key, value, at)
    _close_bounds(result, schema, path)
    _check_type(result, path)
    if nullable:
        result["nullable"] = True
    return result


def _type(schema: Schema, path: str) -> tuple[str, bool]:
    """The one type of a schema, in upper case, and whether null is allowed too."""
    value = schema.get("type", "string" if schema.keys() & {"enum", "const"} else None)
    kinds = value if isinstance(value, list) else [value]
    others = [kind for kind in kinds if kind != "null"]
    if len(others) != 1 or not isinstance(others[0], str) or others[0].upper() not in TYPES:
        raise Unfit(join_path(path, "type"), "must be one type, with or without null")
    nullable = schema.get("nullable", False)
    if not isinstance(nullable, bool):
        raise Unfit(join_path(path, "nullable"), "must be true or false")
    return others[0].upper(), nullable or "null" in kinds


def _converted_choice(schema: Schema, path: str) -> Schema:
    """`anyOf`: a single schema, with or without null, becomes that schema; several stay a choice if nothing is beside
    `anyOf`. Vertex refuses other fields beside `anyOf`, also `nullable`."""
    at = join_path(path, "anyOf")
    choices = schema["anyOf"]
    if not isinstance(choices, list):
        raise Unfit(at, "must be a list")
    beside = {key: value for key, value in schema.items() if key != "anyOf"}
    others = [choice for choice in choices if choice != {"type": "null"}]
    if len(others) == 1 and beside.keys() <= _ANNOTATIONS:
        result = _converted(others[0], at)
        if beside.keys() & result.keys():
            raise Unfit(at, "repeats a field that stands beside it")
        result |= {key: _plain(key, value, join_path(path, key)) for key, value in beside.items()}
        return result | {"nullable": True} if len(choices) > 1 else result
    if beside or len(others) != len(choices) or not choices:
        raise Unfit(at, "must stand alone, and without null")
    return {"anyOf": [_converted(choice, f"{at}[{i}]") for i, choice in enumerate(choices)]}


def _enum(value: Any, nullable: bool, at: str) -> list[str]:
    """The strings of an enum, none of them empty. Null must be in the enum if and only if the schema is nullable."""
    if not isinstance(value, list) or (None in value) != nullable:
        raise Unfit(at, "must be a list with null exactly where null is allowed")
    names = [item for item in value if item is not None]
    if not names or not _is_names(names) or "" in names:
        raise Unfit(at, "must be strings that are not empty")
    return names


def _plain(key: str, value: Any, at: str) -> Any:
    if key not in _PLAIN or not _PLAIN[key][1](value) or (key in _COUNTS and isinstance(value, str)):
        raise Unfit(at, "has no counterpart")
    return value


def _close_bounds(result: Schema, schema: Schema, path: str) -> None:
    """Convert the exclusive bounds of an integer to inclusive bounds in `result`."""
    if result["type"] == "INTEGER":
        for key in _EXCLUSIVE.keys() & schema.keys():
            name, step, closer = _EXCLUSIVE[key]
            bound = schema[key]
            if isinstance(bound, bool) or not isinstance(bound, int):
                raise Unfit(join_path(path, key), "must be a whole number")
            result[name] = closer(bound + step, result.get(name, bound + step))


def _check_type(result: Schema, path: str) -> None:
    """Check the service's rules for each type, beyond those of JSON Schema."""
    kind = result["type"]
    properties = result.get("properties")
    if kind == "NULL":
        raise Unfit(path, "not every model knows null alone as a type")
    if (kind == "OBJECT") != bool(properties):
        raise Unfit(path, "an object needs properties, and nothing else may have them")
    if (kind == "ARRAY") != ("items" in result):
        raise Unfit(path, "an array needs items, and nothing else may have them")
    if "enum" in result and kind != "STRING":
        raise Unfit(path, "only strings can be enumerated")
    if "format" in result and result["format"] not in _FORMATS.get(kind, ()):
        raise Unfit(path, "has a format that the service refuses")
    for key in ("required", "propertyOrdering"):
        if not set(result.get(key, ())) <= (properties or {}).keys():
            raise Unfit(path, f"{key} names an unknown property")


def _allow_null(schema: Schema) -> None:
    """Fold `nullable` into a JSON Schema that `to_json_schema` has just made."""
    kind, choices, names = schema.get("type"), schema.get("anyOf"), schema.get("enum")
    if isinstance(kind, str) and kind != "null":
        schema["type"] = [kind, "null"]
    if isinstance(choices, list):
        schema["anyOf"] = [*choices, {"type": "null"}]
    if isinstance(names, list) and None not in names:
        schema["enum"] = [*names, None]


def _member_to_json_schema(schema: Any) -> Any:
    return to_json_schema(schema) if isinstance(schema, dict) else schema


def join_path(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
