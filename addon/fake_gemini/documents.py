"""JSON objects. Not imported from the proxy, because the strict local Gemini shares no code with it."""

from typing import Any

Json = dict[str, Any]
