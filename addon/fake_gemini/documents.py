"""JSON objects. The strict local Gemini shares no code with the proxy, not even this name."""

from typing import Any

Json = dict[str, Any]
