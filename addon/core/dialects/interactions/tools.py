"""Converts tools and the tool choice between the Interactions API and Gemini's form.

A client's own tools are restored unchanged: a function keeps its keys, any other tool is kept under the key `tool`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from addon.core.framing.documents import Document, Malformed, as_list, camel, decode, encode, get, objects, snake
from addon.core.tools.schema import to_json_schema

_TOOLS = {
    "googleSearch": "google_search",
    "codeExecution": "code_execution",
    "urlContext": "url_context",
    "googleMaps": "google_maps",
    "fileSearch": "file_search",
    "computerUse": "computer_use",
}
"""The built-in tools that both APIs have."""

_ONLY_GEMINI = frozenset({"behavior", "response", "responseJsonSchema"})
"""Fields of a Gemini declaration that function tools do not support."""


def to_gemini_tools(tools: Any) -> list[Document]:
    return [_gemini_tool(tool) for tool in objects(tools)]


def _gemini_tool(tool: Document) -> Document:
    if tool.get("type") != "function":
        return {"tool": tool}
    declaration = {key: value for key, value in tool.items() if key not in ("type", "parameters")}
    if isinstance(tool.get("parameters"), dict):
        declaration["parametersJsonSchema"] = tool["parameters"]
    return {"functionDeclarations": [declaration]}


def to_interaction_tools(tools: Sequence[Document]) -> list[Document]:
    """Gemini tools in the form of the Interactions API, without those that it does not have (`unsupported_tools`)."""
    return [one for tool in tools for one in _own_tool(tool)]


def unsupported_tools(tools: Sequence[Document]) -> list[str]:
    """The names of the Gemini tools that the Interactions API does not have."""
    known = {*_TOOLS, "functionDeclarations", "tool"}
    return [key for tool in tools for key in tool if camel(key) not in known]


def _own_tool(tool: Document) -> Iterator[Document]:
    for key, value in tool.items():
        if key == "tool":
            yield value
        elif camel(key) == "functionDeclarations":
            for declaration in objects(value):
                yield _function(declaration)
        elif camel(key) in _TOOLS and isinstance(value, dict):
            yield {"type": _TOOLS[camel(key)], **{snake(name): setting for name, setting in value.items()}}


def _function(declaration: Document) -> Document:
    function: Document = {"type": "function"}
    for key, value in declaration.items():
        name = camel(key)
        if name == "parameters" and isinstance(value, dict):
            function["parameters"] = to_json_schema(value)
        elif name == "parametersJsonSchema":
            function["parameters"] = value
        elif name not in _ONLY_GEMINI:
            function[key] = value
    return function


def calling_config(choice: Any) -> Document | None:
    """A `tool_choice` as a functionCallingConfig; None if it sets nothing."""
    if isinstance(choice, str):
        return {"mode": choice.upper()}
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    if not isinstance(allowed, dict):
        return None
    calling: Document = {"mode": str(allowed.get("mode", "auto")).upper()}
    if names := as_list(allowed.get("tools")):
        calling["allowedFunctionNames"] = names
    return calling


def tool_choice(calling: Document | None) -> Any:
    """A functionCallingConfig as a `tool_choice`; None if it sets nothing."""
    mode = str(get(calling or {}, "mode") or "").lower()
    names = as_list(get(calling or {}, "allowedFunctionNames"))
    if names:
        return {"allowed_tools": {"mode": mode or "auto", "tools": names}}
    return mode or None


def with_choice(config: bytes | None, tool_config: bytes | None) -> bytes | None:
    """A `generation_config` with the tool choice of Gemini's toolConfig; None if nothing is left."""
    given = decode(config) if config is not None else {}
    if not isinstance(given, dict):
        raise Malformed("generation_config is not an object")
    new = {key: value for key, value in given.items() if key != "tool_choice"}
    choice = tool_choice(get(decode(tool_config), "functionCallingConfig")) if tool_config is not None else None
    if choice is not None:
        new["tool_choice"] = choice
    return encode(new) if new else None
