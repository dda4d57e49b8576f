"""Usage summed over rounds, and the documents of several rounds as one answer."""

from typing import Any

import pytest

from addon.loop.output import Splice, summed


@pytest.mark.parametrize(
    ("one", "other", "total"),
    [
        ({}, {"promptTokenCount": 3}, {"promptTokenCount": 3}),
        ({"promptTokenCount": 3}, {}, {"promptTokenCount": 3}),
        ({"a": 3, "b": 1}, {"a": 4, "c": 2}, {"a": 7, "b": 1, "c": 2}),
        ({"serviceTier": "standard"}, {"serviceTier": "standard"}, {"serviceTier": "standard"}),
        (
            {"d": [{"modality": "TEXT", "tokenCount": 3}]},
            {"d": [{"modality": "TEXT", "tokenCount": 4}, {"modality": "IMAGE", "tokenCount": 5}]},
            {"d": [{"modality": "TEXT", "tokenCount": 7}, {"modality": "IMAGE", "tokenCount": 5}]},
        ),
        (
            {"grounding_tool_count": [{"type": "a", "count": 1}]},
            {"grounding_tool_count": [{"type": "b", "count": 2}, {"type": "a", "count": 3}]},
            {"grounding_tool_count": [{"type": "a", "count": 4}, {"type": "b", "count": 2}]},
        ),
    ],
)
def test_token_counts_are_added(one: dict[str, Any], other: dict[str, Any], total: dict[str, Any]) -> None:
    assert summed(one, other) == total


def response(number: int, finish: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": [{"text": str(number)}], "role": "model"}}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "usageMetadata": {"totalTokenCount": number}, "responseId": f"r{number}"}


def test_later_rounds_go_under_the_first_one_s_id_with_the_usage_of_all() -> None:
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
        "usageMetadata": {"totalTokenCount": 12},
        "responseId": "r5",
    }
