"""The documents of several rounds as one answer."""

from typing import Any

from addon.graft.rounds import JoinedRounds


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
    joined = JoinedRounds()
    joined.begin_round()
    first = response(5)
    joined.note(first)
    assert joined.part_of_answer(first) is first, "the first round stays unchanged"
    joined.begin_round()
    second = response(7, "STOP")
    joined.note(second)
    assert joined.part_of_answer(second) | {"candidates": None} == {
        "candidates": None,
        "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 4, "totalTokenCount": 11},
        "responseId": "r5",
    }
