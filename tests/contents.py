"""Contents and Parts of Gemini, for tests."""

from typing import Any

from addon.core.framing.documents import Document


def user(*parts: str | Document) -> Document:
    return {"role": "user", "parts": [{"text": p} if isinstance(p, str) else p for p in parts]}


def model(*parts: str | Document) -> Document:
    return {**user(*parts), "role": "model"}


def call(name: str = "get_weather", signature: str | None = None, **fields: Any) -> Document:
    part: Document = {"functionCall": {"name": name, "args": fields.pop("args", {}), **fields}}
    return {**part, "thoughtSignature": signature} if signature else part


def response(name: str = "get_weather", value: Any = None, **fields: Any) -> Document:
    return {"functionResponse": {**fields, "name": name, "response": value or {"result": name}}}
