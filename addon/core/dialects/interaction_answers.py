"""Interactions, answers: reads whole answers and event streams as Gemini parts, and writes them as one interaction.

The client gets one interaction over all rounds of a loop, with its steps numbered consecutively. The events of a step
that is a call, or belongs to a built-in tool, are held until the step is complete: only then is it known whether the
client gets the step. A client gets no event of a hidden step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from addon.core.answer import CONTINUATION
from addon.core.dialects import interaction_contents as own
from addon.core.dialects.interaction_requests import InteractionRequest
from addon.core.framing.documents import Document, Malformed, decode, encode, objects, parts_of
from addon.core.framing.streams import ArrayItem, SseEvent

Item = SseEvent | ArrayItem

DONE = b"event: done\ndata: [DONE]\n\n"
_ALIVE = frozenset({"in_progress", "queued"})


class InteractionStream:
    """`rounds` counts the answers of the service. `created` is the interaction that the client knows."""

    def __init__(self) -> None:
        self.rounds = 0
        self.created: Document = {}
        self._open: dict[int, Document] = {}  # held steps that are incomplete
        self._held_items: dict[int, list[Item]] = {}  # events of open steps
        self._complete: dict[int, list[Item]] = {}  # events of the steps that the last event completed
        self._numbers: dict[int, int] = {}  # index of a step in this round → its index for the client
        self._steps = 0  # how many steps the client has
        self._calls = 0  # how many of this round's steps are calls
        self._hides_events = False

    @property
    def is_within_call(self) -> bool:
        """Whether a call is incomplete. An event that cannot be read may be a piece of it."""
        return any(own.kind_of(step) == "function_call" for step in self._open.values())

    # --- reading ----------------------------------------------------------------------------------------------

    def read(self, document: Document) -> list[Document]:
        """The parts that an event adds. Raises Malformed for a call that no later event could complete, and, within a
        call, for an event of an unknown step."""
        self._hides_events = self._hides_events or bool(self._complete)  # the completed steps were not forwarded
        self._complete = {}
        match document:
            case {"event_type": "interaction.created", "interaction": dict(interaction)}:
                self._open, self._held_items, self._numbers, self._calls, self._hides_events = {}, {}, {}, 0, False
                self.created = self.created or interaction
            case {"event_type": "step.start", "index": int(index)} if index in self._open:
                pass  # held with the open step: another step with its number would release that step's events
            case {"event_type": "step.start", "index": int(index), "step": dict(step)}:
                if not own.is_tool_step(step):
                    return [part for part in own.parts_of_step(step) if part != own.thought("", None)]
                self._open[index] = step
            case {"event_type": "step.start", "step": dict(step)} if own.is_tool_step(step):
                raise Malformed("a tool's step has no index")
            case {"event_type": "step.start" | "step.delta" | "step.stop"} if self.is_within_call and not isinstance(
                document.get("index"), int
            ):
                raise Malformed("an event of a step has no index")
            case {"event_type": "step.delta", "index": int(index), "delta": dict(delta)}:
                if index not in self._open:
                    return own.parts_of_delta(delta)
                self._open[index] = own.with_delta(self._open[index], delta)
            case {"event_type": "step.stop", "index": int(index)} if index in self._open:
                return self._completed([index])
            case {"event_type": "interaction.completed", "interaction": dict(interaction)}:
                self.created = self.created or interaction
                return self._completed(list(self._open))
        return []

    def unfinished_parts(self) -> list[Document]:
        """The calls that the end of the stream left incomplete, with the arguments that arrived."""
        return self._completed(list(self._open))

    def _completed(self, indices: list[int]) -> list[Document]:
        self._complete = {index: self._held_items.pop(index, []) for index in indices}
        steps = [own.completed_step(self._open.pop(index)) for index in indices]
        return [part for step in steps for part in own.parts_of_step(step)]

    # --- writing for the client -------------------------------------------------------------------------------

    def passthrough_event(self, document: Document, item: Item) -> bytes:
        """An event that was read and needs no change."""
        match document:
            case {"index": int(index)} if index in self._open:
                self._held_items.setdefault(index, []).append(item)
                return b""
        return self.forward(document, item)

    def forward(self, document: Document, item: Item | None = None) -> bytes:
        """The bytes of a service event for the client. `item`: the original event, if its bytes may be reused."""
        ready, self._complete = self._complete, {}
        released = b"".join(
            self._numbered(index, decode(one.data or b"{}"), one) for index, items in ready.items() for one in items
        )
        match document:
            case {"event_type": "interaction.created"} if self.rounds > 1:
                return released
            case {"event_type": "interaction.status_update", "status": "requires_continuation"}:
                return released  # the last event has the status, unless the proxy requests the rest
            case {"event_type": "interaction.status_update", "status": status} if self.rounds > 1 or (
                self._hides_events and status not in _ALIVE
            ):
                return released
            case {"event_type": kind, "index": int(index)}:
                if index not in self._numbers and kind != "step.start":
                    return released  # the step is hidden
                return released + self._numbered(index, document, item)
        return released + ((reusable_bytes(item) if item is not None else b"") or sse_event(document))

    def _numbered(self, index: int, document: Document, item: Item | None) -> bytes:
        if index not in self._numbers:
            self._numbers[index], self._steps = self._steps, self._steps + 1
            self._calls += any(own.kind_of(step) == "function_call" for step in objects(document.get("step")))
        number = self._numbers[index]
        unchanged = reusable_bytes(item) if item is not None and number == index else b""
        return unchanged or sse_event({**document, "index": number})

    # --- events made by the proxy -----------------------------------------------------------------------------

    def start_events(self, interaction: Document) -> Iterator[bytes]:
        """The start of an interaction, unless the client already has one."""
        if not self.created:
            self.created = interaction
            started = {**interaction, "status": "in_progress"}
            yield sse_event({"interaction": started, "event_type": "interaction.created"})

    def text_events(self, text: str) -> Iterator[bytes]:
        number, self._steps = self._steps, self._steps + 1
        yield sse_event({"index": number, "step": {"type": "model_output"}, "event_type": "step.start"})
        yield sse_event({"index": number, "delta": {"text": text, "type": "text"}, "event_type": "step.delta"})
        yield sse_event({"index": number, "event_type": "step.stop"})

    def keepalive_event(self) -> bytes:
        """An event that reports the interaction as in progress."""
        state = {"interaction_id": self.created.get("id", ""), "status": "in_progress"}
        return sse_event({**state, "event_type": "interaction.status_update"})

    def late_call_events(self, calls: list[Any]) -> Iterator[bytes]:
        """The client's calls, by id, that were complete only at the end of the interaction."""
        ready, self._complete = self._complete, {}
        for index, items in ready.items():
            documents = [decode(one.data or b"{}") for one in items]
            if any(step.get("id") in calls for one in documents for step in objects(one.get("step"))):
                for document, item in zip(documents, items, strict=True):
                    yield self._numbered(index, document, item)

    def end_event(self, raw: Document | None, usage: Document | None) -> bytes:
        """The last event, with the id that the client knows. `raw`: the last event of the service, if any."""
        last: Document = raw["interaction"] if raw is not None else {**self.created, "status": "completed"}
        completed = {key: value for key, value in last.items() if key != "steps"}  # the client already has the steps
        if "id" in self.created:
            completed["id"] = self.created["id"]
        if usage is not None:
            completed["usage"] = usage
        completed["status"] = status_of(completed, calls=self._calls > 0)
        return sse_event({**(raw or {}), "interaction": completed, "event_type": "interaction.completed"})


def status_of(interaction: Document, *, calls: bool) -> Any:
    """An interaction's status: `requires_action` only if the client has a call to answer."""
    status = interaction.get("status") or ("requires_action" if calls else "completed")
    return "completed" if status == "requires_action" and not calls else status


def reusable_bytes(item: Item) -> bytes:
    """The original bytes of an event, if another event may follow them; else b""."""
    return item.raw if isinstance(item, SseEvent) and item.raw.endswith((b"\n\n", b"\r\n\r\n")) else b""


def sse_event(document: Document) -> bytes:
    """A document as a server-sent event of its type."""
    return b"event: %b\ndata: %b\n\n" % (str(document.get("event_type", "message")).encode(), encode(document))


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
