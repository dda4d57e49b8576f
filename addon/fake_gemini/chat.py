"""The OpenAI-compatible endpoint: chat completions, models and embeddings.

``read`` refuses what the service refuses, beginning with names and types, and returns a request in canonical form. The
comment "own words" marks messages whose wording by the service is not public. In answers, key order, ids, signatures
and the odd finish_reason of streams are the service's. Pure except for random ids and the time of day.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from addon.fake_gemini import signatures
from addon.fake_gemini.errors import Json, Refused, bad_fields
from addon.fake_gemini.model import ModelAnswer
from addon.fake_gemini.reply import Shape, output_tokens, split
from addon.fake_gemini.routes import Model

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


_FINISH = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"}


@dataclass
class ChatReply:
    """One answer: its choices, and the fields that all its documents repeat."""

    model: Model
    answers: list[ModelAnswer]
    prompt_tokens: int
    id: str = field(default_factory=lambda: secrets.token_urlsafe(17))
    created: int = field(default_factory=lambda: int(time.time()))

    def unary(self) -> Json:
        """The whole answer."""
        choices = []
        for index, answer in enumerate(self.answers):
            message: Json = {"role": "assistant"}
            if answer.text:
                message["content"] = answer.text
                if self.model.is_gemini_3 and not answer.calls:
                    message["extra_content"] = _google(signatures.sign_text())
            if answer.calls:
                message["tool_calls"] = self._calls(answer)
            finish = "tool_calls" if answer.calls else _finish(answer)
            choices.append({"finish_reason": finish, "index": index, "message": message})
        return self._document("chat.completion", choices) | {"usage": self._usage()}

    def events(self, shape: Shape, *, usage: bool) -> Iterator[bytes]:
        """The stream's events, including ``[DONE]``."""
        for chunk in self._chunks(shape, usage=usage):
            yield f"data: {json.dumps(chunk, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()
        yield b"data: [DONE]\n\n"

    def _chunks(self, shape: Shape, *, usage: bool) -> Iterator[Json]:
        trailing = self.model.is_gemini_3 if shape.trailing is None else shape.trailing
        for index, answer in enumerate(self.answers):
            deltas: list[Json] = [{"content": piece} for piece in split(answer.text, shape.pieces)]
            calls = self._calls(answer)
            if shape.each:
                deltas += [{"tool_calls": [{**call, "index": 0}]} for call in calls]
            elif calls:
                deltas.append({"tool_calls": [{**call, "index": n} for n, call in enumerate(calls)]})
            if trailing or not deltas:
                signed = self.model.is_gemini_3 and answer.text and not calls
                deltas.append({"extra_content": _google(signatures.sign_text())} if signed else {})
            for n, delta in enumerate(deltas):
                choice: Json = {"delta": {**delta, "role": "assistant"}, "index": index}
                if n == len(deltas) - 1 and not shape.no_finish:
                    choice["finish_reason"] = _finish(answer)  # the same with calls
                chunk = self._document("chat.completion.chunk", [choice])
                yield chunk | ({"usage": self._usage()} if usage else {})
        if shape.usage:
            yield self._document("chat.completion.chunk", []) | {"usage": self._usage()}

    def _calls(self, answer: ModelAnswer) -> list[Json]:
        calls = []
        for n, call in enumerate(answer.calls):
            call_id = f"function-call-{secrets.randbelow(9 * 10**18) + 10**18}"
            function = {"arguments": json.dumps(call.args, ensure_ascii=False), "name": call.name}
            tool_call: Json = {"function": function, "id": call_id, "type": "function"}
            if n == 0 and self.model.is_gemini_3:
                body = {"name": call.name, "args": call.args, "id": call_id}
                tool_call = {"extra_content": _google(signatures.sign_call(body, declared=call.declared)), **tool_call}
            calls.append(tool_call)
        return calls

    def _document(self, kind: str, choices: list[Json]) -> Json:
        return {
            "choices": choices,
            "created": self.created,
            "id": self.id,
            "model": self.model.name,
            "object": kind,
        }

    def _usage(self) -> Json:
        completion = output_tokens(self.answers)
        return {
            "completion_tokens": completion,
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + completion,
        }


def _google(signature: str) -> Json:
    return {"google": {"thought_signature": signature}}


def _finish(answer: ModelAnswer) -> str:
    if answer.finish in _FINISH:
        return _FINISH[answer.finish]
    kind = "function_call_filter" if answer.finish.endswith("_CALL") else "content_filter"
    return f"{kind}: {answer.finish}"


_MODELS = ("models/gemini-2.5-flash", "models/gemini-3-flash-preview", "models/gemini-embedding-001")
_EMBEDS = ("gemini-embedding-001", "gemini-embedding-2")
_DIMENSIONS, _MOST_TEXTS = 3072, 100


def models() -> Json:
    return {"object": "list", "data": [model(name) for name in _MODELS]}


def model(name: str) -> Json:
    return {"id": name, "object": "model", "owned_by": "google", "display_name": name.rpartition("/")[2]}


def embeddings(document: Any) -> Json:
    """Vectors that follow from the texts alone. Raises ``Refused``. The messages are own words."""
    if not isinstance(document, dict):
        raise Refused("Invalid JSON payload received.")
    name = str(document.get("model", "")).removeprefix("models/")
    if name not in _EMBEDS:
        raise Refused(
            f"models/{name} is not found for API version v1main, or is not supported for embedContent.", code=404
        )
    given = document.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) and one for one in texts):
        raise Refused("input must be a text or a list of texts.")
    if len(texts) > _MOST_TEXTS:
        raise Refused(f"at most {_MOST_TEXTS} requests can be in one batch.")
    size = document.get("dimensions", _DIMENSIONS)
    if type(size) is not int or not 1 <= size <= _DIMENSIONS:
        raise Refused(f"dimensions must be between 1 and {_DIMENSIONS}.")
    data = [{"object": "embedding", "index": at, "embedding": _vector(one, size)} for at, one in enumerate(texts)]
    return {"object": "list", "data": data, "model": name, "usage": {"prompt_tokens": 0, "total_tokens": 0}}


def _vector(text: str, size: int) -> list[float]:
    return [byte / 127.5 - 1 for byte in hashlib.shake_128(text.encode()).digest(size)]
