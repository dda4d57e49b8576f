"""The Interactions API: a request names the interaction before it, and the service keeps the history.

The Wire reads steps as Contents and a stream of steps as Gemini's responses. Each answer that the service keeps begins
with a part that holds its id (`contents.mark_part`). The service already has all Contents up to the last such
part, so the request sends that id instead of them. Thus a loop continues by id, an id that the client holds is mapped
to the last id of its turn, and a client that sends its whole history is served as on other surfaces.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from addon.core.answers.answer import CONTINUATION
from addon.core.dialects.interactions import contents as own
from addon.core.dialects.interactions import tools as interaction_tools
from addon.core.dialects.interactions.stream import DONE, InteractionStream, reusable_bytes, sse_event, status_of
from addon.core.framing.documents import Document, Malformed, camel, decode, encode, objects, parts_of
from addon.core.framing.json_array import ArrayItem
from addon.core.framing.sse import SseEvent
from addon.core.history.request import Piece, Prefix, Request, assemble, parse
from addon.surfaces import developer, vertex
from addon.surfaces.base import Framing, Operation, Surface, Target
from addon.surfaces.wire import Wire

_FINISH = {
    "completed": "STOP",
    "requires_action": "STOP",
    "incomplete": "MAX_TOKENS",
    "budget_exceeded": "MAX_TOKENS",
    "requires_continuation": CONTINUATION,
}
_SERVED = ("toolCall", "toolResponse")
_NO_USAGE = {"total_tokens": 0, "total_input_tokens": 0, "total_output_tokens": 0}


class InteractionsWire(Wire):
    native = False
    call_markers = (b'"function_call"',)
    done = b"[DONE]"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._body = b""
        self._request: Document = {}
        self._input: list[Document] = []
        self._answers: list[Document] = []  # complete answers, not streamed
        self._stream = InteractionStream()
        self._done = DONE
        self._first = ""  # the first interaction of an answer that broke off
        self._last = ""  # the last interaction that the service made and keeps
        self._unfinished = ""  # the interaction whose rest is requested

    # --- requests ---------------------------------------------------------------------------------------------

    def read(self, body: bytes, known: Prefix | None = None) -> Request:
        given = decode(body)
        if not isinstance(given, dict):
            raise Malformed("the body is not an object")
        for name in ("agent", "background"):
            if given.get(name):
                raise Malformed(f"tools cannot be grafted into a request with {name!r}")
        self._body, self._request = body, given
        self._input = own.input_steps(given.get("input"))
        self.keeps_history = bool(self._previous)
        if given.get("stream"):
            self.target = self.target.streamed()
        return parse(own.gemini_request(given, self._previous, self._input))

    def write(self, request: Request, replaced: Mapping[str, bytes | None], contents: Sequence[Piece] | None) -> bytes:
        outer = parse(self._body)
        new: dict[str, bytes | None] = {}
        if "tools" in replaced:
            tools = decode(replaced["tools"] or b"[]")
            converted = interaction_tools.to_interaction_tools(tools)
            new["tools"] = encode(converted) if converted else None
            if unsupported := interaction_tools.unsupported_tools(tools):
                self.dropped = f"{', '.join(unsupported)}: the Interactions API has no such tool"
        if "toolConfig" in replaced:
            new["generation_config"] = interaction_tools.with_choice(
                outer.value("generationConfig"), replaced["toolConfig"]
            )
        if "continuationToken" in replaced:
            new["continuation_token"] = replaced["continuationToken"]
        if self._unfinished:  # its id is enough: the service has the input
            new |= {"previous_interaction_id": encode(self._unfinished), "input": None}
        elif contents is not None:
            previous, steps = self._split_history(request, contents)
            if previous != self._previous:
                new["previous_interaction_id"] = encode(previous)
            if steps != self._input:
                new["input"] = encode(steps)
        present = {member.name for member in outer.members}
        return assemble(outer, {camel(k) if camel(k) in present else k: value for k, value in new.items()})

    def next_request(
        self, request: Request, added: Sequence[Document], mode: str | None, token: str | None = None
    ) -> bytes:
        self._stream.rounds += 1
        self._unfinished = self._last if self._stream.rounds > 1 and token is not None else ""
        return super().next_request(request, added, mode, token)

    @property
    def _previous(self) -> str | None:
        previous = self._request.get("previous_interaction_id")
        return previous if isinstance(previous, str) and previous else None

    def _split_history(self, request: Request, contents: Sequence[Piece]) -> tuple[str | None, list[Document]]:
        """The interaction that the Contents continue, and the steps that are new to the service."""
        spans = [span for turn in request.history.turns for span in turn.spans]
        stored = len(spans) - len(self._input)
        previous: str | None = None
        names: dict[str, str] = {}
        steps: list[Document] = []
        for piece in contents:
            if isinstance(piece, bytes):
                content = decode(piece)
                if (interaction := own.marked_id(content)) is not None:
                    previous, names, steps = interaction, own.call_names(content), []
                else:
                    steps += [own.with_call_name(step, names) for step in own.steps_of(content)]
                continue
            for number, (start, end) in enumerate(spans):
                if piece[0] <= start and end <= piece[1]:
                    if number < stored:
                        previous = self._previous
                    else:
                        steps.append(self._input[number - stored])
        return previous, steps

    def instruction(self, request: Request) -> bytes:
        return encode(self._request.get("system_instruction") or "")

    # --- answers ----------------------------------------------------------------------------------------------

    def resume(self, rounds: int, visible: Sequence[Document]) -> None:
        self._stream.rounds = rounds
        self._first = next((name for part in visible if (name := own.marked_id({"parts": [part]})) is not None), "")
        if text := _text(list(visible)):
            self._answers.append({"steps": [{"type": "model_output", "content": [{"type": "text", "text": text}]}]})

    def unwrap(self, document: object) -> Document | None:
        if not isinstance(document, dict):
            return None
        if isinstance(document.get("event_type"), str):
            return self._unwrap_event(document)
        if "error" in document or not ("status" in document or isinstance(document.get("steps"), list)):
            return None
        self._answers.append(document)
        parts = [part for step in objects(document.get("steps")) for part in own.parts_of_step(step)]
        return _response([*self._mark(document), *parts], document)

    def _unwrap_event(self, document: Document) -> Document | None:
        parts = self._stream.read(document)
        match document:
            case {"event_type": "interaction.created", "interaction": dict(interaction)}:
                parts = self._mark(interaction)
            case {"event_type": "interaction.completed", "interaction": dict(interaction)}:
                return _response(parts, interaction)
        return _response(parts) if parts else None

    @property
    def is_within_call(self) -> bool:
        return self._stream.is_within_call

    def unfinished_response(self) -> Document | None:
        parts = self._stream.unfinished_parts()
        return _response(parts) if parts else None

    def _mark(self, interaction: Document) -> list[Document]:
        """The part that stands for an interaction, if the service keeps the interaction."""
        name = interaction.get("id")
        if not isinstance(name, str) or not name or self._request.get("store") is False:
            return []
        self._last = name
        return [own.mark_part(name)]

    def passthrough_event(self, item: SseEvent | ArrayItem, document: object = None) -> bytes:
        if (item.data or b"").strip() == self.done:
            self._done = reusable_bytes(item) or DONE
            return b""
        if document is None and item.data is not None:
            with contextlib.suppress(Malformed):
                document = decode(item.data)
        # the stream has not read a document that is no event, so it could release a held call
        if isinstance(document, dict) and isinstance(document.get("event_type"), str):
            return self._counted(self._stream.passthrough_event(document, item))
        return self._counted(item.raw)

    def event(self, visible: Document, raw: Document | None = None) -> bytes:
        if raw is not None and raw.get("event_type") != "interaction.completed":
            return self._counted(self._stream.forward(raw))
        return self._counted(b"".join(self._proxy_events(visible, raw)))

    def _proxy_events(self, visible: Document, raw: Document | None) -> Iterator[bytes]:
        """The end of an interaction, and the proxy's own events: a text, an end, or a keepalive."""
        stream, parts = self._stream, _parts(visible)
        yield from stream.start_events(self._head())
        yield from stream.late_call_events(_calls(parts))
        if text := _text(parts):
            yield from stream.text_events(text)
        if any(candidate.get("finishReason") is not None for candidate in objects(visible.get("candidates"))):
            yield stream.end_event(raw, visible.get("usageMetadata") if stream.rounds else _NO_USAGE)
        elif not text:
            yield stream.keepalive_event()

    def whole_body(self, visible: Document, raw: Document | None = None) -> bytes:
        parts = _parts(visible)
        calls = _calls(parts)
        used = [one.get("step") for part in parts for kind in _SERVED if isinstance(one := part.get(kind), dict)]

        def is_shown(step: Document) -> bool:
            if own.kind_of(step) == "function_call":
                return step.get("id") in calls
            return not own.is_tool_step(step) or step in used

        rounds = [[step for step in objects(answer.get("steps")) if is_shown(step)] for answer in self._answers]
        steps = [step for of_round in rounds for step in of_round]
        upstream_text = "".join(_text(own.parts_of_step(step)) for step in steps)
        if own_text := _text(parts).removeprefix(upstream_text):
            steps.append({"type": "model_output", "content": [{"type": "text", "text": own_text}]})
        if not self._answers:
            return encode({**self._head(), "status": "completed", "usage": _NO_USAGE, "steps": steps})
        last = {**self._answers[-1], "steps": steps}
        if "usageMetadata" in visible:
            last["usage"] = visible["usageMetadata"]
        last["status"] = status_of(last, calls=any(own.kind_of(step) == "function_call" for step in rounds[-1]))
        return encode(last)

    def _head(self) -> Document:
        """The members of the proxy's own interaction. Its id is that of the interaction before it, or of the first one
        of an answer that broke off: to continue it is to continue that one."""
        return {
            "id": self._first or self._previous or "",
            "object": "interaction",
            "model": self._request.get("model", ""),
        }

    def end(self) -> bytes:
        return self._done if self.target.framing is Framing.SSE else b""

    def _counted(self, events: bytes) -> bytes:
        self.events_sent += bool(events)
        return events

    # --- errors -----------------------------------------------------------------------------------------------

    def error(self, document: Document) -> bytes:
        return encode({"error": _error(document)})

    def error_event(self, document: Document) -> bytes:
        return self._counted(sse_event({"error": _error(document), "event_type": "error"})) + self.end()


def _response(parts: list[Document], ends: Document | None = None) -> Document:
    """Parts as a Gemini response. `ends`: the interaction that ends with these parts, if any."""
    candidate: Document = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if ends is None:
        return {"candidates": [candidate]}
    candidate["finishReason"] = _FINISH.get(str(ends.get("status")), "OTHER")
    if token := ends.get("continuation_token"):
        candidate["continuationToken"] = token
    usage = {"usageMetadata": ends["usage"]} if isinstance(ends.get("usage"), dict) else {}
    return {"candidates": [candidate], **usage, "modelVersion": str(ends.get("model", ""))}


def _parts(response: Document) -> list[Document]:
    found = [one.get("content") for one in objects(response.get("candidates"))]
    return [part for content in found if isinstance(content, dict) for part in parts_of(content)]


def _text(parts: Sequence[Document]) -> str:
    return "".join(str(part["text"]) for part in parts if "text" in part and not part.get("thought"))


def _calls(parts: Sequence[Document]) -> list[Any]:
    """The ids of the calls in these parts."""
    return [call.get("id") for part in parts if isinstance(call := part.get("functionCall"), dict)]


def _error(document: Document) -> Document:
    """An error whose code is a word; in Google's own form the code is a number."""
    error = document.get("error")
    error = error if isinstance(error, dict) else {}
    if "status" not in error:
        return error
    return {"message": error.get("message", ""), "code": str(error["status"]).lower()}


SURFACE = Surface(
    name="interactions",
    host=re.compile(f"{developer.SURFACE.host.pattern}|{vertex.SURFACE.host.pattern}"),
    path=re.compile(r"/+v1(?:alpha|beta)?1?/(?:projects/[^/]+/locations/[^/]+/)?interactions"),
    operation=Operation.GENERATE,
    wire=InteractionsWire,
)
