"""An event stream of the Interactions API, read as Gemini's parts, and told to a client as one interaction.

The client gets one interaction over all rounds of a loop: its steps are numbered in one row, whatever numbers they had.
A step that is a call, or a part of what a built-in tool did, is held back until it is complete: only then is it decided
whether the client gets it. Of one that it does not get, it gets no event.
"""

from collections.abc import Iterator
from typing import Any

from addon.core import interactions as own
from addon.core.documents import Document, Malformed, decode, encode, objects
from addon.core.json_array import ArrayItem
from addon.core.sse import SseEvent

Item = SseEvent | ArrayItem

DONE = b"event: done\ndata: [DONE]\n\n"
_ALIVE = frozenset({"in_progress", "queued"})


class InteractionStream:
    """`rounds` counts the answers of the service. `created` is the interaction that the client was told of."""

    def __init__(self) -> None:
        self.rounds = 0
        self.created: Document = {}
        self._open: dict[int, Document] = {}  # the steps that are not complete yet
        self._held: dict[int, list[Item]] = {}  # their events
        self._complete: dict[int, list[Item]] = {}  # the events of what is complete since the last event
        self._numbers: dict[int, int] = {}  # of the steps of this round, as the client has them
        self._steps = 0  # how many steps the client has
        self._calls = 0  # how many of this round are calls
        self._hides = False

    # --- as Gemini's ------------------------------------------------------------------------------------------

    def read(self, document: Document) -> list[Document]:
        """What an event adds to what the model says. Raises Malformed for a call that no later event could end."""
        self._hides = self._hides or bool(self._complete)  # nobody asked for it
        self._complete = {}
        match document:
            case {"event_type": "interaction.created", "interaction": dict(interaction)}:
                self._open, self._held, self._numbers, self._calls, self._hides = {}, {}, {}, 0, False
                self.created = self.created or interaction
            case {"event_type": "step.start", "index": int(index), "step": dict(step)}:
                if not own.is_tools(step):
                    return [part for part in own.parts_of_step(step) if part != own.thought("", None)]
                self._open[index] = step
            case {"event_type": "step.start", "step": dict(step)} if own.is_tools(step):
                raise Malformed("a step of a tool without an index")
            case {"event_type": "step.delta", "index": int(index), "delta": dict(delta)}:
                if index not in self._open:
                    return own.parts_of_delta(delta)
                self._open[index] = own.grown(self._open[index], delta)
            case {"event_type": "step.stop", "index": int(index)} if index in self._open:
                return self._completed([index])
            case {"event_type": "interaction.completed", "interaction": dict()}:
                return self._completed(list(self._open))
        return []

    def left(self) -> list[Document]:
        """The calls that the end of the stream left incomplete, with the arguments that arrived."""
        return self._completed(list(self._open))

    def _completed(self, indices: list[int]) -> list[Document]:
        self._complete = {index: self._held.pop(index, []) for index in indices}
        steps = [own.complete(self._open.pop(index)) for index in indices]
        return [part for step in steps for part in own.parts_of_step(step)]

    # --- as the client gets it --------------------------------------------------------------------------------

    def passthrough_event(self, document: Document, item: Item) -> bytes:
        """An event that was read and needs no change."""
        match document:
            case {"index": int(index)} if index in self._open:
                self._held.setdefault(index, []).append(item)
                return b""
        return self.passed(document, item)

    def passed(self, document: Document, item: Item | None = None) -> bytes:
        """An event of the service's that the client gets, in its place: `item` where it may be the bytes that it is."""
        ready, self._complete = self._complete, {}
        held = b"".join(
            self._numbered(index, decode(one.data or b"{}"), one) for index, items in ready.items() for one in items
        )
        match document:
            case {"event_type": "interaction.created"} if self.rounds > 1:
                return held
            case {"event_type": "interaction.status_update", "status": "requires_continuation"}:
                return held  # the end says so, unless the proxy asks for the rest
            case {"event_type": "interaction.status_update", "status": status} if self.rounds > 1 or (
                self._hides and status not in _ALIVE
            ):
                return held
            case {"event_type": kind, "index": int(index)}:
                if index not in self._numbers and kind != "step.start":
                    return held  # of a step that the client does not have
                return held + self._numbered(index, document, item)
        return held + ((fit(item) if item is not None else b"") or framed(document))

    def _numbered(self, index: int, document: Document, item: Item | None) -> bytes:
        if index not in self._numbers:
            self._numbers[index], self._steps = self._steps, self._steps + 1
            self._calls += any(own.kind_of(step) == "function_call" for step in objects(document.get("step")))
        number = self._numbers[index]
        as_came = fit(item) if item is not None and number == index else b""
        return as_came or framed({**document, "index": number})

    # --- of the proxy's own -----------------------------------------------------------------------------------

    def begun(self, interaction: Document) -> Iterator[bytes]:
        """The beginning of an interaction, where the service has not made one."""
        if not self.created:
            self.created = interaction
            started = {**interaction, "status": "in_progress"}
            yield framed({"interaction": started, "event_type": "interaction.created"})

    def said(self, text: str) -> Iterator[bytes]:
        """A step of text."""
        number, self._steps = self._steps, self._steps + 1
        yield framed({"index": number, "step": {"type": "model_output"}, "event_type": "step.start"})
        yield framed({"index": number, "delta": {"text": text, "type": "text"}, "event_type": "step.delta"})
        yield framed({"index": number, "event_type": "step.stop"})

    def alive(self) -> bytes:
        """That the interaction is still under way."""
        state = {"interaction_id": self.created.get("id", ""), "status": "in_progress"}
        return framed({**state, "event_type": "interaction.status_update"})

    def late(self, calls: list[Any]) -> Iterator[bytes]:
        """Those of the client's calls, by id, that were complete only when the interaction was."""
        ready, self._complete = self._complete, {}
        for index, items in ready.items():
            documents = [decode(one.data or b"{}") for one in items]
            if any(step.get("id") in calls for one in documents for step in objects(one.get("step"))):
                for document, item in zip(documents, items, strict=True):
                    yield self._numbered(index, document, item)

    def ended(self, came: Document | None, usage: Document | None) -> bytes:
        """The end, under the id that the interaction has with the client. `came`: the service's own last event."""
        last: Document = came["interaction"] if came is not None else {**self.created, "status": "completed"}
        ended = {key: value for key, value in last.items() if key != "steps"}  # the client has them
        if "id" in self.created:
            ended["id"] = self.created["id"]
        if usage is not None:
            ended["usage"] = usage
        ended["status"] = status_of(ended, calls=self._calls > 0)
        return framed({**(came or {}), "interaction": ended, "event_type": "interaction.completed"})


def status_of(interaction: Document, *, calls: bool) -> Any:
    """An interaction's status: action is required only of a client that has a call to answer."""
    status = interaction.get("status") or ("requires_action" if calls else "completed")
    return "completed" if status == "requires_action" and not calls else status


def fit(item: Item) -> bytes:
    """The bytes of an event, if they can stand before another."""
    return item.raw if isinstance(item, SseEvent) and item.raw.endswith((b"\n\n", b"\r\n\r\n")) else b""


def framed(document: Document) -> bytes:
    """A document as an event of its type."""
    return b"event: %b\ndata: %b\n\n" % (str(document.get("event_type", "message")).encode(), encode(document))
