"""Gemini's answers as Responses: items, events and ends, each parsed by the published package's types."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.dialects.responses.answer import Translator, sse
from addon.core.dialects.responses.options import conversation_tools
from addon.core.dialects.responses.request import read_request
from tests.core.dialects.responses.published import accumulated, counting, event_of, response_of, translated, translator

CALL = {"functionCall": {"id": "g1", "name": "get_weather", "args": {"city": "Tokyo"}}, "thoughtSignature": "c2ln"}
OTHER = {"functionCall": {"id": "g2", "name": "get_time", "args": {}}}
USAGE = {
    "promptTokenCount": 10,
    "toolUsePromptTokenCount": 1,
    "cachedContentTokenCount": 4,
    "candidatesTokenCount": 5,
    "thoughtsTokenCount": 7,
    "totalTokenCount": 23,
}


def answer(*parts: Any, finish: str | None = "STOP", **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], **more}


def event(*parts: Any) -> dict[str, Any]:
    return answer(*parts, finish=None)


def thought(text: str) -> dict[str, Any]:
    return {"text": text, "thought": True}


SUMMARY = {"reasoning": {"summary": "auto"}}


def test_a_text_becomes_events() -> None:
    done, events = translated([event({"text": "Hello"}), answer({"text": " there"}, usageMetadata=USAGE)])

    for number, one in enumerate(events):
        assert event_of(one).sequence_number == number
    assert [one["type"] for one in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert [one["delta"] for one in events if one["type"] == "response.output_text.delta"] == ["Hello", " there"]
    assert events[-1]["response"] == done.document()
    assert done.status == "completed"
    assert done.content == {"role": "model", "parts": [{"text": "Hello there"}]}
    assert done.calls == {}


def test_a_whole_answer_is_a_response() -> None:
    done, _ = translated([answer({"text": "4"}, usageMetadata=USAGE)], metadata={"a": "b"}, conversation="c")

    response = response_of(done.document())

    assert (response.id, response.status, response.output_text) == ("resp_1", "completed", "4")
    assert (response.created_at, response.completed_at) == (1767225600, 1767225600)
    assert response.metadata == {"a": "b"}
    assert response.conversation is not None
    assert response.conversation.id == "c"
    assert response.usage is not None
    assert response.usage.model_dump(exclude_none=True) == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 7},
        "total_tokens": 23,
    }


def test_calls_have_string_arguments_and_are_kept_as_the_model_sent_them() -> None:
    done, events = translated([event(CALL), event(OTHER), answer({"text": ""})])

    for one in events:
        event_of(one)
    assert done.document()["output"] == [
        {
            "id": "fc_2",
            "type": "function_call",
            "call_id": "call_1",
            "name": "get_weather",
            "arguments": '{"city":"Tokyo"}',
            "status": "completed",
        },
        {
            "id": "fc_4",
            "type": "function_call",
            "call_id": "call_3",
            "name": "get_time",
            "arguments": "{}",
            "status": "completed",
        },
    ]
    assert [one["type"] for one in events[2:6]] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert events[2]["item"]["arguments"] == ""
    assert done.calls == {"call_1": CALL, "call_3": OTHER}
    assert done.content == {"role": "model", "parts": [CALL, OTHER]}


def test_thoughts_are_shown_if_a_summary_was_requested() -> None:
    done, events = translated([event(thought("so")), event(thought(", then")), answer({"text": "4"})], **SUMMARY)

    for one in events:
        event_of(one)
    reasoning, message = response_of(done.document()).output
    assert reasoning.type == "reasoning"
    assert [part.text for part in reasoning.summary] == ["so, then"]
    assert message.type == "message"
    assert [one["type"] for one in events[2:9]] == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]
    assert done.content == {"role": "model", "parts": [{"text": "4"}]}


def test_other_thoughts_are_hidden_and_do_not_split_a_text() -> None:
    done, _ = translated([event({"text": "a"}), event(thought("so")), answer({"text": "b"})])

    assert [item["type"] for item in done.document()["output"]] == ["message"]
    assert response_of(done.document()).output_text == "ab"


QUIET: dict[str, dict[str, Any]] = {
    "a keep-alive": event({"text": "", "thought": True}),
    "an empty text": event({"text": ""}),
    "no parts": event(),
    "usage": {"usageMetadata": USAGE},
    "nothing": {},
    "no candidates": {"candidates": []},
}


@pytest.mark.parametrize("quiet", QUIET.values(), ids=QUIET)
def test_events_without_content_are_ignored(quiet: dict[str, Any]) -> None:
    running = translator(**SUMMARY)
    running.start()

    assert running.feed(quiet) == []


def test_only_the_first_candidate_counts() -> None:
    second = {"content": {"parts": [{"text": "b"}]}, "index": 1, "finishReason": "MAX_TOKENS"}
    document = answer({"text": "a"})
    document["candidates"].append(second)

    done, _ = translated([document])

    assert (response_of(done.document()).output_text, done.status) == ("a", "completed")


def test_signatures_stay_where_they_were() -> None:
    signed = {"text": "", "thoughtSignature": "c2ln"}

    done, _ = translated([event({"text": "a"}), event({"text": "b"}), answer(signed)])

    assert done.content == {"role": "model", "parts": [{"text": "ab"}, signed]}


def test_arguments_that_come_in_pieces_are_put_together() -> None:
    pieces = [
        event({"functionCall": {"name": "f", "willContinue": True}, "thoughtSignature": "c2ln"}),
        event({"functionCall": {"partialArgs": [{"jsonPath": "$.city", "stringValue": "To"}], "willContinue": True}}),
        event({"functionCall": {"partialArgs": [{"jsonPath": "$.city", "stringValue": "kyo"}], "willContinue": True}}),
        event({"functionCall": {}}),
        event(OTHER),
        answer({"text": ""}),
    ]
    before = copy.deepcopy(pieces)

    done, _ = translated(pieces)

    assert [item["arguments"] for item in done.document()["output"]] == ['{"city":"Tokyo"}', "{}"]
    assert list(done.calls.values()) == [
        {"functionCall": {"name": "f", "args": {"city": "Tokyo"}}, "thoughtSignature": "c2ln"},
        OTHER,
    ]
    assert pieces == before


def test_a_call_without_its_last_piece_has_the_arguments_that_arrived() -> None:
    piece = {"partialArgs": [{"jsonPath": "$.a", "numberValue": 1}], "willContinue": True}
    one, two = (event({"functionCall": {"name": name, **piece}}) for name in ("f", "g"))

    done, _ = translated([one, two, answer({"text": ""})])

    assert [(item["name"], item["arguments"]) for item in done.document()["output"]] == [
        ("f", '{"a":1}'),
        ("g", '{"a":1}'),
    ]


# what Gemini sends → status, reason of being incomplete, a word of the error, output
ENDS: dict[str, tuple[list[Any], str, str | None, str | None]] = {
    "stopped": ([answer({"text": "a"})], "completed", None, None),
    "without a reason": ([event({"text": "a"})], "completed", None, None),
    "stopped without a word": ([answer()], "completed", None, None),
    "too long": ([answer({"text": "a"}, finish="MAX_TOKENS")], "incomplete", "max_output_tokens", None),
    "unsafe": ([answer({"text": "a"}, finish="SAFETY")], "incomplete", "content_filter", None),
    "by heart": ([answer(finish="RECITATION")], "incomplete", "content_filter", None),
    "a prompt that is refused": (
        [{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": USAGE}],
        "incomplete",
        "content_filter",
        None,
    ),
    "a bad call": (
        [{"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "print(x)"}]}],
        "failed",
        None,
        "MALFORMED_FUNCTION_CALL: print(x)",
    ),
    "an unknown tool": ([answer(finish="UNEXPECTED_TOOL_CALL")], "failed", None, "UNEXPECTED_TOOL_CALL"),
    "a new reason": ([answer({"text": "a"}, finish="NEWS")], "failed", None, "NEWS"),
    "to be continued": ([answer({"text": "a"}, finish="CONTINUATION")], "failed", None, "CONTINUATION"),
    "nothing at all": ([], "failed", None, "empty"),
    "an image alone": (
        [answer({"inlineData": {"mimeType": "image/png", "data": "aGk="}})],
        "failed",
        None,
        "only with inlineData",
    ),
    "an error in the stream": (
        [event({"text": "a"}), {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}],
        "failed",
        None,
        "overloaded",
    ),
}


@pytest.mark.parametrize(("documents", "status", "reason", "error"), ENDS.values(), ids=ENDS)
def test_every_end_has_its_status(documents: list[Any], status: str, reason: str | None, error: str | None) -> None:
    done, events = translated(documents)

    response = response_of(done.document())
    assert (done.status, response.status) == (status, status)
    assert (response.incomplete_details and response.incomplete_details.reason) == reason
    assert (response.error is None) == (error is None)
    if response.error and error:
        assert error in response.error.message
    assert [one["type"] for one in events].count(f"response.{status}") == 1
    assert event_of(events[-1]).type == f"response.{status}"
    assert {item.status for item in response.output if item.type == "message"} <= {
        "completed" if status == "completed" else "incomplete"
    }


@pytest.mark.parametrize(
    ("status", "code"), [(400, "invalid_prompt"), (429, "rate_limit_exceeded"), (503, "server_error")]
)
def test_an_answer_that_breaks_off_fails_with_what_is_known(status: int, code: str) -> None:
    running = translator()
    running.start()
    running.feed(event({"text": "a"}))

    events = running.fail(status, "the connection broke")

    assert [one["type"] for one in events][-2:] == ["response.output_item.done", "response.failed"]
    assert running.document()["error"] == {"code": code, "message": "the connection broke"}
    response_of(running.document())
    assert (running.feed(event({"text": "b"})), running.end(), running.fail(500, "again")) == ([], [], [])


def test_calls_that_still_wait_are_given_out_again_under_their_ids() -> None:
    running = translator()

    events = running.start() + running.repeat_calls({"call_b": OTHER}) + running.end()

    (item,) = response_of(running.document()).output
    assert item.type == "function_call"
    assert (item.call_id, item.name, running.status) == ("call_b", "get_time", "completed")
    assert (running.calls, running.content) == ({"call_b": OTHER}, None)
    assert event_of(events[-1]).type == "response.completed"


def one_by_one() -> Translator:
    wanted = read_request({"model": "gemini-3-flash", "input": "hi"})
    return Translator(wanted, "resp_1", new_id=counting(), now=lambda: 0.0, one_by_one=True)


@pytest.mark.parametrize("whole", [True, False])
def test_one_by_one_only_the_first_call_is_shown_and_all_are_kept(whole: bool) -> None:
    running = one_by_one()
    documents = [answer(CALL, OTHER)] if whole else [event(CALL), event(OTHER), answer()]

    events = [*running.start(), *(one for document in documents for one in running.feed(document)), *running.end()]

    visible = response_of(running.document())
    assert [item.type for item in visible.output] == ["function_call"]
    assert visible.parallel_tool_calls is False
    assert [one["type"] for one in events].count("response.output_item.added") == 1
    assert list(running.calls.values()) == [CALL, OTHER]
    assert running.content == {"role": "model", "parts": [CALL, OTHER]}


def test_one_by_one_the_first_of_the_calls_that_wait_is_given_out() -> None:
    running = one_by_one()

    running.repeat_calls({"call_a": CALL, "call_b": OTHER})
    running.end()

    assert [item["call_id"] for item in running.document()["output"]] == ["call_a"]


def test_the_conversations_tools_are_shown_if_the_request_has_none() -> None:
    tools = conversation_tools([{"functionDeclarations": [{"name": "f"}]}])
    wanted = read_request({"model": "gemini-3-flash", "input": "hi"})
    running = Translator(wanted, "resp_1", new_id=str, now=lambda: 0.0, tools=tools)

    assert response_of(running.document()).tools[0].type == "function"


def test_events_are_framed_as_openai_frames_them() -> None:
    framed = sse({"type": "error", "message": "ü\n"})

    assert framed == b'event: error\ndata: {"type":"error","message":"\xc3\xbc\\n"}\n\n'


STREAMS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "thoughts, words and calls": (
        [
            event(thought("hm")),
            event({"text": "Let me "}),
            event({"text": "see."}),
            event(CALL),
            event(OTHER),
            answer(),
        ],
        ["get_weather", "get_time"],
    ),
    "an answer that is too long": ([event({"text": "Let me "}), answer({"text": "see."}, finish="MAX_TOKENS")], []),
    "an answer that fails": ([event({"text": "Let me see."}), {"error": {"code": 500, "message": "no"}}], []),
}


@pytest.mark.parametrize(("documents", "calls"), STREAMS.values(), ids=STREAMS)
def test_the_published_clients_stream_takes_every_event(documents: list[dict[str, Any]], calls: list[str]) -> None:
    done, events = translated(documents, **SUMMARY)

    events_taken, final = accumulated(events)

    assert [one.type for one in events_taken] == [one["type"] for one in events]
    assert final.output_text == "Let me see."
    assert [item.name for item in final.output if item.type == "function_call"] == calls
    assert (final.id, final.status) == ("resp_1", done.status)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
PARTS = st.lists(
    st.one_of(
        TEXTS.map(lambda text: {"text": text}),
        TEXTS.map(thought),
        st.just(CALL),
        st.just(OTHER),
        st.just({"text": "", "thoughtSignature": "c2ln"}),
    ),
    max_size=6,
)


@given(parts=PARTS, shows=st.booleans(), data=st.data())
def test_however_an_answer_is_cut_into_events_the_response_is_the_same(
    parts: list[dict[str, Any]], shows: bool, data: st.DataObject
) -> None:
    pieces: list[dict[str, Any]] = []
    for part in parts:
        text = part.get("text", "")
        at = data.draw(st.integers(0, len(text)))
        if "functionCall" in part or not text:
            pieces.append(part)
        else:
            pieces += [{**part, "text": text[:at]}, {**part, "text": text[at:]}]
    cuts = data.draw(st.lists(st.integers(0, len(pieces)), max_size=4).map(sorted))
    stream = [event(*pieces[start:end]) for start, end in zip([0, *cuts], [*cuts, len(pieces)], strict=True)]
    fields = SUMMARY if shows else {}

    whole, _ = translated([answer(*parts, usageMetadata=USAGE)], **fields)
    streamed, events = translated([*stream, answer(usageMetadata=USAGE)], **fields)

    assert streamed.document() == whole.document()
    assert (streamed.content, streamed.calls) == (whole.content, whole.calls)
    for one in events:
        event_of(one)


LOGPROBS = {
    "chosenCandidates": [{"token": "Hé", "logProbability": -0.5}, {"token": "y", "logProbability": -1}],
    "topCandidates": [{"candidates": [{"token": "Hé", "logProbability": -0.5}, {"token": "Ho"}]}],
}


def test_log_probabilities_belong_to_their_text() -> None:
    documents = [answer({"text": "Héy"}, finish=None), answer({"text": "."})]
    documents[0]["candidates"][0]["logprobsResult"] = LOGPROBS
    documents[1]["candidates"][0]["logprobsResult"] = {"chosenCandidates": [{"token": ".", "logProbability": 0}]}
    done, events = translated(documents, top_logprobs=2)
    for one in events:
        event_of(one)
    response = done.document()
    response_of(response)
    assert response["top_logprobs"] == 2
    first, second, last = response["output"][0]["content"][0]["logprobs"]
    assert first == {
        "token": "Hé",
        "bytes": [72, 195, 169],
        "logprob": -0.5,
        "top_logprobs": [
            {"token": "Hé", "bytes": [72, 195, 169], "logprob": -0.5},
            {"token": "Ho", "bytes": [72, 111], "logprob": 0.0},
        ],
    }
    assert (second["token"], second["top_logprobs"], last["token"]) == ("y", [], ".")
    deltas = [one["logprobs"] for one in events if one["type"] == "response.output_text.delta"]
    assert [[one["token"] for one in some] for some in deltas] == [["Hé", "y"], ["."]]
    (done_event,) = [one for one in events if one["type"] == "response.output_text.done"]
    assert done_event["logprobs"] == deltas[0] + deltas[1]
    assert accumulated(events)[1].output_text == "Héy."


@pytest.mark.parametrize(
    ("tier", "expected"),
    [("FLEX", "flex"), ("standard", "default"), ("SERVICE_TIER_X", "priority"), (None, "priority")],
)
def test_a_response_names_the_tier_that_was_used(tier: str | None, expected: str) -> None:
    usage = USAGE | ({"serviceTier": tier} if tier else {})
    done, _ = translated([answer({"text": "4"}, usageMetadata=usage)], service_tier="fast")
    assert response_of(done.document()).service_tier == expected
