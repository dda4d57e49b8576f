"""Tools of a Responses API request: function tools as Gemini takes them, the choice among them, and the way back.

What a tool looks like is `toolset`'s to say; here is what the front door takes of it: functions, and nothing that says
how a call is run, for these are the client's own. Pure.
"""

from collections.abc import Collection, Sequence
from typing import Any

from addon.core.documents import Document
from addon.core.openai.invalid import Object, bad, fields, listed, shown
from addon.core.schema import to_json_schema
from addon.core.toolset import BadTool, normalise

_FLAT = ("type", "name", "description", "parameters", "strict")
_NESTED = ("type", "function")
_DEFAULTS: Object = {"async": False, "defer_loading": False, "allowed_callers": ["direct"]}


def declarations(tools: object) -> list[Document]:
    """Function tools as declarations. Chat's form, with all under `function`, is taken too. Raises Invalid."""
    given = [_function(tool, f"tools[{index}]") for index, tool in enumerate(listed(tools, "tools"))]
    try:
        return normalise({"tools": given}).declarations
    except BadTool as error:
        raise bad(error.field, error.message) from None


def _function(tool: object, at: str) -> Object:
    if not isinstance(tool, dict):
        raise bad(at, "must be an object (a function tool)", "invalid_type")
    if tool.get("type") != "function":
        fits = 'only "function" fits; tools that the proxy runs are set for its session'
        raise bad(f"{at}.type", f"is {shown(tool.get('type'))}; {fits}", "unsupported_value")
    known = _NESTED if "function" in tool else _FLAT
    read = fields(tool, (*known, *_DEFAULTS), at)
    for key, default in _DEFAULTS.items():
        if read.pop(key, default) != default:
            raise bad(f"{at}.{key}", f"is {shown(tool[key])}; only {shown(default)} fits", "unsupported_value")
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


def shown_tools(tools: Sequence[Object]) -> list[Object]:
    """The tools of a request as its response shows them: all members of each."""
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
    """A `tool_choice` as its response shows it: what chat nests is flat here."""
    choice = _flat(choice, "allowed_tools")
    if isinstance(choice, dict) and isinstance(chosen := choice.get("tools"), list):
        return {**choice, "tools": [_flat(tool, "function") for tool in chosen]}
    return _flat(choice, "function")


def _flat(choice: Any, nested: str) -> Any:
    inner = choice.get(nested) if isinstance(choice, dict) else None
    return {"type": choice["type"], **inner} if isinstance(inner, dict) and "type" in choice else choice


def function_tools(declared: Sequence[Document]) -> list[Object]:
    """Gemini's declarations as a response shows tools that its request did not give, but its conversation had."""
    return shown_tools([{**declaration, "parameters": _json_schema(declaration)} for declaration in declared])


def _json_schema(declaration: Document) -> Any:
    if "parameters" in declaration:
        return to_json_schema(declaration["parameters"])
    return declaration.get("parametersJsonSchema", {"type": "object", "properties": {}})
