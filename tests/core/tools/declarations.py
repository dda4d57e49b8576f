"""Declarations of tools."""

from __future__ import annotations

from typing import Any

JSON_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GEMINI = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]}
FULL = {**JSON_SCHEMA, "additionalProperties": False}


def calling(**fields: Any) -> dict[str, Any]:
    return {"functionCallingConfig": fields}
