"""The options of a Responses API request: Gemini's settings, and options without effect.

A value that would change the answer and that Gemini does not support is refused with the field's name. Values that mean
the default behaviour are accepted. Pure.
"""

import re
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
from addon.core.tools.json_schema import fit_schema
from addon.core.tools.schema import Unfit
from addon.core.tools.tool_plan import generation, is_before

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
