"""Input that waits while the model of a Live connection waits for a call."""

import json
from typing import Any

import pytest

from addon.core.live import Frame, LiveActions, ToolBehavior
from tests.core.live_frames import (
    ASYNC,
    AUDIO,
    FREE,
    WAITS,
    Json,
    answer,
    call,
    cancellation,
    frame,
    live,
    own_tools,
    sent_responses,
)

WORDS: Json = {"clientContent": {"turns": [{"role": "user", "parts": [{"text": "hi"}]}], "turnComplete": True}}


def test_input_waits_while_the_model_waits_for_a_call_and_follows_its_answer_in_order() -> None:
    made = live()
    made.from_server(call("look"))
    waiting = [frame(AUDIO), Frame(b'{ "realtime_input": {"activityEnd": {}} }', text=False), frame(WORDS)]
    for one in waiting:
        assert made.from_client(one) == LiveActions()
    sent = made.respond("c1", {"response": {}}).send
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
    assert len(made.respond("c1", {"response": {}}).send) == 2
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
    assert len(made.respond("c1", {"response": {}}).send) == 1
    assert made.from_client(frame(AUDIO)) == LiveActions()
    given = frame({"tool_response": {"function_responses": [{"id": "f2", "name": "own", "response": {}}]}})
    assert made.from_client(given) == LiveActions(given.data, send=(frame(AUDIO), frame(AUDIO)))


def test_input_is_released_when_the_model_continues_without_the_clients_answer() -> None:
    made = live(strips=False, own=own_tools("own"))
    made.from_server(call("look", "own"))
    made.from_client(frame(AUDIO))
    made.respond("c1", {"response": {}})
    complete = frame({"serverContent": {"turnComplete": True}})
    assert made.from_server(complete) == LiveActions(complete.data, send=(frame(AUDIO),))


@pytest.mark.parametrize("behavior", ["NON_BLOCKING", "non_blocking", 2])
def test_input_does_not_wait_for_the_clients_own_call_that_the_model_does_not_wait_for(behavior: Any) -> None:
    made = live(strips=False, own=own_tools("own", behavior=behavior))
    made.from_server(call("look", "own"))
    made.from_client(frame(AUDIO))
    assert len(made.respond("c1", {"response": {}}).send) == 2


def test_the_clients_own_calls_alone_hold_no_input() -> None:
    made = live(strips=False, own=own_tools("own"))
    made.from_server(call("own"))
    assert made.from_client(frame(AUDIO)).forward is not None


def test_a_held_setup_goes_upstream_with_the_toolset() -> None:
    made = live()
    made.from_server(call("look"))
    made.from_client(frame(AUDIO))
    made.from_client(frame({"contextUpdate": {"tools": {"tools": []}}}))
    assert b"look" in made.respond("c1", {"response": {}}).send[-1].data


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
    assert len(made.respond("c1", {"response": {"a": 1}}).send) == 1


def test_undeclared_calls_of_such_a_model_are_answered_one_by_one_and_blocking_calls_together() -> None:
    made = live(model=ASYNC)
    made.from_server(call("look", "tell"))
    assert sent_responses(made.respond("c2", {"response": {}})) == [[answer("f2", "tell", {})]]
    made = live(model=ASYNC, look=WAITS, tell=WAITS)
    made.from_server(call("look", "tell"))
    assert sent_responses(made.respond("c2", {"response": {}})) == []
    assert sent_responses(made.respond("c1", {"response": {}})) == [
        [answer("f1", "look", {}), answer("f2", "tell", {})]
    ]


def test_a_blocking_call_that_input_cancels_is_ended_and_never_answered() -> None:
    made = live(model=ASYNC, look=WAITS)
    made.from_server(call("look"))
    made.from_client(frame(AUDIO))
    assert made.from_server(cancellation("f1")) == LiveActions(None, cancel=("c1",))
    assert made.respond("c1", {"response": {}}) == LiveActions()


@pytest.mark.parametrize("behavior", ["BLOCKING", "UNSPECIFIED", 1, 0, None])
def test_the_clients_own_calls_hold_no_input_for_such_a_model(behavior: Any) -> None:
    made = live(model=ASYNC, strips=False, own=own_tools("own", behavior=behavior), look=WAITS)
    made.from_server(call("look", "own"))
    assert made.from_client(frame(AUDIO)).forward is not None
