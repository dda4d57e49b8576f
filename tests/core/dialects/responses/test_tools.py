"""The tools of a conversation, as a response shows them."""

from typing import Any

import pytest

from addon.core.dialects.responses import function_tools, read_request

SCHEMA = {"type": "object", "properties": {"city": {"type": ["string", "null"]}}, "required": ["city"]}
FULL = {**SCHEMA, "additionalProperties": False}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [(SCHEMA, SCHEMA), (FULL, FULL), (None, {"type": "object", "properties": {}})],
    ids=["a schema that Gemini has", "one that it has not", "none"],
)
def test_kept_tools_are_shown_as_they_were_given(parameters: Any, expected: Any) -> None:
    tool = {"type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": False}
    declared = read_request({"model": "gemini-3-flash", "input": "hi", "tools": [tool]}).declarations

    assert function_tools(declared or []) == [{**tool, "parameters": expected}]
