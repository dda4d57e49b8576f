"""Deterministic arguments of calls, made from a schema and the user's words. Pure.

Schemas may be Gemini's (``"type": "STRING"``) or JSON Schemas (``"type": "string"``).
"""

from __future__ import annotations

import re
from typing import Any

from referencing import Registry
from referencing.jsonschema import DRAFT202012

_PLACE = r"[A-ZÀ-Þ][\w'-]*(?:\s+[A-ZÀ-Þ][\w'-]*)*"
_AFTER = re.compile(rf"\b(?:in|for|at|of|to|from|about)\s+({_PLACE}(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+){_PLACE})*)")
_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def fill(parameters: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """One set of arguments per call: several names in a row ("Paris and Tokyo") make several calls."""
    names = named(text)
    values = _Values(parameters, text, names[0] if names else None)
    whole = values.resolved(parameters)
    required = whole.get("required") or []
    properties = {name: values.resolved(schema) for name, schema in (whole.get("properties") or {}).items()}
    base = {
        name: values.value_of(schema, ())
        for name, schema in properties.items()
        if name in required or _is_mentioned(schema, text, names)
    }
    spread = next((n for n in base if _kind(properties[n]) == "string" and "enum" not in properties[n]), None)
    if spread is None or len(names) < 2:
        return [base]
    return [{**base, spread: name} for name in names]


def named(text: str) -> list[str]:
    """The names after in, for, at …: "weather in Paris and Tokyo" → ["Paris", "Tokyo"]."""
    match = _AFTER.search(text)
    return re.split(r"\s*,\s*and\s+|\s*,\s*|\s+and\s+", match[1]) if match else []


def instance(schema: dict[str, Any], text: str, name: str | None = None) -> Any:
    """A value that fits the schema, taken from the text if possible."""
    return _Values(schema, text, name).value_of(schema, ())


class _CircularReference(Exception):
    """A value would have to contain itself."""


class _Values:
    """Makes values for the schema `whole` and its subschemas."""

    def __init__(self, whole: dict[str, Any], text: str, name: str | None) -> None:
        quoted = _QUOTED.search(text)
        self.words = name or (quoted[1] if quoted else text.strip())
        self.text = text
        self._lookup = Registry().resolver_with_root(DRAFT202012.create_resource(whole)).lookup

    def resolved(self, schema: Any) -> dict[str, Any]:
        """The schema, with a reference followed."""
        found, _ = self._resolve(schema, ())
        return found if isinstance(found, dict) else {}

    def value_of(self, schema: Any, refs: tuple[str, ...]) -> Any:
        """A value for the schema. `refs`: the references that led here. Raises _CircularReference."""
        schema, refs = self._resolve(schema, refs)
        if not isinstance(schema, dict):
            return self.words
        if "const" in schema:
            return schema["const"]
        if isinstance(options := schema.get("enum"), list) and options:
            return options[0]
        for key in ("anyOf", "any_of", "oneOf", "allOf"):
            if schema.get(key):
                return self._first(schema[key], refs)
        match _kind(schema):
            case "number" | "integer" as kind:
                return self._number(kind)
            case "boolean":
                return True
            case "null":
                return None
            case "array":
                try:
                    return [self.value_of(schema.get("items"), refs)]
                except _CircularReference:
                    return []
            case "object":
                return self._object(schema, refs)
        return self.words

    def _resolve(self, schema: Any, refs: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        while isinstance(schema, dict) and "$ref" in schema:
            if schema["$ref"] in refs:
                raise _CircularReference
            refs = (*refs, schema["$ref"])
            schema = self._lookup(schema["$ref"]).contents
        return schema, refs

    def _first(self, options: list[Any], refs: tuple[str, ...]) -> Any:
        """A value for the first option without a circular reference."""
        for option in options:
            try:
                return self.value_of(option, refs)
            except _CircularReference:
                continue
        raise _CircularReference

    def _number(self, kind: str) -> float:
        match = _NUMBER.search(self.text)
        value = float(match[0]) if match else 1
        return int(value) if kind == "integer" or float(value).is_integer() else value

    def _object(self, schema: dict[str, Any], refs: tuple[str, ...]) -> dict[str, Any]:
        """Contains required and nullable properties; without `required`, all properties without circular references."""
        required, made = schema.get("required"), {}
        for key, item in (schema.get("properties") or {}).items():
            if required is None or key in required or _may_be_null(item):
                try:
                    made[key] = self.value_of(item, refs)
                except _CircularReference:
                    if required is not None:
                        raise
        return made


def _may_be_null(schema: Any) -> bool:
    options = schema.get("anyOf") if isinstance(schema, dict) else None
    return any(isinstance(option, dict) and option.get("type") == "null" for option in options or ())


def _kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type") or ("object" if "properties" in schema else "string")
    return str(kind[0] if isinstance(kind, list) else kind).lower()


def _is_mentioned(schema: dict[str, Any], text: str, names: list[str]) -> bool:
    """Whether the text contains a value for an optional parameter."""
    kind = _kind(schema)
    if kind in ("number", "integer"):
        return bool(_NUMBER.search(text))
    return kind == "string" and "enum" not in schema and bool(names)
