"""Frames of Live connections, and the frames that result from them."""

import itertools
import json
from typing import Any

from addon.core.arguments import NO_LIMITS, Limits
from addon.core.live import Frame, LiveActions, LiveMachine, ToolBehavior
from addon.core.tools.tool_plan import Toolbox

Json = dict[str, Any]
DECLARED: list[Json] = [{"name": "look"}, {"name": "wait"}, {"name": "tell"}]
FREE = ToolBehavior("NON_BLOCKING", "SILENT")
SETUP: Json = {"setup": {"model": "models/gemini-live-2.5-flash-preview"}}
AUDIO: Json = {"realtimeInput": {"audio": {"data": "AAAA", "mimeType": "audio/pcm;rate=16000"}}}


def frame(document: Json) -> Frame:
    return Frame(json.dumps(document).encode())


def live(
    *,
    strips: bool = True,
    shows: bool = False,
    own: list[Json] | None = None,
    limits: Limits = NO_LIMITS,
    model: str = SETUP["setup"]["model"],
    **manners: ToolBehavior,
) -> LiveMachine:
    """A machine after its setup. The calls' ids are c1, c2, …"""
    numbers = itertools.count(1)
    made = LiveMachine(
        Toolbox(DECLARED),
        manners,
        strips=strips,
        passthrough=shows,
        new_call_id=lambda: f"c{next(numbers)}",
        limits=limits,
    )
    setup = {"setup": {"model": model, **({} if own is None else {"tools": own})}}
    made.from_client(frame(setup))
    return made


def own_tools(*names: str, **more: Any) -> list[Json]:
    return [{"functionDeclarations": [{"name": name, **more} for name in names]}]


def call(*names: str, start: int = 1, **more: Any) -> Frame:
    """A toolCall of these functions, with the ids f1, f2, …"""
    calls = [{"id": f"f{n}", "name": name, "args": {"n": n}} for n, name in enumerate(names, start)]
    return frame({"toolCall": {"functionCalls": calls}, **more})


def cancellation(*ids: str) -> Frame:
    return frame({"toolCallCancellation": {"ids": list(ids)}})


def passed(outcome: LiveActions) -> Any:
    return None if outcome.forward is None else json.loads(outcome.forward)


def sent_responses(outcome: LiveActions) -> list[list[Json]]:
    """The functionResponses of each sent frame. Every frame is a text frame."""
    assert all(one.text for one in outcome.send)
    return [json.loads(one.data)["toolResponse"]["functionResponses"] for one in outcome.send]


def answer(gemini_id: str, name: str, response: Json, **more: Any) -> Json:
    return {"id": gemini_id, "name": name, "response": response, **more}


ASYNC = "models/gemini-3.8-live"
WAITS = ToolBehavior("BLOCKING")
