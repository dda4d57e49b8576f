"""Histories that are too long: what the message says, and what is left."""

from typing import Any

import pytest

from addon.core.dialects.responses.history import too_long, truncated
from tests.contents import model, user

SAYS = "The input token count ({}) exceeds the maximum number of tokens allowed ({})."
CALL = {"functionCall": {"name": "f", "args": {}}}
RESULT = {"functionResponse": {"name": "f", "response": {}}}
HISTORY = [user("one"), model(CALL), user(RESULT), model("first"), user("two"), model("second"), user("three")]


@pytest.mark.parametrize(
    ("message", "part"),
    [
        (SAYS.format(2000, 1000), 0.5),
        ("The input token count exceeds the maximum number of tokens allowed (1000).", None),
        (SAYS.format(10, 1000), None),
        ("Invalid argument", None),
    ],
)
def test_the_message_says_how_much_fits(message: str, part: float | None) -> None:
    assert too_long(message) == part


@pytest.mark.parametrize(
    ("part", "left"), [(1.0, HISTORY[4:]), (0.5, HISTORY[4:]), (0.3, HISTORY[6:]), (0, HISTORY[6:])]
)
def test_the_last_turns_are_left_and_begin_with_a_message(part: float, left: Any) -> None:
    assert truncated(HISTORY, part) == left


@pytest.mark.parametrize(
    "contents",
    [[], [user("one")], [user("one"), model(CALL), user(RESULT)], [user("one"), model(CALL), user(RESULT, "x")]],
)
def test_one_turn_cannot_be_shorter(contents: Any) -> None:
    assert truncated(contents, 0.1) is None
