"""The calls of a Live connection and their answers."""

import json
from typing import Any

import pytest

from addon.core.arguments import Limits
from addon.core.framing.documents import Malformed
from addon.core.live import Frame, LiveActions, LiveMachine, ToolBehavior
from addon.core.tools.tool_plan import Toolbox
from tests.core.live_frames import (
    AUDIO,
    DECLARED,
    FREE,
    Json,
    answer,
    call,
    cancellation,
    frame,
    live,
    own_tools,
    passed,
    sent_responses,
)

# --- calls ----------------------------------------------------------------------------------------------------


def test_the_client_sees_nothing_of_a_grafted_call() -> None:
    outcome = live().from_server(call("look"))
    assert outcome.forward is None
    assert outcome.step is not None
    assert outcome.step.calls[0].args == {"n": 1}
    assert outcome.step.calls[0].fault is None


@pytest.mark.parametrize("spelling", ["toolCall", "tool_call"])
def test_the_client_sees_its_own_calls_and_all_other_content(spelling: str) -> None:
    calls = "functionCalls" if spelling == "toolCall" else "function_calls"
    mixed = [{"id": "f1", "name": "own"}, {"id": "f2", "name": "look", "args": {}}]
    outcome = live(strips=False, own=own_tools("own")).from_server(
        frame({spelling: {calls: mixed}, "usageMetadata": {"a": 1}})
    )
    assert passed(outcome) == {spelling: {calls: [{"id": "f1", "name": "own"}]}, "usageMetadata": {"a": 1}}
    alone = live(strips=False, own=own_tools("own")).from_server(
        frame({spelling: {calls: mixed[1:]}, "usageMetadata": {"a": 1}})
    )
    assert passed(alone) == {"usageMetadata": {"a": 1}}


@pytest.mark.parametrize("strips", [True, False])
def test_a_function_that_nobody_declared_is_an_unknown_tool(strips: bool) -> None:
    made = live(strips=strips, own=own_tools("own"))
    outcome = made.from_server(call("made_up"))
    assert passed(outcome) is None
    assert outcome.step is not None
    assert [one.fault for one in outcome.step.calls] == ["unknown tool: made_up"]


@pytest.mark.parametrize(
    "document",
    [
        {"setupComplete": {}},
        {"serverContent": {"modelTurn": {"parts": [{"text": "a toolCall"}]}}},
        {"usageMetadata": {"totalTokenCount": 1}},
        {"goAway": {"timeLeft": "10s"}},
        {"sessionResumptionUpdate": {"newHandle": "h", "resumable": True}},
        {"toolCall": {"functionCalls": [{"id": "f1", "name": "own"}]}},
        {"toolCall": None},
        {"toolCallCancellation": {"ids": ["f9"]}},
    ],
    ids=str,
)
def test_frames_without_grafted_calls_keep_their_bytes(document: Json) -> None:
    data = json.dumps(document, indent=2).encode()
    for text in (True, False):
        assert live(strips=False, own=own_tools("own")).from_server(Frame(data, text)) == LiveActions(data)


@pytest.mark.parametrize("data", [b"toolCall", b"{", b'["toolCall"]', b"\xff"])
def test_an_unknown_frame_keeps_its_bytes(data: bytes) -> None:
    assert live().from_server(Frame(data)) == LiveActions(data)


@pytest.mark.parametrize("key", ["toolCall", "tool_call", "tool\\u0043all", "\\u0074oolCall"])
@pytest.mark.parametrize("value", ["", "NaN", "1e999", "[" * 100_000, '"\n"'])
def test_a_frame_that_may_hold_a_call_and_cannot_be_decoded_never_reaches_the_client(key: str, value: str) -> None:
    with pytest.raises(Malformed):
        live().from_server(Frame(f'{{"{key}": {{"functionCalls": [{{"args": {value}'.encode()))


_LOOK: Json = {"functionCall": {"id": "f1", "name": "look", "args": {}}}
_LOOKS: Json = {"functionCalls": [_LOOK["functionCall"]]}


@pytest.mark.parametrize(
    "document",
    [
        [{"toolCall": _LOOKS}],
        {"toolCall": [_LOOKS]},
        {"toolCall": {"functionCalls": [{"name": "own"}]}, "tool_call": _LOOKS},
        {"toolCall": {"functionCalls": [[_LOOK["functionCall"]]]}},
        {"toolCall": {**_LOOKS, "function_calls": _LOOKS["functionCalls"]}},
        {"serverContent": {"modelTurn": {"parts": [_LOOK]}}},
        {"serverContent": {"toolCall": _LOOKS}},
        {"response": {"toolCall": _LOOKS}},
    ],
    ids=str,
)
@pytest.mark.parametrize("strips", [True, False])
def test_a_call_where_none_belongs_never_reaches_the_client(document: Any, strips: bool) -> None:
    with pytest.raises(Malformed):
        live(strips=strips).from_server(frame(document))
    live(strips=strips, shows=True).from_server(frame(document))


@pytest.mark.parametrize("key", ["toolCall", "tool_call", "tool\\u0043all", "\\u0074oolCall"])
def test_a_call_is_known_however_its_key_is_written(key: str) -> None:
    outcome = live().from_server(Frame(f'{{"{key}": {{"functionCalls": [{{"name": "x", "id": "1"}}]}}}}'.encode()))
    assert outcome.forward is None
    assert outcome.step is not None


def test_a_call_of_an_undeclared_tool_is_grafted_if_the_clients_tools_are_stripped() -> None:
    outcome = live(own=own_tools("own")).from_server(call("own"))
    assert outcome.forward is None
    assert outcome.step is not None
    assert outcome.step.calls[0].fault == "unknown tool: own"


def test_arguments_that_are_nested_too_deeply_are_left_out() -> None:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    calls = [{"id": f"f{n}", "name": name, "args": {"a": deep}} for n, name in enumerate(("look", "own"))]
    outcome = live(strips=False, own=own_tools("own")).from_server(frame({"toolCall": {"functionCalls": calls}}))
    assert outcome.step is not None
    assert "nested more than" in str(outcome.step.calls[0].fault)
    assert outcome.step.calls[0].args == {}
    assert [part["functionCall"]["args"] for part in outcome.step.parts] == [{}, {}]
    assert passed(outcome) == {"toolCall": {"functionCalls": calls[1:]}}


@pytest.mark.parametrize("manner", [ToolBehavior(), FREE])
def test_calls_beyond_the_limit_are_answered_and_not_stored(manner: ToolBehavior) -> None:
    made = live(limits=Limits(2, 1000), look=manner)
    outcome = made.from_server(call(*["look"] * 6))
    assert outcome.step is not None
    first, second, third = outcome.step.calls
    assert (first.fault, second.fault) == (None, None)
    assert "more than 2 calls in one step" in str(third.fault)
    assert len(outcome.step.parts) == len(outcome.step.slots) == 3
    sent = list(outcome.send)
    for one in outcome.step.calls:
        sent += made.respond(one.call_id, {"response": {"error": one.fault} if one.fault else {"n": 1}}).send
    answers = [a for one in sent for a in json.loads(one.data)["toolResponse"]["functionResponses"]]
    assert sorted(a["id"] for a in answers) == [f"f{n}" for n in range(1, 7)]
    assert [a["id"] for a in answers if "error" not in a["response"]] == ["f1", "f2"]
    assert len(sent) == (1 if manner.behavior is None else 4)
    assert made.close() == LiveActions()


def test_a_cancelled_call_beyond_the_limit_has_no_record_to_end() -> None:
    made = live(limits=Limits(1, 1000))
    made.from_server(call(*["look"] * 4))
    outcome = made.from_server(frame({"toolCallCancellation": {"ids": ["f1", "f2", "f3", "f4"]}}))
    assert outcome.cancel == ("c1", "c2")
    assert outcome.forward is None


def test_with_passthrough_the_client_gets_all_calls_and_only_some_are_stored() -> None:
    made = live(limits=Limits(2, 1000), shows=True)
    given = call(*["look"] * 4)
    outcome = made.from_server(given)
    assert outcome.forward == given.data
    assert outcome.step is not None
    assert [slot.call_id for slot in outcome.step.slots] == ["c1", "c2", None, None]


def test_arguments_that_are_too_long_are_left_out() -> None:
    calls = [{"id": "f1", "name": "look", "args": {"a": "x" * 200}}]
    outcome = live(limits=Limits(9, 100)).from_server(frame({"toolCall": {"functionCalls": calls}}))
    assert outcome.step is not None
    assert "more than 100 bytes of arguments" in str(outcome.step.calls[0].fault)
    assert outcome.step.parts[0]["functionCall"]["args"] == outcome.step.calls[0].args == {}


def test_frames_with_half_a_surrogate_pair_are_understood() -> None:
    made = LiveMachine(Toolbox(DECLARED), {}, strips=True, passthrough=False, new_call_id=lambda: "c1")
    outcome = made.from_client(Frame(rb'{"setup": {"model": "models/m", "x": "\ud800"}}'))
    assert outcome.forward is not None
    assert b'"look"' in outcome.forward
    named = rb'{"toolCall": {"functionCalls": [{"id": "f1", "name": "look", "args": {"a": "\ud800"}}]}}'
    outcome = made.from_server(Frame(named))
    assert outcome.forward is None
    assert outcome.step is not None
    assert outcome.step.calls[0].args == {"a": "\ufffd"}
    own = live(strips=False, own=own_tools("own"))
    own.from_server(call("look", "own"))
    answered = Frame(rb'{"toolResponse": {"functionResponses": [{"id": "f2", "response": {"a": "\ud800"}}]}}')
    own.respond("c1", {"response": {"a": 1}})
    assert own.is_blocked
    own.from_client(answered)
    assert not own.is_blocked


def test_the_tool_calls_of_a_turn_of_the_models_are_counted() -> None:
    made = live()

    def number() -> int:
        outcome = made.from_server(call("look"))
        assert outcome.step is not None
        return outcome.step.number

    assert [number(), number(), number()] == [0, 1, 2]
    complete = frame({"serverContent": {"turnComplete": True}})
    assert made.from_server(complete) == LiveActions(complete.data)
    assert number() == 0
    made.from_server(frame({"server_content": {"turn_complete": True}}))
    made.from_server(frame({"serverContent": {"generationComplete": True}}))
    assert [number(), number()] == [0, 1]


# --- answers --------------------------------------------------------------------------------------------------


def test_blocking_calls_are_answered_together_and_in_call_order() -> None:
    made = live()
    made.from_server(call("look", "tell"))
    assert made.respond("c2", {"response": {"b": 2}}) == LiveActions()
    assert sent_responses(made.respond("c1", {"response": {"a": 1}})) == [
        [answer("f1", "look", {"a": 1}), answer("f2", "tell", {"b": 2})]
    ]
    assert made.respond("c1", {"response": {"late": True}}) == LiveActions()


def test_non_blocking_calls_are_answered_one_by_one_with_their_scheduling() -> None:
    made = live(wait=FREE)
    made.from_server(call("look", "wait", "wait"))
    assert sent_responses(made.respond("c3", {"response": {}})) == [[answer("f3", "wait", {}, scheduling="SILENT")]]
    assert sent_responses(made.respond("c1", {"response": {}})) == [[answer("f1", "look", {})]]
    assert sent_responses(made.respond("c2", {"response": {}})) == [[answer("f2", "wait", {}, scheduling="SILENT")]]


def test_steps_are_answered_separately() -> None:
    made = live()
    made.from_server(call("look"))
    made.from_server(call("tell", start=2))
    assert sent_responses(made.respond("c2", {"response": {}})) == [[answer("f2", "tell", {})]]


def test_a_call_without_an_id_is_answered_without_one() -> None:
    made = live()
    made.from_server(frame({"toolCall": {"functionCalls": [{"name": "look"}]}}))
    assert sent_responses(made.respond("c1", {"response": {}})) == [[{"name": "look", "response": {}}]]


def test_images_in_a_result_go_to_models_that_take_them() -> None:
    part = {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}
    outcome = {"response": {"a": 1}, "parts": [part]}
    made = live(model="models/gemini-3.8-live")
    made.from_server(call("look"))
    assert sent_responses(made.respond("c1", outcome)) == [[answer("f1", "look", {"a": 1}, parts=[part])]]
    early = live(model="models/gemini-live-2.5-flash")
    early.from_server(call("look"))
    omitted = "image/png (4 bytes): this model takes no images or files in results"
    assert sent_responses(early.respond("c1", outcome)) == [[answer("f1", "look", {"a": 1, "omitted": omitted})]]


def test_a_cancelled_call_is_ended_and_never_answered() -> None:
    made = live()
    made.from_server(call("look"))
    assert made.from_server(cancellation("f1")) == LiveActions(None, cancel=("c1",))
    assert not made.waits_for("c1")
    assert made.respond("c1", {"response": {}}) == LiveActions()


def test_the_rest_of_a_step_goes_when_the_last_open_call_is_cancelled() -> None:
    made = live()
    made.from_server(call("look", "tell"))
    made.respond("c1", {"response": {}})
    assert sent_responses(made.from_server(cancellation("f2"))) == [[answer("f1", "look", {})]]


def test_the_client_gets_only_the_cancellation_of_its_own_calls() -> None:
    made = live(strips=False, own=own_tools("own"))
    made.from_server(call("look", "own"))
    outcome = made.from_server(cancellation("f1", "f2"))
    assert passed(outcome) == {"toolCallCancellation": {"ids": ["f2"]}}
    assert outcome.cancel == ("c1",)


def test_a_connection_that_ends_leaves_nothing_behind() -> None:
    made = live()
    made.from_server(call("look", "tell"))
    made.from_client(frame(AUDIO))
    assert made.close() == LiveActions(cancel=("c1", "c2"))
    assert made.respond("c1", {"response": {}}) == LiveActions()


# --- results of the client for calls that are hidden from it --------------------------------------------------


def results(*responses: Any, outer: str = "toolResponse", inner: str = "functionResponses", **more: Any) -> Json:
    return {outer: {inner: list(responses)}, **more}


HIDDEN, OWN = answer("f1", "look", {"a": 1}), answer("f2", "own", {"a": 2})
UNKNOWN = answer("f9", "own", {})
SNAKE = {"outer": "tool_response", "inner": "function_responses"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (results(HIDDEN), None),
        (results(HIDDEN, OWN), results(OWN)),
        (results(OWN, HIDDEN, UNKNOWN, **SNAKE), results(OWN, UNKNOWN, **SNAKE)),
        (results(HIDDEN, **SNAKE), None),
        (results(HIDDEN | {"name": "own"}), None),
        (results(HIDDEN | {"id": "f9"}), None),
        (results({"name": "look", "response": {}}), None),
        (results({"name": "made_up", "response": {}}), None),
        (results({"id": "f1", "response": {}}), None),
        (results({"id": "f3", "name": "made_up", "response": {}}), None),
        (results(HIDDEN | {"willContinue": True}), None),
        ({"toolResponse": {"functionResponses": HIDDEN}}, None),
        ({"realtimeInput": None, **results(HIDDEN)}, {"realtimeInput": None}),
        ({"realtimeInput": {}, **results(HIDDEN)}, {"realtimeInput": {}}),
        ({"toolResponse": {"functionResponses": [OWN], "function_responses": [HIDDEN]}}, results(OWN)),
        (results(OWN), results(OWN)),
        (results({"id": "f2", "response": {}}), results({"id": "f2", "response": {}})),
        (results({"name": "own", "response": {}}), results({"name": "own", "response": {}})),
        (results(UNKNOWN), results(UNKNOWN)),
        (results(), results()),
        ({"toolResponse": None}, {"toolResponse": None}),
    ],
    ids=str,
)
@pytest.mark.parametrize("text", [True, False], ids=["text", "binary"])
@pytest.mark.parametrize("ended", ["open", "answered", "cancelled"])
def test_a_client_s_result_for_a_hidden_call_never_reaches_the_service(
    given: Json, expected: Json | None, text: bool, ended: str
) -> None:
    made = live(strips=False, own=own_tools("own"))
    made.from_server(call("look", "own", "made_up"))
    if ended == "answered":
        for call_id in ("c1", "c2"):
            made.respond(call_id, {"response": {}})
    elif ended == "cancelled":
        made.from_server(cancellation("f1", "f2", "f3"))
    data = json.dumps(given).encode()
    outcome = made.from_client(Frame(data, text))
    assert passed(outcome) == expected
    assert outcome.results == ()
    if expected == given:
        assert outcome.forward is data


@pytest.mark.parametrize(
    "given",
    [
        b'{"toolResponse": {}, "toolResponse": %b}' % json.dumps(results(HIDDEN)["toolResponse"]).encode(),
        b'{"toolResponse": {}, "tool_response": %b}' % json.dumps(results(HIDDEN)["toolResponse"]).encode(),
    ],
)
def test_a_result_that_cannot_be_read_does_not_go_on_while_calls_are_hidden(given: bytes) -> None:
    made = live()
    assert made.from_client(Frame(given)).forward == given
    made.from_server(call("look"))
    assert made.from_client(Frame(given)).forward is None


def test_a_call_beyond_the_limit_is_hidden_too() -> None:
    made = live(limits=Limits(1, 1000))
    made.from_server(call("look", "look", "look"))
    assert made.from_client(frame(results(answer("f3", "x", {})))).forward is None


def test_a_model_that_repeats_its_ids_gets_the_client_s_results() -> None:
    made = live(strips=False, own=own_tools("own"))
    made.from_server(call("look"))
    made.respond("c1", {"response": {}})
    made.from_server(call("own"))
    given = frame(results(answer("f1", "own", {})))
    assert made.from_client(given).forward == given.data


# --- passthrough ----------------------------------------------------------------------------------------------


def test_with_passthrough_the_clients_answers_are_recorded() -> None:
    made = live(shows=True)
    calls = call("look", "tell")
    outcome = made.from_server(calls)
    assert outcome.forward == calls.data
    assert outcome.step is not None
    assert [one.call_id for one in outcome.step.calls] == ["c1", "c2"]
    assert made.from_client(frame(AUDIO)).forward is not None
    given = frame({"toolResponse": {"functionResponses": [answer("f1", "look", {"a": 1})]}})
    assert made.from_client(given) == LiveActions(given.data, results=(("c1", {"a": 1}),))
    assert made.from_server(cancellation("f2")) == LiveActions(cancellation("f2").data, cancel=("c2",))
    assert made.from_client(given) == LiveActions(given.data)
