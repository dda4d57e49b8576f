"""The Interactions API: a request names the interaction before it, and the service keeps what was said.

The Wire reads steps as Contents and a stream of steps as Gemini's responses. Each answer that the service keeps begins
with a part that holds its id (`core.interactions.mark`): whatever Contents are to go upstream, those up to the last
such part are there already, and its id stands for them. So a loop goes on by id, an id that the client holds is mapped
to the last one of its turn, and a client that sends its whole history itself is served as on other surfaces.

Steps of calls are held back until they are complete, as whose they are is decided then; all others pass as they come.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from addon.core import interaction_tools
from addon.core import interactions as own
from addon.core.documents import Document, Malformed, camel, decode, encode, objects, parts_of
from addon.core.json_array import ArrayItem
from addon.core.request import Piece, Prefix, Request, assemble, parse
from addon.core.sse import SseEvent
from addon.surfaces import developer, vertex
from addon.surfaces.base import Framing, Operation, Surface, Target
from addon.surfaces.wire import Wire

_DONE = b"event: done\ndata: [DONE]\n\n"
_FINISH = {"completed": "STOP", "requires_action": "STOP", "incomplete": "MAX_TOKENS"}
_SERVED = ("toolCall", "toolResponse")
_NO_USAGE = {"total_tokens": 0, "total_input_tokens": 0, "total_output_tokens": 0}


class InteractionsWire(Wire):
    native = False

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._body = b""
        self._given: Document = {}
        self._input: list[Document] = []
        self._rounds = 0
        self._answers: list[Document] = []  # those that came whole
        self._created: Document = {}  # the interaction that the client was told of, in a stream
        self._open: dict[int, Document] = {}  # the steps of calls that are not complete yet
        self._held: dict[int, list[SseEvent | ArrayItem]] = {}
        self._indices: dict[int, int] = {}  # of the steps of this round, as the client has them
        self._steps = 0  # how many steps the client has
        self._calls = 0  # how many of this round are calls
        self._done = _DONE

    # --- requests ---------------------------------------------------------------------------------------------

    def read(self, body: bytes, known: Prefix | None = None) -> Request:
        given = decode(body)
        if not isinstance(given, dict):
            raise Malformed("the body is not an object")
        for name in ("agent", "background"):
            if given.get(name):
                raise Malformed(f"no tools go where there is {name!r}")
        self._body, self._given = body, given
        self._input = own.input_steps(given.get("input"))
        self.keeps_history = bool(self._previous)
        if given.get("stream"):
            self.target = self.target.streamed()
        return parse(own.shadow(given, self._previous, self._input))

    def write(self, request: Request, replaced: Mapping[str, bytes | None], contents: Sequence[Piece] | None) -> bytes:
        outer = parse(self._body)
        new: dict[str, bytes | None] = {}
        if "tools" in replaced:
            tools = decode(replaced["tools"] or b"[]")
            listed = interaction_tools.own_tools(tools)
            new["tools"] = encode(listed) if listed else None
            if formless := interaction_tools.formless(tools):
                self.dropped = f"{', '.join(formless)}: the Interactions API has no such tool"
        if "toolConfig" in replaced:
            new["generation_config"] = interaction_tools.with_choice(
                outer.value("generationConfig"), replaced["toolConfig"]
            )
        if contents is not None:
            previous, steps = self._told(request, contents)
            if previous != self._previous:
                new["previous_interaction_id"] = encode(previous)
            if steps != self._input:
                new["input"] = encode(steps)
        present = {member.name for member in outer.members}
        return assemble(outer, {camel(k) if camel(k) in present else k: value for k, value in new.items()})

    def again(self, request: Request, added: Sequence[Document], mode: str | None) -> bytes:
        self._rounds += 1
        return super().again(request, added, mode)

    @property
    def _previous(self) -> str | None:
        previous = self._given.get("previous_interaction_id")
        return previous if isinstance(previous, str) and previous else None

    def _told(self, request: Request, contents: Sequence[Piece]) -> tuple[str | None, list[Document]]:
        """The interaction that Contents go on from, and the steps that are new to the service."""
        spans = [span for turn in request.history.turns for span in turn.spans]
        kept = len(spans) - len(self._input)
        previous: str | None = None
        names: dict[str, str] = {}
        steps: list[Document] = []
        for piece in contents:
            if isinstance(piece, bytes):
                content = decode(piece)
                if (interaction := own.marked(content)) is not None:
                    previous, names, steps = interaction, own.called(content), []
                else:
                    steps += [own.renamed(step, names) for step in own.steps_of(content)]
                continue
            for number, (start, end) in enumerate(spans):
                if piece[0] <= start and end <= piece[1]:
                    if number < kept:
                        previous = self._previous
                    else:
                        steps.append(self._input[number - kept])
        return previous, steps

    def stand_ins(self, shown: Sequence[Document]) -> list[list[Document]]:
        return [own.kept(interaction) for part in shown if (interaction := own.marked({"parts": [part]})) is not None]

    # --- answers as Gemini's ----------------------------------------------------------------------------------

    def inside(self, document: object) -> Document | None:
        if not isinstance(document, dict):
            return None
        kind = document.get("event_type")
        if isinstance(kind, str):
            return self._event_inside(kind, document)
        if "error" in document or "status" not in document:
            return None
        self._answers.append(document)
        parts = [part for step in objects(document.get("steps")) for part in own.parts_of_step(step)]
        return self._response([*self._mark(document), *parts], ends=document)

    def _event_inside(self, kind: str, document: Document) -> Document | None:
        match kind, document:
            case "interaction.created", {"interaction": dict(interaction)}:
                self._indices, self._open, self._held, self._calls = {}, {}, {}, 0
                self._created = self._created or interaction
                parts = self._mark(interaction)
            case "step.start", {"index": int(index), "step": dict(step)}:
                if _is_call(step):
                    self._open[index] = step
                    return None
                parts = [part for part in own.parts_of_step(step) if part != own.thought("", None)]
            case "step.delta", {"index": int(index), "delta": dict(delta)}:
                if index in self._open:
                    self._open[index] = own.grown(self._open[index], delta)
                    return None
                parts = own.parts_of_delta(delta)
            case "step.stop", {"index": int(index)} if index in self._open:
                parts = own.parts_of_step(own.complete(self._open.pop(index)))
            case "interaction.completed", {"interaction": dict(interaction)}:
                cut = [own.complete(step) for step in self._open.values()]
                self._open = {}
                return self._response([part for step in cut for part in own.parts_of_step(step)], ends=interaction)
            case _:
                return None
        return self._response(parts) if parts else None

    def _mark(self, interaction: Document) -> list[Document]:
        """The part that stands for an interaction from now on, if it is kept."""
        name = interaction.get("id")
        return [own.mark(name)] if isinstance(name, str) and name and self._given.get("store") is not False else []

    def _response(self, parts: list[Document], ends: Document | None = None) -> Document:
        candidate: Document = {"content": {"parts": parts, "role": "model"}, "index": 0}
        if ends is None:
            return {"candidates": [candidate]}
        candidate["finishReason"] = _FINISH.get(str(ends.get("status")), "OTHER")
        usage = {"usageMetadata": ends["usage"]} if isinstance(ends.get("usage"), dict) else {}
        return {"candidates": [candidate], **usage, "modelVersion": str(ends.get("model", ""))}

    # --- answers as the client sees them ----------------------------------------------------------------------

    def as_came(self, item: SseEvent | ArrayItem) -> bytes:
        data = item.data or b""
        if data.strip() == b"[DONE]":
            self._done = _fit(item) or _DONE
            return b""
        try:
            document = decode(data)
        except Malformed:
            return self._counted(item.raw)
        match document:
            case {"index": int(index)} if index in self._open:
                self._held.setdefault(index, []).append(item)
                return b""
            case dict():
                return self._passed(document, item)
        return self._counted(item.raw)

    def event(self, seen: Document, came: Document | None = None) -> bytes:
        if came is not None and came.get("event_type") != "interaction.completed":
            return self._passed(came, None)
        return self._counted(b"".join(self._made(seen, came)))

    def whole(self, seen: Document, came: Document | None = None) -> bytes:
        parts = _parts(seen)
        calls = [call.get("id") for part in parts if isinstance(call := part.get("functionCall"), dict)]
        used = [one.get("step") for part in parts for kind in _SERVED if isinstance(one := part.get(kind), dict)]

        def is_shown(step: Document) -> bool:
            return (
                step.get("id") in calls if step.get("type") == "function_call" else not _is_call(step) or step in used
            )

        steps = [[step for step in objects(answer.get("steps")) if is_shown(step)] for answer in self._answers]
        told = "".join(_text(own.parts_of_step(step)) for of_round in steps for step in of_round)
        made = _text(parts).removeprefix(told)
        all_steps = [step for of_round in steps for step in of_round]
        if made:
            all_steps.append({"type": "model_output", "content": [{"type": "text", "text": made}]})
        if not self._answers:
            head = {"id": self._previous or "", "status": "completed", "usage": _NO_USAGE}
            return encode({**head, "steps": all_steps, "object": "interaction", "model": self._given.get("model", "")})
        last = {**self._answers[-1], "steps": all_steps}
        if "usageMetadata" in seen:
            last["usage"] = seen["usageMetadata"]
        last["status"] = _status(last, calls=any(step.get("type") == "function_call" for step in steps[-1]))
        return encode(last)

    def end(self) -> bytes:
        return self._done if self.target.framing is Framing.SSE else b""

    def _passed(self, document: Document, item: SseEvent | ArrayItem | None) -> bytes:
        """An event of the service's, under the number that its step has with the client."""
        kind, index = document.get("event_type"), document.get("index")
        if isinstance(index, int):
            events = [(decode(held.data or b"{}"), held) for held in self._held.pop(index, [])]
            return self._counted(b"".join(self._numbered(index, *one) for one in [*events, (document, item)]))
        if self._rounds > 1 and kind in ("interaction.created", "interaction.status_update"):
            return b""  # the client has an interaction already
        return self._counted((_fit(item) if item is not None else b"") or _framed(document))

    def _numbered(self, index: int, document: Document, item: SseEvent | ArrayItem | None) -> bytes:
        if index not in self._indices:
            self._indices[index], self._steps = self._steps, self._steps + 1
            step = document.get("step")
            self._calls += isinstance(step, dict) and step.get("type") == "function_call"
        number = self._indices[index]
        as_came = _fit(item) if item is not None and number == index else b""
        return as_came or _framed({**document, "index": number})

    def _made(self, seen: Document, came: Document | None) -> Iterator[bytes]:
        """The end of an interaction, or what the proxy says itself: a text, an end, or that it is still there."""
        if not self._created:
            self._created = {"id": self._previous or "", "object": "interaction", "model": self._given.get("model", "")}
            started = {**self._created, "status": "in_progress"}
            yield _framed({"interaction": started, "event_type": "interaction.created"})
        if text := _text(_parts(seen)):
            number, self._steps = self._steps, self._steps + 1
            yield _framed({"index": number, "step": {"type": "model_output"}, "event_type": "step.start"})
            delta = {"text": text, "type": "text"}
            yield _framed({"index": number, "delta": delta, "event_type": "step.delta"})
            yield _framed({"index": number, "event_type": "step.stop"})
        if any(candidate.get("finishReason") is not None for candidate in objects(seen.get("candidates"))):
            yield _framed(
                {**(came or {}), "interaction": self._ended(seen, came), "event_type": "interaction.completed"}
            )
        elif not text:
            alive = {"interaction_id": self._created.get("id", ""), "status": "in_progress"}
            yield _framed({**alive, "event_type": "interaction.status_update"})

    def _ended(self, seen: Document, came: Document | None) -> Document:
        """The interaction as the client is told that it has ended: under the id that it has with the client."""
        last: Document = came["interaction"] if came is not None else {**self._created, "status": "completed"}
        ended = {key: value for key, value in last.items() if key != "steps"}  # the client has them
        if "id" in self._created:
            ended["id"] = self._created["id"]
        if self._rounds:
            ended |= {"usage": seen["usageMetadata"]} if "usageMetadata" in seen else {}
        else:
            ended["usage"] = _NO_USAGE
        ended["status"] = _status(ended, calls=self._calls > 0)
        return ended

    def _counted(self, events: bytes) -> bytes:
        self.sent += bool(events)
        return events

    # --- errors -----------------------------------------------------------------------------------------------

    def error(self, document: Document) -> bytes:
        return encode({"error": _error(document)})

    def error_event(self, document: Document) -> bytes:
        return self._counted(_framed({"error": _error(document), "event_type": "error"})) + self.end()


def _is_call(step: Document) -> bool:
    """Whether a step is a call, or a part of what a built-in tool did: the client may not get it."""
    return own.kind_of(step).endswith(("_call", "_result"))


def _parts(response: Document) -> list[Document]:
    found = [one.get("content") for one in objects(response.get("candidates"))]
    return [part for content in found if isinstance(content, dict) for part in parts_of(content)]


def _text(parts: Sequence[Document]) -> str:
    return "".join(str(part["text"]) for part in parts if "text" in part and not part.get("thought"))


def _status(interaction: Document, *, calls: bool) -> Any:
    """`requires_action` only where the client has a call to answer."""
    status = interaction.get("status")
    return "completed" if status == "requires_action" and not calls else status


def _error(document: Document) -> Document:
    """An error with a word for its code; Google's own shape has a number."""
    error = document.get("error")
    error = error if isinstance(error, dict) else {}
    if "status" not in error:
        return error
    return {"message": error.get("message", ""), "code": str(error["status"]).lower()}


def _fit(item: SseEvent | ArrayItem) -> bytes:
    """The bytes of an event, if they can stand before another."""
    return item.raw if isinstance(item, SseEvent) and item.raw.endswith((b"\n\n", b"\r\n\r\n")) else b""


def _framed(document: Document) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(document.get("event_type", "message")).encode(), encode(document))


SURFACE = Surface(
    name="interactions",
    host=re.compile(f"{developer.SURFACE.host.pattern}|{vertex.SURFACE.host.pattern}"),
    path=re.compile(r"/+v1(?:alpha|beta)?1?/(?:projects/[^/]+/locations/[^/]+/)?interactions"),
    operation=Operation.GENERATE,
    wire=InteractionsWire,
)
