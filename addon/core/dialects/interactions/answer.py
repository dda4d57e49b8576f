"""The answer to a request of the Interactions API: read as Gemini's responses, and written as one interaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from addon.core.answers.answer import CONTINUATION
from addon.core.dialects.interactions import contents as own
from addon.core.dialects.interactions.request import InteractionRequest
from addon.core.dialects.interactions.stream import InteractionStream, Item, status_of
from addon.core.framing.documents import Document, Malformed, decode, objects, parts_of

_FINISH = {
    "completed": "STOP",
    "requires_action": "STOP",
    "incomplete": "MAX_TOKENS",
    "budget_exceeded": "MAX_TOKENS",
    "requires_continuation": CONTINUATION,
}
_SERVED = ("toolCall", "toolResponse")
_NO_USAGE = {"total_tokens": 0, "total_input_tokens": 0, "total_output_tokens": 0}


class InteractionAnswer:
    """All rounds of an answer. `request`: the current round's. `last`: the last interaction that the service keeps."""

    def __init__(self) -> None:
        self.request = InteractionRequest(b"{}")
        self.stream = InteractionStream()
        self.last = ""
        self._answers: list[Document] = []  # complete answers, not streamed
        self._first = ""  # the first interaction of an answer that broke off

    def resume(self, rounds: int, visible: Sequence[Document]) -> None:
        """Continue an answer that broke off after `rounds` rounds, with these parts."""
        self.stream.rounds = rounds
        self._first = next((name for part in visible if (name := own.marked_id({"parts": [part]})) is not None), "")
        if text := _text(list(visible)):
            self._answers.append({"steps": [{"type": "model_output", "content": [{"type": "text", "text": text}]}]})

    def unwrap(self, document: object) -> Document | None:
        """The Gemini response in a whole answer or an event, if any."""
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
        parts = self.stream.read(document)
        match document:
            case {"event_type": "interaction.created", "interaction": dict(interaction)}:
                parts = self._mark(interaction)
            case {"event_type": "interaction.completed", "interaction": dict(interaction)}:
                named = [] if interaction.get("id") == self.last else self._mark(interaction)
                return _response([*named, *parts], interaction)
        return _response(parts) if parts else None

    def unfinished_response(self) -> Document | None:
        """The response that was still incomplete at the end of a stream, if any."""
        parts = self.stream.unfinished_parts()
        return _response(parts) if parts else None

    def _mark(self, interaction: Document) -> list[Document]:
        """The part that represents an interaction, if the service keeps the interaction."""
        name = interaction.get("id")
        if not isinstance(name, str) or not name or not self.request.is_stored:
            return []
        self.last = name
        return [own.mark_part(name)]

    def forward(self, item: Item, document: object = None) -> bytes:
        """An event that needs no change. `document`: the decoded event, if it was decoded."""
        if document is None and item.data is not None:
            with contextlib.suppress(Malformed):
                document = decode(item.data)
        # the stream has not read documents that are not events, so one could release a held call
        if isinstance(document, dict) and isinstance(document.get("event_type"), str):
            return self.stream.passthrough_event(document, item)
        return item.raw

    def events(self, visible: Document, raw: Document | None) -> bytes:
        """A visible response as events. `raw`: the event that contained it; None for a response made by the proxy."""
        if raw is not None and raw.get("event_type") != "interaction.completed":
            return self.stream.forward(raw)
        return b"".join(self._proxy_events(visible, raw))

    def _proxy_events(self, visible: Document, raw: Document | None) -> Iterator[bytes]:
        """The end of an interaction, or events made by the proxy: a text, an end, or a keepalive."""
        stream, parts = self.stream, _parts(visible)
        yield from stream.start_events(self._head())
        yield from stream.late_call_events(_calls(parts))
        if text := _text(parts):
            yield from stream.text_events(text)
        if any(candidate.get("finishReason") is not None for candidate in objects(visible.get("candidates"))):
            yield stream.end_event(raw, visible.get("usageMetadata") if stream.rounds else _NO_USAGE)
        elif not text:
            yield stream.keepalive_event()

    def whole(self, visible: Document) -> Document:
        """A visible response as one complete interaction."""
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
            return {**self._head(), "status": "completed", "usage": _NO_USAGE, "steps": steps}
        last = {**self._answers[-1], "steps": steps}
        if "usageMetadata" in visible:
            last["usage"] = visible["usageMetadata"]
        last["status"] = status_of(last, calls=any(own.kind_of(step) == "function_call" for step in rounds[-1]))
        return last

    def _head(self) -> Document:
        """The members of an interaction made by the proxy. It takes the id of the previous interaction, or of the first
        one of a broken-off answer, which is then the one to continue."""
        return {
            "id": self._first or self.request.previous or "",
            "object": "interaction",
            "model": self.request.members.get("model", ""),
        }


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
    return [call.get("id") for part in parts if isinstance(call := part.get("functionCall"), dict)]


def interaction_error(document: Document) -> Document:
    """An error with a word as its code. Google's own form has a number."""
    error = document.get("error")
    error = error if isinstance(error, dict) else {}
    if "status" not in error:
        return error
    return {"message": error.get("message", ""), "code": str(error["status"]).lower()}
