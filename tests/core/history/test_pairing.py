"""Answers are paired with their calls, if a client sends only the new part of its conversation."""

import copy
from collections.abc import Sequence

import pytest

from addon.core.framing.documents import Document
from addon.core.history.pairing import MissingResponses, UnknownResponses, join_responses, pair, with_dummy_signatures
from tests.contents import model, user


def call(name: str, call_id: str | None = None, signature: str | None = None) -> Document:
    made: Document = {"name": name, "args": {}} | ({"id": call_id} if call_id else {})
    return {"functionCall": made} | ({"thoughtSignature": signature} if signature else {})


def answer(name: str | None = None, call_id: str | None = None, value: int = 1) -> Document:
    head = {key: one for key, one in (("id", call_id), ("name", name)) if one}
    return {"functionResponse": {**head, "response": {"v": value}}}


A, B = call("a", "1", "c2ln"), call("b", "2")
ASKED = [user("go"), model(A, B)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([user(answer("b", "2"), answer("a", "1"))], [user(answer("a", "1"), answer("b", "2"))]),
        ([user(answer(None, "2"), answer(None, "1"))], [user(answer("a", "1"), answer("b", "2"))]),
        ([user(answer("b")), user(answer("a"))], [user(answer("a", "1"), answer("b", "2"))]),
        (
            [user("and", answer("a", "1")), user(answer("b", "2"), "then")],
            [user(answer("a", "1"), answer("b", "2"), "and", "then")],
        ),
    ],
    ids=["out of order", "by id alone", "by name alone", "with words"],
)
def test_answers_go_in_call_order_and_before_everything_else(given: list[Document], expected: list[Document]) -> None:
    before = copy.deepcopy((ASKED, given))
    paired = pair(ASKED, given)
    assert paired.contents == [*ASKED, *expected]
    assert (paired.added, paired.owed) == (expected, [])
    assert (ASKED, given) == before


def test_a_step_that_is_answered_one_by_one_is_open_until_the_last_answer() -> None:
    first = pair(ASKED, [user(answer(None, "2", 2))])
    assert first.owed == [A]
    second = pair([*ASKED, *first.added], [user(answer(None, "1", 1))])
    assert second.owed == []
    assert second.contents == [*ASKED, user(answer("a", "1", 1), answer("b", "2", 2))]


def test_equal_calls_are_distinguished_by_their_ids() -> None:
    alike = [user("go"), model(call("a", "1"), call("a", "2"))]
    first = pair(alike, [user(answer(None, "2", 2))])
    assert first.owed == [call("a", "1")]
    assert pair([*alike, *first.added], [user(answer("a", "1"))]).contents[-1] == user(
        answer("a", "1"), answer("a", "2", 2)
    )


@pytest.mark.parametrize(
    ("history", "given", "unknown"),
    [
        ([], [user(answer("a", "1"))], ["1"]),
        ([user("go"), model("done")], [user(answer("a", "1"))], ["1"]),
        (ASKED, [user(answer("a", "1"), answer("c", "3"))], ["3"]),
        (ASKED, [user(answer("a", "1"), answer("a", "1"))], ["1"]),
        ([*ASKED, user(answer("a", "1"))], [user(answer("a", "1"))], ["1"]),
        ([*ASKED, user(answer("a", "1"), answer("b", "2")), model("done")], [user(answer("b", "2"))], ["2"]),
    ],
    ids=["no history", "no calls", "another call", "twice", "again", "long past"],
)
def test_answers_to_no_open_call_are_refused(
    history: list[Document], given: list[Document], unknown: list[str]
) -> None:
    with pytest.raises(UnknownResponses) as refused:
        pair(history, given)
    assert [one["id"] for one in refused.value.responses] == unknown


@pytest.mark.parametrize(
    ("history", "given", "owed"),
    [
        (ASKED, [user("never mind")], [A, B]),
        (ASKED, [user(answer("a", "1"), "and")], [B]),
        ([*ASKED, user(answer("a", "1"))], [user("well?")], [B]),
        ([], [*ASKED], [A, B]),
        ([], [*ASKED, user("well?")], [A, B]),
        (ASKED, [user(answer("a", "1")), model("hm"), user("well?")], [B]),
    ],
)
def test_other_content_is_refused_while_answers_are_missing(
    history: list[Document], given: list[Document], owed: list[Document]
) -> None:
    with pytest.raises(MissingResponses) as refused:
        pair(history, given)
    assert refused.value.parts == owed


def test_a_whole_history_may_come_with_the_request() -> None:
    given = [*ASKED, user(answer("b", "2")), user(answer("a", "1"))]
    whole = [*ASKED, user(answer("a", "1"), answer("b", "2"))]
    assert pair([], given).contents == whole
    assert pair([], given).added == whole
    assert pair([], given[:3]).owed == [A]
    more = [*given, model("done"), user("thanks")]
    assert pair([], more).contents == [*whole, model("done"), user("thanks")]


def test_a_content_that_answers_the_whole_step_replaces_earlier_answers() -> None:
    alike = model(call("a"), call("a"))
    whole = user(answer("a", value=1), answer("a", value=2), "on")
    assert join_responses([alike, user(answer("a", value=2)), whole]) == [alike, whole]


@pytest.mark.parametrize("contents", [[], [user("a"), model("b")], [model("a"), user("b"), user("c")]])
def test_contents_that_need_no_change_stay(contents: Sequence[Document]) -> None:
    assert join_responses(contents) == contents
    assert pair(contents, [user("on")]).contents == [*contents, user("on")]


DUMMY = "skip_thought_signature_validator"
EARLIER = [user("go"), model("well", call("a"), B), user(answer("a"), answer("b", "2")), model("done")]
NOW = [user("more"), model("now"), model(call("c")), model(call("d")), user(answer("c"), answer("d"))]
EARLIER_SIGNED = [EARLIER[0], model("well", call("a", signature=DUMMY), B), *EARLIER[2:]]
NOW_SIGNED = [*NOW[:2], model(call("c", signature=DUMMY)), *NOW[3:]]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("gemini-2.5-flash", [*EARLIER, *NOW], [*EARLIER, *NOW]),
        ("gemini-3-flash", [*EARLIER, *NOW], [*EARLIER, *NOW_SIGNED]),
        ("gemini-3-flash", NOW[2:], NOW_SIGNED[2:]),
        ("gemini-3.5-pro", [*EARLIER, *NOW], [*EARLIER_SIGNED, *NOW_SIGNED]),
        ("tunedModels/mine", [*EARLIER, *NOW], [*EARLIER_SIGNED, *NOW_SIGNED]),
        ("gemini-3.5-pro", [*ASKED, user(answer("a", "1"), answer("b", "2"))], None),
    ],
    ids=["before 3", "of 3", "of 3 from the model on", "of 3.5", "of a model unknown", "signed by the model"],
)
def test_an_unsigned_step_gets_the_dummy_signature_if_the_model_requires_one(
    name: str, given: list[Document], expected: list[Document] | None
) -> None:
    before = copy.deepcopy(given)
    assert with_dummy_signatures(given, name) == (given if expected is None else expected)
    assert given == before
