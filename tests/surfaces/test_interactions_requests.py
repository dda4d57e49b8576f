"""Requests of the Interactions API as Gemini's, and odd documents."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.dialects import interaction_requests as own
from addon.core.framing.documents import Malformed, decode, encode
from addon.core.framing.streams import SseEvent
from addon.core.history.request import Piece
from addon.core.tools.tool_plan import Toolbox, cannot_use_functions
from addon.surfaces.incoming import Framing, Operation
from tests.surfaces.interaction_wire import (
    CALL,
    TEXT,
    Json,
    call,
    completed,
    created,
    model_turn,
    response,
    text,
    wire,
)


def written(body: Json, replaced: dict[str, Any] | None = None, contents: list[Json | int] | None = None) -> Json:
    """A request, written again. `contents`: new Contents, and the indexes of unchanged ones."""
    speaks = wire()
    request = speaks.read(encode(body))
    spans = [span for turn in request.history.turns for span in turn.spans]
    pieces: list[Piece] | None = None
    if contents is not None:
        pieces = [spans[one] if isinstance(one, int) else encode(one) for one in contents]
    members = {key: encode(value) if value is not None else None for key, value in (replaced or {}).items()}
    document: Json = decode(speaks.write(request, members, pieces))
    return document


# --- requests -----------------------------------------------------------------------------------------------------


def test_a_request_without_changes_keeps_its_bytes() -> None:
    body = b'{ "input":"hi", "model" : "m","future":[1.0],"previous_interaction_id":"v1_x" }'
    speaks = wire()
    request = speaks.read(body)
    assert speaks.write(request, {}, None) is body
    spans = [span for turn in request.history.turns for span in turn.spans]
    assert speaks.write(request, {}, [spans[0], (spans[1][0], spans[2][1])]) is body


def test_a_stream_is_asked_for_in_the_body() -> None:
    assert wire().target.framing is Framing.JSON
    target = wire(stream=True).target
    assert (target.framing, target.operation) == (Framing.SSE, Operation.STREAM)


@pytest.mark.parametrize("given", [{"agent": "a"}, {"background": True}])
def test_agents_and_background_requests_are_not_grafted(given: Json) -> None:
    with pytest.raises(Malformed, match="tools cannot be grafted"):
        wire(**given)


def test_the_service_keeps_the_history_that_the_request_names() -> None:
    assert not wire().keeps_history
    assert wire(previous_interaction_id="v1_x").keeps_history


def test_tools_are_replaced_and_removed() -> None:
    given = {"model": "m", "input": "hi", "tools": [{"type": "google_search"}], "generation_config": {"seed": 1}}
    declared = [{"functionDeclarations": [{"name": "f"}]}]
    calling = {"functionCallingConfig": {"mode": "ANY"}}
    new = written(given, {"tools": declared, "toolConfig": calling})
    assert new["tools"] == [{"type": "function", "name": "f"}]
    assert new["generation_config"] == {"seed": 1, "tool_choice": "any"}
    assert "tools" not in written(given, {"tools": None, "toolConfig": None})


def test_unsupported_tools_are_named() -> None:
    speaks = wire()
    tools = encode([{"googleSearch": {}}, {"enterpriseWebSearch": {}}, {"functionDeclarations": [{"name": "f"}]}])
    sent = decode(speaks.write(speaks.read(b'{"input":"hi"}'), {"tools": tools}, None))
    assert [tool["type"] for tool in sent["tools"]] == ["google_search", "function"]
    assert speaks.dropped.startswith("enterpriseWebSearch:")


def test_only_the_id_changes_if_the_turn_ended_with_another() -> None:
    given = {"model": "m", "input": "hi", "previous_interaction_id": "v1_a"}
    new = written(given, contents=[0, model_turn("v1_a"), response("c1"), model_turn("v1_b", {"text": "so"}), 2])
    assert new == {**given, "previous_interaction_id": "v1_b"}


def test_results_that_the_service_waits_for_go_before_the_clients_input() -> None:
    given = {"model": "m", "input": "hi", "previous_interaction_id": "v1_a"}
    new = written(given, contents=[0, model_turn("v1_a"), response("c1"), 2])
    assert new["previous_interaction_id"] == "v1_a"
    assert new["input"] == [
        {"type": "function_result", "call_id": "c1", "name": "f", "result": {"a": 1}},
        {"type": "user_input", "content": [{"type": "text", "text": "hi"}]},
    ]


def test_the_clients_own_history_is_rewritten_step_by_step() -> None:
    user = {"type": "user_input", "content": [{"type": "text", "text": "hi"}], "future": 1}
    given = {"model": "m", "input": [user, TEXT, user], "store": False}
    true_call = {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}}]}
    new = written(given, contents=[0, true_call, response("c1"), 1, 2])
    assert new["input"][0] == user
    assert [step["type"] for step in new["input"]] == [
        "user_input",
        "function_call",
        "function_result",
        "model_output",
        "user_input",
    ]
    assert "previous_interaction_id" not in new


def test_a_loop_continues_from_its_last_round() -> None:
    speaks = wire(input=[{"type": "text", "text": "hi"}], tools=[{"type": "function", "name": "f"}])
    request = speaks.read(speaks.write(speaks.read(speaks.given.body), {}, None))
    assert speaks.next_request(request, [], None) is speaks.given.body
    sent = decode(
        speaks.next_request(request, [model_turn("v1_a"), response("c1"), model_turn("v1_b"), response("c2")], "NONE")
    )
    assert sent["previous_interaction_id"] == "v1_b"
    assert [step["call_id"] for step in sent["input"]] == ["c2"]
    assert sent["generation_config"] == {"tool_choice": "none"}
    assert sent["tools"] == [{"type": "function", "name": "f"}]


def test_results_have_the_original_names_of_their_calls() -> None:
    """A tool that was renamed beside a client's tool has its own name again once the client's tool is gone."""
    renamed = own.parts_of_step({**CALL, "name": "f_g2"})[0]
    renamed["functionCall"]["name"] = "f"
    given = {"model": "m", "input": "hi", "previous_interaction_id": "v1_a"}
    new = written(given, contents=[0, model_turn("v1_a", renamed), response("c1"), 2])
    assert new["input"][0]["name"] == "f_g2"


def test_a_loop_that_the_service_does_not_keep_sends_everything_again() -> None:
    speaks = wire(store=False)
    request = speaks.read(speaks.given.body)
    model = {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": "f", "args": {}}}]}
    sent = decode(speaks.next_request(request, [model, response("c1")], None))
    assert [step["type"] for step in sent["input"]] == ["user_input", "function_call", "function_result"]
    assert sent["store"] is False


# --- odd ones -----------------------------------------------------------------------------------------------------

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1.5, "", "x", [], {}, [[]], [None], {"type": []}, {"type": "text"}, [{"": {}}]]
)
REQUEST = {
    "model": "m",
    "input": [
        {"type": "user_input", "content": [{"type": "text", "text": "hi"}, {"type": "image", "data": "QQ"}]},
        {"type": "thought", "signature": "c2ln", "summary": [{"type": "text", "text": "so"}]},
        CALL,
        {"type": "function_result", "call_id": "c1", "name": "f", "result": {"a": 1}, "is_error": True},
        {"type": "google_search_call", "id": "s", "arguments": {}},
        {"role": "user", "content": []},
    ],
    "previous_interaction_id": "v1_x",
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}, {"type": "google_search"}],
    "generation_config": {"tool_choice": {"allowed_tools": {"mode": "any", "tools": ["f"]}}},
    "response_format": [{"type": "text", "mime_type": "text/plain"}],
    "response_modalities": ["text"],
    "stream": True,
    "store": True,
}
ANSWER = {"id": "v1_a", "status": "completed", "steps": [*REQUEST["input"], TEXT], "usage": {"a": 1}, "model": "m"}  # type: ignore[misc]
EVENTS = [decode(one.data or b"") for one in [created(), *text(0, "a"), *call(1, CALL), completed(usage={"a": 1})]]


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to each value in a document."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def changed(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at a path."""
    if not path:
        return value
    key, *rest = path
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[key] = changed(document[key], tuple(rest), value)
    return copy


@given(st.data())
def test_an_odd_request_is_written_again_or_malformed(data: st.DataObject) -> None:
    speaks = wire()
    try:
        request = speaks.read(encode(changed(REQUEST, data.draw(st.sampled_from(places(REQUEST))), data.draw(JUNK))))
        speaks.write(request, {"tools": encode([{"functionDeclarations": [{"name": "f"}]}]), "toolConfig": None}, None)
        cannot_use_functions(request.value("generationConfig"), "m")
        Toolbox([{"name": "f"}]).keep(request.value("tools"), request.value("toolConfig"), (3, 0))
        request.history.identify(request.body)
        speaks.next_request(request, [model_turn("v1_a"), response("c1")], "NONE")
    except Malformed:
        pass


@given(st.data())
def test_an_odd_answer_is_still_converted(data: st.DataObject) -> None:
    speaks = wire()
    document = changed(ANSWER, data.draw(st.sampled_from(places(ANSWER))), data.draw(JUNK))
    if (visible := speaks.unwrap(document)) is not None:
        speaks.whole_body(visible, document)


@given(st.data())
def test_odd_events_pass_or_are_malformed(data: st.DataObject) -> None:
    speaks = wire(stream=True)
    odd = changed(EVENTS, data.draw(st.sampled_from(places(EVENTS)[1:])), data.draw(JUNK))
    for document in odd:
        within = speaks.is_within_call
        try:
            visible = speaks.unwrap(document)
        except Malformed:
            assert within or "function_call" in json.dumps(document), "only a call must not pass"
            return
        data_of = encode(document)
        speaks.passthrough_event(SseEvent(b"data: %b\n\n" % data_of, data_of))
        if visible is not None:
            speaks.event(visible, document)
