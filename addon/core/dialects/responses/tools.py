"""Converts the tools and the tool choice of a Responses API request to Gemini's form, and back.

`toolset` defines the forms of tools. The front door accepts only functions, without rules for running calls: these
tools are the client's own. Pure.
"""

from collections.abc import Collection, Sequence
from typing import Any

from addon.core.dialects.responses.invalid import array, bad, fields, quoted, unsupported
from addon.core.framing.documents import Document
from addon.core.tools.positions import BadTool
from addon.core.tools.schema import to_json_schema
from addon.core.tools.tool_forms import normalise

_FLAT = ("type", "name", "description", "parameters", "strict")
_NESTED = ("type", "function")
_DEFAULTS: Document = {"async": False, "defer_loading": False, "allowed_callers": ["direct"]}


def declarations(tools: object) -> list[Document]:
    """Function tools as declarations. The nested form of chat completions is accepted too. Raises Invalid."""
    given = [_function(tool, f"tools[{index}]") for index, tool in enumerate(array(tools, "tools"))]
    try:
        return normalise({"tools": given}).declarations
    except BadTool as error:
        raise bad(error.field, error.message) from None


def _function(tool: object, at: str) -> Document:
    if not isinstance(tool, dict):
        raise bad(at, "must be an object (a function tool)", "invalid_type")
    if tool.get("type") != "function":
        fits = 'it must be "function"; set tools that the proxy runs for its session'
        raise unsupported(f"{at}.type", f"is {quoted(tool.get('type'))}; {fits}", member=at)
    known = _NESTED if "function" in tool else _FLAT
    read = fields(tool, (*known, *_DEFAULTS), at)
    for key, default in _DEFAULTS.items():
        if read.pop(key, default) != default:
            raise unsupported(f"{at}.{key}", f"is {quoted(tool[key])}; it must be {quoted(default)}")
    if "function" in read:
        fields(read["function"], _FLAT[1:], f"{at}.function")
    return read


def tool_config(choice: object, names: Collection[str]) -> Document | None:
    """The toolConfig for a `tool_choice` among the functions of these names. Raises Invalid."""
    if choice is None:
        return None
    try:
        return normalise({"tools": [{"name": name} for name in names], "tool_choice": choice}).tool_config
    except BadTool as error:
        raise bad(error.field, error.message) from None


def shown_tools(tools: Sequence[Document]) -> list[Document]:
    """The tools of a request as its response shows them, with all members."""
    flat = [{**tool, **tool["function"]} if "function" in tool else tool for tool in tools]
    return [
        {
            "type": "function",
            "name": tool["name"],
            "description": tool.get("description"),
            "parameters": tool.get("parameters"),
            "strict": bool(tool.get("strict")),
        }
        for tool in flat
    ]


def shown_choice(choice: Any) -> Any:
    """A `tool_choice` as the response shows it. The nested form of chat completions is made flat."""
    choice = _flat(choice, "allowed_tools")
    if isinstance(choice, dict) and isinstance(chosen := choice.get("tools"), list):
        return {**choice, "mode": choice.get("mode") or "auto", "tools": [_flat(tool, "function") for tool in chosen]}
    return _flat(choice, "function")


def _flat(choice: Any, nested: str) -> Any:
    inner = choice.get(nested) if isinstance(choice, dict) else None
    return {"type": choice["type"], **inner} if isinstance(inner, dict) and "type" in choice else choice


def function_tools(declared: Sequence[Document]) -> list[Document]:
    """Gemini declarations in the form of a response's tools, for the tools of its conversation."""
    return shown_tools([{**declaration, "parameters": _json_schema(declaration)} for declaration in declared])


def _json_schema(declaration: Document) -> Any:
    if "parameters" in declaration:
        return to_json_schema(declaration["parameters"])
    return declaration.get("parametersJsonSchema", {"type": "object", "properties": {}})
