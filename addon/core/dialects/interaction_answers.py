"""Interactions, answers: reads whole answers and event streams as Gemini parts, and writes them as one interaction.

The client gets one interaction over all rounds of a loop, with its steps numbered consecutively. The events of a step
that is a call, or belongs to a built-in tool, are held until the step is complete: only then is it known whether the
client gets the step. A client gets no event of a hidden step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from addon.core.answer import CONTINUATION
from addon.core.dialects import interaction_requests as own
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


def response_of_parts(parts: list[Document], ends: Document | None = None) -> Document:
    """Parts as a Gemini response. `ends`: the interaction that ends with these parts, if any."""
    candidate: Document = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if ends is None:
        return {"candidates": [candidate]}
    candidate["finishReason"] = _FINISH.get(str(ends.get("status")), "OTHER")
    if token := ends.get("continuation_token"):
        candidate["continuationToken"] = token
    usage = {"usageMetadata": ends["usage"]} if isinstance(ends.get("usage"), dict) else {}
    return {"candidates": [candidate], **usage, "modelVersion": str(ends.get("model", ""))}


def parts_in(response: Document) -> list[Document]:
    found = [one.get("content") for one in objects(response.get("candidates"))]
    return [part for content in found if isinstance(content, dict) for part in parts_of(content)]


def text_in(parts: Sequence[Document]) -> str:
    return "".join(str(part["text"]) for part in parts if "text" in part and not part.get("thought"))


def call_ids_in(parts: Sequence[Document]) -> list[Any]:
    return [call.get("id") for part in parts if isinstance(call := part.get("functionCall"), dict)]


def interaction_error(document: Document) -> Document:
    """An error with a word as its code. Google's own form has a number."""
    error = document.get("error")
    error = error if isinstance(error, dict) else {}
    if "status" not in error:
        return error
    return {"message": error.get("message", ""), "code": str(error["status"]).lower()}
