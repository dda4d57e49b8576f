"""Converts steps of the Interactions API to Contents and back. Pure.

A ``thought`` step carries the signature of the model's next output: of the step's first call, or of its text.
"""

from collections.abc import Iterator
from typing import Any

from addon.fake_gemini import signatures
from addon.fake_gemini.errors import Json, Refused
from addon.fake_gemini.model import ModelAnswer

MEDIA = frozenset({"image", "audio", "video", "document"})
FIELDS = {
    "user_input": {"content"},
    "model_output": {"content", "error"},
    "thought": {"signature", "summary"},
    "function_call": {"id", "name", "arguments", "signature"},
    "function_result": {"call_id", "name", "result", "is_error"},
}
"""The allowed fields of each type of step, besides its type. Steps of built-in tools are not checked."""

REQUIRED: dict[str, dict[str, Any]] = {
    "function_call": {"id": str, "name": str, "arguments": dict},
    "function_result": {"call_id": str, "result": str | dict | list},
}
_BUILT_IN = ("_call", "_result")


def contents_of(given: Any, *, after: list[Json]) -> list[Json]:
    """The Contents of an ``input``: a string, a content, a list of contents, or a list of steps. ``after``: the
    previous history, whose last calls the results answer. Raises ``Refused``."""
    if isinstance(given, str):
        given = [{"type": "text", "text": given}]
    items = given if isinstance(given, list) else [given]
    if not items or not all(isinstance(item, dict) for item in items):
        raise Refused("Invalid input: it must be a string, a content, a list of contents or a list of steps.")
    if any(is_step(item) for item in items):
        return list(_of_steps(items, after))
    return [{"role": "user", "parts": [_part(item, f"input[{n}]") for n, item in enumerate(items)]}]


def is_step(item: Json) -> bool:
    kind = item.get("type")
    return isinstance(kind, str) and (kind in FIELDS or kind.endswith(_BUILT_IN))


def _of_steps(steps: list[Json], after: list[Json]) -> Iterator[Json]:
    open_calls = {call["id"]: call["name"] for call in last_calls(after)}
    signature: str | None = None
    for n, step in enumerate(steps):
        where, kind = f"input[{n}]", step.get("type")
        _check(step, where)
        if kind == "user_input":
            yield {"role": "user", "parts": [_part(c, f"{where}.content") for c in step.get("content") or []]}
        elif kind == "function_result":
            yield {"role": "user", "parts": [_response(step, open_calls, where)]}
        elif kind == "thought":
            signature = step.get("signature") or None
        elif kind == "function_call":
            call: Json = {"id": step["id"], "name": step["name"], "args": step["arguments"]}
            open_calls[step["id"]] = step["name"]
            part: Json = {"functionCall": call}
            if signature is not None:
                part["thoughtSignature"], signature = signature, None
            yield {"role": "model", "parts": [part]}
        elif kind == "model_output":
            parts = [_part(c, f"{where}.content") for c in step.get("content") or []]
            if parts and signature is not None and signatures.signs_text(signature):
                parts[-1]["thoughtSignature"], signature = signature, None
            if parts:
                yield {"role": "model", "parts": parts}


def last_calls(contents: list[Json]) -> list[Json]:
    """The calls at the end of a history, still without results."""
    calls: list[Json] = []
    for content in reversed(contents):
        if content["role"] != "model":
            break
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part] + calls
    return calls


def _check(step: Json, where: str) -> None:
    kind = step.get("type")
    known = FIELDS.get(str(kind))
    if known is None:
        if is_step(step):
            return
        raise Refused(f"Invalid step type '{kind}' at '{where}'.")
    unknown = sorted(step.keys() - known - {"type"})
    if unknown:
        raise Refused(f"Unknown parameter '{unknown[0]}' at '{where}'.")
    for name, of in REQUIRED.get(str(kind), {}).items():
        if not isinstance(step.get(name), of):
            raise Refused(f"Missing or invalid parameter '{name}' at '{where}'.")


def _part(content: Any, where: str) -> Json:
    kind = content.get("type") if isinstance(content, dict) else None
    if kind == "text" and isinstance(content.get("text"), str):
        if unknown := sorted(content.keys() - {"type", "text", "annotations"}):
            raise Refused(f"Unknown parameter '{unknown[0]}' at '{where}'.")
        return {"text": content["text"]}
    if kind in MEDIA and (content.get("data") or content.get("uri")):
        mime = content.get("mime_type") or f"{kind}/*"
        if content.get("data"):
            return {"inlineData": {"mimeType": mime, "data": content["data"]}}
        return {"fileData": {"mimeType": mime, "fileUri": content["uri"]}}
    raise Refused(f"Invalid content at '{where}'.")


def _response(step: Json, open_calls: dict[str, str], where: str) -> Json:
    call_id, result = step["call_id"], step["result"]
    if call_id not in open_calls:
        raise Refused(f"No function call found for call_id '{call_id}' at '{where}'.")
    name = open_calls[call_id]
    if step.get("name") not in (None, name):
        raise Refused(f"The name '{step['name']}' at '{where}' is not that of function call '{call_id}', '{name}'.")
    parts: list[Json] = []
    if isinstance(result, list):
        contents = [_part(content, f"{where}.result") for content in result]
        parts = [part for part in contents if "text" not in part]
        result = "\n".join(part["text"] for part in contents if "text" in part)
    response = result if isinstance(result, dict) else {"result": result}
    more = {"parts": parts} if parts else {}
    return {"functionResponse": {"id": call_id, "name": name, "response": response, **more}}


def steps_of(contents: list[Json]) -> list[Json]:
    """The steps of an answer, with the signature first. The inverse of ``contents_of``."""
    parts = [part for content in contents for part in content["parts"]]
    signatures_of = [part["thoughtSignature"] for part in parts if "thoughtSignature" in part]
    steps: list[Json] = [{"signature": signature, "type": "thought"} for signature in signatures_of]
    for part in parts:
        if "functionCall" in part:
            call = part["functionCall"]
            steps.append({"id": call["id"], "type": "function_call", "name": call["name"], "arguments": call["args"]})
        else:
            steps.append({"content": [{"text": part["text"], "type": "text"}], "type": "model_output"})
    return steps


def contents_of_answer(answer: ModelAnswer, new_id: Any, *, signed: bool) -> list[Json]:
    """The model's output as a Content; an empty list without output."""
    parts: list[Json] = []
    if answer.text:
        parts.append({"text": answer.text})
        if signed and not answer.calls:
            parts[-1]["thoughtSignature"] = signatures.sign_text()
    for n, call in enumerate(answer.calls):
        body = {"id": new_id(), "name": call.name, "args": call.args}
        part: Json = {"functionCall": body}
        if n == 0 and signed:
            part["thoughtSignature"] = signatures.sign_call(body, declared=call.declared)
        parts.append(part)
    return [{"role": "model", "parts": parts}] if parts else []
