"""The options and tools of a Responses API request: Gemini's settings, and options without effect.

A value that would change the answer and that Gemini does not support is refused with the field's name. Values that mean
the default behaviour are accepted. `tool_forms` defines the forms of tools. The front door accepts functions, without
rules for running calls, because these tools are the client's own, and a web search, which Gemini runs itself. Pure.
"""

import re
from collections.abc import Sequence
from typing import Any

from addon.core.dialects.responses.errors import (
    Unsupported,
    array,
    bad,
    boolean,
    count,
    fields,
    number,
    one_of,
    only,
    quoted,
    required,
    string,
    unsupported,
)
from addon.core.framing.documents import Document
from addon.core.model_names import generation, is_before
from addon.core.tools.json_schema import fit_schema
from addon.core.tools.schema import Unfit, schema_of
from addon.core.tools.tool_forms import BadTool, normalise
from addon.core.tools.tool_plan import declared_names

_SCHEMA_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24576}
_LEVELS = ("minimal", "low", "medium", "high")

# Field → the values without effect, and why others are not supported.
NEUTRAL: dict[str, tuple[tuple[Any, ...], str]] = {
    "access_programs": (({},), "access programs are OpenAI's"),
    "background_options": (({}, {"completion_window": "soonest"}), "a background response is made at once"),
    "context_management": (([],), "a history is always sent whole"),
    "image": (({}, {"context_compression": "auto"}), "Gemini has no such setting"),
    "moderation": ((), "Gemini has its own moderation"),
    "prompt": ((), "prompts are stored at OpenAI; send the text as instructions and input"),
    "prompt_cache_options": (({}, {"mode": "implicit"}), "Gemini caches by itself"),
    "prompt_cache_retention": (("in_memory",), "Gemini caches by itself"),
}
# Hints for OpenAI's caches and abuse monitoring. They do not change the answer, and the response repeats them.
LABELS = ("prompt_cache_key", "safety_identifier", "user")
SIGNATURES = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
SOURCES = "web_search_call.action.sources"
INCLUDABLE = (SIGNATURES, LOGPROBS, SOURCES)
_TIERS = {"auto": None, "default": None, "flex": "flex", "priority": "priority", "fast": "priority"}
VERBOSITIES = {
    "low": "Answer as briefly as you can.",
    "medium": None,
    "high": "Answer at length, and in detail.",
}
"""The sentences for `text.verbosity` in the system instruction, because Gemini has no such setting."""
_MOST_STOPS, _MOST_LOGPROBS = 5, 20


def check_neutral(body: Document) -> None:
    """Raises Invalid for options that are not supported."""
    for name, (fitting, reason) in NEUTRAL.items():
        value = body.get(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in fitting):
            hint = f"Use {' or '.join(quoted(one) for one in fitting)}" if fitting else "Leave it out"
            message = f"{name}={quoted(value)} is not supported: {reason}. {hint}."
            raise Unsupported(message, name, "unsupported_value" if fitting else "unsupported_parameter")
    for name in LABELS:
        string(body.get(name, ""), name)
    for index, one in enumerate(array(body.get("include", []), "include")):
        only(one, INCLUDABLE, f"include[{index}]", "nothing else can be included")
    if "stream_options" in body:
        options = fields(body["stream_options"], ("include_obfuscation",), "stream_options")
        if not body.get("stream"):
            raise bad("stream_options", "is only for streams; leave it out, or set stream to true")
        if boolean(options.get("include_obfuscation", False), "stream_options.include_obfuscation"):
            message = "is true, which is not supported: streams are not padded"
            raise unsupported("stream_options.include_obfuscation", message)


def metadata(value: object) -> dict[str, str]:
    """At most 16 pairs: keys of up to 64 characters, values of up to 512."""
    if not isinstance(value, dict):
        raise bad("metadata", "must be an object of strings", "invalid_type")
    if len(value) > 16:
        raise bad("metadata", f"holds {len(value)} pairs; at most 16 are allowed")
    for key, member in value.items():
        if len(key) > 64:
            raise bad("metadata", f"holds a key of {len(key)} characters; at most 64 are allowed")
        if len(string(member, f"metadata.{key}")) > 512:
            raise bad(f"metadata.{key}", f"has {len(member)} characters; at most 512 are allowed")
    return dict(value)


def generation_config(body: Document, model: str) -> Document:
    """Sampling settings, `max_output_tokens`, `stop`, `text`, `reasoning` and log probabilities as a
    generationConfig."""
    config: Document = {}
    if "temperature" in body:
        config["temperature"] = number(body["temperature"], 0, 2, "temperature")
    if "top_p" in body:
        config["topP"] = number(body["top_p"], 0, 1, "top_p")
    for name, gemini in (("presence_penalty", "presencePenalty"), ("frequency_penalty", "frequencyPenalty")):
        if name in body:
            config[gemini] = number(body[name], -2, 2, name)
    if "max_output_tokens" in body:
        config["maxOutputTokens"] = count(body["max_output_tokens"], "max_output_tokens")
    if "stop" in body:
        config["stopSequences"] = _stops(body["stop"])
    config |= _logprobs(body)
    config |= _format(fields(body.get("text", {}), ("format", "verbosity"), "text"))
    if thinking := _thinking(body.get("reasoning", {}), model):
        config["thinkingConfig"] = thinking
    return config


def service_tier(body: Document) -> str | None:
    """Gemini's name of the tier; None for its default."""
    reason = "Gemini has no other tiers"
    return _TIERS[only(body.get("service_tier", "auto"), _TIERS, "service_tier", reason)]


def _stops(value: object) -> list[str]:
    stops = [value] if isinstance(value, str) else array(value, "stop")
    if not 1 <= len(stops) <= _MOST_STOPS:
        raise bad("stop", f"holds {len(stops)} texts; Gemini takes 1 to {_MOST_STOPS}")
    for index, one in enumerate(stops):
        at = "stop" if isinstance(value, str) else f"stop[{index}]"
        if not string(one, at):
            raise bad(at, "is empty; it must be the text before which an answer ends")
    return stops


def _logprobs(body: Document) -> Document:
    most = body.get("top_logprobs", 0)
    if isinstance(most, bool) or not isinstance(most, int):
        raise bad("top_logprobs", f"must be a whole number, not {quoted(most)}", "invalid_type")
    if not 0 <= most <= _MOST_LOGPROBS:
        raise bad("top_logprobs", f"is {most}; it must be from 0 to {_MOST_LOGPROBS}")
    if not most and LOGPROBS not in body.get("include", ()):
        return {}
    return {"responseLogprobs": True} | ({"logprobs": most} if most else {})


def shown_format(text: Document) -> Document:
    """`text.format` as a response repeats it, with all its members."""
    given = text.get("format") or {"type": "text"}
    if given["type"] != "json_schema":
        return {"type": given["type"]}
    strict = given.get("strict")
    return given | {"description": given.get("description"), "strict": True if strict is None else strict}


def _format(text: Document) -> Document:
    one_of(text.get("verbosity", "medium"), VERBOSITIES, "text.verbosity")
    if "format" not in text:
        return {}
    at = "text.format"
    known = ("type", "name", "schema", "strict", "description")
    given = fields(text["format"], known, at)
    kind = one_of(required(given, "type", at), ("text", "json_object", "json_schema"), f"{at}.type")
    if kind != "json_schema":
        fields(given, ("type",), at)
        return {} if kind == "text" else {"responseMimeType": "application/json"}
    if not _SCHEMA_NAME.fullmatch(string(required(given, "name", at), f"{at}.name")):
        raise bad(f"{at}.name", f"is {quoted(given['name'])}; a name is 1 to 64 letters, digits, _ and -")
    boolean(given.get("strict", True), f"{at}.strict")
    schema = required(given, "schema", at)
    if not isinstance(schema, dict):
        raise bad(f"{at}.schema", "must be an object (a JSON Schema)", "invalid_type")
    if "description" in given:
        schema = {"description": string(given["description"], f"{at}.description"), **schema}
    try:
        return {"responseMimeType": "application/json", "responseJsonSchema": fit_schema(schema)}
    except Unfit as e:
        raise bad(f"{at}.schema.{e.path}".rstrip("."), e.message) from None


def _thinking(value: object, model: str) -> Document:
    """The thinkingConfig: a level from Gemini 3 on, a token budget before; and whether thoughts are included."""
    reasoning = fields(value, ("effort", "summary", "generate_summary", "context", "mode"), "reasoning")
    only(reasoning.get("context", "auto"), ("auto",), "reasoning.context", "Gemini has no such setting")
    only(reasoning.get("mode", "standard"), ("standard",), "reasoning.mode", "Gemini has no such setting")
    thinking: Document = {}
    for key in ("summary", "generate_summary"):
        if key in reasoning:
            only(reasoning[key], ("auto",), f"reasoning.{key}", "Gemini has one kind of summary")
            thinking["includeThoughts"] = True
    version = generation(model)
    if thinking and is_before(version, (2, 5)):
        at = "reasoning.summary" if "summary" in reasoning else "reasoning.generate_summary"
        raise unsupported(at, f"is asked for, but {model} does not think", "unsupported_parameter")
    if "effort" not in reasoning:
        return thinking
    effort = reasoning["effort"]
    if is_before(version, (2, 5)):
        raise unsupported("reasoning.effort", f"is set, but {model} does not think", "unsupported_parameter")
    if is_before(version, (3, 0)):
        thinking["thinkingBudget"] = _BUDGETS[only(effort, _BUDGETS, "reasoning.effort", "Gemini has no other levels")]
    else:
        reason = "Gemini 3 always thinks, and high is its highest level"
        thinking["thinkingLevel"] = only(effort, _LEVELS, "reasoning.effort", reason).upper()
    return thinking


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
    empty = {"type": "object", "properties": {}}
    functions = [{**one, "parameters": empty if (schema := schema_of(one)) is None else schema} for one in declared]
    return shown_tools([*functions, *([{"type": "web_search"}] if SEARCH in tools else [])])
