"""The rules of the tool loop, without I/O."""

from collections.abc import Sequence

import pytest

from addon.core.framing.documents import Document
from addon.core.toolloop import Next, ToolLoop

CALL: Document = {"functionCall": {"name": "f"}}
SEND, RUN, ANSWERED, DELIVERED, FAILED = Next

CALLS = {"1": (1, True), "2": (2, True), "3": (3, True), "text": (0, False), "theirs": (2, False), "wrong": (0, False)}
"""What a model says: so many calls, and whether the proxy can run them."""


def step(calls: int) -> tuple[Document, list[Document]]:
    responses = [{"functionResponse": {"name": "f", "response": {"of": number}}} for number in range(calls)]
    return {"role": "model", "parts": [CALL] * calls}, responses


def played(loop: ToolLoop, words: Sequence[str]) -> tuple[Next, list[str | None]]:
    """How the loop ends with a model that says this, and the function calling mode of each request."""
    modes: list[str | None] = []
    for word in words:
        loop.begin_round()
        modes.append(loop.mode)
        calls, runnable = CALLS[word]
        following = loop.after(calls, runnable=runnable, wrong=word == "wrong")
        if following is RUN:
            loop.add_step(*step(calls))
        elif following is not SEND:
            break
    assert loop.number == len(modes) == len(words), "it asks for what it needs, and for nothing more"
    return following, modes


@pytest.mark.parametrize(
    ("most", "words", "end", "modes"),
    [
        ((10, None), ["text"], ANSWERED, [None]),
        ((10, None), ["1", "2", "text"], ANSWERED, [None, "AUTO", "AUTO"]),  # a mode that forces calls does so once
        ((4, None), ["1", "1", "1", "text"], ANSWERED, [None, "AUTO", "AUTO", "NONE"]),
        ((2, None), ["1", "1"], DELIVERED, [None, "NONE"]),  # it calls all the same
        ((1, None), ["text"], ANSWERED, ["NONE"]),
        ((10, None), ["theirs"], DELIVERED, [None]),
        ((10, None), ["wrong", "text"], ANSWERED, [None, None]),
        ((10, None), ["wrong", "wrong"], FAILED, [None, None]),
        ((10, None), ["wrong", "1", "wrong"], FAILED, [None, None, "AUTO"]),  # one retry in a loop
        ((1, None), ["wrong"], FAILED, ["NONE"]),
        ((10, 2), ["1", "1", "text"], ANSWERED, [None, "AUTO", "NONE"]),
        ((10, 2), ["2", "text"], ANSWERED, [None, "NONE"]),
        ((10, 2), ["3", "text"], ANSWERED, [None, "NONE"]),
        ((10, 2), ["1", "text"], ANSWERED, [None, "AUTO"]),
        ((10, 1), ["1", "1"], DELIVERED, [None, "NONE"]),
    ],
)
def test_what_a_model_says_leads_to(
    most: tuple[int, int | None], words: list[str], end: Next, modes: list[str | None]
) -> None:
    assert played(ToolLoop(*most), words) == (end, modes)


def test_each_step_is_sent_back_with_its_responses_in_call_order() -> None:
    loop = ToolLoop(10)
    played(loop, ["2", "1", "text"])
    assert [content["role"] for content in loop.added] == ["model", "user", "model", "user"]
    assert [p["functionResponse"]["response"]["of"] for p in loop.added[1]["parts"]] == [0, 1]


@pytest.mark.parametrize(("max_calls", "mode"), [(1, "NONE"), (2, "AUTO")])
def test_a_loop_that_goes_on_counts_the_calls_before(max_calls: int, mode: str) -> None:
    content, responses = step(1)
    before = [content, {"role": "user", "parts": responses}]
    loop = ToolLoop(10, max_calls, before, 1)
    loop.begin_round()
    assert (loop.number, loop.mode, loop.added) == (2, mode, tuple(before))
