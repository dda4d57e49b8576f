"""Results with images and files: what models take of them, and what the others are told."""

import base64
from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.core.history.calls import as_text
from addon.core.history.outcomes import fitted, outcome_in, outcome_of
from addon.core.history.visible import visible_digest
from tests.contents import call, model, user
from tests.core.history.rewritten import rewritten, rules, true_turn, visible_turn

DATA = b"\xfb\xff\xfe" * 4


def part(kind: str = "image/png", data: bytes = DATA) -> Document:
    return {"inlineData": {"mimeType": kind, "data": base64.b64encode(data).decode()}}


def test_a_result_without_parts_has_a_response_alone() -> None:
    assert outcome_of("cold", None) == {"response": {"result": "cold"}}
    assert outcome_of(None, "broken") == {"response": {"error": "broken"}}


@pytest.mark.parametrize("version", [(3, 0), (3, 5), (4, 0), None])
def test_gemini_3_and_later_take_parts(version: Any) -> None:
    outcome = outcome_of({"a": 1}, None, [part(), part("audio/wav")])
    assert fitted(outcome, version) is outcome


def test_earlier_models_are_told_what_they_do_not_get() -> None:
    outcome = outcome_of({"a": 1}, None, [part(), part("application/pdf")])
    assert fitted(outcome, (2, 5)) == {
        "response": {
            "a": 1,
            "omitted": "image/png (12 bytes), application/pdf (12 bytes): "
            "this model takes no images or files in results",
        }
    }


def test_a_type_that_no_model_takes_is_left_out_and_the_others_stay() -> None:
    outcome = outcome_of({"omitted": "its own"}, None, [part(), part("image/gif", b"GIF8")])
    assert fitted(outcome, (3, 0)) == {
        "response": {"result": {"omitted": "its own"}, "omitted": "image/gif (4 bytes): models do not take this type"},
        "parts": [part()],
    }


def test_the_parts_of_a_client_are_read_in_both_alphabets_of_base64() -> None:
    given = {
        "name": "f",
        "response": {"a": 1},
        "parts": [
            {"inline_data": {"mime_type": "image/png", "data": base64.urlsafe_b64encode(DATA).decode()}},
            {"inlineData": {"mimeType": "image/png", "data": "???"}},
            {"fileData": {"fileUri": "gs://b/x", "mimeType": "image/png"}},
        ],
    }
    assert outcome_in(given) == {"response": {"a": 1}, "parts": [part()]}
    assert outcome_in({"name": "f"}) == {"response": {}}


def test_the_text_of_a_response_names_its_parts() -> None:
    content = user({"functionResponse": {"name": "f", "response": {"a": 1}, "parts": [part()]}})
    assert as_text(content) == user('[f returned {"a":1} and image/png (12 bytes)]')


def test_the_same_history_with_parts_is_rewritten_as_the_same_bytes() -> None:
    true = true_turn(1, call("get_weather", "c2ln"))
    outcome: Document = {"response": {"result": "[part 1: image/png]"}, "parts": [part()]}
    true.responses = {call_id: outcome for call_id in true.responses}
    history = [user("look"), visible_turn(true), user("And?")]
    new = rewritten(history, {1: true}, rules((3, 0)))
    assert new[2]["parts"][0]["functionResponse"]["parts"] == [part()]
    longer = rewritten([*history, model("It is red."), user("Sure?")], {1: true}, rules((3, 0)))
    assert longer[: len(new)] == new


def test_turns_with_other_images_in_results_are_not_the_same() -> None:
    def digest(*parts: Document) -> bytes:
        return visible_digest([{"functionResponse": {"name": "f", "response": {"a": 1}, "parts": list(parts)}}])

    urlsafe = {"inline_data": {"mime_type": "image/png", "data": base64.urlsafe_b64encode(DATA).decode().rstrip("=")}}
    file = {"fileData": {"fileUri": "gs://b/c"}}
    assert digest(part()) == digest(urlsafe)
    assert (
        len({digest(), digest(part()), digest(part(data=DATA + b"1")), digest(part("image/webp")), digest(file)}) == 5
    )
    assert digest() == visible_digest([{"functionResponse": {"name": "f", "response": {"a": 1}}}])
