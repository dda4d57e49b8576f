"""The list of a response's input items: as given, in the published package's types, in pages."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from openai.types.responses import ResponseItem
from openai.types.responses.response_item_list import ResponseItemList
from pydantic import TypeAdapter

from addon.core.dialects.responses.conversations import input_page, stored_items
from addon.core.dialects.responses.errors import Invalid
from addon.core.dialects.responses.history import StoredCalls
from addon.core.dialects.responses.request import read_request
from tests.core.dialects.responses.published import counting

PIXEL, OTHER = "iVBORw0KGgo=", "R0lGODlh"
_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)
CALLED = {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"}


def stored_and_listed(items: Any, order: str = "asc") -> list[dict[str, Any]]:
    """Stored and listed, through JSON."""
    wanted = read_request({"model": "gemini-3-flash", "input": items})
    contents = wanted.add_to(StoredCalls(has_history=True)).contents
    kept = json.loads(json.dumps(stored_items(wanted.raw_input, contents, counting())))
    page = input_page(kept, contents, [("order", order), ("limit", "100")])
    ResponseItemList.model_validate(page)
    found: list[dict[str, Any]] = page["data"]
    return found


def url(data: str) -> str:
    return f"data:image/png;base64,{data}"


USER = {"type": "message", "role": "user", "status": "completed"}
GIVEN: dict[str, tuple[Any, dict[str, Any]]] = {
    "a text": ("Hi", {**USER, "id": "msg_1", "content": [{"type": "input_text", "text": "Hi"}]}),
    "a message of a text": (
        [{"role": "user", "content": "Hi"}],
        {**USER, "id": "msg_1", "content": [{"type": "input_text", "text": "Hi"}]},
    ),
    "what was said before everything": (
        [{"role": "system", "content": "Be kind.", "id": None}, {"role": "user", "content": "Hi"}],
        {**USER, "role": "system", "id": "msg_1", "content": [{"type": "input_text", "text": "Be kind."}]},
    ),
    "an image and a file": (
        [
            {
                "role": "user",
                "id": "mine",
                "content": [
                    {"type": "input_image", "image_url": url(PIXEL)},
                    {"type": "input_file", "filename": "a.png", "file_data": url(OTHER)},
                    {"type": "input_image", "image_url": url(PIXEL), "detail": "auto"},
                ],
            }
        ],
        {
            **USER,
            "id": "mine",
            "content": [
                {"type": "input_image", "image_url": url(PIXEL), "detail": "auto"},
                {"type": "input_file", "filename": "a.png", "file_data": url(OTHER)},
                {"type": "input_image", "image_url": url(PIXEL), "detail": "auto"},
            ],
        },
    ),
    "the model's own words": (
        [{"role": "assistant", "content": "So"}, {"role": "user", "content": "Hi"}],
        {
            **USER,
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "So", "annotations": []}],
        },
    ),
    "thoughts": (
        [{"type": "reasoning", "id": "rs_0", "summary": []}, {"role": "user", "content": "Hi"}],
        {"type": "reasoning", "id": "rs_0", "summary": []},
    ),
    "a call": (
        [CALLED, {"type": "function_call_output", "call_id": "call_a", "output": "1"}],
        {**CALLED, "id": "fc_1", "status": "completed"},
    ),
    "a call as OpenAI's package has read it": (
        [{**CALLED, "parsed_arguments": {}}, {"type": "function_call_output", "call_id": "call_a", "output": "1"}],
        {**CALLED, "id": "fc_1", "status": "completed"},
    ),
    "an answer as OpenAI's package has read it": (
        [
            {"role": "assistant", "content": [{"type": "output_text", "text": "{}", "parsed": {}}]},
            {"role": "user", "content": "Hi"},
        ],
        {
            **USER,
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "{}", "annotations": []}],
        },
    ),
}


@pytest.mark.parametrize(("items", "first"), GIVEN.values(), ids=GIVEN)
def test_items_are_listed_as_they_were_given(items: Any, first: dict[str, Any]) -> None:
    before = copy.deepcopy(items)

    listed = stored_and_listed(items)

    assert listed[0] == first
    assert items == before
    for item in listed:
        _ITEM.validate_python(item)


@pytest.mark.parametrize("output", ["1", [{"type": "input_text", "text": "1"}]])
def test_an_output_is_listed_in_its_own_form(output: Any) -> None:
    item = {"type": "function_call_output", "call_id": "call_a", "output": output}

    assert stored_and_listed([CALLED, item])[1] == {**item, "id": "fco_2", "status": "completed"}


def test_data_is_stored_once_also_in_outputs() -> None:
    output = {
        "type": "function_call_output",
        "call_id": "call_a",
        "output": [{"type": "input_image", "image_url": url(PIXEL)}],
    }
    wanted = read_request({"model": "gemini-3-flash", "input": [CALLED, output]})
    contents = wanted.add_to(StoredCalls(has_history=True)).contents

    assert PIXEL not in json.dumps(stored_items(wanted.raw_input, contents, counting()))
    assert PIXEL in json.dumps(stored_items(wanted.raw_input, [], counting())), "but it is never lost"
    assert stored_and_listed([CALLED, output])[1]["output"][0]["image_url"] == url(PIXEL)


def test_ids_are_kept_unless_duplicated() -> None:
    items = [{"role": "user", "content": "Hi", "id": "x"}, {"role": "user", "content": "Ho", "id": "x"}]

    assert [item["id"] for item in stored_and_listed(items)] == ["x", "msg_1"]


def test_texts_of_thoughts_are_listed_whatever_they_hold() -> None:
    texts = [{"type": "reasoning_text", "text": "t", "image_url": {"head": 1}, "file_data": {}}]
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": texts}

    assert stored_and_listed([item, {"role": "user", "content": "Hi"}])[0] == item


ITEMS = [{"id": f"m{n}"} for n in range(25)]
PAGES: list[tuple[list[tuple[str, str]], list[int], bool]] = [
    ([], list(range(24, 4, -1)), True),
    ([("order", "asc"), ("limit", "3")], [0, 1, 2], True),
    ([("order", "asc"), ("limit", "100"), ("after", "m22")], [23, 24], False),
    ([("limit", "2"), ("after", "m2")], [1, 0], False),
    ([("after", "m0"), ("include[]", "reasoning.encrypted_content")], [], False),
]


@pytest.mark.parametrize(("query", "numbers", "more"), PAGES)
def test_a_list_comes_in_pages(query: list[tuple[str, str]], numbers: list[int], more: bool) -> None:
    page = input_page(ITEMS, [], query)

    ids = [f"m{n}" for n in numbers]
    assert [item["id"] for item in page["data"]] == ids
    assert (page["object"], page["has_more"]) == ("list", more)
    assert (page["first_id"], page["last_id"]) == ((ids[0], ids[-1]) if ids else (None, None))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("limit", value) for value in ("0", "101", "-1", "x", "", "1.5", "9" * 5000)],
        ("order", "up"),
        ("after", "m25"),
        ("include", "file_search_call.results"),
        ("before", "m1"),
    ],
)
def test_an_invalid_page_is_refused_with_the_field(name: str, value: str) -> None:
    with pytest.raises(Invalid) as caught:
        input_page(ITEMS, [], [(name, value)])

    assert caught.value.param == name
