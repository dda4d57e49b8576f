"""The rewriting of an answer, without a store. The tests of graft's capture cover the bytes."""

import copy
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.answer import FILLER, AnswerRewriter, ToolNames
from addon.core.arguments import NO_LIMITS, Limits
from addon.core.framing.documents import Document
from addon.core.history.placeholder import Placeholder

PLACEHOLDER = Placeholder("Tool call completed: {names} [{turn_id}]")


def rewriter(
    *, strip: bool = True, passthrough: bool = False, hides: bool = False, limits: Limits = NO_LIMITS
) -> AnswerRewriter:
    turns, calls = itertools.count(), itertools.count()
    return AnswerRewriter(
        ToolNames({"used": "f"}, frozenset() if strip else {"own"}),
        PLACEHOLDER,
        passthrough=passthrough,
        hides_server_tools=hides,
        new_turn_id=lambda _: f"turn_{next(turns):016x}",
        call_id=lambda name, args: f"call_{next(calls)}",
        sign=lambda turn_id: f"signed {turn_id}",
        limits=limits,
    )


def event(*parts: Any, finish: Any = None, **fields: Any) -> Document:
    found = [{"text": part} if isinstance(part, str) else part for part in parts]
    candidate: Document = {"content": {"role": "model", "parts": found}}
    return {"candidates": [{**candidate, **({"finishReason": finish} if finish is not None else {})}], **fields}


def call(name: str = "used", **fields: Any) -> Document:
    return {"functionCall": {"name": name, **fields}}


def test_an_event_that_needs_no_change_is_the_same_object() -> None:
    answer = rewriter()
    others: list[Document] = [{"usageMetadata": {}}, {"candidates": []}, event(), event(FILLER)]
    for one in (event("a"), *others):
        assert answer.feed(one) is one


def test_an_end_behind_a_call_that_the_proxy_runs_is_not_the_client_s() -> None:
    """Some services send a finishReason with each event."""
    answer = rewriter()
    answer.proxy_answers = lambda state: True
    answer.feed(event(call(), finish="STOP"))
    assert answer.feed(event("", finish="STOP")) is None
    visible = answer.feed(event("more", finish="STOP"))
    assert visible == event("more")


def test_the_input_is_never_changed() -> None:
    answer = rewriter()
    for one in (event("a", call()), event("b"), event("", finish="STOP", usageMetadata={})):
        before = copy.deepcopy(one)
        answer.feed(one)
        assert one == before


def test_calls_are_captured_under_the_toolsets_names_with_an_object_of_arguments() -> None:
    answer = rewriter()
    answer.feed(event(call(args={"a": 1}, id="x"), call(), call("other", args=[1])), whole=True)
    captured = answer.candidates[0].captured
    assert [(c.call_id, c.name, c.args, c.gemini_id, c.place, c.fault) for c in captured] == [
        ("call_0", "f", {"a": 1}, "x", 0, None),
        ("call_1", "f", {}, None, 1, None),
        ("call_2", "other", {}, None, 2, "unknown tool: other"),
    ]


def test_places_count_the_clients_own_calls_too() -> None:
    answer = rewriter(strip=False)
    answer.feed(event(call("own"), call()), whole=True)
    state = answer.candidates[0]
    assert [(slot.name, slot.call_id) for slot in state.slots] == [("own", None), ("f", "call_0")]
    assert state.captured[0].place == 1
    assert not state.wants_placeholder


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["a", "b"], [{"text": "ab"}]),
        (["a", {"text": "b", "thoughtSignature": "s"}, "c"], ["a", {"text": "b", "thoughtSignature": "s"}, "c"]),
        (["a", {"text": "", "thoughtSignature": "s"}], ["a", {"text": "", "thoughtSignature": "s"}]),
        (["a", {"text": "t", "thought": True}, "b"], [{"text": "ab"}]),
        (
            [{"text": "t", "thought": True, "thought_signature": "s"}],
            [{"text": "t", "thought": True, "thought_signature": "s"}],
        ),
        (["a", {**call("own"), "thought": True}], ["a", {**call("own"), "thought": True}]),
        (["a", {"tool_call": {}, "thought": True}], ["a", {"tool_call": {}, "thought": True}]),
        (["a", {"toolResponse": {}, "thought": True}], ["a", {"toolResponse": {}, "thought": True}]),
        (["", {}, "a"], ["a"]),
        (["a", {"executableCode": {}}, "b"], ["a", {"executableCode": {}}, "b"]),
        ([{"text": 7}, "a"], [{"text": 7}, "a"]),
    ],
)
def test_the_true_parts_of_a_turn(parts: list[Any], expected: list[Any]) -> None:
    answer = rewriter(strip=False)
    answer.feed(event(*parts))
    assert answer.candidates[0].true_parts == [{"text": part} if isinstance(part, str) else part for part in expected]


def test_an_event_without_its_calls_is_dropped_and_its_usage_goes_with_the_next() -> None:
    answer = rewriter()
    assert answer.feed(event(call(), usageMetadata={"n": 1}, modelVersion="m")) is None
    visible = answer.feed(event("", finish="STOP"))
    assert visible is not None
    assert visible["usageMetadata"] == {"n": 1}
    assert visible["modelVersion"] == "m"
    assert answer.close() is None


def test_usage_of_a_dropped_event_goes_with_the_event_that_ends_a_mixed_turn() -> None:
    answer = rewriter(strip=False)
    assert answer.feed(event(call(), usageMetadata={"n": 1})) is None
    own = event(call("own"))
    assert answer.feed(own) is own
    last = event("x", finish="STOP")
    assert answer.feed(last) == {**last, "usageMetadata": {"n": 1}}
    assert answer.close() is None


def test_usage_gets_an_event_if_a_mixed_stream_ends_without_a_finish_reason() -> None:
    answer = rewriter(strip=False)
    answer.feed(event(call("own")))
    answer.feed(event(call(), usageMetadata={"n": 1}))
    closing = answer.close()
    assert closing is not None
    assert closing["usageMetadata"] == {"n": 1}
    assert closing["candidates"] == [{"content": {"parts": [FILLER], "role": "model"}, "index": 0}]


def test_a_paused_answer_shows_no_placeholder_and_continues_in_a_copy() -> None:
    answer = rewriter()
    paused = event("a", call(), finish="CONTINUATION")
    paused["candidates"][0]["continuationToken"] = "t"
    answer.feed(paused, whole=True)
    assert answer.continuation_token == "t"
    assert answer.close() is None
    for _ in range(2):
        resumed = answer.resumed()
        visible = resumed.feed(event(call(), finish="STOP"), whole=True)
        assert visible is not None
        (part,) = visible["candidates"][0]["content"]["parts"]
        assert part["text"].endswith("Tool call completed: f, f [turn_0000000000000000]")
    assert len(answer.candidates[0].captured) == 1


def test_hidden_server_tools_are_no_step_and_get_no_placeholder() -> None:
    answer = rewriter(hides=True)
    visible = answer.feed(event({"toolCall": {"toolType": "T"}}, "Found.", finish="STOP"))
    assert visible is not None
    assert visible["candidates"][0]["content"]["parts"] == [{"text": "Found."}]
    assert answer.candidates[0].is_grafted
    assert not answer.candidates[0].wants_placeholder
    alone = rewriter(hides=True)
    assert alone.feed(event({"toolResponse": {}})) is None
    whole = rewriter(hides=True).feed(event({"toolResponse": {}}), whole=True)
    assert whole is not None
    assert whole["candidates"][0]["content"]["parts"] == [FILLER]


def test_the_arguments_of_a_call_may_come_at_once_with_its_last_piece() -> None:
    answer = rewriter()
    head = {"functionCall": {"name": "used", "id": "i", "willContinue": True}}
    assert answer.feed(event(head)) is None
    assert answer.feed(event({"functionCall": {"willContinue": True}})) is None
    answer.feed(event({"functionCall": {"args": {"a": 1}}, "thoughtSignature": "s"}, finish="STOP"))
    (state,) = answer.candidates.values()
    assert state.true_parts == [
        {"functionCall": {"name": "f", "id": "i", "args": {"a": 1}}, "thoughtSignature": "s"},
    ]
    assert [call.args for call in state.captured] == [{"a": 1}]


class Text(str):
    """A text that may only be joined once, at the end: each addition would copy both texts."""

    __slots__ = ()

    def __add__(self, other: str) -> str:
        raise AssertionError("joined before it was read")


def test_texts_and_pieces_of_arguments_are_joined_once() -> None:
    answer = rewriter()
    answer.feed(event(call()))
    for _ in range(3):
        answer.feed(event({"text": Text("a")}))
    answer.feed(event({"functionCall": {"name": "used", "willContinue": True}}))
    for _ in range(3):
        pieces = [{"jsonPath": "$.x", "stringValue": Text("b")}]
        answer.feed(event({"functionCall": {"partialArgs": pieces, "willContinue": True}}))
    answer.feed(event({"functionCall": {}}, finish="STOP"))
    (state,) = answer.candidates.values()
    assert state.true_parts[1] == {"text": "aaa"}
    assert [one.args for one in state.captured] == [{}, {"x": "bbb"}]


@pytest.mark.parametrize("passthrough", [False, True])
def test_calls_beyond_the_limit_are_left_out_and_the_model_gets_an_error(passthrough: bool) -> None:
    answer = rewriter(passthrough=passthrough, limits=Limits(2, 1000))
    for _ in range(5):
        assert (answer.feed(event(call())) is None) is not passthrough
    (state,) = answer.candidates.values()
    if passthrough:
        assert [slot.call_id for slot in state.slots] == ["call_0", "call_1", None, None, None]
        assert len(state.true_parts) == len(state.visible_parts) == 5, "the client answers all of them"
        return
    assert [one.fault is None for one in state.captured] == [True, True, False]
    assert "more than 2 calls in one step" in str(state.captured[2].fault)
    assert len(state.true_parts) == len(state.slots) == 3
    assert state.wants_placeholder


@pytest.mark.parametrize("in_pieces", [False, True])
def test_arguments_that_are_too_long_are_left_out(in_pieces: bool) -> None:
    answer = rewriter(limits=Limits(9, 100))
    long = "x" * 200
    if in_pieces:
        answer.feed(event({"functionCall": {"name": "used", "willContinue": True}}))
        for at in range(0, 200, 20):
            pieces = [{"jsonPath": "$.a", "stringValue": long[at : at + 20]}]
            answer.feed(event({"functionCall": {"partialArgs": pieces, "willContinue": True}}))
        answer.feed(event({"functionCall": {}}))
    else:
        answer.feed(event(call(args={"a": long})))
    answer.feed(event(call(args={"a": "short"}), finish="STOP"))
    (state,) = answer.candidates.values()
    assert [one.args for one in state.captured] == [{}, {"a": "short"}]
    assert "more than 100 bytes of arguments" in str(state.captured[0].fault)
    assert state.captured[1].fault is None
    assert state.true_parts[0]["functionCall"]["args"] == {}


PARTS = st.sampled_from(
    [
        {"text": "a"},
        {"text": ""},
        {"text": "", "thoughtSignature": "s"},
        {"text": "t", "thought": True},
        call(args={"a": 1}),
        call("own"),
        call("unknown", id="i"),
        {"functionCall": {"name": "used", "willContinue": True}},
        {"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "x"}], "willContinue": True}},
        {"functionCall": {}},
        {"toolCall": {"toolType": "T"}},
    ]
)


@given(
    st.lists(st.tuples(st.lists(PARTS, max_size=3), st.sampled_from([None, None, "STOP", 1])), max_size=6),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_every_event_holds_a_part_and_no_grafted_call(
    events: list[Any], strip: bool, passthrough: bool, hides: bool
) -> None:
    answer = rewriter(strip=strip, passthrough=passthrough, hides=hides)
    for parts, finish in events:
        given = event(*parts, finish=finish, usageMetadata={"n": 1})
        visible = answer.feed(given)
        if visible is None or visible is given:
            continue
        for candidate in visible["candidates"]:
            assert candidate["content"]["parts"]
            assert all(candidate["content"]["parts"])
            if not passthrough:
                names = [p["functionCall"].get("name") for p in candidate["content"]["parts"] if "functionCall" in p]
                assert "used" not in names
    closing = answer.close()
    assert closing is None or closing["candidates"][0]["content"]["parts"]
    for state in answer.candidates.values():
        calls = [part for part in state.true_parts if "functionCall" in part]
        assert len(calls) == len(state.slots)
        assert [s.call_id for s in state.slots if s.call_id] == [c.call_id for c in state.captured]


@pytest.mark.parametrize(
    ("calls", "status"),
    [
        ([call(), call()], "requested"),
        ([call(args={"a": "x" * 200})], "completed"),
        ([call(), call(args={"a": "x" * 200})], "requested"),
    ],
    ids=["pending", "failed at once", "both"],
)
def test_the_placeholder_s_status_says_whether_a_call_is_pending(calls: list[Document], status: str) -> None:
    answer = rewriter(limits=Limits(9, 100))
    answer.placeholder = Placeholder("Tool call {status}: {names} [{turn_id}]")
    visible = answer.feed(event(*calls, finish="STOP"))
    assert visible is not None
    names = ", ".join(["f"] * len(calls))
    assert visible == event(f"Tool call {status}: {names} [turn_0000000000000000]", finish="STOP")


_SIGNED = {"thoughtSignature": "model's"}


@pytest.mark.parametrize(
    ("parts", "signatures"),
    [
        ([call() | _SIGNED, call("own"), call("own")], ["signed turn_0000000000000000", None]),
        ([call() | _SIGNED, call(), "so", call("own")], ["signed turn_0000000000000000"]),
        ([call("own") | _SIGNED, call(), call("own")], ["model's", None]),
        ([call(), call("own") | _SIGNED, call("own")], ["model's", None]),
        ([call() | _SIGNED, call("own") | _SIGNED], ["model's"]),
        ([call(), call("own")], [None]),
        (
            [
                call(willContinue=True) | _SIGNED,
                {"functionCall": {}},
                call("own", willContinue=True),
                {"functionCall": {}},
                call("own", willContinue=True),
                {"functionCall": {}},
            ],
            ["signed turn_0000000000000000", None, None, None],
        ),
    ],
)
@pytest.mark.parametrize("streams", [False, True])
def test_a_client_s_first_call_is_signed_if_the_model_s_signature_is_on_a_hidden_call(
    parts: list[Any], signatures: list[Any], streams: bool
) -> None:
    answer = rewriter(strip=False)
    events = [*(event(part) for part in parts), event("", finish="STOP")] if streams else [event(*parts, finish="STOP")]
    before = copy.deepcopy(events)
    visible_part = [received for one in events if (received := answer.feed(one, whole=not streams)) is not None]
    assert events == before
    found = [
        part.get("thoughtSignature")
        for one in visible_part
        for part in one["candidates"][0]["content"]["parts"]
        if "functionCall" in part
    ]
    assert found == signatures
    (state,) = answer.candidates.values()
    assert not any("signed" in part.get("thoughtSignature", "") for part in state.true_parts)
