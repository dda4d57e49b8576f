"""The token counts of several requests as the client sees them: the last prompt, all output, and their total."""

from typing import Any

import pytest

from addon.core.usage import Usage, add_counts, output_of, prompt_of

TEXT, IMAGE = {"modality": "TEXT", "tokenCount": 4}, {"modality": "IMAGE", "tokenCount": 5}


def gemini(prompt: int, answer: int, thoughts: int = 0, **more: Any) -> dict[str, Any]:
    counts = {"promptTokenCount": prompt, "candidatesTokenCount": answer, **more}
    if thoughts:
        counts["thoughtsTokenCount"] = thoughts
    return {**counts, "totalTokenCount": prompt + answer + thoughts + more.get("toolUsePromptTokenCount", 0)}


def interactions(given: int, out: int, thoughts: int) -> dict[str, Any]:
    return {
        "total_input_tokens": given,
        "total_output_tokens": out,
        "total_thought_tokens": thoughts,
        "total_tokens": given + out + thoughts,
        "total_cached_tokens": given // 2,
        "output_tokens_by_modality": [{"modality": "text", "tokens": out}],
        "input_tokens_by_modality": [{"modality": "text", "tokens": given}],
    }


@pytest.mark.parametrize(
    ("rounds", "visible"),
    [
        ([{}], {}),
        ([gemini(10, 2)], gemini(10, 2)),
        ([gemini(10, 2), gemini(15, 3)], gemini(15, 5)),
        ([gemini(10, 2, 7), gemini(15, 3, 1), gemini(30, 4)], {**gemini(30, 9, 8)}),
        ([gemini(120_000, 10)] * 9, gemini(120_000, 90)),
        ([gemini(10, 2), {}, gemini(15, 3)], gemini(15, 5)),
        ([gemini(10, 2), gemini(15, 3), {}], gemini(15, 5)),
        ([{}, gemini(15, 3)], gemini(15, 3)),
        (
            [gemini(10, 2, toolUsePromptTokenCount=4), gemini(15, 3, toolUsePromptTokenCount=1)],
            gemini(15, 5, toolUsePromptTokenCount=1),
        ),
        (
            [
                gemini(10, 4, candidatesTokensDetails=[TEXT], promptTokensDetails=[TEXT, IMAGE]),
                gemini(15, 9, candidatesTokensDetails=[TEXT, IMAGE], promptTokensDetails=[IMAGE]),
            ],
            gemini(
                15,
                13,
                candidatesTokensDetails=[{"modality": "TEXT", "tokenCount": 8}, IMAGE],
                promptTokensDetails=[IMAGE],
            ),
        ),
        ([gemini(10, 2, cachedContentTokenCount=9), gemini(15, 3)], gemini(15, 5)),
        ([gemini(1, 1, serviceTier="standard"), gemini(2, 1, serviceTier="flex")], gemini(2, 2, serviceTier="flex")),
        ([{"candidatesTokenCount": 2}, {"candidatesTokenCount": 3}], {"candidatesTokenCount": 5}),
        ([{"candidatesTokenCount": 2}, gemini(15, 3)], gemini(15, 5)),
        ([interactions(10, 2, 1), interactions(20, 3, 4)], interactions(20, 5, 5)),
        (
            [
                {"grounding_tool_count": [{"type": "a", "count": 1}]},
                {"grounding_tool_count": [{"type": "b", "count": 2}, {"type": "a", "count": 3}]},
            ],
            {"grounding_tool_count": [{"type": "a", "count": 4}, {"type": "b", "count": 2}]},
        ),
        ([{"promptTokensDetails": [{"modality": ["TEXT"]}]}, {"a": [1], "b": "x"}], {"a": [1], "b": "x"}),
    ],
)
def test_the_last_prompt_with_all_output(rounds: list[dict[str, Any]], visible: dict[str, Any]) -> None:
    usage = Usage()
    for counts in rounds:
        usage.begin_round()
        usage.record({"totalTokenCount": 1})
        usage.record(counts)
    assert usage.visible() == visible
    assert usage.rounds == rounds


def test_values_that_are_no_counts_are_left_out() -> None:
    assert add_counts(None, 3) == 3
    assert add_counts(3, None) == 3
    assert add_counts([TEXT, "x"], [IMAGE, None]) == [TEXT, IMAGE]


@pytest.mark.parametrize(
    ("counts", "prompt", "output"),
    [
        (gemini(10, 2, 3, toolUsePromptTokenCount=5), 15, 5),
        (interactions(10, 2, 3), 10, 5),
        ({"candidatesTokenCount": 2, "thoughtsTokenCount": 1}, 0, 3),
        ({"promptTokenCount": 9, "totalTokenCount": 3}, 9, 0),
        ({}, 0, 0),
    ],
)
def test_input_and_output_tokens(counts: dict[str, Any], prompt: int, output: int) -> None:
    assert (prompt_of(counts), output_of(counts)) == (prompt, output)
