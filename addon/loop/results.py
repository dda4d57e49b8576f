"""Converts any result of a tool to the JSON that is stored and sent to the model."""

import json
from typing import Any

import msgspec

from addon.core.framing.documents import replace_invalid_text
from addon.tools.base import ToolError

MAX_RESULT = 1024 * 1024
"""Bytes of JSON. A model cannot use more, and each later request of the chat would repeat the result."""


def result_json(result: Any) -> bytes:
    """A result as JSON. Raises ToolError if it is not JSON, or longer than MAX_RESULT."""
    if hasattr(result, "model_dump"):
        result = result.model_dump(mode="json")
    if isinstance(result, (bytes, bytearray, memoryview)):
        raise ToolError("the tool returned bytes, which are not JSON: return text, or base64 in a field")
    try:
        try:
            data = msgspec.json.encode(result)
        except UnicodeEncodeError:  # half a surrogate pair, for example from a file name
            data = replace_invalid_text(json.dumps(msgspec.to_builtins(result)).encode())
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise ToolError(f"the tool returned what is not JSON: {error}") from None
    if len(data) > MAX_RESULT:
        raise ToolError(f"the tool returned {len(data)} bytes, more than the {MAX_RESULT} that a result may have")
    return data
