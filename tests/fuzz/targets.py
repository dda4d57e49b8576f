"""What the fuzzer feeds: upstream answers, and clients' requests, of every surface. Each try is one seed's."""

import contextlib
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from addon.core.framing.documents import Document, encode
from addon.core.framing.sse import encode as sse_event
from addon.graft.capture import Capture, concerns, note_answer
from addon.graft.exchange import Forward, Reply
from addon.graft.grafter import Grafter
from addon.metrics import Metrics
from addon.settings import Settings
from addon.surfaces import match
from addon.surfaces.base import Framing, Target
from store.base import Store
from store.models import Policy, Toolset
from tests.fuzz.mutations import mutated, pieces

HIDDEN = "hidden_tool"
MODEL = "gemini-3-flash-preview"
_GOOGLE = "generativelanguage.googleapis.com"
_DEVELOPER = f"/v1beta/models/{MODEL}"
_PLACEHOLDER = "Done. [{turn_id}]"


@dataclass(frozen=True, slots=True)
class Shape:
    """A surface's request, and how its answers are framed."""

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


_CONTENTS = [_user("hi"), {"role": "model", "parts": [{"text": "yes"}]}, _user("go on")]
_WRAPPED = {"model": MODEL, "project": "p", "request": {"contents": _CONTENTS}}
_CODE_ASSIST = "cloudcode-pa.googleapis.com"


def _chat(stream: bool) -> Document:
    return {"model": MODEL, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}


def _interaction(stream: bool) -> Document:
    return {"model": MODEL, "stream": stream, "input": "hi"}


SHAPES = (
    Shape(_GOOGLE, f"{_DEVELOPER}:generateContent", {"contents": _CONTENTS}, Framing.JSON, "gemini"),
    Shape(_GOOGLE, f"{_DEVELOPER}:streamGenerateContent?alt=sse", {"contents": _CONTENTS}, Framing.SSE, "gemini"),
    Shape(_GOOGLE, f"{_DEVELOPER}:streamGenerateContent", {"contents": _CONTENTS}, Framing.ARRAY, "gemini"),
    Shape(_CODE_ASSIST, "/v1internal:generateContent", _WRAPPED, Framing.JSON, "wrapped"),
    Shape(_CODE_ASSIST, "/v1internal:streamGenerateContent?alt=sse", _WRAPPED, Framing.SSE, "wrapped"),
    Shape(_GOOGLE, "/v1beta/openai/chat/completions", _chat(False), Framing.JSON, "chat"),
    Shape(_GOOGLE, "/v1beta/openai/chat/completions", _chat(True), Framing.SSE, "chat"),
    Shape(_GOOGLE, "/v1beta/interactions", _interaction(False), Framing.JSON, "interaction"),
    Shape(_GOOGLE, "/v1beta/interactions", _interaction(True), Framing.SSE, "interaction"),
)


def _documents(shape: Shape, rng: random.Random) -> list[Document | bytes]:
    """A good answer: text, calls, an end."""
    call = {"id": "c1", "name": HIDDEN, "args": {"a": rng.choice((1, "x", None, [1.5, {"b": True}]))}}
    if shape.kind == "chat":
        tool_call = {"index": 0, "id": "c1", "type": "function", "function": {"name": HIDDEN, "arguments": '{"a": 1}'}}
        message: Document = {"role": "assistant", "content": "a ", "tool_calls": [tool_call]}
        head = {"id": "x", "created": 1, "model": MODEL}
        if shape.framing is Framing.JSON:
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            return [{**head, "object": "chat.completion", "choices": [choice]}]
        chunk = {**head, "object": "chat.completion.chunk"}
        ends = [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]
        return [{**chunk, "choices": [{"index": 0, "delta": message}]}, {**chunk, "choices": ends}, b"[DONE]"]
    if shape.kind == "interaction":
        step: Document = {"type": "function_call", "id": "c1", "name": HIDDEN, "arguments": {"a": 1}}
        text: Document = {"type": "model_output", "content": [{"type": "text", "text": "a "}]}
        ended = {"id": "v1_x", "status": "requires_action", "model": MODEL}
        if shape.framing is Framing.JSON:
            return [{**ended, "steps": [text, step]}]
        return [
            {"event_type": "interaction.created", "interaction": {**ended, "status": "in_progress"}},
            {"event_type": "step.start", "index": 0, "step": {"type": "model_output"}},
            {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": "a "}},
            {"event_type": "step.stop", "index": 0},
            {"event_type": "step.start", "index": 1, "step": step},
            {"event_type": "step.stop", "index": 1},
            {"event_type": "interaction.completed", "interaction": ended},
            b"[DONE]",
        ]
    parts: list[Document] = [{"text": "a "}, {"functionCall": call, "thoughtSignature": "c2ln"}]
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


def _body(shape: Shape, documents: list[Document | bytes]) -> bytes:
    written = [one if isinstance(one, bytes) else encode(one) for one in documents]
    if shape.framing is Framing.SSE:
        return b"".join(b"data: [DONE]\n\n" if one == b"[DONE]" else sse_event(one) for one in written)
    return b"[" + b",\r\n".join(written) + b"]" if shape.framing is Framing.ARRAY else written[0]


def _read(out: bytes) -> Iterator[Any]:
    """What a client reads in an answer; Python's own reader takes more than JSON allows."""
    events = [line[5:] for line in re.split(rb"\r\n|\r|\n", out) if line.startswith(b"data:")]
    for text in (out, *events):
        with contextlib.suppress(ValueError, RecursionError):
            yield json.loads(text)


_PATHS = {
    "gemini": [("candidates", "content", "parts", "functionCall"), ("candidates", "content", "parts", "function_call")],
    "chat": [("choices", "message", "tool_calls", "function"), ("choices", "delta", "tool_calls", "function")],
}
"""Where clients look for calls."""


def _calls(kind: str, document: Any) -> bool:
    """Whether a client finds a call of the hidden tool in a document."""
    if kind == "interaction":
        given = document if isinstance(document, dict) else {}
        step = given.get("step") if given.get("event_type") == "step.start" else None
        steps = given.get("steps") if "event_type" not in given else None
        found = [step, *(steps if isinstance(steps, list) else [])]
        return any(isinstance(one, dict) and one.get("type") == "function_call" and _named(one, ()) for one in found)
    paths = _PATHS["gemini" if kind == "wrapped" else kind]
    return any(_named(document, ("response", *path) if kind == "wrapped" else path) for path in paths)


def _named(value: Any, path: tuple[str, ...]) -> bool:
    if isinstance(value, list):
        return any(_named(one, path) for one in value)
    if not isinstance(value, dict):
        return False
    return _named(value.get(path[0]), path[1:]) if path else value.get("name") == HIDDEN


class Failure(Exception):
    """What the proxy must never do, and did."""


class Answers:
    """Upstream answers, in sessions whose client may not see a call."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.grafter = Grafter(store, Settings(placeholder=_PLACEHOLDER), Metrics())

    async def open(self) -> None:
        for delivery in ("placeholder", "auto"):
            tools = [{"name": HIDDEN, "description": "d"}]
            await self.store.put_policy(delivery, Policy(delivery=delivery))
            await self.store.put_toolset(delivery, Toolset(declarations=tools))

    async def run(self, rng: random.Random) -> bytes:
        """One try; the bytes that were fed. Raises Failure."""
        shape = rng.choice(SHAPES)
        data = mutated(_body(shape, _documents(shape, rng)), rng)
        config = await self.grafter.session_config(rng.choice(("placeholder", "auto")))
        assert config is not None
        outcome = await self.grafter.request(shape.target, config, encode(shape.body), asker="key:k", url=shape.path)
        assert isinstance(outcome, Forward)
        assert outcome.exchange is not None
        kinds = {Framing.SSE: "text/event-stream", Framing.JSON: "application/json", Framing.ARRAY: "application/json"}
        capture = Capture(self.grafter, outcome.exchange, kinds[shape.framing])
        if shape.framing is Framing.JSON:
            if not concerns(outcome.exchange, data):
                await note_answer(self.grafter, outcome.exchange, kinds[shape.framing], data)
                output: bytes | Reply = data
            else:
                output = await capture.whole(data)
            out = output.body if isinstance(output, Reply) else output
        else:
            out = b"".join(capture.feed(piece) for piece in pieces(data, rng)) + capture.finish()
        capture.settle_handover(True)
        if any(_calls(shape.kind, one) for one in _read(out)):
            raise Failure(f"the client was shown the call: {out[-400:]!r}")
        return data


class Requests:
    """Clients' requests, in a session whose ledger has turns."""

    def __init__(self, store: Store) -> None:
        self.answers = Answers(store)

    async def open(self) -> None:
        await self.answers.open()

    async def run(self, rng: random.Random) -> bytes:
        shape = rng.choice(SHAPES)
        body: Document = dict(shape.body)
        if shape.kind in ("gemini", "wrapped") and rng.random() < 0.8:
            request = body["request"] = dict(body["request"]) if shape.kind == "wrapped" else body
            if shape.kind == "gemini":
                del body["request"]
            request["tools"] = [{"functionDeclarations": [{"name": "own", "parameters": {"type": "OBJECT"}}]}]
            request["toolConfig"] = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["own"]}}
            called = {"functionCall": {"name": "own", "args": {"a": [1]}, "id": "1"}, "thoughtSignature": "c2ln"}
            answered = {"functionResponse": {"name": "own", "id": "1", "response": {"b": "c"}}}
            history = [{"role": "model", "parts": [called]}, {"role": "user", "parts": [answered]}]
            request["contents"] = [*_CONTENTS, *history]
        data = mutated(encode(body), rng)
        grafter = self.answers.grafter
        config = await grafter.session_config(rng.choice(("placeholder", "auto")))
        assert config is not None
        outcome = await grafter.request(shape.target, config, data, asker="key:k", url=shape.path)
        if isinstance(outcome, Reply) and outcome.status >= 500:
            raise Failure(f"a request was answered {outcome.status}: {outcome.body!r}")
        return data
