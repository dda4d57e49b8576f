"""Placeholders are written from a template, and found again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.core.history.placeholder import Placeholder

ID, OTHER = "turn_0123456789abcdef", "turn_fedcba9876543210"
TEMPLATES = [
    "Tool call completed: {names} [{turn_id}]",
    "[{turn_id}] done",
    "{names} were called ({turn_id}).",
    "Ran tools <{turn_id}> for {names}",
    "Look:\n{names}\n{turn_id}",
    "no names {turn_id}",
    "a.b*c? {names} {turn_id}",
    "before {turn_id} behind",
    "Ran <{turn_id}> for {names}!",
    "Tool call {status}: {names} [{turn_id}]",
    "{status} ({turn_id}): the calls of {names}",
]
DEFAULT = Placeholder(TEMPLATES[0])


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("names", [["get_weather"], ["a", "b.c:d-e"]])
def test_a_written_placeholder_is_found(template: str, names: list[str]) -> None:
    one = Placeholder(template)
    text = one.text(names, ID)
    assert [(text[start:end], found) for start, end, found in one.find(text)] == [(text.strip(), ID)]
    assert not one.is_bare(text.strip())


@given(st.sampled_from(TEMPLATES), st.lists(st.text(alphabet="ab [\n", max_size=4), min_size=3, max_size=3))
def test_a_placeholder_is_found_in_other_text(template: str, around: list[str]) -> None:
    one = Placeholder(template)
    before, between, after = around
    text = f"{before}\n\n{one.text(['x'], ID)}\n{between}\n{one.text(['y'], OTHER)}\n{after}"
    found = one.find(text)
    assert [turn_id for _, _, turn_id in found] == [ID, OTHER]
    left = text[: found[0][0]] + text[found[0][1] : found[1][0]] + text[found[1][1] :]
    assert "turn_" not in left


@pytest.mark.parametrize(
    "text", ["Tool call completed: x", f"Tool call completed x [{ID}]", "Tool call completed: x [turn_12]", ID, ""]
)
def test_text_that_is_no_placeholder_with_an_id_is_not_found(text: str) -> None:
    assert DEFAULT.find(text) == []


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ("Tool call completed", True),
        ("Tool call completed: get_weather", True),
        ("Tool call completed: get_weather, search", True),
        ("Let me look.\n\nTool call completed: get_weather", True),
        ("Let me look.\nTool call completed", True),
        (f"Tool call completed: get_weather [{ID}]", False),
        ("The tool call completed", False),
        ("Tool call completed\nand more", False),
        ("Was the Tool call completed", False),
        ("Tool call completed.", False),
        ("", False),
    ],
)
def test_a_bare_placeholder(text: str, bare: bool) -> None:
    assert DEFAULT.is_bare(text) is bare


@pytest.mark.parametrize(
    ("template", "text"),
    [("[{turn_id}] done", "done"), ("no names {turn_id}", "no names"), ("Ran ({turn_id}) for {names}", "Ran for a")],
)
def test_bare_forms_of_other_templates(template: str, text: str) -> None:
    assert Placeholder(template).is_bare(text)


@pytest.mark.parametrize(
    "template", ["{names} [{turn_id}]", "[{turn_id}]: {names}", "OK: {names} {turn_id}", "- {turn_id}"]
)
@pytest.mark.parametrize("text", ["OK: x", "OK", "-", "anything at all", "a: b", ": x", ""])
def test_a_template_without_a_word_has_no_bare_form(template: str, text: str) -> None:
    assert not Placeholder(template).is_bare(text)
    assert Placeholder(template).find(Placeholder(template).text(["f"], ID))


@pytest.mark.parametrize("template", TEMPLATES)
def test_hostile_texts_are_searched_in_linear_time(template: str) -> None:
    one = Placeholder(template)
    head, tail = (side.replace("{names}", "x") for side in template.split("{turn_id}"))
    pieces = (head, f"{head}turn_", f"{ID} ", f"{head.strip()}x{ID}", tail, f"{ID}{tail.strip()[:-1]}x", " ", "\n ")
    for piece in filter(None, pieces):
        text = piece * (400_000 // len(piece)) + "!"
        one.find(text + ID)
        one.is_bare(text)


def test_the_names_have_a_maximum_length() -> None:
    assert DEFAULT.find(f"Tool call completed: {'x' * 4000} [{ID}]")
    assert not DEFAULT.find(f"Tool call completed: {'x' * 5000} [{ID}]")
    twice = f"Tool call completed: {'x' * 5000} Tool call completed: f [{ID}]"
    assert [twice[start:end] for start, end, _ in DEFAULT.find(twice)] == [f"Tool call completed: f [{ID}]"]


@pytest.mark.parametrize(
    ("text", "gap"), [("", ""), ("  \n", ""), ("Hi.", "\n\n"), ("Hi.\n", "\n"), ("Hi.\n\n", ""), ("Hi.\n\n\n", "")]
)
def test_a_placeholder_follows_text_after_a_blank_line(text: str, gap: str) -> None:
    assert DEFAULT.after(text, ["f"], ID) == f"{gap}Tool call completed: f [{ID}]"


STATED = Placeholder("Tool call {status}: {names} [{turn_id}]")


def test_the_status_says_whether_a_call_is_pending() -> None:
    assert STATED.text(["f"], ID) == f"Tool call requested: f [{ID}]"
    assert STATED.text(["f"], ID, is_pending=False) == f"Tool call completed: f [{ID}]"


def test_a_placeholder_is_found_with_any_status() -> None:
    one, other = STATED.text(["f"], ID), STATED.text(["g"], OTHER, is_pending=False)
    for text in (f"{one} {other}", f"{other}\n{one}", f"{one}{other}{one}"):
        found = STATED.find(text)
        assert "".join(text[start:end] for start, end, _ in found) == text.replace(" Tool", "Tool").replace("\n", "")
        assert STATED.find(text) == sorted(found)


def test_a_status_without_an_id_is_no_part_of_the_next_placeholder() -> None:
    text = f"Tool call completed: f Tool call requested: g [{ID}]"
    assert [text[start:end] for start, end, _ in STATED.find(text)] == [f"Tool call requested: g [{ID}]"]


@pytest.mark.parametrize("status", ["requested", "completed"])
def test_a_bare_placeholder_has_any_status(status: str) -> None:
    texts = [f"Tool call {status}", f"Look.\nTool call {status}: f", f"Tool call {status}: f [{ID}]", "Tool call done"]
    assert [STATED.is_bare(text) for text in texts] == [True, True, False, False]
    assert STATED.may_be_bare([text.encode() for text in texts])[:2] == [True, True]
    assert STATED.may_be_bare([b"anything else"]) == [False]
