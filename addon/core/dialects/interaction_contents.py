"""Interactions, histories: converts steps and Contents between the Interactions API and Gemini's form.

A step becomes a Content: the user's if it is input or the result of a call, else the model's. Items without a Gemini
form stay unchanged under the key `step` or `content` of a part.

An interaction that the service keeps is named by its id. The id is stored as a thought part of a model Content
(`mark_part`): it stays with the model's parts in the ledger and is never visible. The service knows everything up to
that interaction.
"""

from collections.abc import Mapping
from typing import Any

from addon.core.framing.documents import Document, Malformed, as_list, decode, encode, get, objects, parts_of
from addon.core.history.outcomes import from_base64, media_type, reference, response_of
from addon.core.history.rewriting import DUMMY_SIGNATURE

MEDIA = frozenset({"image", "audio", "video", "document"})
_USERS = frozenset({"user_input", "function_result"})
_ID = "interactionId"
_CALLED = "calledAs"
_JOINED_LATER = " pieces"  # a key that the service's steps do not have

# --- ids ------------------------------------------------------------------------------------------------------


def mark_part(interaction_id: str) -> Document:
    """The part that represents an interaction that the service keeps."""
    return {"thought": True, "thoughtSignature": interaction_id, _ID: interaction_id}


def marked_id(content: Document) -> str | None:
    """The last interaction id in a Content, if any. One answer may take several interactions."""
    return next((part[_ID] for part in reversed(parts_of(content)) if isinstance(part.get(_ID), str)), None)


def call_names(content: Document) -> dict[str, str]:
    """The original names of a Content's calls, by call id. The service knows the calls by these names."""
    calls = [call for part in parts_of(content) if isinstance(call := get(part, "functionCall"), dict)]
    return {call["id"]: call[_CALLED] for call in calls if isinstance(call.get("id"), str) and call.get(_CALLED)}


def with_call_name(step: Document, names: Mapping[str, str]) -> Document:
    """A result with the original name of its call."""
    name = names.get(call_id) if isinstance(call_id := step.get("call_id"), str) else None
    return step if name is None else {**step, "name": name}


def kept_history(interaction_id: str) -> list[Document]:
    """Contents that represent a history kept by the service. Their model turn holds only the interaction's id."""
    model_turn = {"role": "model", "parts": [{"text": interaction_id}, mark_part(interaction_id)]}
    return [{"role": "user", "parts": [{"text": ""}]}, model_turn]


# --- steps and contents ---------------------------------------------------------------------------------------


def input_steps(given: Any) -> list[Document]:
    """An `input` in any of its forms as a list of steps. Raises Malformed."""
    if given is None:
        return []
    if isinstance(given, str):
        given = {"type": "text", "text": given}
    items = as_list(given)
    if not all(isinstance(item, dict) for item in items):
        raise Malformed("an item of the input is neither a step nor a content")
    if any(is_step(item) for item in items):
        return items
    return [{"type": "user_input", "content": items}] if items else []


def kind_of(item: Document) -> str:
    """The type of a step or a content, or ""."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else ""


def is_step(item: Document) -> bool:
    """Whether an item is a step, not a content."""
    kind = kind_of(item)
    if not kind:
        return "role" in item  # the older form of steps has no types
    return kind in ("user_input", "model_output", "thought") or kind.endswith(("_call", "_result"))


def is_tool_step(step: Document) -> bool:
    """Whether a step belongs to a tool: a call or a result. The client may not get such a step."""
    return kind_of(step).endswith(("_call", "_result"))


def content_of(step: Document) -> Document:
    is_users = kind_of(step) in _USERS if kind_of(step) else step.get("role") == "user"
    return {"role": "user" if is_users else "model", "parts": parts_of_step(step)}


def parts_of_step(step: Document) -> list[Document]:
    """A step as Gemini parts."""
    kind = kind_of(step)
    if kind == "function_call":
        arguments, name = step.get("arguments"), step.get("name", "")
        call = {"id": step.get("id"), "name": name, "args": arguments if isinstance(arguments, dict) else {}}
        return [{"functionCall": {**call, _CALLED: name}}]
    if kind == "function_result":
        error = str(step.get("result")) if step.get("is_error") and not isinstance(step.get("result"), dict) else None
        head = {"id": step.get("call_id"), "name": step.get("name") or ""}
        value, parts = _with_parts(step.get("result"))
        more = {"parts": parts} if parts else {}
        return [{"functionResponse": {**head, "response": response_of(value, error), **more, "step": step}}]
    if kind == "thought":
        text = "".join(str(one.get("text", "")) for one in objects(step.get("summary")))
        return [thought(text, step.get("signature"))]
    if kind.endswith("_call"):
        used = {"toolType": kind, "id": step.get("id"), "args": step.get("arguments")}
        return [{"toolCall": {**used, "step": step}}]
    if kind.endswith("_result"):
        used = {"toolType": kind, "id": step.get("call_id"), "response": step.get("result")}
        return [{"toolResponse": {**used, "step": step}}]
    return [part_of(one) for one in objects(step.get("content"))]


def _with_parts(result: Any) -> tuple[Any, list[Document]]:
    """A client's result with references instead of images and files, and these as parts."""
    parts: list[Document] = []
    if not isinstance(result, list):
        return result, parts
    values: list[Any] = []
    for item in result:
        part = part_of(item) if isinstance(item, dict) and kind_of(item) in MEDIA else {}
        if "inlineData" in part:
            parts.append(part)
            values.append(reference(len(parts), media_type(part)))
        else:
            values.append(item)
    return values, parts


def part_of(content: Document) -> Document:
    """A content of a step as a Gemini part: text, media, or the content itself if Gemini has no form for it."""
    kind = kind_of(content)
    if kind == "text" and isinstance(content.get("text"), str):
        return {"text": content["text"]}
    mime = content.get("mime_type") or f"{kind}/*"
    if kind in MEDIA and isinstance(content.get("data"), str):
        return {"inlineData": {"mimeType": mime, "data": content["data"]}}
    if kind in MEDIA and isinstance(content.get("uri"), str):
        return {"fileData": {"mimeType": mime, "fileUri": content["uri"]}}
    return {"content": content}


def thought(text: str, signature: Any) -> Document:
    """A thought as a part. Only a signed thought matters for the history."""
    part: Document = {"text": text, "thought": True}
    return {**part, "thoughtSignature": signature} if signature else part


def steps_of(content: Document) -> list[Document]:
    steps: list[Document] = []
    outer = "model_output" if content.get("role") == "model" else "user_input"
    for part in parts_of(content):
        if _ID in part:
            continue
        step = _step(part)
        if step is not None:
            steps.append(step)
        elif steps and steps[-1]["type"] == outer:
            steps[-1]["content"].append(_content(part))
        else:
            steps.append({"type": outer, "content": [_content(part)]})
    return steps


def _step(part: Document) -> Document | None:
    """The step for a part that is a whole step; None for a part that is only a content."""
    if isinstance(call := get(part, "functionCall"), dict):
        named = {"id": call.get("id"), "name": call.get("name")}
        return {"type": "function_call", **named, "arguments": get(call, "args") or {}}
    if isinstance(answer := get(part, "functionResponse"), dict):
        return _result(answer)
    for kind in ("toolCall", "toolResponse"):
        if isinstance(used := get(part, kind), dict) and isinstance(step := used.get("step"), dict):
            return step
    if part.get("thought"):
        signature = get(part, "thoughtSignature")
        head = {} if signature in (None, DUMMY_SIGNATURE) else {"signature": signature}
        summary = {"summary": [{"type": "text", "text": part["text"]}]} if part.get("text") else {}
        return {"type": "thought", **head, **summary}
    return None


def _result(answer: Document) -> Document:
    """A function_result. The client's own result keeps its members and gets the id and the name of its call."""
    call = {"call_id": answer.get("id"), "name": answer.get("name")}
    if isinstance(step := answer.get("step"), dict):
        return {**step, **{key: value for key, value in call.items() if step.get(key) != value and value}}
    response = get(answer, "response") or {}
    failed = {"is_error": True} if response.keys() == {"error"} else {}
    result = response
    if parts := list(objects(get(answer, "parts"))):
        only = response.get("result") if response.keys() == {"result"} else None
        text = only if isinstance(only, str) else encode(response).decode()
        result = [{"type": "text", "text": text}, *map(_file_content, parts)]
    return {"type": "function_result", **call, "result": result, **failed}


def _file_content(part: Document) -> Document:
    """A part of a result as a content. Plain text becomes text; documents have other types."""
    if media_type(part) == "text/plain" and (data := from_base64(str(part["inlineData"]["data"]))) is not None:
        return {"type": "text", "text": data.decode("utf-8", "replace")}
    return _content(part)


def _content(part: Document) -> Document:
    if isinstance(part.get("content"), dict):
        return dict(part["content"])
    for key, value, name in (("inlineData", "data", "data"), ("fileData", "fileUri", "uri")):
        if isinstance(media := get(part, key), dict):
            mime = str(get(media, "mimeType") or "")
            kind = mime.partition("/")[0]
            content: Document = {"type": kind if kind in MEDIA else "document", name: get(media, value)}
            return content if mime.endswith("/*") else {**content, "mime_type": mime}
    return {"type": "text", "text": str(part.get("text", ""))}


# --- streamed steps -------------------------------------------------------------------------------------------


def parts_of_delta(delta: Document) -> list[Document]:
    """The parts of a delta in a step that is not a call."""
    match delta:
        case {"type": "text" | "image" | "audio" | "video" | "document"}:
            return [part_of(delta)]
        case {"type": "thought_signature", "signature": str(signature)}:
            return [thought("", signature)]
        case {"type": "thought_summary", "content": {"text": str(text)}}:
            return [thought(text, None)]
    return []


def with_delta(step: Document, delta: Document) -> Document:
    """A step with a delta added. The arguments of a function_call are pieces of JSON; `completed_step` joins them. May
    change the given step in place."""
    if delta.get("type") == "arguments_delta" and isinstance(piece := delta.get("arguments") or "", str):
        if _JOINED_LATER not in step:
            return {**step, _JOINED_LATER: [piece]}
        step[_JOINED_LATER].append(piece)
        return step
    return step | {key: value for key, value in delta.items() if key != "type"}


def completed_step(step: Document) -> Document:
    """A step with its pieces joined. Arguments other than a JSON object are kept as text under the key `arguments`."""
    whole = {key: value for key, value in step.items() if key != _JOINED_LATER}
    if pieces := "".join(step.get(_JOINED_LATER, ())):
        try:
            arguments = decode(pieces.encode("utf-8", "surrogatepass"))
        except Malformed:
            arguments = None
        whole["arguments"] = arguments if isinstance(arguments, dict) else {"arguments": pieces}
    return whole
