"""Requests of the OpenAI-compatible endpoint: chat completions in canonical form. Pure.

``read`` refuses what the service refuses, beginning with names and types, and returns the request for the other
modules. The comment "own words" marks messages whose wording by the service is not public.
"""

from __future__ import annotations

import json
from typing import Any

from addon.fake_gemini.errors import Json, Refused, bad_fields

_INVALID = "Invalid JSON payload received."
_NUMBER = (int, float)
_TOP: dict[str, Any] = {
    "extra_body": dict,
    "frequency_penalty": _NUMBER,
    "logit_bias": dict,
    "logprobs": bool,
    "max_completion_tokens": int,
    "max_tokens": int,
    "messages": list,
    "metadata": dict,
    "modalities": list,
    "model": str,
    "n": int,
    "parallel_tool_calls": bool,
    "presence_penalty": _NUMBER,
    "reasoning_effort": str,
    "response_format": dict,
    "seed": int,
    "service_tier": str,
    "stop": (str, list),
    "store": bool,
    "stream": bool,
    "stream_options": dict,
    "temperature": _NUMBER,
    "tool_choice": (str, dict),
    "tools": list,
    "top_logprobs": int,
    "top_p": _NUMBER,
    "user": str,
}
_MESSAGE: dict[str, Any] = {"role": str, "content": (str, list), "name": str, "extra_content": dict}
_ASSISTANT: dict[str, Any] = {
    **_MESSAGE,
    "tool_calls": list,
    "thought_signature": str,
    # unset in answers that clients send back whole
    **dict.fromkeys(("refusal", "annotations", "audio", "function_call"), ()),
}
_KNOWN: dict[str, dict[str, Any]] = {
    "system": _MESSAGE,
    "developer": _MESSAGE,
    "user": _MESSAGE,
    "assistant": _ASSISTANT,
    "tool": {**_MESSAGE, "tool_call_id": str},
}
_CALL: dict[str, Any] = {"id": str, "type": str, "function": dict, "index": int, "extra_content": dict}
_FUNCTION: dict[str, Any] = {"name": str, "description": str, "parameters": dict, "strict": bool}
_GOOGLE: dict[str, Any] = {
    "cached_content": str,
    "safety_settings": list,
    "thinking_config": dict,
    "thought_tag_marker": str,
}
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_CONFIG = {
    "temperature": "temperature",
    "top_p": "topP",
    "n": "candidateCount",
    "seed": "seed",
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
}


def read(document: Any) -> Json:
    """The request in canonical form. Raises ``Refused``."""
    if not isinstance(document, dict):
        raise bad_fields([("", f"{_INVALID} Root element must be a message.")])
    given = _fields(document, _TOP, "")
    request: Json = {"contents": [], "generationConfig": _generation_config(given)}
    _read_messages(given.get("messages") or [], request)
    declarations = [_declaration(tool, f"tools[{n}]") for n, tool in enumerate(given.get("tools") or [])]
    if declarations:
        request["tools"] = [{"functionDeclarations": declarations}]
    if (choice := given.get("tool_choice")) is not None:
        request["toolConfig"] = {"functionCallingConfig": _choice(choice)}
    extra = _fields(given.get("extra_body") or {}, {"google": dict}, "extra_body")
    google = _fields(extra.get("google") or {}, _GOOGLE, "extra_body.google")
    if "cached_content" in google:
        request["cachedContent"] = google["cached_content"]
    return request


def _fields(given: Any, known: dict[str, Any], path: str) -> Json:
    """The fields that are set, with names and types checked. Raises ``Refused``."""
    at = f" at '{path}'" if path else ""
    if not isinstance(given, dict):
        raise bad_fields([(path, f"Invalid value{at}: an object is due here.")])  # own words
    for key, value in given.items():
        if key not in known:
            raise bad_fields([(path, f'{_INVALID} Unknown name "{key}"{at}: Cannot find field.')])
        wrong = not isinstance(value, known[key]) or (isinstance(value, bool) and known[key] is not bool)
        if value is not None and wrong:
            where = f"{path}.{key}" if path else key
            raise bad_fields([(where, f"Invalid value at '{where}', {json.dumps(value)[:200]}")])
    return {key: value for key, value in given.items() if value is not None}


def _read_messages(messages: list[Any], request: Json) -> None:
    names: dict[str, str] = {}
    for n, message in enumerate(messages):
        path = f"messages[{n}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in _KNOWN:
            raise Refused(f"Invalid role at {path}: {role!r}.")  # own words
        given = _fields(message, _KNOWN[role], path)
        parts = _parts(given.get("content"), path)
        if role in ("system", "developer"):
            request.setdefault("systemInstruction", {"parts": []})["parts"] += parts
            continue
        if role == "assistant":
            parts = _signed(parts, given)
            for m, call in enumerate(given.get("tool_calls") or []):
                part = _call(call, f"{path}.tool_calls[{m}]")
                names[part["functionCall"].get("id", "")] = part["functionCall"]["name"]
                parts.append(part)
        elif role == "tool":
            call_id = given.get("tool_call_id", "")
            text = "".join(part.get("text", "") for part in parts)
            answer = {"id": call_id, "name": names.get(call_id, ""), "response": _response(text)}
            parts = [{"functionResponse": {key: value for key, value in answer.items() if value != ""}}]
        request["contents"].append({"role": "model" if role == "assistant" else "user", "parts": parts})


def _parts(content: Any, path: str) -> list[Json]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"text": content}] if content else []
    parts: list[Json] = []
    for n, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            parts.append({"text": part["text"]})
        elif kind == "image_url" and (url := str(_object_in(part, kind).get("url", ""))).startswith("data:"):
            head, _, data = url.removeprefix("data:").partition(",")
            parts.append({"inlineData": {"mimeType": head.partition(";")[0], "data": data}})
        elif kind == "input_audio":
            audio = _object_in(part, kind)
            parts.append({"inlineData": {"mimeType": f"audio/{audio.get('format')}", "data": audio.get("data", "")}})
        else:
            raise Refused(f"Invalid content part type: {kind} at {path}.content[{n}].")  # own words
    return parts


def _object_in(part: Json, name: str) -> Json:
    found = part.get(name)
    return found if isinstance(found, dict) else {}


def _signature(given: Json, path: str) -> str | None:
    extra = _fields(given.get("extra_content") or {}, {"google": dict}, f"{path}.extra_content")
    google = extra.get("google") or {}
    known = {"thought_signature": str, "thought": bool}
    signature = _fields(google, known, f"{path}.extra_content.google").get("thought_signature")
    return str(signature) if signature else None


def _signed(parts: list[Json], message: Json) -> list[Json]:
    if (signature := _signature(message, "messages")) is None:
        return parts
    return [*parts[:-1], {**(parts[-1] if parts else {"text": ""}), "thoughtSignature": signature}]


def _call(given: Any, path: str) -> Json:
    call = _fields(given, _CALL, path)
    function = _fields(call.get("function") or {}, {"name": str, "arguments": str}, f"{path}.function")
    if call.get("type", "function") != "function" or not function.get("name"):
        raise Refused(f"Invalid tool call at {path}: only calls of functions are taken.")  # own words
    try:
        args = json.loads(function.get("arguments") or "{}")
    except ValueError:
        args = None
    if not isinstance(args, dict):
        raise Refused(f"Invalid function arguments at {path}: a JSON object is due.")  # own words
    body: Json = {"name": function["name"], "args": args}
    if call.get("id"):
        body["id"] = call["id"]
    signature = _signature(call, path)
    return {"functionCall": body} | ({} if signature is None else {"thoughtSignature": signature})


def _response(text: str) -> Json:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return value if isinstance(value, dict) else {"result": value}


def _declaration(given: Any, path: str) -> Json:
    tool = _fields(given, {"type": str, "function": dict}, path)
    if tool.get("type") != "function":
        raise Refused(f"Invalid tool type at {path}: {tool.get('type')!r}.")  # own words
    function = _fields(tool.get("function") or {}, _FUNCTION, f"{path}.function")
    declaration: Json = {key: function[key] for key in ("name", "description") if key in function}
    if function.get("parameters"):
        declaration["parametersJsonSchema"] = function["parameters"]
    return declaration


def _choice(choice: Any) -> Json:
    if isinstance(choice, str):
        if choice not in _MODES:
            raise Refused(f"Invalid tool_choice: {choice!r}.")  # own words
        return {"mode": _MODES[choice]}
    if choice.get("type") == "allowed_tools":
        # whether the service accepts this form is not public
        allowed = _fields(choice.get("allowed_tools") or {}, {"mode": str, "tools": list}, "tool_choice.allowed_tools")
        names = [_chosen_function(tool) for tool in allowed.get("tools") or []]
        return {"mode": "ANY" if allowed.get("mode") == "required" else "VALIDATED", "allowedFunctionNames": names}
    return {"mode": "ANY", "allowedFunctionNames": [_chosen_function(choice)]}


def _chosen_function(given: Any) -> str:
    choice = _fields(given, {"type": str, "function": dict}, "tool_choice")
    name = _fields(choice.get("function") or {}, {"name": str}, "tool_choice.function").get("name")
    if choice.get("type") != "function" or not name:
        raise Refused("Invalid tool_choice: it names no function.")  # own words
    return str(name)


def _generation_config(given: Json) -> Json:
    config = {name: given[key] for key, name in _CONFIG.items() if key in given}
    form = given.get("response_format") or {}
    if form.get("type") in ("json_object", "json_schema"):
        config["responseMimeType"] = "application/json"
        if schema := (form.get("json_schema") or {}).get("schema"):
            config["responseJsonSchema"] = schema
    return config
