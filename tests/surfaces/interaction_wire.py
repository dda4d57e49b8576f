"""Requests and answers of the Interactions API through its wire."""

import json
from typing import Any

from addon.core.dialects import interaction_requests as own
from addon.core.framing.documents import encode
from addon.core.framing.streams import SseEvent
from addon.surfaces.incoming import Framing, Operation, Target
from addon.surfaces.interactions import InteractionsWire

Json = dict[str, Any]
CALL = {"type": "function_call", "id": "c1", "name": "f", "arguments": {"a": 1}}
TEXT = {"type": "model_output", "content": [{"type": "text", "text": "so"}]}


def wire(**members: Any) -> InteractionsWire:
    """A wire that has read a request."""
    speaks = InteractionsWire(Target("interactions", Operation.GENERATE, Framing.JSON, "", (), ()))
    speaks.read(encode({"model": "m", "input": "hi", **members}))
    return speaks


def model_turn(interaction: str, *parts: Json) -> Json:
    return {"role": "model", "parts": [own.mark_part(interaction), *parts]}


def response(call_id: str) -> Json:
    return {"role": "user", "parts": [{"functionResponse": {"id": call_id, "name": "f", "response": {"a": 1}}}]}


def event(kind: str, **members: Any) -> SseEvent:
    data = encode({**members, "event_type": kind})
    return SseEvent(b"event: %b\ndata: %b\n\n" % (kind.encode(), data), data)


def created(interaction: str = "v1_a") -> SseEvent:
    return event("interaction.created", interaction={"id": interaction, "status": "in_progress", "model": "m"})


def completed(interaction: str = "v1_a", status: str = "completed", **more: Any) -> SseEvent:
    return event("interaction.completed", interaction={"id": interaction, "status": status, **more})


def step(index: int, start: Json, *deltas: Json) -> list[SseEvent]:
    return [
        event("step.start", index=index, step=start),
        *(event("step.delta", index=index, delta=delta) for delta in deltas),
        event("step.stop", index=index),
    ]


def text(index: int, *pieces: str) -> list[SseEvent]:
    return step(index, {"type": "model_output"}, *({"type": "text", "text": piece} for piece in pieces))


def call(index: int, of: Json) -> list[SseEvent]:
    pieces = json.dumps(of["arguments"])
    return step(index, {**of, "arguments": {}}, {"type": "arguments_delta", "arguments": pieces})
