"""What a client carries of the model's parts: nothing of an answer is lost on the way through its items."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.dialects.responses.answer import Translator, events_of
from addon.core.dialects.responses.errors import Invalid
from addon.core.dialects.responses.history import StoredCalls
from addon.core.dialects.responses.items import read_carried, to_carry
from addon.core.dialects.responses.request import read_request
from addon.core.history.rewriting import DUMMY_SIGNATURE
from tests.core.dialects.responses.published import accumulated, counting, event_of, response_of
from tests.core.dialects.responses.test_translator import CALL, OTHER, answer, event, thought

SIGNED = {"text": "It is 4.", "thoughtSignature": "dGV4dA=="}
EMPTY = {"text": "", "thoughtSignature": "ZW1wdHk="}
CODE = {"executableCode": {"language": "PYTHON", "code": "2+2"}, "thoughtSignature": "Y29kZQ=="}
SIGNED_THOUGHT = {"text": "Hm.", "thought": True, "thoughtSignature": "dGhpbms="}
HI = {"role": "user", "content": "hi"}


def sealed(text: str) -> str:
    return f"sealed:{text}"


def unseal(text: str, purpose: str) -> str | None:
    return text.removeprefix("sealed:") if purpose == "signatures" and text.startswith("sealed:") else None


def answered(*documents: Any, include: bool = True, **fields: Any) -> tuple[Translator, list[dict[str, Any]]]:
    asked = {"model": "gemini-3-flash", "input": "hi", **fields}
    asked |= {"include": ["reasoning.encrypted_content"]} if include else {}
    done = Translator(read_request(asked), "resp_1", new_id=counting(), now=lambda: 1767225600.5, seal=sealed)
    events = done.start()
    for document in documents:
        events += done.feed(document)
    return done, events + done.end()


def outputs(items: list[Any]) -> list[Any]:
    calls = [item for item in items if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "{}"} for call in calls]


def given_back(items: list[Any], past: StoredCalls | None = None) -> Any:
    """The model's Content of the items that a client sends with its next message."""
    request = read_request({"model": "gemini-3-flash", "input": [HI, *items, *outputs(items), HI]}, unseal)
    return request.add_to(past or StoredCalls()).contents[1]


@pytest.mark.parametrize(
    "parts",
    [
        [SIGNED],
        [{"text": "It is 4."}, EMPTY],
        [{"text": "Wait."}, CALL, OTHER],
        [SIGNED, CALL, {"functionCall": {"name": "get_time", "args": {"n": 1}}}],
        [CODE, {"text": "It is"}, {"codeExecutionResult": {"output": "4"}}, {"text": " 4."}],
        [SIGNED_THOUGHT, {"text": "So."}, CALL],
    ],
    ids=["a signed text", "an empty signature", "calls", "both", "parts that no item has", "a signed thought"],
)
def test_the_next_request_has_the_model_s_own_parts(parts: list[Any]) -> None:
    done, _ = answered(answer(*parts))
    assert done.content == {"role": "model", "parts": parts}
    assert given_back(done.document()["output"]) == done.content


def test_the_item_stands_behind_the_others_and_has_the_published_form() -> None:
    done, events = answered(
        event(thought("Hm.")), event(SIGNED), event(CALL), answer(OTHER), reasoning={"summary": "auto"}
    )
    assert [item["type"] for item in done.document()["output"]] == [
        *("reasoning", "message", "function_call", "function_call", "reasoning")
    ]
    assert all(item["encrypted_content"] for item in done.document()["output"] if item["type"] == "reasoning")
    response_of(done.document())
    for one in events:
        event_of(one)
    assert accumulated(events)[1].output[-1].type == "reasoning"
    assert events_of(done.document()) == events


@pytest.mark.parametrize(
    ("include", "documents"),
    [
        (False, [answer(SIGNED, CALL)]),
        (True, [answer({"text": "4"})]),
        (True, [answer({"text": "a"}, {"functionCall": {"name": "f", "args": {}}})]),
        (True, [answer(EMPTY)]),
        (True, [answer(SIGNED, finish="OTHER")]),
    ],
    ids=["not asked for", "plain text", "a call of an older model", "no text", "a failed answer"],
)
def test_without_anything_to_carry_there_is_no_item(include: bool, documents: list[Any]) -> None:
    done, _ = answered(*documents, include=include)
    assert "reasoning" not in [item["type"] for item in done.document()["output"]]


def test_the_place_of_the_item_does_not_matter() -> None:
    done, _ = answered(answer({"text": "Wait."}, EMPTY, CALL, OTHER))
    *others, carried = done.document()["output"]
    one, other = outputs(others)
    text, first, second = others
    for items in ([carried, *others], [text, carried, first, second]):
        assert given_back(items) == done.content
    request = read_request(
        {"model": "gemini-3-flash", "input": [HI, text, first, one, second, other, carried, HI]}, unseal
    )
    assert [content["role"] for content in request.add_to(StoredCalls()).contents] == ["user", "model", "user"], (
        "calls of one step that the client sends one after the other stay one step"
    )


def test_a_stored_call_counts_before_the_carried_one() -> None:
    done, _ = answered(answer(CALL))
    stored = {**CALL, "thoughtSignature": "b3RoZXI="}
    (call_id,) = done.calls
    assert given_back(done.document()["output"], StoredCalls(calls={call_id: stored})) == {
        "role": "model",
        "parts": [stored],
    }


def test_a_changed_text_has_no_signature_and_a_foreign_item_says_nothing() -> None:
    done, _ = answered(answer(SIGNED))
    message, carried = done.document()["output"]
    changed = {**message, "content": [{**message["content"][0], "text": "It is 5."}]}
    assert given_back([changed, carried])["parts"] == [{"text": "It is 5."}]
    foreign = {"type": "reasoning", "id": "rs_9", "summary": [], "encrypted_content": "of another service"}
    assert given_back([message, foreign])["parts"] == [{"text": "It is 4."}]
    done, _ = answered(answer(CALL))
    call, _ = done.document()["output"]
    assert given_back([call, foreign])["parts"][0]["thoughtSignature"] == DUMMY_SIGNATURE


def test_sealed_content_must_be_a_text() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": 1}
    with pytest.raises(Invalid) as caught:
        read_request({"model": "gemini-3-flash", "input": [item, HI]}, unseal)
    assert caught.value.param == "input[0].encrypted_content"


TEXTS = st.text(max_size=4)
PARTS = st.lists(
    st.one_of(
        st.builds(lambda text: {"text": text}, TEXTS),
        st.builds(lambda text: {"text": text, "thoughtSignature": "c2ln"}, TEXTS),
        st.just(CODE),
        st.just(SIGNED_THOUGHT),
    ),
    max_size=6,
)


@given(PARTS)
def test_parts_with_a_visible_text_are_made_of_that_text(parts: list[Any]) -> None:
    text = "".join(part["text"] for part in parts if "text" in part and "thought" not in part)
    carried = to_carry(parts, [])
    found = read_carried([carried] if carried else []).text(text)
    if text and any(len(part) > 1 for part in parts):
        assert found == parts
    else:
        assert found is None
