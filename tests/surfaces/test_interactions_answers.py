"""Answers of the Interactions API, whole and streamed, and errors."""

from typing import Any

import pytest

from addon.core.dialects import interaction_requests as own
from addon.core.framing.documents import decode, encode
from addon.core.framing.streams import SseDecoder, SseEvent
from addon.surfaces.interactions import InteractionsWire
from tests.recorded import at_least, exchanges
from tests.surfaces.interaction_wire import (
    CALL,
    TEXT,
    Json,
    call,
    completed,
    created,
    event,
    model_turn,
    response,
    step,
    text,
    wire,
)

OWN = {"type": "function_call", "id": "c2", "name": "g", "arguments": {}, "signature": ""}
DONE = b"event: done\ndata: [DONE]\n\n"


def through(speaks: InteractionsWire, events: list[SseEvent], *hidden: str) -> bytes:
    """The client's bytes for these events, if the events with these calls are hidden."""
    out = b""
    for one in events:
        visible = speaks.unwrap(decode(one.data or b""))
        names = [part["functionCall"]["name"] for part in parts_of(visible) if "functionCall" in part]
        if not set(names) & set(hidden):
            out += speaks.passthrough_event(one)
    return out


def parts_of(visible: Any) -> list[Json]:
    return [part for candidate in (visible or {}).get("candidates", []) for part in candidate["content"]["parts"]]


def events_of(out: bytes) -> list[Json]:
    return [decode(one.data or b"") for one in SseDecoder().feed(out) if one.data != b"[DONE]"]


# --- whole answers ------------------------------------------------------------------------------------------------


def whole(speaks: InteractionsWire, *answers: Json) -> Any:
    visible = None
    for one in answers:
        visible = speaks.unwrap(one)
    return visible


def test_an_answer_becomes_a_response_that_begins_with_its_id() -> None:
    answer = {"id": "v1_a", "status": "requires_action", "steps": [TEXT, CALL], "usage": {"total_tokens": 3}}
    visible = wire().unwrap(answer)
    assert visible is not None
    assert parts_of(visible)[0] == own.mark_part("v1_a")
    text, call = parts_of(visible)[1:]
    assert text == {"text": "so"}
    assert {"id": "c1", "name": "f", "args": {"a": 1}}.items() <= call["functionCall"].items()
    assert visible["usageMetadata"] == {"total_tokens": 3}
    assert visible["candidates"][0]["finishReason"] == "STOP"


def test_an_answer_that_is_not_kept_has_no_id() -> None:
    assert parts_of(wire(store=False).unwrap({"id": "v1_a", "status": "completed", "steps": [TEXT]})) == [
        {"text": "so"}
    ]


@pytest.mark.parametrize("document", [{"error": {"message": "no"}}, {"other": 1}, [], None])
def test_a_document_that_is_no_answer_is_none(document: Any) -> None:
    assert wire().unwrap(document) is None


@pytest.mark.parametrize(
    ("status", "finish"), [("completed", "STOP"), ("incomplete", "MAX_TOKENS"), ("failed", "OTHER")]
)
def test_how_answers_end(status: str, finish: str) -> None:
    visible = wire().unwrap({"id": "v1_a", "status": status, "steps": []})
    assert visible is not None
    assert visible["candidates"][0]["finishReason"] == finish


def test_a_placeholder_replaces_calls() -> None:
    speaks = wire()
    answer = {"id": "v1_a", "status": "requires_action", "steps": [TEXT, CALL], "future": 1}
    speaks.unwrap(answer)
    visible = {"candidates": [{"content": {"parts": [own.mark_part("v1_a"), {"text": "so\n\nplaceholder"}]}}]}
    made = {"type": "model_output", "content": [{"type": "text", "text": "\n\nplaceholder"}]}
    assert decode(speaks.whole_body(visible, answer)) == {**answer, "status": "completed", "steps": [TEXT, made]}


def test_an_answer_without_a_status_is_read_by_its_steps() -> None:
    speaks = wire()
    answer = {"id": "v1_a", "steps": [TEXT, CALL]}
    visible = speaks.unwrap(answer)
    assert parts_of(visible)[2]["functionCall"]["name"] == "f"
    made = {"type": "model_output", "content": [{"type": "text", "text": "placeholder"}]}
    final = {"candidates": [{"content": {"parts": [*own.parts_of_step(TEXT), *own.parts_of_step(made)]}}]}
    assert decode(speaks.whole_body(final, answer))["status"] == "completed"


def test_the_clients_calls_stay_unchanged_and_require_action() -> None:
    speaks = wire()
    answer = {"id": "v1_a", "status": "requires_action", "steps": [CALL, OWN]}
    visible = speaks.unwrap(answer)
    assert visible is not None
    kept = {"candidates": [{"content": {"parts": [parts_of(visible)[2]]}}]}
    assert decode(speaks.whole_body(kept, answer)) == {**answer, "steps": [OWN]}


def test_the_answer_of_a_loop_has_the_steps_of_all_rounds_and_the_id_of_the_last() -> None:
    speaks = wire()
    signed = {"type": "thought", "signature": "c2ln"}
    first = {"id": "v1_a", "status": "requires_action", "steps": [signed, TEXT, CALL], "usage": {"total_tokens": 1}}
    last = {"id": "v1_b", "status": "completed", "steps": [TEXT], "usage": {"total_tokens": 2}}
    whole(speaks, first, last)
    visible = {"candidates": [{"content": {"parts": [{"text": "soso"}]}}], "usageMetadata": {"total_tokens": 3}}
    assert decode(speaks.whole_body(visible, last)) == {
        **last,
        "steps": [signed, TEXT, TEXT],
        "usage": {"total_tokens": 3},
    }


def test_steps_of_built_in_tools_are_visible_if_requested() -> None:
    search = {"type": "google_search_call", "id": "s1", "arguments": {}}
    for parts, steps in (([], [TEXT]), (own.parts_of_step(search), [search, TEXT])):
        speaks = wire()
        answer = {"id": "v1_a", "status": "completed", "steps": [search, TEXT]}
        speaks.unwrap(answer)
        visible = {"candidates": [{"content": {"parts": [*parts, {"text": "so"}]}}]}
        assert decode(speaks.whole_body(visible, answer))["steps"] == steps


def test_a_client_with_built_in_tools_has_requested_their_steps() -> None:
    request = wire().read(encode({"model": "m", "input": "hi", "tools": [{"type": "google_search"}]}))
    assert decode(request.value("toolConfig") or b"") == {"includeServerSideToolInvocations": True}


PLACED: Json = {
    "candidates": [{"content": {"parts": [{"text": "placeholder"}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 0},
}


def test_the_proxys_own_answer_does_not_advance_the_conversation() -> None:
    kind, body = wire(previous_interaction_id="v1_x").reply(PLACED)
    answer = decode(body)
    assert kind.startswith("application/json")
    assert (answer["id"], answer["status"], answer["usage"]["total_tokens"]) == ("v1_x", "completed", 0)
    assert answer["steps"] == [{"type": "model_output", "content": [{"type": "text", "text": "placeholder"}]}]


def test_the_proxys_own_stream_is_complete() -> None:
    kind, body = wire(previous_interaction_id="v1_x", stream=True).reply(PLACED)
    assert kind == "text/event-stream"
    assert body.endswith(DONE)
    begun, *others, ended = events_of(body)
    assert begun["interaction"]["id"] == ended["interaction"]["id"] == "v1_x"
    assert [one["event_type"] for one in others] == ["step.start", "step.delta", "step.stop"]
    assert ended["interaction"]["usage"]["total_tokens"] == 0


# --- streams ------------------------------------------------------------------------------------------------------


def test_a_stream_without_changes_keeps_its_bytes() -> None:
    speaks = wire(stream=True)
    events = [created(), *text(0, "a", "b"), *call(1, OWN), completed(status="requires_action")]
    assert through(speaks, events) == b"".join(one.raw for one in events)
    assert speaks.passthrough_event(SseEvent(b"event: done\ndata: [DONE]\n\n", b"[DONE]")) == b""
    assert speaks.end() == DONE


def test_a_call_is_held_back_until_it_is_complete() -> None:
    speaks = wire(stream=True)
    start, delta, stop = call(0, OWN)
    assert through(speaks, [start, delta]) == b""
    assert through(speaks, [stop]) == start.raw + delta.raw + stop.raw


def test_text_goes_out_piece_by_piece() -> None:
    speaks = wire(stream=True)
    for one in [created(), *text(0, "a", "b")]:
        assert through(speaks, [one]) == one.raw


def test_no_piece_of_a_hidden_call_goes_out_and_later_steps_are_renumbered() -> None:
    speaks = wire(stream=True)
    events = [created(), *text(0, "a"), *call(1, CALL), *text(2, "b"), *call(3, OWN)]
    out = through(speaks, events, "f")
    assert b'"c1"' not in out
    assert [one["index"] for one in events_of(out)[1:]] == [0] * 3 + [1] * 3 + [2] * 3


def test_the_end_has_the_first_id_and_the_usage_of_all_rounds() -> None:
    speaks = wire(stream=True)
    request = speaks.read(speaks.given.body)
    out = b""
    for number, name in enumerate(("v1_a", "v1_b")):
        speaks.next_request(request, [model_turn("v1_a"), response("c1")] if number else [], None)
        out += through(
            speaks, [created(name), event("interaction.status_update", interaction_id=name, status="in_progress")]
        )
        out += through(speaks, text(0, "so"))
        if not number:
            out += through(speaks, call(1, CALL), "f")
    last = decode(completed("v1_b", usage={"total_tokens": 2}, steps=[CALL]).data or b"")
    visible = {"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}], "usageMetadata": {"total_tokens": 3}}
    speaks.unwrap(last)
    out += speaks.event(visible, last)
    events = events_of(out)
    kinds = [one["event_type"] for one in events]
    assert kinds.count("interaction.created") == kinds.count("interaction.completed") == 1
    assert kinds.count("interaction.status_update") == 1
    assert [one["index"] for one in events if "index" in one] == [0] * 3 + [1] * 3
    assert events[-1]["interaction"] == {"id": "v1_a", "status": "completed", "usage": {"total_tokens": 3}}


@pytest.mark.parametrize(("of", "status"), [(CALL, "completed"), (OWN, "requires_action")])
def test_action_is_required_only_of_a_client_with_calls(of: Json, status: str) -> None:
    speaks = wire(stream=True)
    through(speaks, [created(), *call(0, of)], "f")
    last = decode(completed(status="requires_action").data or b"")
    speaks.unwrap(last)
    (ended,) = events_of(speaks.event({"candidates": [{"content": {"parts": []}, "finishReason": "STOP"}]}, last))
    assert ended["interaction"]["status"] == status


def test_a_placeholder_is_a_step_of_its_own_before_the_end() -> None:
    speaks = wire(stream=True)
    through(speaks, [created(), *text(0, "so"), *call(1, CALL)], "f")
    last = decode(completed(status="requires_action").data or b"")
    speaks.unwrap(last)
    start, delta, stop, ended = events_of(speaks.event(PLACED, last))
    assert (start["index"], start["step"]) == (1, {"type": "model_output"})
    assert delta["delta"] == {"text": "placeholder", "type": "text"}
    assert stop["event_type"] == "step.stop"
    assert ended["interaction"]["status"] == "completed"


@pytest.mark.parametrize("beginning", [[], [event("interaction.created", interaction={"status": "in_progress"})]])
def test_an_interaction_that_only_its_end_names_is_known_by_that_name(beginning: list[SseEvent]) -> None:
    speaks = wire(stream=True, previous_interaction_id="v1_before")
    through(speaks, [*beginning, *text(0, "so"), *call(1, CALL)], "f")
    last = decode(completed("v1_a", status="requires_action").data or b"")
    assert own.mark_part("v1_a") in parts_of(speaks.unwrap(last))
    *_, ended = events_of(speaks.event(PLACED, last))
    assert ended["interaction"]["id"] == "v1_a"


def test_the_name_of_an_interaction_is_taken_once() -> None:
    speaks = wire(stream=True)
    marks = [part for one in (created(), completed()) for part in parts_of(speaks.unwrap(decode(one.data or b"")))]
    assert marks == [own.mark_part("v1_a")]


def test_a_long_wait_is_bridged_by_an_event_without_content() -> None:
    speaks = wire(stream=True)
    through(speaks, [created()])
    (alive,) = events_of(speaks.event({"candidates": [{"content": {"parts": [{"text": "", "thought": True}]}}]}))
    assert alive == {
        "interaction_id": "v1_a",
        "status": "in_progress",
        "event_type": "interaction.status_update",
    }


def test_a_call_without_an_end_is_complete_when_the_interaction_is() -> None:
    speaks = wire(stream=True)
    *begun, _ = call(0, CALL)
    through(speaks, [created(), *begun])
    visible = speaks.unwrap(decode(completed(status="requires_action").data or b""))
    assert [part["functionCall"]["args"] for part in parts_of(visible)] == [{"a": 1}]


@pytest.mark.parametrize("hidden", [True, False])
def test_an_incomplete_call_of_the_client_goes_out_before_the_end(hidden: bool) -> None:
    speaks = wire(stream=True)
    *begun, _ = call(0, OWN)
    through(speaks, [created(), *begun])
    last = completed(status="requires_action")
    visible = speaks.unwrap(decode(last.data or b""))
    parts = [] if hidden else parts_of(visible)
    response = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    *events, ended = events_of(speaks.event(response, decode(last.data or b"")))
    assert [one["event_type"] for one in events] == ([] if hidden else ["step.start", "step.delta"])
    assert ended["interaction"]["status"] == ("completed" if hidden else "requires_action")


def test_a_stream_whose_last_call_has_no_end_passes_unchanged() -> None:
    *begun, _ = call(0, OWN)
    events = [created(), *begun, completed(status="requires_action")]
    assert through(wire(stream=True), events) == b"".join(one.raw for one in events)


@pytest.mark.parametrize("kind", ["other_call", "model_output"])
def test_a_step_that_begins_within_a_hidden_call_releases_nothing_of_the_call(kind: str) -> None:
    """A stream that lost the end of a call's step: the next step may have the same index."""
    begun, *rest = call(0, CALL)
    events = [created(), begun, event("step.start", index=0, step={"type": kind}), *rest, completed()]
    assert b'"c1"' not in through(wire(stream=True), events, "f")


def test_a_hidden_call_has_no_later_events() -> None:
    speaks = wire(stream=True)
    late = [event("step.delta", index=0, delta={"type": "arguments_delta", "arguments": "secret"})]
    late += [event("step.stop", index=0, step_usage={"total_tokens": 1})]
    update = event("interaction.status_update", interaction_id="v1_a", status="requires_action")
    assert through(speaks, [created(), *call(0, CALL), *late, update], "f") == created().raw
    other = wire(stream=True)
    assert through(other, [created(), update]) == created().raw + update.raw


def test_thoughts_are_kept_with_their_signatures() -> None:
    speaks = wire(stream=True)
    signature = {"type": "thought_signature", "signature": "c2ln"}
    visible = [speaks.unwrap(decode(one.data or b"")) for one in step(0, {"type": "thought"}, signature)]
    assert [parts_of(one) for one in visible if one] == [[{"text": "", "thought": True, "thoughtSignature": "c2ln"}]]


def test_unknown_events_pass() -> None:
    speaks = wire(stream=True)
    for item in (event("future.event", index="x"), SseEvent(b"data: {\n\n", b"{"), SseEvent(b"data: 1\n\n", b"1")):
        assert speaks.passthrough_event(item) == item.raw


def test_an_event_without_its_last_line_is_framed_anew() -> None:
    speaks = wire(stream=True)
    cut = created()
    assert speaks.passthrough_event(SseEvent(cut.raw.rstrip(), cut.data)) == cut.raw


# --- errors -------------------------------------------------------------------------------------------------------


def test_errors_have_a_word_as_code() -> None:
    google = {"error": {"code": 503, "message": "no", "status": "UNAVAILABLE"}}
    speaks = wire(stream=True)
    assert decode(speaks.error(google)) == {"error": {"message": "no", "code": "unavailable"}}
    out = speaks.error_event({"error": {"message": "bad", "code": "invalid_request"}})
    assert out.startswith(b"event: error\n")
    assert out.endswith(DONE)
    assert events_of(out) == [{"error": {"message": "bad", "code": "invalid_request"}, "event_type": "error"}]


# --- as recorded ----------------------------------------------------------------------------------------------------


def test_recorded_exchanges_pass_byte_for_byte() -> None:
    kinds = set()
    recorded = [one for one in exchanges() if one["api"] == "interactions"]
    for one in recorded:
        stream = one["framing"] == "sse"  # some end without being done: whoever gets them from here is told
        body = encode(one["request_body"] or {"model": "m", "input": "hi", "stream": stream})
        speaks = wire()
        request = speaks.read(body)
        assert speaks.write(request, {}, None) is body
        assert speaks.next_request(speaks.read(body), [], None) is body
        for given in own.input_steps(decode(body)["input"]):
            assert own.steps_of(own.content_of(given)) == [given] or "type" not in given
        answer = one["response_body"].encode()
        kinds.add(one["framing"])
        if not stream:
            assert speaks.unwrap(decode(answer)) is not None
            continue
        out = b""
        for item in SseDecoder().feed(answer):
            if item.data not in (None, b"[DONE]"):
                speaks.unwrap(decode(item.data or b""))
            out += speaks.passthrough_event(item) if item.data is not None else b""
        events = answer.rstrip(b"\n").removesuffix(DONE.rstrip(b"\n")).rstrip(b"\n") + b"\n\n"
        assert (out + speaks.end()).rstrip(b"\n") == (events + DONE).rstrip(b"\n")
    assert kinds == {"json", "sse"}
    assert len(recorded) >= at_least(2, 19)
