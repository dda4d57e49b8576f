"""Chat completions, requests: converts a rewritten request back to OpenAI's messages, tools and tool choice.

The reverse of `contents`. Unchanged messages and all other members keep their bytes. The same history with the same
results gives the same bytes. System and developer messages keep their positions."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

from addon.core.dialects.chat.contents import (
    CLIENT,
    TranslatedRequest,
    config_of,
    signature_member,
    signature_of,
    tool_call,
)
from addon.core.framing.documents import Document, camel, decode, elements, encode, get, objects, parts_of
from addon.core.history.media import described
from addon.core.history.outcomes import with_omitted
from addon.core.history.request import Piece
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.core.tools.schema import to_json_schema

_CHOICES = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}
_FLATTENED = ("[Called ", "[Used ")


def write_body(
    source: TranslatedRequest, replaced: Mapping[str, bytes | None], contents: Sequence[Piece] | None
) -> bytes:
    """The body with `tools` and `toolConfig` replaced (Gemini's JSON, None to remove them), and its messages made from
    these pieces: spans of `source.gemini`, or new Contents. The same object if nothing changes."""
    new: dict[str, bytes | None] = {}
    if "tools" in replaced:
        new["tools"] = _tools(source, replaced["tools"])
        if new["tools"] is None:
            new["parallel_tool_calls"] = None
    if "toolConfig" in replaced:
        choice = _choice(source, replaced["toolConfig"])
        if choice is not _SAME:
            new["tool_choice"] = None if choice is None else encode(choice)
    if contents is not None:
        new["messages"] = _messages(source, contents)
    return _assembled(source, new)


def _assembled(source: TranslatedRequest, new: Mapping[str, bytes | None]) -> bytes:
    values = {camel(name): value for name, value in new.items()}
    present = {member.name for member in source.members}
    if not any(name in present or value is not None for name, value in values.items()):
        return source.body
    out: list[bytes] = []
    for member in source.members:
        if member.name not in values:
            out.append(source.body[member.key : member.end])
        elif (value := values[member.name]) is not None:
            out.append(source.body[member.key : member.start] + value)
    out += [
        b'"%b":%b' % (name.encode(), value)
        for name, value in new.items()
        if value is not None and camel(name) not in present
    ]
    return b"{" + b",".join(out) + b"}"


def _tools(source: TranslatedRequest, tools: bytes | None) -> bytes | None:
    """Gemini Tools in OpenAI's form. The client's own tools stay unchanged. Built-in tools have no such form."""
    own = next((m for m in source.members if m.name == "tools"), None)
    spans = elements(source.body, own.start, own.end) if own is not None and tools and b'"client"' in tools else []
    made: list[bytes] = []
    for tool in objects(decode(tools or b"null")):
        for declaration in objects(get(tool, "functionDeclarations")):
            place = declaration.get(CLIENT)
            made.append(source.body[slice(*spans[place])] if place is not None else encode(_tool(declaration)))
    return b"[" + b",".join(made) + b"]" if made else None


def _tool(declaration: Document) -> Document:
    function: Document = {key: declaration[key] for key in ("name", "description") if key in declaration}
    if "parametersJsonSchema" in declaration:
        function["parameters"] = declaration["parametersJsonSchema"]
    elif "parameters" in declaration:
        function["parameters"] = to_json_schema(declaration["parameters"])
    else:
        function["parameters"] = {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


_SAME = object()


def _choice(source: TranslatedRequest, config: bytes | None) -> Any:
    """A toolConfig as a tool_choice; None for no choice, `_SAME` if it is the client's own choice."""
    document = decode(config or b"{}")
    calling = get(document, "functionCallingConfig") or {}
    if document.get(CLIENT) and calling == config_of(source.member("toolChoice")).get("functionCallingConfig", {}):
        return _SAME
    choice = _CHOICES.get(str(calling.get("mode", "")).upper())
    names = calling.get("allowedFunctionNames") or []
    if choice == "required" and len(names) == 1:
        return {"type": "function", "function": {"name": names[0]}}
    if choice is not None and names:
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": tools}}
    return choice


def _messages(source: TranslatedRequest, contents: Sequence[Piece]) -> bytes:
    body, spans = source.body, source.messages
    writer, out = _MessageWriter(), list[bytes]()
    others = sorted(
        {*range(len(spans))} - {*source.origins}, reverse=True
    )  # system messages, in reverse order; they stay

    def catch_up(end: int) -> None:
        while others and others[-1] < end:
            out.append(body[slice(*spans[others.pop()])])

    catch_up(source.origins[0] if source.origins else len(spans))
    for piece in contents:
        if isinstance(piece, bytes):
            out += [encode(message) for message in writer.messages(decode(piece))]
            continue
        first, last = (bisect.bisect_left(source.contents, edge) for edge in piece)
        begin, end = source.origins[first], source.origins[last - 1]
        catch_up(begin)
        out.append(body[spans[begin][0] : spans[end][1]])
        while others and others[-1] < end:
            others.pop()  # already written with the messages around it
        writer.open = list(source.calls.get(end, ()))
    catch_up(len(spans))
    return b"[" + b",".join(out) + b"]"


class _MessageWriter:
    """Converts Contents to messages. `open`: name and id of the unanswered calls of the last step. A call without an id
    gets one, because answers refer to it."""

    def __init__(self) -> None:
        self.open: list[tuple[str, str]] = []
        self.made = 0

    def messages(self, content: Document) -> list[Document]:
        if content.get("role") == "model":
            return [self._assistant(content)]
        parts = parts_of(content)
        messages = [self._answer(one) for part in parts if isinstance(one := get(part, "functionResponse"), dict)]
        others = [part for part in parts if get(part, "functionResponse") is None]
        if others:
            content_parts = [_part(part) for part in others]
            only = others[0].get("text") if len(others) == 1 else None
            messages.append({"role": "user", "content": content_parts if only is None else only})
        return messages

    def _assistant(self, content: Document) -> Document:
        parts = [part for part in parts_of(content) if not part.get("thought") or "thoughtSignature" in part]
        message: Document = {"role": "assistant"}
        visible = [part for part in parts if get(part, "functionCall") is None and not part.get("thought")]
        if any("contentPart" in part for part in visible):
            message["content"] = [_part(part) for part in visible if part.get("text") != ""]
        elif text := _joined([str(part.get("text", "")) for part in visible]):
            message["content"] = text
        calls: list[Document] = []
        late: Any = None
        for part in parts:
            signature = get(part, "thoughtSignature")
            if get(part, "functionCall") is not None:
                calls.append(self._call(part))
            elif signature is not None and calls and not part.get("text"):
                late = signature
            elif signature is not None:
                message |= signature_member(signature)
        if late is not None and signature_of(calls[0]) in (None, DUMMY_SIGNATURE):
            calls[0] |= signature_member(late)  # it followed its call
        if calls:
            message["tool_calls"] = calls
            self.open = [(call["function"]["name"], call["id"]) for call in calls]
        elif "content" not in message:
            message["content"] = ""
        others = content.get("message")
        return (others if isinstance(others, dict) else {}) | message

    def _call(self, part: Document) -> Document:
        call = tool_call(part)
        if not call["id"]:
            self.made += 1
            call["id"] = f"call_{self.made}"
        return call

    def _answer(self, answer: Document) -> Document:
        call_id, name = answer.get("id"), answer.get("name")
        call = next((one for one in self.open if one[1] == call_id), None)
        call = call or next((one for one in self.open if not call_id and one[0] == name), None)
        if call is not None:
            self.open.remove(call)
            call_id = call[1]
        response = get(answer, "response") or {}
        if left := [described(part) for part in objects(get(answer, "parts"))]:
            response = with_omitted(response, left, "results are text alone in this API")
        content = answer["content"] if "content" in answer else encode(response).decode()
        return {"role": "tool", "tool_call_id": call_id or "", "content": content}


def _part(part: Document) -> Document:
    return part["contentPart"] if "contentPart" in part else {"type": "text", "text": str(part.get("text", ""))}


def _joined(texts: Sequence[str]) -> str:
    """Texts joined into one. The text of a flattened call starts on a new line."""
    joined = ""
    for text in texts:
        joined += "\n" if joined and text.startswith(_FLATTENED) else ""
        joined += text
    return joined
