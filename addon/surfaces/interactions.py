"""The Interactions API. The conversions of requests, steps and events are in `core.dialects`."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence

from addon.core.dialects import interaction_requests as own
from addon.core.dialects.interaction_answers import (
    DONE,
    InteractionStream,
    call_ids_in,
    interaction_error,
    parts_in,
    response_of_parts,
    reusable_bytes,
    sse_event,
    status_of,
    text_in,
)
from addon.core.dialects.interaction_requests import InteractionRequest
from addon.core.framing.documents import Document, Malformed, decode, encode, objects
from addon.core.framing.streams import ArrayItem, SseEvent
from addon.core.history.request import Piece, Prefix, Request, parse
from addon.surfaces import gemini
from addon.surfaces.incoming import Framing, Operation, Target
from addon.surfaces.surface import Surface, Wire

_SERVED = ("toolCall", "toolResponse")
_NO_USAGE = {"total_tokens": 0, "total_input_tokens": 0, "total_output_tokens": 0}


class InteractionsWire(Wire):
    """All rounds of an answer. `given`: the current round's request."""

    native = False
    call_markers = (b'"function_call"',)
    done = b"[DONE]"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.given = InteractionRequest(b"{}")
        self._stream = InteractionStream()
        self._answers: list[Document] = []  # complete answers, not streamed
        self._kept = ""  # the last interaction that the service keeps
        self._first = ""  # the first interaction of an answer that broke off
        self._unfinished = ""  # the interaction whose rest is requested
        self._done = DONE

    # --- requests ---------------------------------------------------------------------------------------------

    def read(self, body: bytes, known: Prefix | None = None) -> Request:
        self.given = InteractionRequest(body)
        self.keeps_history, self.keeps_answer = bool(self.given.previous), self.given.is_stored
        if self.given.members.get("stream"):
            self.target = self.target.streamed()
        return parse(self.given.gemini())

    def write(self, request: Request, replaced: Mapping[str, bytes | None], contents: Sequence[Piece] | None) -> bytes:
        body, dropped = self.given.write(request, replaced, contents, self._unfinished)
        self.dropped = dropped or self.dropped
        return body

    def next_request(
        self, request: Request, added: Sequence[Document], mode: str | None, token: str | None = None
    ) -> bytes:
        self._stream.rounds += 1
        self._unfinished = self._kept if self._stream.rounds > 1 and token is not None else ""
        return super().next_request(request, added, mode, token)

    def instruction(self, request: Request) -> bytes:
        return encode(self.given.members.get("system_instruction") or "")

    # --- reading answers --------------------------------------------------------------------------------------

    def resume(self, rounds: int, visible: Sequence[Document]) -> None:
        self._stream.rounds = rounds
        self._first = next((name for part in visible if (name := own.marked_id({"parts": [part]})) is not None), "")
        if text := text_in(visible):
            self._answers.append({"steps": [{"type": "model_output", "content": [{"type": "text", "text": text}]}]})

    def for_another_answer(self) -> Wire:
        made = InteractionsWire(self.target)
        made.given = self.given
        return made

    def unwrap(self, document: object) -> Document | None:
        if not isinstance(document, dict):
            return None
        if isinstance(document.get("event_type"), str):
            return self._unwrap_event(document)
        if "error" in document or not ("status" in document or isinstance(document.get("steps"), list)):
            return None
        self._answers.append(document)
        parts = [part for step in objects(document.get("steps")) for part in own.parts_of_step(step)]
        return response_of_parts([*self._mark(document), *parts], document)

    def _unwrap_event(self, document: Document) -> Document | None:
        parts = self._stream.read(document)
        match document:
            case {"event_type": "interaction.created", "interaction": dict(interaction)}:
                parts = self._mark(interaction)
            case {"event_type": "interaction.completed", "interaction": dict(interaction)}:
                named = [] if interaction.get("id") == self._kept else self._mark(interaction)
                return response_of_parts([*named, *parts], interaction)
        return response_of_parts(parts) if parts else None

    @property
    def is_within_call(self) -> bool:
        return self._stream.is_within_call

    def unfinished_response(self) -> Document | None:
        parts = self._stream.unfinished_parts()
        return response_of_parts(parts) if parts else None

    def _mark(self, interaction: Document) -> list[Document]:
        """The part that represents an interaction, if the service keeps the interaction."""
        name = interaction.get("id")
        if not isinstance(name, str) or not name or not self.given.is_stored:
            return []
        self._kept = name
        return [own.mark_part(name)]

    # --- writing answers --------------------------------------------------------------------------------------

    def passthrough_event(self, item: SseEvent | ArrayItem, document: object = None) -> bytes:
        if (item.data or b"").strip() == self.done:
            self._done = reusable_bytes(item) or DONE
            return b""
        if document is None and item.data is not None:
            with contextlib.suppress(Malformed):
                document = decode(item.data)
        # the stream has not read documents that are not events, so one could release a held call
        if isinstance(document, dict) and isinstance(document.get("event_type"), str):
            return self._counted(self._stream.passthrough_event(document, item))
        return self._counted(item.raw)

    def event(self, visible: Document, raw: Document | None = None) -> bytes:
        if raw is not None and raw.get("event_type") != "interaction.completed":
            return self._counted(self._stream.forward(raw))
        return self._counted(b"".join(self._proxy_events(visible, raw)))

    def _proxy_events(self, visible: Document, raw: Document | None) -> Iterator[bytes]:
        """The end of an interaction, or events made by the proxy: a text, an end, or a keepalive."""
        stream, parts = self._stream, parts_in(visible)
        yield from stream.start_events(self._head())
        yield from stream.late_call_events(call_ids_in(parts))
        if text := text_in(parts):
            yield from stream.text_events(text)
        if any(candidate.get("finishReason") is not None for candidate in objects(visible.get("candidates"))):
            yield stream.end_event(raw, visible.get("usageMetadata") if stream.rounds else _NO_USAGE)
        elif not text:
            yield stream.keepalive_event()

    def whole_body(self, visible: Document, raw: Document | None = None) -> bytes:
        """A visible response as one complete interaction."""
        parts = parts_in(visible)
        calls = call_ids_in(parts)
        used = [one.get("step") for part in parts for kind in _SERVED if isinstance(one := part.get(kind), dict)]

        def is_shown(step: Document) -> bool:
            if own.kind_of(step) == "function_call":
                return step.get("id") in calls
            return not own.is_tool_step(step) or step in used

        rounds = [[step for step in objects(answer.get("steps")) if is_shown(step)] for answer in self._answers]
        steps = [step for of_round in rounds for step in of_round]
        upstream_text = "".join(text_in(own.parts_of_step(step)) for step in steps)
        if own_text := text_in(parts).removeprefix(upstream_text):
            steps.append({"type": "model_output", "content": [{"type": "text", "text": own_text}]})
        if not self._answers:
            return encode({**self._head(), "status": "completed", "usage": _NO_USAGE, "steps": steps})
        last = {**self._answers[-1], "steps": steps}
        if "usageMetadata" in visible:
            last["usage"] = visible["usageMetadata"]
        last["status"] = status_of(last, calls=any(own.kind_of(step) == "function_call" for step in rounds[-1]))
        return encode(last)

    def _head(self) -> Document:
        """The members of an interaction made by the proxy. It takes the id of the previous interaction, or of the first
        one of a broken-off answer, which is then the one to continue."""
        return {
            "id": self._first or self.given.previous or "",
            "object": "interaction",
            "model": self.given.members.get("model", ""),
        }

    def end(self) -> bytes:
        return self._done if self.target.framing is Framing.SSE else b""

    def _counted(self, events: bytes) -> bytes:
        self.events_sent += bool(events)
        return events

    # --- errors -----------------------------------------------------------------------------------------------

    def error(self, document: Document) -> bytes:
        return encode({"error": interaction_error(document)})

    def error_event(self, document: Document) -> bytes:
        return self._counted(sse_event({"error": interaction_error(document), "event_type": "error"})) + self.end()


SURFACE = Surface(
    name="interactions",
    host=re.compile(f"{gemini.DEVELOPER.host.pattern}|{gemini.VERTEX.host.pattern}"),
    path=re.compile(r"/+v1(?:alpha|beta)?1?/(?:projects/[^/]+/locations/[^/]+/)?interactions"),
    operation=Operation.GENERATE,
    wire=InteractionsWire,
)
