"""The fuzzed surfaces, good answers of each, and clients' readings of answers."""

import contextlib
import json
import random
from dataclasses import dataclass
from typing import Any

from addon.core.framing.documents import Document, encode
from addon.core.framing.streams import sse_event
from addon.surfaces.incoming import Framing, Target
from addon.surfaces.registry import match

HIDDEN = "hidden_tool"
MODEL = "gemini-3-flash-preview"
_GOOGLE = "generativelanguage.googleapis.com"
_DEVELOPER = f"/v1beta/models/{MODEL}"


@dataclass(frozen=True, slots=True)
class Shape:
    """A surface's request, and the framing of its answers."""

    host: str
    path: str
    body: Document
    framing: Framing
    kind: str

    @property
    def target(self) -> Target:
        target = match("POST", self.host, self.path)
        assert target is not None
        return target


def _user(text: str) -> Document:
    return {"role": "user", "parts": [{"text": text}]}


CONTENTS = [_user("hi"), {"role": "model", "parts": [{"text": "yes"}]}, _user("go on")]
_WRAPPED = {"model": MODEL, "project": "p", "request": {"contents": CONTENTS}}
_CODE_ASSIST = "cloudcode-pa.googleapis.com"


def _chat(stream: bool) -> Document:
    return {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}


def _interaction(stream: bool) -> Document:
    return {"model": MODEL, "stream": stream, "input": "hi"}


SHAPES = (
    Shape(_GOOGLE, f"{_DEVELOPER}:generateContent", {"contents": CONTENTS}, Framing.JSON, "gemini"),
    Shape(_GOOGLE, f"{_DEVELOPER}:streamGenerateContent?alt=sse", {"contents": CONTENTS}, Framing.SSE, "gemini"),
    Shape(_GOOGLE, f"{_DEVELOPER}:streamGenerateContent", {"contents": CONTENTS}, Framing.ARRAY, "gemini"),
    Shape(_CODE_ASSIST, "/v1internal:generateContent", _WRAPPED, Framing.JSON, "wrapped"),
    Shape(_CODE_ASSIST, "/v1internal:streamGenerateContent?alt=sse", _WRAPPED, Framing.SSE, "wrapped"),
    Shape(_GOOGLE, "/v1beta/openai/chat/completions", _chat(False), Framing.JSON, "chat"),
    Shape(_GOOGLE, "/v1beta/openai/chat/completions", _chat(True), Framing.SSE, "chat"),
    Shape(_GOOGLE, "/v1beta/interactions", _interaction(False), Framing.JSON, "interaction"),
    Shape(_GOOGLE, "/v1beta/interactions", _interaction(True), Framing.SSE, "interaction"),
)


def answer_of(shape: Shape, rng: random.Random, *, calls: bool = True, text: str = "a ") -> list[Document | bytes]:
    """The documents of a good answer: text, calls, an end."""
    names = [HIDDEN] * rng.choice((1, 1, 1, 2)) + ["own"] * rng.choice((0, 0, 0, 1)) if calls else []
    if shape.kind == "chat":
        return _chat_answer(shape, names, text)
    if shape.kind == "interaction":
        return _interaction_answer(shape, names, f"v1_{rng.randrange(1 << 40)}", text)
    args = {"a": rng.choice((1, "x", None, [1.5, {"b": True}]))}
    parts: list[Document] = [{"text": text}]
    for number, name in enumerate(names):
        part: Document = {"functionCall": {"id": f"c{number}", "name": name, "args": args}}
        parts.append(part if number else {**part, "thoughtSignature": "c2ln"})
    split = shape.framing is not Framing.JSON and rng.random() < 0.7
    groups = [[part] for part in parts] if split else [parts]
    found: list[Document | bytes] = []
    for number, group in enumerate(groups):
        candidate: Document = {"content": {"role": "model", "parts": group}, "index": 0}
        if number == len(groups) - 1:
            candidate["finishReason"] = "STOP"
        one: Document = {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 3}, "responseId": "r"}
        found.append({"response": one} if shape.kind == "wrapped" else one)
    return found


def _chat_answer(shape: Shape, names: list[str], text: str) -> list[Document | bytes]:
    function = {"arguments": '{"a": 1}'}
    called = [
        {"index": number, "id": f"c{number}", "type": "function", "function": {"name": name, **function}}
        for number, name in enumerate(names)
    ]
    message: Document = {"role": "assistant", "content": text, **({"tool_calls": called} if called else {})}
    head, reason = {"id": "x", "created": 1, "model": MODEL}, "tool_calls" if called else "stop"
    if shape.framing is Framing.JSON:
        return [
            {
                **head,
                "object": "chat.completion",
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            }
        ]
    chunk = {**head, "object": "chat.completion.chunk"}
    pieces = [message]
    if called:  # the last call's arguments arrive in two pieces
        cut = {**called[-1], "function": {"name": names[-1], "arguments": '{"a"'}}
        pieces = [{**message, "tool_calls": [*called[:-1], cut]}]
        pieces.append({"tool_calls": [{"index": cut["index"], "function": {"arguments": ": 1}"}}]})
    chunks = [{**chunk, "choices": [{"index": 0, "delta": piece}]} for piece in pieces]
    return [*chunks, {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}, b"[DONE]"]


def _interaction_answer(shape: Shape, names: list[str], name: str, words: str) -> list[Document | bytes]:
    text: Document = {"type": "model_output", "content": [{"type": "text", "text": words}]}
    steps = [
        {"type": "function_call", "id": f"c{n}", "name": one, "arguments": {"a": 1}} for n, one in enumerate(names)
    ]
    ended = {"id": name, "status": "requires_action" if names else "completed", "model": MODEL}
    if shape.framing is Framing.JSON:
        return [{**ended, "steps": [text, *steps]}]
    events: list[Document] = [
        {"event_type": "interaction.created", "interaction": {**ended, "status": "in_progress"}},
        {"event_type": "step.start", "index": 0, "step": {"type": "model_output"}},
        {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": words}},
        {"event_type": "step.stop", "index": 0},
    ]
    for index, step in enumerate(steps, 1):
        delta = {"type": "arguments_delta", "arguments": '{"a": 1}'}
        events.append({"event_type": "step.start", "index": index, "step": {**step, "arguments": {}}})
        events.append({"event_type": "step.delta", "index": index, "delta": delta})
        events.append({"event_type": "step.stop", "index": index})
    return [*events, {"event_type": "interaction.completed", "interaction": ended}, b"[DONE]"]


def body_of(shape: Shape, documents: list[Document | bytes]) -> bytes:
    written = [one if isinstance(one, bytes) else encode(one) for one in documents]
    if shape.framing is Framing.SSE:
        return b"".join(b"data: [DONE]\n\n" if one == b"[DONE]" else sse_event(one) for one in written)
    return b"[" + b",\r\n".join(written) + b"]" if shape.framing is Framing.ARRAY else written[0]


KINDS = {Framing.SSE: "text/event-stream", Framing.JSON: "application/json", Framing.ARRAY: "application/json"}
"""Content types."""


def read(out: bytes) -> list[Any]:
    """The documents that a client could read in an answer: whole, event by event or line by line. Python's reader
    accepts more than JSON."""
    lines = out.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    texts, event = [out], list[bytes]()
    for line in [*lines, b""]:
        if line.startswith(b"data:"):
            texts.append(line[5:])
            event.append(line[5:])
        elif not line and len(event) > 1:
            texts.append(b"\n".join(event))
        event = event if line else []
    found = []
    for text in texts:
        with contextlib.suppress(ValueError, RecursionError):
            found.append(json.loads(text))
    return found


_CALLS = {
    "gemini": ("functionCall", "function_call"),
    "wrapped": ("functionCall", "function_call"),
    "chat": ("tool_calls.function", "function_call"),
    "live": ("functionCall", "function_call", "functionCalls", "function_calls"),
}
"""The keys of calls, by kind. Others are known by their type."""


def shows_call(document: Any, kind: str) -> bool:
    """Whether a client could find a call of the hidden tool anywhere in a document."""
    calls = _CALLS.get(kind, ())
    left: list[tuple[str, Any]] = [("", document)]
    while left:
        key, value = left.pop()
        if isinstance(value, list):
            left += [(key, one) for one in value]
        elif isinstance(value, dict):
            is_call = key in calls or (not calls and value.get("type") == "function_call")
            if is_call and value.get("name") == HIDDEN:
                return True
            inner = [name for name in value if not (is_call and name in ("args", "arguments"))]
            left += [(f"tool_calls.{name}" if key == "tool_calls" else name, value[name]) for name in inner]
    return False


class Failure(Exception):
    """The proxy did something that it must never do."""


def check_hidden(out: bytes, kind: str) -> None:
    """Raise Failure if a client could find a call of the hidden tool."""
    if (HIDDEN.encode() in out or b"\\u" in out) and any(shows_call(one, kind) for one in read(out)):
        raise Failure(f"the client was shown the call: {out[-400:]!r}")
