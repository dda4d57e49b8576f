"""A Live connection, frame by frame: which frames pass or wait, which calls run, and when answers go upstream."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addon.core.answers.arguments import NO_LIMITS, Limits
from addon.core.framing.documents import Malformed
from addon.core.live import LiveMachine
from addon.core.live_frames import Frame, LiveActions, ToolBehavior
from addon.core.tools.tool_plan import Toolbox

Json = dict[str, Any]

DECLARED: list[Json] = [{"name": "look"}, {"name": "wait"}, {"name": "tell"}]
FREE = ToolBehavior("NON_BLOCKING", "SILENT")
SETUP: Json = {"setup": {"model": "models/gemini-live-2.5-flash-preview"}}
AUDIO: Json = {"realtimeInput": {"audio": {"data": "AAAA", "mimeType": "audio/pcm;rate=16000"}}}
WORDS: Json = {"clientContent": {"turns": [{"role": "user", "parts": [{"text": "hi"}]}], "turnComplete": True}}


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


# --- declarations ---------------------------------------------------------------------------------------------

GRAFTED: Json = {"functionDeclarations": DECLARED}
CASES: dict[str, tuple[bool, Json, Json]] = {
    "setup": (True, {"setup": {"model": "m"}}, {"setup": {"model": "m", "tools": [GRAFTED]}}),
    "setup strips": (
        True,
        {"setup": {"model": "m", "tools": own_tools("own"), "sessionResumption": {"handle": "h"}}},
        {"setup": {"model": "m", "sessionResumption": {"handle": "h"}, "tools": [GRAFTED]}},
    ),
    "setup keeps": (
        False,
        {"setup": {"tools": [*own_tools("own"), {"googleSearch": {}}]}},
        {"setup": {"tools": [*own_tools("own"), {"googleSearch": {}}, GRAFTED]}},
    ),
    "snake_case stays": (
        False,
        {"setup": {"system_instruction": {"parts": []}, "tools": [{"function_declarations": [{"name": "own"}]}]}},
        {
            "setup": {
                "system_instruction": {"parts": []},
                "tools": [{"function_declarations": [{"name": "own"}]}, GRAFTED],
            }
        },
    ),
    "a single object": (
        False,
        {"setup": {"tools": {"googleSearch": {}}}},
        {"setup": {"tools": [{"googleSearch": {}}, GRAFTED]}},
    ),
    "null": (True, {"setup": {"tools": None}}, {"setup": {"tools": [GRAFTED]}}),
    "contextUpdate": (
        True,
        {"contextUpdate": {"tools": {"tools": own_tools("own")}}},
        {"contextUpdate": {"tools": {"tools": [GRAFTED]}}},
    ),
    "contextUpdate in snake_case": (
        False,
        {"context_update": {"tools": {"tools": own_tools("own")}}},
        {"context_update": {"tools": {"tools": [*own_tools("own"), GRAFTED]}}},
    ),
    "contextUpdate that clears": (
        False,
        {"contextUpdate": {"tools": {}, "systemInstruction": {"parts": [{"text": "é"}]}}},
        {"contextUpdate": {"tools": {"tools": [GRAFTED]}, "systemInstruction": {"parts": [{"text": "é"}]}}},
    ),
    "contextUpdate with the tools at once": (
        True,
        {"contextUpdate": {"tools": own_tools("own")}},
        {"contextUpdate": {"tools": [GRAFTED]}},
    ),
}


@pytest.mark.parametrize(("strips", "given", "expected"), CASES.values(), ids=CASES)
def test_the_toolset_is_declared_beside_or_in_place_of_the_clients_own(
    strips: bool, given: Json, expected: Json
) -> None:
    assert passed(live(strips=strips).from_client(frame(given))) == expected


@pytest.mark.parametrize(
    "given",
    [
        b'{"contextUpdate": {"systemInstruction": {}}}',
        b'{"setup": 1}',
        b'{"setup": {"tools": []}, "setup": {}}',
        b'{ "clientContent" : {"turnComplete":true, "new_field": "tools"} }\n',
        b"not JSON",
        b"\xff\xfe",
        b"[]",
        b"",
    ],
)
def test_a_frame_that_declares_no_tools_keeps_its_bytes(given: bytes) -> None:
    for text in (True, False):
        assert live().from_client(Frame(given, text)) == LiveActions(given)


def test_an_empty_toolset_removes_the_tools_and_keeps_a_setup_without_any() -> None:
    empty = LiveMachine(Toolbox(), {}, strips=True, passthrough=False, new_call_id=str)
    assert passed(empty.from_client(frame({"setup": {"model": "m", "tools": own_tools("own")}}))) == {
        "setup": {"model": "m"}
    }
    plain = frame(SETUP)
    assert empty.from_client(plain).forward is plain.data


def test_kept_tools_without_additions_keep_their_bytes() -> None:
    empty = LiveMachine(Toolbox(), {}, strips=False, passthrough=False, new_call_id=str)
    setup = frame({"setup": {"tools": own_tools("own")}})
    assert empty.from_client(setup).forward is setup.data


def test_a_tools_behavior_is_declared() -> None:
    made = LiveMachine(Toolbox(DECLARED), {"wait": FREE}, strips=True, passthrough=False, new_call_id=str)
    (tool,) = passed(made.from_client(frame(SETUP)))["setup"]["tools"]
    assert tool["functionDeclarations"] == [
        {"name": "look"},
        {"name": "wait", "behavior": "NON_BLOCKING"},
        {"name": "tell"},
    ]
    assert DECLARED[1] == {"name": "wait"}


def test_the_model_is_the_setups() -> None:
    assert live().model == "gemini-live-2.5-flash-preview"


def test_a_name_that_clashes_is_mapped_there_and_back() -> None:
    made = live(strips=False, own=own_tools("look"))
    outcome = made.from_server(call("look", "look_g2"))
    assert [one["name"] for one in passed(outcome)["toolCall"]["functionCalls"]] == ["look"]
    assert outcome.step is not None
    assert [(one.call_id, one.name, one.gemini_id) for one in outcome.step.calls] == [("c1", "look", "f2")]
    assert [part["functionCall"]["name"] for part in outcome.step.parts] == ["look", "look"]
    assert [(slot.name, slot.call_id) for slot in outcome.step.slots] == [("look", None), ("look", "c1")]
    assert sent_responses(made.answer("c1", {"a": 1})) == [[answer("f2", "look_g2", {"a": 1})]]


def test_a_context_update_changes_whose_a_name_is() -> None:
    made = live(strips=False)
    assert made.from_server(call("look")).step is not None
    made.from_client(frame({"contextUpdate": {"tools": {"tools": own_tools("look")}}}))
    own = call("look", start=2)
    assert made.from_server(own) == LiveActions(own.data)
    assert sent_responses(made.answer("c1", {})) == [[answer("f1", "look", {})]]


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
        sent += made.answer(one.call_id, {"error": one.fault} if one.fault else {"n": 1}).send
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
    own.answer("c1", {"a": 1})
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
    assert made.answer("c2", {"b": 2}) == LiveActions()
    assert sent_responses(made.answer("c1", {"a": 1})) == [
        [answer("f1", "look", {"a": 1}), answer("f2", "tell", {"b": 2})]
    ]
    assert made.answer("c1", {"late": True}) == LiveActions()


def test_non_blocking_calls_are_answered_one_by_one_with_their_scheduling() -> None:
    made = live(wait=FREE)
    made.from_server(call("look", "wait", "wait"))
    assert sent_responses(made.answer("c3", {})) == [[answer("f3", "wait", {}, scheduling="SILENT")]]
    assert sent_responses(made.answer("c1", {})) == [[answer("f1", "look", {})]]
    assert sent_responses(made.answer("c2", {})) == [[answer("f2", "wait", {}, scheduling="SILENT")]]


def test_steps_are_answered_separately() -> None:
    made = live()
    made.from_server(call("look"))
    made.from_server(call("tell", start=2))
    assert sent_responses(made.answer("c2", {})) == [[answer("f2", "tell", {})]]


def test_a_call_without_an_id_is_answered_without_one() -> None:
    made = live()
    made.from_server(frame({"toolCall": {"functionCalls": [{"name": "look"}]}}))
    assert sent_responses(made.answer("c1", {})) == [[{"name": "look", "response": {}}]]


def test_a_cancelled_call_is_ended_and_never_answered() -> None:
    made = live()
    made.from_server(call("look"))
    assert made.from_server(cancellation("f1")) == LiveActions(None, cancel=("c1",))
    assert not made.waits_for("c1")
    assert made.answer("c1", {}) == LiveActions()


def test_the_rest_of_a_step_goes_when_the_last_open_call_is_cancelled() -> None:
    made = live()
    made.from_server(call("look", "tell"))
    made.answer("c1", {})
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
    assert made.answer("c1", {}) == LiveActions()


# --- held frames ----------------------------------------------------------------------------------------------


def test_input_waits_while_the_model_waits_for_a_call_and_follows_its_answer_in_order() -> None:
    made = live()
    made.from_server(call("look"))
    waiting = [frame(AUDIO), Frame(b'{ "realtime_input": {"activityEnd": {}} }', text=False), frame(WORDS)]
    for one in waiting:
        assert made.from_client(one) == LiveActions()
    sent = made.answer("c1", {}).send
    assert json.loads(sent[0].data)["toolResponse"]
    assert list(sent[1:]) == waiting


def test_input_does_not_wait_for_a_call_that_the_model_does_not_wait_for() -> None:
    made = live(wait=FREE)
    made.from_server(call("wait"))
    audio = frame(AUDIO)
    assert made.from_client(audio) == LiveActions(audio.data)


def test_other_frames_pass_unless_held_input_precedes_them() -> None:
    made = live()
    made.from_server(call("look"))
    words = frame(WORDS)
    assert made.from_client(words) == LiveActions(words.data)


def test_the_clients_frames_stay_behind_frames_that_are_still_being_sent() -> None:
    made = live()
    made.from_server(call("look"))
    made.from_client(frame(AUDIO))
    assert len(made.answer("c1", {}).send) == 2
    made.confirm_sent()
    assert made.from_client(frame(WORDS)) == LiveActions(send=(frame(WORDS),))
    made.confirm_sent()
    made.confirm_sent()
    assert made.from_client(frame(WORDS)) == LiveActions(frame(WORDS).data)


def test_a_cancelled_call_releases_the_input() -> None:
    made = live()
    made.from_server(call("look"))
    made.from_client(frame(AUDIO))
    assert made.from_server(cancellation("f1")).send == (frame(AUDIO),)


def test_input_waits_for_the_clients_answer_in_a_mixed_step_and_that_answer_never_waits() -> None:
    made = live(strips=False, own=own_tools("own"))
    made.from_server(call("look", "own"))
    made.from_client(frame(AUDIO))
    assert len(made.answer("c1", {}).send) == 1
    assert made.from_client(frame(AUDIO)) == LiveActions()
    given = frame({"tool_response": {"function_responses": [{"id": "f2", "name": "own", "response": {}}]}})
    assert made.from_client(given) == LiveActions(given.data, send=(frame(AUDIO), frame(AUDIO)))


def test_input_is_released_when_the_model_continues_without_the_clients_answer() -> None:
    made = live(strips=False, own=own_tools("own"))
    made.from_server(call("look", "own"))
    made.from_client(frame(AUDIO))
    made.answer("c1", {})
    complete = frame({"serverContent": {"turnComplete": True}})
    assert made.from_server(complete) == LiveActions(complete.data, send=(frame(AUDIO),))


@pytest.mark.parametrize("behavior", ["NON_BLOCKING", "non_blocking", 2])
def test_input_does_not_wait_for_the_clients_own_call_that_the_model_does_not_wait_for(behavior: Any) -> None:
    made = live(strips=False, own=own_tools("own", behavior=behavior))
    made.from_server(call("look", "own"))
    made.from_client(frame(AUDIO))
    assert len(made.answer("c1", {}).send) == 2


def test_the_clients_own_calls_alone_hold_no_input() -> None:
    made = live(strips=False, own=own_tools("own"))
    made.from_server(call("own"))
    assert made.from_client(frame(AUDIO)).forward is not None


def test_a_held_setup_goes_upstream_with_the_toolset() -> None:
    made = live()
    made.from_server(call("look"))
    made.from_client(frame(AUDIO))
    made.from_client(frame({"contextUpdate": {"tools": {"tools": []}}}))
    assert b"look" in made.answer("c1", {}).send[-1].data


# --- models that wait for no call by themselves ----------------------------------------------------------------

ASYNC = "models/gemini-3.8-live"
WAITS = ToolBehavior("BLOCKING")


@pytest.mark.parametrize(
    ("model", "holds"),
    [
        ("models/gemini-2.5-flash-native-audio-preview-12-2025", True),
        ("models/gemini-2.0-flash-live-001", True),
        ("models/gemini-live-2.5-flash-preview", True),
        ("projects/p/locations/l/publishers/google/models/gemini-live-2.5-flash-native-audio", True),
        ("models/gemini-3.1-flash-live-preview", True),
        ("models/gemini-3.8-live", False),
        ("projects/p/locations/l/publishers/google/models/gemini-3.8-live", False),
        ("models/gemini-3.10-live", False),
        ("models/gemini-live-4-x", False),
        ("models/gemini-live-latest", False),  # what tells no version is taken for the newest
    ],
)
def test_the_models_name_says_whether_an_undeclared_function_is_waited_for(model: str, holds: bool) -> None:
    made = live(model=model)
    made.from_server(call("look"))
    assert (made.from_client(frame(AUDIO)).forward is None) is holds


@pytest.mark.parametrize("manner", [ToolBehavior(), FREE, WAITS], ids=["undeclared", "NON_BLOCKING", "BLOCKING"])
def test_a_model_that_takes_input_at_any_time_gets_it_at_once(manner: ToolBehavior) -> None:
    made = live(model=ASYNC, look=manner)
    made.from_server(call("look"))
    assert made.from_client(frame(AUDIO)) == LiveActions(frame(AUDIO).data)
    assert len(made.answer("c1", {"a": 1}).send) == 1


def test_undeclared_calls_of_such_a_model_are_answered_one_by_one_and_blocking_calls_together() -> None:
    made = live(model=ASYNC)
    made.from_server(call("look", "tell"))
    assert sent_responses(made.answer("c2", {})) == [[answer("f2", "tell", {})]]
    made = live(model=ASYNC, look=WAITS, tell=WAITS)
    made.from_server(call("look", "tell"))
    assert sent_responses(made.answer("c2", {})) == []
    assert sent_responses(made.answer("c1", {})) == [[answer("f1", "look", {}), answer("f2", "tell", {})]]


def test_a_blocking_call_that_input_cancels_is_ended_and_never_answered() -> None:
    made = live(model=ASYNC, look=WAITS)
    made.from_server(call("look"))
    made.from_client(frame(AUDIO))
    assert made.from_server(cancellation("f1")) == LiveActions(None, cancel=("c1",))
    assert made.answer("c1", {}) == LiveActions()


@pytest.mark.parametrize("behavior", ["BLOCKING", "UNSPECIFIED", 1, 0, None])
def test_the_clients_own_calls_hold_no_input_for_such_a_model(behavior: Any) -> None:
    made = live(model=ASYNC, strips=False, own=own_tools("own", behavior=behavior), look=WAITS)
    made.from_server(call("look", "own"))
    assert made.from_client(frame(AUDIO)).forward is not None


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


# --- any interleaving -----------------------------------------------------------------------------------------

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
                self.do(self.made.answer(self.open[chosen], {}), from_client=False)
            case "cancel" if chosen := self.pick(given, own=False):
                call_id = self.open.pop(chosen)
                self.blocks.discard(chosen)
                outcome = self.made.from_server(cancellation(chosen))
                assert outcome.cancel == (call_id,)
                self.do(outcome, from_client=False)


@pytest.mark.parametrize("model", [SETUP["setup"]["model"], ASYNC])
@settings(max_examples=200, deadline=None)
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


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.booleans(), DOCUMENTS), max_size=6))
def test_no_document_is_too_odd(documents: list[tuple[bool, Any]]) -> None:
    made = live(strips=False)
    for from_client, document in documents:
        given = Frame(json.dumps(document).encode())
        outcome = made.from_client(given) if from_client else made.from_server(given)
        if outcome.forward is not None:
            json.loads(outcome.forward)
        for one in outcome.step.calls if outcome.step else ():
            made.answer(one.call_id, {})
