"""Parses a request to `/v1/gemini`. Refusals name the field."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from addon.core.framing.documents import Document, as_list, camel, get, parts_of
from addon.gateway.conversations import conversation_name
from addon.gateway.engine import check_model
from addon.web.problems import Problem


@dataclass(frozen=True, slots=True)
class GeminiRequest:
    """`given`: the Contents of `input`. `more`: members that go upstream unchanged. `tools` None: the client gave
    none."""

    model: str
    given: list[Document]
    tools: list[Document] | None
    more: Document
    conversation: str | None
    previous: str | None
    stream: bool


_OBJECTS = ("toolConfig", "generationConfig")
_KNOWN = (
    "model",
    "input",
    "tools",
    "toolConfig",
    "systemInstruction",
    "generationConfig",
    "safetySettings",
    "conversation",
    "previousResponseId",
    "stream",
)


def read(document: Any) -> GeminiRequest:
    """Accepts both spellings of a key, as Gemini does. Raises Problem (400)."""
    if not isinstance(document, dict):
        raise Problem(400, "the body must be a JSON object")
    fields: Document = {}
    for key, value in document.items():
        name = camel(key)
        if name not in _KNOWN:
            raise _wrong(key, f"unknown; known fields: {', '.join(_KNOWN)}")
        if name in fields:
            raise _wrong(key, "given twice, in camelCase and snake_case: give one")
        fields[name] = value
    fields = {name: value for name, value in fields.items() if value is not None}
    stream, previous = fields.get("stream", False), fields.get("previousResponseId")
    if not isinstance(stream, bool):
        raise _wrong("stream", "must be true or false")
    if previous is not None and not isinstance(previous, str):
        raise _wrong("previousResponseId", "must be the responseId of an answer")
    return GeminiRequest(
        check_model(fields.get("model")),
        _contents(fields.get("input")),
        _tools(fields["tools"]) if "tools" in fields else None,
        _more(fields),
        conversation_name(fields.get("conversation")),
        previous,
        stream,
    )


def _more(fields: Mapping[str, Any]) -> Document:
    more: Document = {}
    for name in _OBJECTS:
        if name in fields:
            if not isinstance(fields[name], dict):
                raise _wrong(name, "must be an object")
            more[name] = fields[name]
    if (instruction := fields.get("systemInstruction")) is not None:
        if isinstance(instruction, str):
            instruction = {"parts": [{"text": instruction}]}
        if not isinstance(instruction, dict):
            raise _wrong("systemInstruction", "must be a text or a Content")
        more["systemInstruction"] = instruction
    if (safety := fields.get("safetySettings")) is not None:
        if not all(isinstance(one, dict) for one in as_list(safety)):
            raise _wrong("safetySettings", "must be a list of objects")
        more["safetySettings"] = safety
    return more


def _tools(value: Any) -> list[Document]:
    tools = as_list(value)
    if not all(isinstance(tool, dict) for tool in tools):
        raise _wrong("tools", 'must be a list of Tools, such as {"functionDeclarations": […]}')
    return tools


def _contents(value: Any) -> list[Document]:
    """A text, a Part, a Content, or a list of Parts (and texts) or of Contents."""
    if value is None:
        raise _wrong("input", "missing")
    items = as_list(value)
    if not items:
        raise _wrong("input", "must not be empty")
    if all(isinstance(item, dict) and "parts" in item for item in items):
        contents = [{**item, "parts": _parts(item["parts"], f"input[{n}].parts")} for n, item in enumerate(items)]
    else:
        contents = [{"role": "user", "parts": _parts(items, "input")}]
    for content in contents:
        for part in parts_of(content):
            _check_response(get(part, "functionResponse"))
    return contents


def _parts(value: Any, where: str) -> list[Document]:
    items = as_list(value)
    if not items:
        raise _wrong(where, "must hold at least one part")
    parts = [{"text": item} if isinstance(item, str) else item for item in items]
    for n, part in enumerate(parts):
        if not isinstance(part, dict) or not part:
            raise _wrong(f"{where}[{n}]", "must be a text or a Part")
        if "parts" in part:
            raise _wrong(f"{where}[{n}]", "is a Content in a list of Parts: give only Parts, or only Contents")
    return parts


def _check_response(response: Any) -> None:
    """A functionResponse that Gemini would refuse must not be stored: the conversation could not continue."""
    if response is None:
        return
    where = "functionResponse"
    if not isinstance(response, dict):
        raise _wrong(where, "must be an object")
    if not isinstance(response.get("response"), dict):
        raise _wrong(f"{where}.response", 'must be an object, such as {"result": 72}')
    if not any(isinstance(response.get(key), str) for key in ("id", "name")):
        raise _wrong(where, "must have the id of its call, or the name")


def _wrong(field: str, why: str) -> Problem:
    return Problem(400, f"{field}: {why}", field=field)
