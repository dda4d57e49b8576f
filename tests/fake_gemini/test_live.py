"""The strict local Gemini's Live API: its answers, and its reasons for closing a connection."""

import base64
import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from addon.fake_gemini.app import App, Log
from addon.fake_gemini.live import Closed, LiveConnection
from addon.fake_gemini.reply import Shape
from addon.fake_gemini.routes import find_route
from addon.fake_gemini.service import Service

Json = dict[str, Any]

PATH = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
VERTEX = "/ws/google.cloud.aiplatform.v1beta1.LlmBidiService/BidiGenerateContent"
FREE = {"name": "free", "behavior": "NON_BLOCKING"}
SETUP: Json = {
    "setup": {
        "model": "models/gemini-live-2.5-flash-preview",
        "tools": [{"functionDeclarations": [{"name": "f"}, FREE]}, {"googleSearch": {}}],
    }
}
COMPLETE = ["serverContent", "serverContent"]


def connection(setup: Json | None = None, path: str = PATH) -> LiveConnection:
    route = find_route(path)
    assert route is not None
    made = LiveConnection(route)
    assert receive(made, setup or SETUP) == [{"setupComplete": {}}]
    return made


def receive(made: LiveConnection, document: Any) -> list[Json]:
    return made.receive(json.dumps(document).encode())


def words(text: str) -> Json:
    return {"clientContent": {"turns": [{"role": "user", "parts": [{"text": text}]}], "turnComplete": True}}


def audio(text: str) -> Json:
    return {"realtime_input": {"audio": {"data": base64.b64encode(text.encode()).decode(), "mime_type": "audio/pcm"}}}


def response(call_id: str, **more: Any) -> Json:
    return {"tool_response": {"function_responses": [{"id": call_id, "response": {"a": 1}, **more}]}}


def kinds(answers: list[Json]) -> list[str]:
    return [next(iter(one)) for one in answers]


def text_of(answers: list[Json]) -> str:
    turns = [one.get("serverContent", {}).get("modelTurn", {"parts": []}) for one in answers]
    return "".join(part["text"] for turn in turns for part in turn["parts"])


def called(made: LiveConnection, text: str) -> list[str]:
    """The ids of the calls for these words."""
    document = next(one for one in receive(made, words(text)) if "toolCall" in one)
    return [call["id"] for call in document["toolCall"]["functionCalls"]]


# --- what is refused ------------------------------------------------------------------------------------------

AT_FIRST: dict[str, tuple[Any, int, str]] = {
    "no JSON": (b"{", 1007, "Invalid JSON payload"),
    "no object": ([], 1007, "Root element must be a message"),
    "words first": (words("hi"), 1007, "setup must be the first message"),
    "an empty message": ({}, 1007, "setup must be the first message"),
    "an unknown field": ({"setup": {"model": "m", "tool_config": {}}}, 1007, 'Unknown name "tool_config"'),
    "both spellings": (
        {"setup": {"systemInstruction": {}, "system_instruction": {}}},
        1007,
        "already been set by another spelling",
    ),
    "two messages in one": ({"setup": {}, "clientContent": {}}, 1007, "oneof"),
    "a model that is none": ({"setup": {"model": "models/gpt-4"}}, 1008, "is not found for API version v1beta"),
    "a model without Live": ({"setup": {"model": "models/gemini-2.5-flash"}}, 1008, "not supported for bidi"),
    "a bad name": (
        {"setup": {**SETUP["setup"], "tools": [{"functionDeclarations": [{"name": "1"}]}]}},
        1007,
        "Must start with a letter",
    ),
    "a bad behavior": (
        {"setup": {**SETUP["setup"], "tools": [{"functionDeclarations": [{"name": "f", "behavior": "LAZY"}]}]}},
        1007,
        "no such behavior",
    ),
    "a name twice": (
        {"setup": {**SETUP["setup"], "tools": [{"functionDeclarations": [{"name": "f"}, {"name": "f"}]}]}},
        1007,
        "Duplicate",
    ),
}


@pytest.mark.parametrize(("given", "code", "reason"), AT_FIRST.values(), ids=AT_FIRST)
def test_a_connection_that_begins_wrongly_is_closed(given: Any, code: int, reason: str) -> None:
    route = find_route(PATH)
    assert route is not None
    with pytest.raises(Closed) as closed:
        LiveConnection(route).receive(given if isinstance(given, bytes) else json.dumps(given).encode())
    assert closed.value.code == code
    assert len(closed.value.reason.encode()) <= 123
    assert reason in str(closed.value)


LATER: dict[str, tuple[Any, int]] = {
    "a second setup": (SETUP, 1007),
    "nothing": ({}, 1007),
    "a turn without parts": ({"clientContent": {"turns": [{"role": "user"}], "turnComplete": True}}, 1007),
    "no turn at all": ({"clientContent": {"turnComplete": True}}, 1007),
    "media chunks": ({"realtimeInput": {"mediaChunks": [{"data": "AAAA", "mimeType": "audio/pcm"}]}}, 1007),
    "a response without a call": (response("f1"), 1008),
    "no responses": ({"toolResponse": {}}, 1007),
    "an update with a bad name": (
        {"contextUpdate": {"tools": {"tools": [{"functionDeclarations": [{"name": "1"}]}]}}},
        1007,
    ),
}


@pytest.mark.parametrize(("given", "code"), LATER.values(), ids=LATER)
def test_an_invalid_message_closes_the_connection(given: Any, code: int) -> None:
    with pytest.raises(Closed) as closed:
        receive(connection(), given)
    assert closed.value.code == code


@pytest.mark.parametrize(
    "given",
    [
        audio("x"),
        {"realtimeInput": {"text": "x"}},
        {"realtimeInput": {"activityEnd": {}}},
        {"realtimeInput": {"audioStreamEnd": True}},
    ],
    ids=str,
)
def test_input_while_a_call_is_waited_for_closes_the_connection(given: Json) -> None:
    made = connection()
    called(made, "call f {}")
    with pytest.raises(Closed, match="not implemented") as closed:
        receive(made, given)
    assert closed.value.code == 1008


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"name": "g"}, "name does not match"),
        ({"response": None}, "response is missing"),
        ({"scheduling": "SILENT"}, "NON_BLOCKING"),
        ({"willContinue": False}, "NON_BLOCKING"),
    ],
    ids=str,
)
def test_a_response_that_does_not_fit_its_call_closes_the_connection(more: Json, reason: str) -> None:
    made = connection()
    (call_id,) = called(made, "call f {}")
    with pytest.raises(Closed, match=reason):
        receive(made, response(call_id, **more))


def test_a_call_is_answered_once() -> None:
    made = connection()
    (call_id,) = called(made, "call f {}")
    receive(made, response(call_id))
    with pytest.raises(Closed, match="not found"):
        receive(made, response(call_id))


# --- what is answered -----------------------------------------------------------------------------------------


def test_words_are_answered_to_the_end_of_the_turn() -> None:
    answers = receive(connection(), words("hello"))
    assert kinds(answers) == ["serverContent"] * 3
    assert "hello" in text_of(answers)
    assert answers[-1]["serverContent"] == {"turnComplete": True}
    assert answers[-1]["usageMetadata"]["totalTokenCount"] > 0


def test_words_that_go_on_are_waited_for() -> None:
    made = connection()
    unfinished = words("what is")
    del unfinished["clientContent"]["turnComplete"]
    assert receive(made, unfinished) == []
    assert "2 + 2 = 4" in text_of(receive(made, words("2 + 2")))


def test_a_call_is_waited_for_and_its_response_told() -> None:
    made = connection()
    first, second = called(made, "call f {} and call f {}")
    assert receive(made, response(first)) == []
    answers = receive(made, response(second))
    assert text_of(answers) == 'f returned {"a": 1}. f returned {"a": 1}.'
    assert kinds(answers)[1:] == COMPLETE


def test_a_call_that_is_not_waited_for_ends_the_turn_and_is_told_as_the_response_says() -> None:
    made = connection()
    answers = receive(made, words("call free {}"))
    assert kinds(answers) == ["toolCall", *COMPLETE]
    assert receive(made, audio("x")) == []
    (call_id,) = made.pending
    assert "returned" in text_of(receive(made, response(call_id, scheduling="WHEN_IDLE", willContinue=True)))
    assert receive(made, response(call_id, scheduling="SILENT", willContinue=True)) == []
    answers = receive(made, response(call_id, scheduling="INTERRUPT"))
    assert answers[0] == {"serverContent": {"interrupted": True}}
    assert not made.pending
    with pytest.raises(Closed):
        receive(made, response(call_id))


def test_calls_are_taken_back_by_a_directive_and_by_words_of_the_user() -> None:
    made = connection()
    answers = receive(made, words("call f {} then cancel"))
    assert kinds(answers) == ["toolCall", "toolCallCancellation", *COMPLETE]
    (call_id,) = called(made, "call f {}")
    answers = receive(made, words("never mind"))
    assert answers[0] == {"toolCallCancellation": {"ids": [call_id]}}
    assert "never mind" in text_of(answers)


ASYNC: Json = {"setup": {**SETUP["setup"], "model": "models/gemini-3.8-live"}}
ASYNC_DECLARED: Json = {
    "setup": {
        "model": "models/gemini-3.8-live",
        "tools": [{"functionDeclarations": [{"name": "f", "behavior": "BLOCKING"}, {"name": "g"}]}],
    }
}


def test_from_3_8_on_an_undeclared_function_is_not_waited_for() -> None:
    made = connection(ASYNC)
    answers = receive(made, words("call f {}"))
    assert kinds(answers) == ["toolCall", *COMPLETE]
    assert receive(made, audio("x")) == []
    (call_id,) = made.pending
    assert "returned" in text_of(receive(made, response(call_id, scheduling="WHEN_IDLE")))


@pytest.mark.parametrize(
    "given", [audio("x"), {"realtimeInput": {"activityStart": {}}}, {"realtimeInput": {"audioStreamEnd": True}}]
)
def test_from_3_8_on_input_takes_a_blocking_call_back(given: Json) -> None:
    made = connection(ASYNC_DECLARED)
    answers = receive(made, words("call f {} and call g {}"))
    assert kinds(answers) == ["toolCall"]
    blocking, free = (call["id"] for call in answers[0]["toolCall"]["functionCalls"])
    assert receive(made, given)[0] == {"toolCallCancellation": {"ids": [blocking]}}
    assert list(made.pending) == [free]
    assert receive(made, response(blocking)) == []  # it was already being sent


def test_from_3_8_on_an_interrupting_response_waits_until_the_user_has_finished() -> None:
    made = connection(ASYNC)
    (call_id,) = called(made, "call f {}")
    receive(made, audio("and now"))
    assert receive(made, response(call_id, scheduling="INTERRUPT")) == []
    assert "returned" in text_of(receive(made, {"realtimeInput": {"audioStreamEnd": True}}))


@pytest.mark.parametrize(
    "given",
    [
        {"generationConfig": {"thinkingConfig": {"thinkingLevel": "LOW"}}},
        {"generationConfig": {"enableAffectiveDialog": True}},
        {"proactivity": {"proactiveAudio": False}},
    ],
    ids=str,
)
def test_from_3_8_on_some_settings_are_refused(given: Json) -> None:
    route = find_route(PATH)
    assert route is not None
    with pytest.raises(Closed, match="this model"):
        receive(LiveConnection(route), {"setup": {**ASYNC["setup"], **given}})
    receive(LiveConnection(route), {"setup": {**SETUP["setup"], **given}})


def test_audio_is_heard_in_the_order_in_which_it_came() -> None:
    made = connection()
    for one in ("what is ", "2 + ", "3"):
        assert receive(made, audio(one)) == []
    assert "2 + 3 = 5" in text_of(receive(made, {"realtimeInput": {"audioStreamEnd": True}}))
    assert receive(made, {"realtimeInput": {"activityStart": {}}}) == []


def test_tools_can_be_updated() -> None:
    made = connection()
    update = {"contextUpdate": {"tools": {"tools": [{"functionDeclarations": [{"name": "get_weather"}]}]}}}
    assert receive(made, update) == []
    assert len(called(made, "the weather?")) == 1


def test_a_session_that_can_be_resumed_says_so_and_one_that_ends_announces_it() -> None:
    made = connection({"setup": {"model": "models/gemini-live-2.5-flash-preview", "sessionResumption": {}}})
    answers = receive(made, words("go away"))
    assert answers[0] == {"goAway": {"timeLeft": "10s"}}
    assert answers[-1]["sessionResumptionUpdate"]["resumable"] is True


def test_vertex_takes_its_own_names_of_models() -> None:
    name = "projects/p/locations/l/publishers/google/models/gemini-2.5-flash-native-audio"
    connection({"setup": {"model": name, "labels": {"a": "b"}}}, VERTEX)


# --- over a WebSocket -----------------------------------------------------------------------------------------


@pytest.fixture
def client() -> TestClient:
    return TestClient(App(Service(), Shape(), Log()))


@pytest.mark.parametrize(
    "path", [PATH + "?key=k", "ws://testserver/" + PATH + "?key=k", VERTEX + "?key=k", PATH + "Constrained?key=k"]
)
def test_json_comes_in_either_kind_of_frame_and_goes_out_in_binary_ones(client: TestClient, path: str) -> None:
    with client.websocket_connect(path) as socket:
        socket.send_text(json.dumps(SETUP))
        assert json.loads(socket.receive_bytes()) == {"setupComplete": {}}
        socket.send_bytes(json.dumps(words("hello")).encode())
        assert b"hello" in socket.receive_bytes()
    app = client.app
    assert isinstance(app, App)
    (entry,) = app.log.requests
    assert [frame["text"] for frame in entry["body"]] == [True, False]
    assert (entry["status"], entry["error"]) == (101, None)


def test_a_close_has_its_code_and_reason_and_is_in_the_log(client: TestClient) -> None:
    with client.websocket_connect(PATH, headers={"authorization": "Bearer t"}) as socket:
        socket.send_text("{}")
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_bytes()
    assert (closed.value.code, closed.value.reason) == (1007, "setup must be the first message and only the first")
    app = client.app
    assert isinstance(app, App)
    assert app.log.requests[0]["status"] == 1007


@pytest.mark.parametrize(
    ("path", "code"),
    [(PATH, 403), (VERTEX, 401), (PATH + "?key=bad", 400), ("/ws/other?key=k", 404), (PATH + "Music?key=k", 404)],
)
def test_a_handshake_without_a_key_or_to_nowhere_is_refused(client: TestClient, path: str, code: int) -> None:
    with pytest.raises(Exception) as refused, client.websocket_connect(path):  # noqa: PT011
        pass
    assert getattr(refused.value, "status_code", None) == code
