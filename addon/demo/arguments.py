"""Arguments made up from a schema and the user's words, the same every time. Pure.

Schemas may be Gemini's (``"type": "STRING"``) or JSON Schemas (``"type": "string"``).
"""

from __future__ import annotations

import re
from typing import Any

_PLACE = r"[A-ZÀ-Þ][\w'-]*(?:\s+[A-ZÀ-Þ][\w'-]*)*"
_AFTER = re.compile(rf"\b(?:in|for|at|of|to|from|about)\s+({_PLACE}(?:(?:\s*,\s*(?:and\s+)?|\s+and\s+){_PLACE})*)")
_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def fill(parameters: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """One set of arguments for each call: several names in a row ("Paris and Tokyo") make several calls."""
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or []
    names = named(text)
    base = {
        name: instance(schema, text, names[0] if names else None)
        for name, schema in properties.items()
        if name in required or _said(schema, text, names)
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
    """A value that fits the schema, taken from the text where possible."""
    if options := schema.get("enum"):
        return options[0]
    for key in ("anyOf", "any_of", "oneOf"):
        if schema.get(key):
            return instance(schema[key][0], text, name)
    kind = _kind(schema)
    if kind in ("number", "integer"):
        match = _NUMBER.search(text)
        value = float(match[0]) if match else 1
        return int(value) if kind == "integer" or float(value).is_integer() else value
    if kind == "boolean":
        return True
    if kind == "array":
        return [instance(schema.get("items") or {}, text, name)]
    if kind == "object":
        required = schema.get("required")
        return {
            key: instance(item, text, name)
            for key, item in (schema.get("properties") or {}).items()
            if required is None or key in required
        }
    if kind == "null":
        return None
    quoted = _QUOTED.search(text)
    return name or (quoted[1] if quoted else text.strip())


def _kind(schema: dict[str, Any]) -> str:
    kind = schema.get("type") or ("object" if "properties" in schema else "string")
    return str(kind[0] if isinstance(kind, list) else kind).lower()


def _said(schema: dict[str, Any], text: str, names: list[str]) -> bool:
    """Whether the text holds something for a parameter that is not required."""
    kind = _kind(schema)
    if kind in ("number", "integer"):
        return bool(_NUMBER.search(text))
    return kind == "string" and "enum" not in schema and bool(names)
