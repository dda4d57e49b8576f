"""Frames of a Live connection in any order, and odd documents."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.live import Frame, LiveActions
from tests.core.live_frames import ASYNC, FREE, SETUP, WAITS, Json, answer, cancellation, frame, live, own_tools

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("audio"), st.none()),
        st.tuples(st.just("words"), st.none()),
        st.tuples(st.just("sent"), st.none()),
        st.tuples(st.just("own answer"), st.integers(0, 5)),
        st.tuples(st.just("answer"), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("call"), st.lists(st.sampled_from(["look", "wait", "own"]), min_size=1, max_size=3)),
    ),
    max_size=40,
)


class Service:
    """The guarantees of a connection to the client and to the service."""

    def __init__(self, model: str) -> None:
        self.takes_input = model == ASYNC
        self.made = live(model=model, strips=False, own=own_tools("own"), wait=FREE, look=WAITS)
        self.numbers = itertools.count(1)
        self.on_the_way: list[Frame] = []
        self.upstream: list[Json] = []
        self.inputs: list[int] = []
        self.names: dict[str, str] = {}
        self.open: dict[str, str] = {}  # Gemini's id → call id, "" for the client's own
        self.ended: set[str] = set()
        self.blocks: set[str] = set()

    def leave(self, data: bytes) -> None:
        document = json.loads(data)
        for one in document.get("toolResponse", {}).get("functionResponses", ()):
            assert one["id"] in self.open, "answered twice, or after it was cancelled"
            assert one["name"] == self.names[one["id"]]
            del self.open[one["id"]]
            self.blocks.discard(one["id"])
        if "realtimeInput" in document and not self.takes_input:
            assert not self.blocks, "the service would close the connection"

    def do(self, outcome: LiveActions, *, from_client: bool) -> None:
        if from_client and outcome.forward is not None:
            self.leave(outcome.forward)
            self.upstream.append(json.loads(outcome.forward))
        if not from_client:
            assert b"look" not in (outcome.forward or b"")
            assert b'"wait"' not in (outcome.forward or b"")
        for one in outcome.send:
            self.leave(one.data)
        self.on_the_way += outcome.send

    def client(self, document: Json) -> None:
        self.do(self.made.from_client(frame(document)), from_client=True)

    def say(self, kind: str) -> None:
        self.inputs.append(len(self.inputs))
        self.client({kind: {"text": str(self.inputs[-1])}})

    def call(self, names: list[str]) -> None:
        calls = [{"id": f"f{next(self.numbers)}", "name": name} for name in names]
        outcome = self.made.from_server(frame({"toolCall": {"functionCalls": calls}}))
        captured = {c.gemini_id: c.call_id for c in outcome.step.calls} if outcome.step else {}
        mixed = any(name != "own" for name in names)
        for one in calls:
            self.names[one["id"]] = one["name"]
            self.open[one["id"]] = captured.get(one["id"], "")
            assert bool(self.open[one["id"]]) == (one["name"] != "own")
            if one["name"] == "look" or (one["name"] == "own" and mixed and "look" in names):
                self.blocks.add(one["id"])
        self.do(outcome, from_client=False)

    def pick(self, at: int, *, own: bool) -> str | None:
        found = [one for one, call_id in self.open.items() if bool(call_id) != own and one not in self.ended]
        return found[at % len(found)] if found else None

    def step(self, action: str, given: Any) -> None:
        match action:
            case "audio":
                self.say("realtimeInput")
            case "words":
                self.say("clientContent")
            case "call":
                self.call(given)
            case "sent" if self.on_the_way:
                self.made.confirm_sent()
                self.upstream.append(json.loads(self.on_the_way.pop(0).data))
            case "own answer" if chosen := self.pick(given, own=True):
                self.client({"toolResponse": {"functionResponses": [answer(chosen, "own", {})]}})
            case "answer" if chosen := self.pick(given, own=False):
                self.ended.add(chosen)
                self.do(self.made.respond(self.open[chosen], {"response": {}}), from_client=False)
            case "cancel" if chosen := self.pick(given, own=False):
                call_id = self.open.pop(chosen)
                self.blocks.discard(chosen)
                outcome = self.made.from_server(cancellation(chosen))
                assert outcome.cancel == (call_id,)
                self.do(outcome, from_client=False)


@pytest.mark.parametrize("model", [SETUP["setup"]["model"], ASYNC])
@given(steps=STEPS)
def test_however_frames_and_answers_come_nothing_is_lost_reordered_leaked_or_answered_twice(
    model: str,
    steps: list[tuple[str, Any]],
) -> None:
    service = Service(model)
    for action, argument in steps:
        service.step(action, argument)
    while chosen := service.pick(0, own=False):
        service.step("answer", 0)
    while chosen := service.pick(0, own=True):  # noqa: F841
        service.step("own answer", 0)
    while service.on_the_way:
        service.step("sent", None)
    assert not service.open
    inputs = [one.get("realtimeInput") or one.get("clientContent") for one in service.upstream]
    assert [int(one["text"]) for one in inputs if one] == service.inputs


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    "setup contextUpdate tools functionDeclarations name behavior toolCall tool_call functionCalls id args ids "
    "toolCallCancellation toolResponse functionResponses realtimeInput serverContent turnComplete".split()
)
DOCUMENTS = st.recursive(
    JSON,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, min_size=1, max_size=3),
    max_leaves=15,
)


@given(st.lists(st.tuples(st.booleans(), DOCUMENTS), max_size=6))
def test_no_document_is_too_odd(documents: list[tuple[bool, Any]]) -> None:
    made = live(strips=False)
    for from_client, document in documents:
        given = Frame(json.dumps(document).encode())
        outcome = made.from_client(given) if from_client else made.from_server(given)
        if outcome.forward is not None:
            json.loads(outcome.forward)
        for one in outcome.step.calls if outcome.step else ():
            made.respond(one.call_id, {"response": {}})
