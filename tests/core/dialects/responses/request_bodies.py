"""Bodies of requests to the Responses API."""

from __future__ import annotations

from typing import Any

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True}


FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA}


def body(**given: Any) -> dict[str, Any]:
    return {"model": "gemini-3-flash", "input": "hi", **given}
