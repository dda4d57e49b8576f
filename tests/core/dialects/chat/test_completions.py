"""Converts answers of chat completions to Gemini responses and back."""

from typing import Any

import pytest

from addon.core.dialects.chat_answers import Completions

Json = dict[str, Any]


def chunk(delta: Json, finish: str | None = None, **more: Any) -> Json:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "gemini-3-flash"}
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def entry(name: str | None = None, arguments: str | None = None, **more: Any) -> Json:
    function = {"name": name, "arguments": arguments}
    return {"function": {k: v for k, v in function.items() if v is not None}, **more}


def signed(signature: str) -> Json:
    return {"extra_content": {"google": {"thought_signature": signature}}}


def parts(completions: Completions, *documents: Json) -> list[Json]:
    """The parts of all documents, in order."""
    found: list[Json] = []
    for document in documents:
        response = completions.read(document)
        assert response is not None
        found += [part for candidate in response["candidates"] for part in candidate["content"]["parts"]]
    return found


def calls(found: list[Json]) -> list[Json]:
    """The calls in these parts, as `core.answer` assembles them."""
    made: list[Json] = []
    for part in found:
        call = dict(part["functionCall"])
        going_on = call.pop("willContinue", False)
        if made and made[-1].get("open"):
            made[-1] = {**made[-1], **call, "open": going_on}
        else:
            made.append({**call, "open": going_on})
    assert not any(call.pop("open") for call in made)
    return made


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"role": "assistant", "content": "hi"}, [{"text": "hi"}], id="text"),
        pytest.param({"role": "assistant", "content": None}, [], id="nothing"),
        pytest.param(
            {"content": "hi", **signed("s1")}, [{"text": "hi", "thoughtSignature": "s1"}], id="text that is signed"
        ),
        pytest.param(signed("s1"), [{"text": "", "thoughtSignature": "s1"}], id="a signature alone"),
        pytest.param(
            {"tool_calls": [{"id": "x", "type": "function", **entry("f", '{"a":1}'), **signed("s1")}]},
            [{"functionCall": {"id": "x", "name": "f", "args": {"a": 1}}, "thoughtSignature": "s1"}],
            id="a call, whole and signed",
        ),
        pytest.param(
            {"tool_calls": [{"id": "", **entry("f", "{}")}]},
            [{"functionCall": {"name": "f", "args": {}}}],
            id="a call without an id",
        ),
        pytest.param(
            {"tool_calls": [{"id": "x", "index": 0, **entry("f", "{}")}, {"id": "y", "index": 1, **entry("g", "{}")}]},
            [
                {"functionCall": {"id": "x", "name": "f", "args": {}}},
                {"functionCall": {"id": "y", "name": "g", "args": {}}},
            ],
            id="parallel calls",
        ),
    ],
)
def test_the_parts_of_an_event(given: Json, expected: list[Json]) -> None:
    assert parts(Completions(), chunk(given)) == expected


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param(
            [
                [{"id": "x", "index": 0, **entry("f", "")}],
                [{"index": 0, **entry(None, '{"a"')}],
                [{"index": 0, **entry(None, ":1}")}],
            ],
            [{"id": "x", "name": "f", "args": {"a": 1}}],
            id="piece by piece",
        ),
        pytest.param(
            [
                [{"id": "x", "index": 0, **entry("f", '{"a":')}],
                [{"index": 0, **entry(None, "1}")}],
                [{"id": "y", "index": 1, **entry("g", '{"b"')}],
                [{"index": 1, **entry(None, ":2}")}],
            ],
            [{"id": "x", "name": "f", "args": {"a": 1}}, {"id": "y", "name": "g", "args": {"b": 2}}],
            id="one after the other",
        ),
        pytest.param(
            [[{"id": "x", "index": 0, **entry("f", "{}")}], [{"id": "y", "index": 0, **entry("g", "{}")}]],
            [{"id": "x", "name": "f", "args": {}}, {"id": "y", "name": "g", "args": {}}],
            id="whole ones, all under the same index, as Gemini has it",
        ),
        pytest.param(
            [[{"id": "x", **entry("f", "{}")}], [{"id": "y", **entry("f", "{}")}]],
            [{"id": "x", "name": "f", "args": {}}, {"id": "y", "name": "f", "args": {}}],
            id="whole ones without an index",
        ),
        pytest.param(
            [[{"id": "x", "index": 0, **entry("f", "")}], [{"id": "y", "index": 1, **entry("g", "{}")}]],
            [{"id": "x", "name": "f", "args": {}}, {"id": "y", "name": "g", "args": {}}],
            id="without arguments, ended by the next",
        ),
        pytest.param(
            [[{"id": "x", "index": 0, **entry("f", "")}], [{"index": 0, "id": "x", **entry("f", "{}")}]],
            [{"id": "x", "name": "f", "args": {}}],
            id="id and name said again",
        ),
        pytest.param(
            [[{"id": "x", "index": 0, **entry("f", "[1]")}]],
            [{"id": "x", "name": "f", "args": {"arguments": "[1]"}}],
            id="arguments that are no object",
        ),
        pytest.param(
            [[{"id": "x", "index": 0, "function": {"name": "f", "arguments": {"a": 1}}}], [{"index": 0, **entry()}]],
            [{"id": "x", "name": "f", "args": {"a": 1}}],
            id="arguments that are no string",
        ),
        pytest.param(
            [[{"id": "x", "index": 0, "function": {"name": "f", "arguments": 1}}], [{"index": 0, **entry(None, "{}")}]],
            [{"id": "x", "name": "f", "args": {}}],
            id="arguments that are nothing",
        ),
        pytest.param([[{"id": "x", "function": {"name": 5, "arguments": "{}"}}, None, 5]], [], id="no name"),
    ],
)
def test_calls_are_assembled_from_pieces(entries: list[list[Json]], expected: list[Json]) -> None:
    stream = [chunk({"tool_calls": one}) for one in entries]
    assert calls(parts(Completions(), *stream, chunk({}, "tool_calls"))) == expected


def test_a_call_is_returned_as_soon_as_its_arguments_are_complete() -> None:
    completions = Completions()
    first = {"id": "x", "index": 0, **entry("f", '{"a":')}
    assert parts(completions, chunk({"tool_calls": [first]})) == [
        {"functionCall": {"willContinue": True, "id": "x", "name": "f"}}
    ]
    assert parts(completions, chunk({"tool_calls": [{"index": 0, **entry(None, "1}")}]})) == [
        {"functionCall": {"args": {"a": 1}}}
    ]


def test_a_signature_may_come_with_a_later_piece() -> None:
    pieces = [{"id": "x", "index": 0, **entry("f", "")}, {"index": 0, **entry(None, "{}"), **signed("s1")}]
    found = parts(Completions(), *(chunk({"tool_calls": [piece]}) for piece in pieces))
    assert found[-1] == {"functionCall": {"args": {}}, "thoughtSignature": "s1"}


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "STOP"),
        ("tool_calls", "STOP"),
        ("function_call", "STOP"),
        ("length", "MAX_TOKENS"),
        ("content_filter", "SAFETY"),
        ("content_filter: RECITATION", "RECITATION"),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", "MALFORMED_FUNCTION_CALL"),
        ("SAFETY", "SAFETY"),
    ],
)
def test_finish_reasons(finish: str, reason: str) -> None:
    completions = Completions()
    response = completions.read(raw := chunk({"content": "x"}, finish))
    assert response is not None
    assert response["candidates"][0]["finishReason"] == reason
    if finish not in ("tool_calls", "function_call"):
        assert completions.write(response, raw, raw["object"]) == raw


@pytest.mark.parametrize("document", [None, [], "text", {"error": {"code": 400}}, [{"error": {}}], {"choices": None}])
def test_an_error_is_no_response(document: object) -> None:
    assert Completions().read(document) is None


def whole(message: Json, finish: str, **more: Any) -> Json:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"audio_tokens": 1},
    }
    head = {"id": "c1", "object": "chat.completion", "created": 7, "model": "gemini-3-flash", "later": {"a": 1}}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish, "logprobs": None}
    return {**head, "choices": [choice], "usage": usage, **more}


@pytest.mark.parametrize(
    "raw",
    [
        whole({"content": "hi", "refusal": None, **signed("s1")}, "stop"),
        whole({"tool_calls": [{"id": "x", "later": 1, **entry("f", '{ "a": 1}'), **signed("s1")}]}, "tool_calls"),
        whole({"content": "a", "tool_calls": [{"id": "x", **entry("f", "{}")}]}, "tool_calls"),
        chunk({"role": "assistant", "content": "a"}),
        chunk({"tool_calls": [{"id": "x", "index": 0, **entry("f", '{"a"')}]}),
        chunk({}, "stop", usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
        {**chunk({}), "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
    ],
)
def test_a_fully_visible_answer_is_written_unchanged(raw: Json) -> None:
    completions = Completions()
    response = completions.read(raw)
    assert response is not None
    assert completions.write(response, raw, raw["object"]) == raw


def test_hidden_calls_leave_no_trace() -> None:
    completions = Completions()
    own, hidden = {"id": "x", **entry("own", '{ "a":1}')}, {"id": "y", **entry("hidden", "{}")}
    raw = whole({"content": "a", "tool_calls": [hidden, own]}, "tool_calls")
    visible = completions.read(raw)
    assert visible is not None
    (candidate,) = visible["candidates"]
    text, _, last = candidate["content"]["parts"]
    mixed = {**candidate, "content": {"parts": [text, last]}}
    (choice,) = completions.write({**visible, "candidates": [mixed]}, raw, raw["object"])["choices"]
    assert choice["message"] == {"role": "assistant", "content": "a", "tool_calls": [own]}
    assert choice["finish_reason"] == "tool_calls"


def test_a_placeholder_ends_like_a_text_answer() -> None:
    completions = Completions()
    raw = whole({"tool_calls": [{"id": "y", **entry("hidden", "{}")}]}, "tool_calls")
    completions.read(raw)
    visible = {"candidates": [{"content": {"parts": [{"text": "done"}]}, "finishReason": "STOP", "index": 0}]}
    written = completions.write(visible, raw, raw["object"])
    (choice,) = written["choices"]
    assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": "done"}, "stop")
    assert (written["id"], written["later"]) == ("c1", {"a": 1})


def test_a_stream_with_a_visible_call_ends_unchanged() -> None:
    completions = Completions()
    completions.read(chunk({"tool_calls": [{"id": "x", **entry("own", "{}")}]}))
    completions.forward()
    end = chunk({}, "tool_calls")
    visible = completions.read(end)
    assert visible is not None
    assert completions.write({**visible, "responseId": "c0"}, end, end["object"])["choices"] == end["choices"]


def given(hidden: str, *documents: Json) -> list[Json]:
    """The call entries that a streaming client gets if the calls of that name are hidden."""
    completions = Completions()
    found: list[Json] = []
    hides = False
    for raw in documents:
        visible = completions.read(raw)
        assert visible is not None
        (candidate,) = visible["candidates"]
        visible_parts = []
        for part in candidate["content"]["parts"]:
            hides = part["functionCall"].get("name", hidden if hides else "") == hidden
            visible_parts += [] if hides else [part]
        if visible_parts == candidate["content"]["parts"]:
            document = completions.forward() or raw
        else:
            content = {**candidate["content"], "parts": visible_parts}
            document = completions.write({**visible, "candidates": [{**candidate, "content": content}]}, raw, "chunk")
        found += document["choices"][0]["delta"].get("tool_calls", [])
    return found


def own(place: int, name: str = "own") -> Json:
    return {"id": name, "index": place, **entry(name, "{}")}


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([[own(0), own(1, "other")]], [own(0), own(1, "other")], id="right as they came"),
        pytest.param([[own(0)], [own(0, "other")]], [own(0), own(1, "other")], id="all under one, as Gemini has it"),
        pytest.param([[{"id": "own", **entry("own", "{}")}]], [own(0)], id="without an index"),
        pytest.param([[own(0, "hidden"), own(1)]], [own(0)], id="behind a hidden one in its event"),
        pytest.param([[own(0, "hidden")], [own(1)]], [own(0)], id="behind a hidden one in an event before"),
        pytest.param(
            [[own(0), own(1, "hidden"), own(2, "other")]], [own(0), own(1, "other")], id="around a hidden one"
        ),
        pytest.param(
            [
                [own(0, "hidden")],
                [{"id": "own", "index": 1, **entry("own", "")}],
                [{"index": 1, **entry(None, '{"a"')}],
                [{"index": 1, **entry(None, ":1}")}],
                [own(2, "other")],
            ],
            [
                {"id": "own", "index": 0, **entry("own", "")},
                {"index": 0, **entry(None, '{"a"')},
                {"index": 0, **entry(None, ":1}")},
                own(1, "other"),
            ],
            id="piece by piece",
        ),
        pytest.param(
            [[own(0, "hidden")], [{"index": 0, **entry(None, "")}], [own(1)]], [own(0)], id="a piece behind its call"
        ),
    ],
)
def test_the_visible_calls_of_a_stream_are_numbered_consecutively(
    entries: list[list[Json]], expected: list[Json]
) -> None:
    stream = [chunk({"tool_calls": one}) for one in entries]
    assert given("hidden", *stream, chunk({}, "stop")) == expected


def test_a_call_that_the_end_completes_adds_nothing_to_the_event_that_ends() -> None:
    completions = Completions()
    completions.read(chunk({"tool_calls": [{"id": "x", "index": 0, **entry("own", "")}]}))
    completions.forward()
    visible = completions.read(end := chunk({}, "stop"))
    assert visible is not None
    assert completions.write({**visible, "responseId": "c0"}, end, end["object"])["choices"] == end["choices"]


def test_counts_are_converted_and_back() -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2, "audio_tokens": 0},
    }
    completions = Completions()
    raw = chunk({}, "stop", usage=usage)
    visible = completions.read(raw)
    assert visible is not None
    assert visible["usageMetadata"] == {
        "promptTokenCount": 5,
        "candidatesTokenCount": 2,
        "totalTokenCount": 9,
        "thoughtsTokenCount": 2,
        "cachedContentTokenCount": 3,
    }
    twice = {**visible, "usageMetadata": {name: 2 * count for name, count in visible["usageMetadata"].items()}}
    assert completions.write(twice, raw, raw["object"])["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 4,
        "total_tokens": 18,
        "prompt_tokens_details": {"cached_tokens": 6},
        "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0},
    }


def test_the_proxys_own_text_has_the_members_of_the_answer() -> None:
    completions = Completions()
    completions.read(chunk({"content": "a"}))
    completions.begin_round()
    completions.read({**chunk({"content": "b"}), "id": "c2", "created": 9})
    visible = {"candidates": [{"content": {"parts": [{"text": "", "thought": True}]}, "index": 0}], "responseId": "c1"}
    assert completions.write(visible, None, "chat.completion.chunk") == {
        **chunk({"role": "assistant"}),
    }


def test_a_rewritten_stream_has_the_role_once() -> None:
    filler: Json = {"candidates": [{"content": {"parts": [{"text": "", "thought": True}]}, "index": 0}]}
    kind = "chat.completion.chunk"
    completions = Completions()
    events = [completions.write(filler, None, kind), completions.write(filler, None, kind)]
    for _ in range(2):
        completions.begin_round()
        visible = completions.read(raw := chunk({"role": "assistant", "content": "a"}))
        assert visible is not None
        events.append(completions.write(visible, raw, kind))
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant"},
        {},
        {"content": "a"},
        {"content": "a"},
    ]


def test_events_after_unchanged_ones_do_not_repeat_the_role() -> None:
    completions = Completions()
    completions.read(chunk({"role": "assistant", "content": "a"}))
    completions.forward()
    visible = {"candidates": [{"content": {"parts": [{"text": "done"}]}, "finishReason": "STOP", "index": 0}]}
    (choice,) = completions.write(visible, None, "chat.completion.chunk")["choices"]
    assert choice["delta"] == {"content": "done"}


def test_an_answer_without_any_upstream_is_complete() -> None:
    answer = {
        "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 0, "totalTokenCount": 0},
        "modelVersion": "m",
        "responseId": "turn_1",
    }
    assert Completions().write(answer, None, "chat.completion") == {
        "id": "turn_1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
