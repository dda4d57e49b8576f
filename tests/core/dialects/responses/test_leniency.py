"""Leniency: what Gemini does not have is left out of a request, and named; what is wrong is refused all the same."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest

from addon.core.dialects.responses.errors import Invalid
from addon.core.dialects.responses.request import read_leniently, read_request
from tests.core.dialects.responses.request_bodies import TOOL, body
from tests.core.dialects.responses.test_request_refusals import REFUSED, places

CASES: dict[str, tuple[dict[str, Any], list[str], dict[str, Any]]] = {
    "nothing": ({"temperature": 1}, [], {"temperature": 1}),
    "options": ({"prompt": {"id": "p"}, "moderation": {"model": "m"}}, ["moderation", "prompt"], {}),
    "an unknown option": ({"new": 1, "user": "u"}, ["new"], {"user": "u"}),
    "an unknown option with an odd name": ({"a.b": 1}, [], {}),
    "a member": (
        {"reasoning": {"effort": "xhigh", "summary": "auto"}},
        ["reasoning.effort"],
        {"reasoning": {"summary": "auto"}},
    ),
    "tools, by their places in the request": (
        {"tools": [{"type": "mcp"}, TOOL, {"type": "shell"}, {**TOOL, "name": "g", "defer_loading": True}]},
        ["tools[0]", "tools[2]", "tools[3].defer_loading"],
        {"tools": [TOOL, {**TOOL, "name": "g"}]},
    ),
    "what is to be included": (
        {"include": ["file_search_call.results", "reasoning.encrypted_content", "code_interpreter_call.outputs"]},
        ["include[0]", "include[2]"],
        {"include": ["reasoning.encrypted_content"]},
    ),
}


@pytest.mark.parametrize(("given", "names", "left"), CASES.values(), ids=CASES)
def test_the_rest_of_the_request_counts(given: dict[str, Any], names: list[str], left: dict[str, Any]) -> None:
    whole = body(**given)
    before = copy.deepcopy(whole)
    if not names and not left:
        with pytest.raises(Invalid):
            read_leniently(whole)
        return
    found, ignored = read_leniently(whole)
    assert ignored == names
    assert found == read_request(body(**left))
    assert whole == before


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": 9},
        {"tools": [{"type": "function", "name": "a b"}]},
        {"text": {"format": {"type": "xml"}}},
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}]},
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]},
    ],
    ids=["a wrong value", "a wrong tool", "a wrong format", "an image that is not here", "a file that is not here"],
)
def test_what_is_wrong_and_what_the_user_gave_are_not_left_out(given: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as strict:
        read_request(body(**given))
    with pytest.raises(Invalid) as lenient:
        read_leniently(body(**given))
    assert lenient.value.param == strict.value.param


def test_there_is_a_bound() -> None:
    with pytest.raises(Invalid, match=r"x64"):
        read_leniently(body(**{f"x{number}": 1 for number in range(65)}))


@pytest.mark.parametrize(("given", "param", "word"), REFUSED.values(), ids=REFUSED)
def test_what_is_left_out_was_in_the_request(given: dict[str, Any], param: str, word: str) -> None:
    whole = body(**given)
    positions = {"".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in place)[1:] for place in places(whole)}
    with contextlib.suppress(Invalid):
        assert set(read_leniently(whole)[1]) <= positions
