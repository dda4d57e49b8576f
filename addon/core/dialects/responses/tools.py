"""Converts the tools and the tool choice of a Responses API request to Gemini's form, and back.

`tool_forms` defines the forms of tools. The front door accepts functions, without rules for running calls, because
these tools are the client's own, and a web search, which Gemini runs itself. Pure.
"""

from collections.abc import Sequence
from typing import Any

from addon.core.dialects.responses.errors import array, bad, fields, quoted, unsupported
from addon.core.framing.documents import Document
from addon.core.tools.positions import BadTool
from addon.core.tools.schema import to_json_schema
from addon.core.tools.tool_forms import normalise
from addon.core.tools.tool_plan import declared_names, generation, is_before

SEARCH: Document = {"googleSearch": {}}
_GEMINI_3 = (3, 0)
_SEARCHES = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
_SEARCH_DEFAULTS: Document = {
    "search_context_size": "medium",
    "external_web_access": True,
    "search_content_types": ["text"],
}
_LOCATION = ("type", "city", "country", "region", "timezone")
_FLAT = ("type", "name", "description", "parameters", "strict")
_NESTED = ("type", "function")
_DEFAULTS: Document = {"async": False, "defer_loading": False, "allowed_callers": ["direct"]}


def read_tools(tools: object, model: str) -> list[Document]:
    """The tools as Gemini's: function declarations, and Google Search for a web search. Functions in the nested form of
    chat completions are accepted too. Raises Invalid."""
    functions, search = [], None
    for index, tool in enumerate(array(tools, "tools")):
        at = f"tools[{index}]"
        if isinstance(tool, dict) and tool.get("type") in _SEARCHES:
            _check_search(tool, at)
            search = search or at
        else:
            functions.append(_function(tool, at))
    if search is not None and functions and is_before(generation(model), _GEMINI_3):
        raise unsupported(f"{search}.type", f"is a web search beside functions, which {model} refuses", member=search)
    try:
        declared = normalise({"tools": functions}).declarations
    except BadTool as error:
        raise bad(error.field, error.message) from None
    return [*([{"functionDeclarations": declared}] if declared else []), *([SEARCH] if search else [])]


def _check_search(tool: Document, at: str) -> None:
    """Refuses settings of a search, because Gemini decides how and where it searches."""
    given = fields(tool, ("type", *_SEARCH_DEFAULTS, "filters", "user_location"), at)
    for key, default in _SEARCH_DEFAULTS.items():
        if given.get(key, default) != default:
            raise unsupported(f"{at}.{key}", f"is {quoted(given[key])}; Gemini has only {quoted(default)}")
    for key, known in (("filters", ("allowed_domains",)), ("user_location", _LOCATION)):
        inner = fields(given.get(key, {}), known, f"{at}.{key}")
        if any(member != "type" for member in inner):
            raise unsupported(f"{at}.{key}", "is set, but Google Search has no such setting")


def _function(tool: object, at: str) -> Document:
    if not isinstance(tool, dict):
        raise bad(at, "must be an object (a tool)", "invalid_type")
    if tool.get("type") != "function":
        fits = 'it must be "function" or "web_search"; set tools that the proxy runs for its session'
        raise unsupported(f"{at}.type", f"is {quoted(tool.get('type'))}; {fits}", member=at)
    known = _NESTED if "function" in tool else _FLAT
    read = fields(tool, (*known, *_DEFAULTS), at)
    for key, default in _DEFAULTS.items():
        if read.pop(key, default) != default:
            raise unsupported(f"{at}.{key}", f"is {quoted(tool[key])}; it must be {quoted(default)}")
    if "function" in read:
        fields(read["function"], _FLAT[1:], f"{at}.function")
    return read


def tool_config(choice: object, tools: Sequence[Document], model: str) -> Document | None:
    """The toolConfig for a `tool_choice` among the functions in Gemini's `tools`. Raises Invalid."""
    names = [name for tool in tools for name in declared_names(tool)]
    config: Document | None = None
    if isinstance(choice, dict) and choice.get("type") in _SEARCHES:
        raise unsupported("tool_choice", "is the web search, which Gemini uses if it wants to")
    if choice is not None:
        try:
            config = normalise({"tools": [{"name": name} for name in names], "tool_choice": choice}).tool_config
        except BadTool as error:
            raise bad(error.field, error.message) from None
    if names and SEARCH in tools and not is_before(generation(model), _GEMINI_3):
        return {**(config or {}), "includeServerSideToolInvocations": True}  # Gemini 3 takes both only with this flag
    return config


def shown_tools(tools: Sequence[Document]) -> list[Document]:
    """The tools of a request as its response shows them, with all members."""
    flat = [{**tool, **tool["function"]} if "function" in tool else tool for tool in tools]
    return [_shown_search(tool) if tool.get("type") in _SEARCHES else _shown_function(tool) for tool in flat]


def _shown_function(tool: Document) -> Document:
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": bool(tool.get("strict")),
    }


def _shown_search(tool: Document) -> Document:
    return {"type": tool["type"], "search_context_size": "medium", "user_location": None}


def shown_choice(choice: Any) -> Any:
    """A `tool_choice` as the response shows it, with the nested form of chat completions flattened."""
    choice = _flat(choice, "allowed_tools")
    if isinstance(choice, dict) and isinstance(chosen := choice.get("tools"), list):
        return {**choice, "mode": choice.get("mode") or "auto", "tools": [_flat(tool, "function") for tool in chosen]}
    return _flat(choice, "function")


def _flat(choice: Any, nested: str) -> Any:
    inner = choice.get(nested) if isinstance(choice, dict) else None
    return {"type": choice["type"], **inner} if isinstance(inner, dict) and "type" in choice else choice


def conversation_tools(tools: Sequence[Document]) -> list[Document]:
    """Gemini's tools in the form of a response's tools, for a conversation's tools."""
    declared = [one for tool in tools for one in tool.get("functionDeclarations", ())]
    functions = [{**declaration, "parameters": _json_schema(declaration)} for declaration in declared]
    return shown_tools([*functions, *([{"type": "web_search"}] if SEARCH in tools else [])])


def _json_schema(declaration: Document) -> Any:
    if "parameters" in declaration:
        return to_json_schema(declaration["parameters"])
    return declaration.get("parametersJsonSchema", {"type": "object", "properties": {}})
