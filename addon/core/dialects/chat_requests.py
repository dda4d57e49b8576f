"""Chat completions, requests: converts OpenAI's messages, tools and tool choice to Gemini's form and back.

`translate` converts a body to a Gemini request with the fields that grafting needs, and records the position of each
message; `write_body` converts back. System and developer messages become no Contents. A thoughtSignature is
`extra_content.google.thought_signature` of a call, or of a message for its text.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from addon.core.framing.documents import (
    Document,
    Malformed,
    Member,
    NotGrafted,
    camel,
    decode,
    elements,
    encode,
    get,
    members,
    objects,
    parts_of,
)
from addon.core.history.outcomes import described, response_of, with_omitted
from addon.core.history.request import Piece
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.core.tools.schema import schema_of

CLIENT = "client"
"""A key in declarations and in a toolConfig: it came from the client, and stays unchanged."""

_LEGACY = ("functions", "functionCall")
_MODES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}


class _Head(msgspec.Struct, gc=False):
    role: str
    content: msgspec.Raw = msgspec.field(default=msgspec.Raw(b"null"))


_heads = msgspec.json.Decoder(_Head)
_raw_parts = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


class TranslatedRequest(NamedTuple):
    """`gemini`: the request in Gemini's form. `contents`: the start of each Content in it. `origins`: the index of each
    Content's message. `messages`: the spans of all messages in `body`. `calls`: index of a message → the name and id of
    each of its calls."""

    body: bytes
    gemini: bytes
    members: tuple[Member, ...]
    messages: tuple[tuple[int, int], ...]
    contents: tuple[int, ...]
    origins: tuple[int, ...]
    calls: Mapping[int, Sequence[tuple[str, str]]]

    def member(self, name: str) -> Any:
        """The value of a member of the body, by its camelCase name; None if absent or null."""
        return next((decode(self.body[m.start : m.end]) for m in self.members if m.name == name), None)


def translate(body: bytes) -> TranslatedRequest:
    """A body of chat completions in Gemini's form. Raises Malformed, and NotGrafted for the older `functions` and
    `function_call` and for calls of tools that are not functions."""
    found = tuple(members(body))
    values = {m.name: body[m.start : m.end] for m in found if body[m.start : m.end] != b"null"}
    for name in _LEGACY:
        if name in values:
            raise NotGrafted(f"{name} is the older form, before tools")
    at = next((m for m in found if m.name == "messages"), None)
    if at is None:
        raise Malformed("the body has no member 'messages'")
    messages = tuple(elements(body, at.start, at.end))
    out = bytearray(b'{"contents":[')
    starts: list[int] = []
    origins: list[int] = []
    calls: dict[int, list[tuple[str, str]]] = {}
    names: dict[str, str] = {}
    for index, (start, end) in enumerate(messages):
        content = _content(memoryview(body)[start:end], names)
        if content is None:
            continue
        if content.calls:
            calls[index] = content.calls
            names |= {call_id: name for name, call_id in content.calls}
        out += b"," if starts else b""
        starts.append(len(out))
        origins.append(index)
        out += content.body
    out += b"]"
    for name, value in _members(values).items():
        out += b',"%b":%b' % (name.encode(), value)
    out += b"}"
    return TranslatedRequest(body, bytes(out), found, messages, tuple(starts), tuple(origins), calls)


class _Content(NamedTuple):
    body: bytes
    calls: list[tuple[str, str]]


def _content(message: memoryview, names: Mapping[str, str]) -> _Content | None:
    """A message as a Content; None for a system message. `names`: call id → function name, for the earlier calls."""
    try:
        head = _heads.decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"messages: {error}") from None
    match head.role:
        case "system" | "developer":
            return None
        case "user":
            return _Content(b'{"role":"user","parts":[%b]}' % b",".join(_user_parts(head.content)), [])
        case "assistant":
            content = _assistant(decode(message))
            found = [get(part, "functionCall") for part in parts_of(content)]
            calls = [(str(call["name"]), str(call.get("id", ""))) for call in found if call is not None]
            return _Content(encode(content), calls)
        case "tool":
            return _Content(encode({"role": "user", "parts": [_answer(decode(message), names)]}), [])
    raise NotGrafted(f"messages: {head.role!r} is not a known role")


def _user_parts(content: msgspec.Raw) -> Iterator[bytes]:
    """A user's content as the JSON of parts. Does not decode media."""
    opening = bytes(memoryview(content)[:1])
    if opening == b'"':
        yield b'{"text":%b}' % content
    elif opening == b"[":
        try:
            for part, whole in zip(_raw_parts.decode(content), _raw_list.decode(content), strict=True):
                plain = part.keys() == {"type", "text"} and bytes(part["type"]) == b'"text"'
                yield b'{"text":%b}' % part["text"] if plain else b'{"contentPart":%b}' % whole
        except msgspec.DecodeError as error:
            raise Malformed(f"messages: {error}") from None


def _assistant(message: Document) -> Document:
    parts: list[Document] = []
    content = message.get("content")
    for one in content if isinstance(content, list) else [content]:
        if isinstance(one, str) and one:
            parts.append({"text": one})
        elif isinstance(one, dict):
            plain = one.keys() == {"type", "text"} and one["type"] == "text"
            parts.append({"text": one["text"]} if plain else {"contentPart": one})
    if (signature := signature_of(message)) is not None:
        last = next((part for part in reversed(parts) if "text" in part), None)
        if last is None:
            parts.insert(0, {"text": "", "thoughtSignature": signature})
        else:
            last["thoughtSignature"] = signature
    parts += [call_part(call) for call in objects(message.get("tool_calls"))]
    others = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls")}
    return {"role": "model", "parts": parts} | ({"message": others} if others else {})


def call_part(call: Document) -> Document:
    """A complete tool call as a functionCall part. Arguments that are not an object are kept under the key `arguments`.
    Raises NotGrafted."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise NotGrafted("a tool call is not a function call")
    given = function.get("arguments")
    args: Any = given
    if isinstance(given, str):
        try:
            args = decode(given.encode("utf-8", "surrogatepass")) if given.strip() else {}
        except Malformed:
            args = None
    head: Document = {"id": call["id"]} if call.get("id") else {}
    called = {**head, "name": function["name"], "args": args if isinstance(args, dict) else {"arguments": given}}
    signature = signature_of(call)
    return {"functionCall": called} | ({} if signature is None else {"thoughtSignature": signature})


def tool_call(part: Document) -> Document:
    """A functionCall part as a tool call. A missing id becomes ""."""
    call = get(part, "functionCall")
    function = {"name": call.get("name", ""), "arguments": encode(get(call, "args") or {}).decode()}
    made: Document = {"id": call.get("id") or "", "type": "function", "function": function}
    return made if (signature := get(part, "thoughtSignature")) is None else made | signature_member(signature)


def signature_of(document: Document) -> str | None:
    """The thoughtSignature of a message, a call or a delta."""
    extra = document.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    signature = google.get("thought_signature") if isinstance(google, dict) else None
    return signature if isinstance(signature, str) and signature else None


def signature_member(signature: Any) -> Document:
    """The member that holds the signature of a message or a call."""
    return {"extra_content": {"google": {"thought_signature": signature}}}


def _answer(message: Document, names: Mapping[str, str]) -> Document:
    """A tool message as a functionResponse part. `content` keeps the client's original content."""
    call_id, content = message.get("tool_call_id"), message.get("content")
    text = content
    if isinstance(content, list):
        text = "".join(str(part.get("text", "")) for part in objects(content))
    name = (names.get(call_id) if isinstance(call_id, str) else None) or message.get("name") or ""
    head: Document = {"id": call_id} if call_id else {}
    return {"functionResponse": {**head, "name": name, "response": response_of(text, None), "content": content}}


def _members(values: Mapping[str, bytes]) -> dict[str, bytes]:
    """The other members of a request that grafting needs."""
    made: dict[str, bytes] = {name: values[name] for name in ("model",) if name in values}
    if tools := _own_tools(decode(values.get("tools", b"null"))):
        made["tools"] = encode(tools)
    if "toolChoice" in values:
        made["toolConfig"] = encode({**config_of(decode(values["toolChoice"])), CLIENT: True})
    if config := _generation_config(values):
        made["generationConfig"] = encode(config)
    extra = decode(values.get("extraBody", b"null"))
    google = extra.get("google") if isinstance(extra, dict) else None
    if isinstance(google, dict) and isinstance(google.get("cached_content"), str):
        made["cachedContent"] = encode(google["cached_content"])
    return made


def _own_tools(tools: Any) -> list[Document]:
    """The client's own tools, as names and positions only."""
    functions = enumerate(one.get("function") for one in objects(tools))
    return [
        {"functionDeclarations": [{"name": str(one.get("name")) if isinstance(one, dict) else "", CLIENT: place}]}
        for place, one in functions
    ]


def config_of(choice: Any) -> Document:
    """A tool_choice as a toolConfig; {} for an unknown one."""
    if isinstance(choice, str) and choice in _MODES:
        return {"functionCallingConfig": {"mode": _MODES[choice]}}
    if not isinstance(choice, dict):
        return {}
    if choice.get("type") == "allowed_tools" and isinstance(allowed := choice.get("allowed_tools"), dict):
        names = [_function_name(one) for one in objects(allowed.get("tools"))]
        mode = "VALIDATED" if allowed.get("mode") == "auto" else "ANY"
        return {"functionCallingConfig": {"mode": mode, "allowedFunctionNames": names}}
    if name := _function_name(choice):
        return {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [name]}}
    return {}


def _function_name(choice: Document) -> str:
    function = choice.get("function")
    return str(function.get("name", "")) if isinstance(function, dict) else ""


def _generation_config(values: Mapping[str, bytes]) -> Document:
    config: Document = {}
    if isinstance(count := decode(values.get("n", b"null")), int):
        config["candidateCount"] = count
    form = decode(values.get("responseFormat", b"null"))
    if isinstance(form, dict) and form.get("type") in ("json_object", "json_schema"):
        config["responseMimeType"] = "application/json"
    if isinstance(modalities := decode(values.get("modalities", b"null")), list):
        config["responseModalities"] = modalities
    return config


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
    schema = schema_of(declaration)
    function["parameters"] = {"type": "object", "properties": {}} if schema is None else schema
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
