"""The documents of several rounds as one answer."""

from typing import Any

from addon.graft.joined_rounds import Splice


def response(number: int, finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": [{"text": str(number)}], "role": "model"}}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": {"promptTokenCount": number, "candidatesTokenCount": 2, "totalTokenCount": number + 2},
        "responseId": f"r{number}",
    }


def test_later_rounds_go_under_the_first_one_s_id_with_the_last_prompt_and_the_output_of_all() -> None:
    splice = Splice()
    splice.begin_round()
    first = response(5)
    splice.note(first)
    assert splice.joined(first) is first, "the first round is as it came"
    splice.begin_round()
    second = response(7, "STOP")
    splice.note(second)
    assert splice.joined(second) | {"candidates": None} == {
        "candidates": None,
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 4, "totalTokenCount": 11},
        "responseId": "r5",
    }
