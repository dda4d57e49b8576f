"""What Google Search has found: an item of the search, and citations in the text."""

from __future__ import annotations

from typing import Any

import pytest

from addon.core.dialects.responses.answer import citations_of, events_of, search_of
from addon.core.dialects.responses.history import StoredCalls
from addon.core.dialects.responses.request import read_request
from tests.core.dialects.responses.published import accumulated, event_of, response_of, translated
from tests.core.dialects.responses.test_translator import CALL, answer, event

TEXT = "Größe: 7. Oslo is cold."
CHUNKS = [{"web": {"uri": "https://a.example", "title": "A"}}, {"web": {"uri": "https://b.example"}}, {"maps": {}}]
FOUND: dict[str, Any] = {
    "webSearchQueries": ["size", "Oslo weather"],
    "groundingChunks": CHUNKS,
    "groundingSupports": [
        {"segment": {"endIndex": 11, "text": "Größe: 7."}, "groundingChunkIndices": [0, 1, 2, 9, "x"]},
        {"segment": {"startIndex": 12, "endIndex": 25, "text": "Oslo is cold."}, "groundingChunkIndices": [1]},
    ],
}


def grounded(*parts: Any) -> dict[str, Any]:
    document = answer(*parts)
    document["candidates"][0]["groundingMetadata"] = FOUND
    return document


def cited(start: int, end: int, url: str, title: str = "") -> dict[str, Any]:
    return {"type": "url_citation", "start_index": start, "end_index": end, "url": url, "title": title}


@pytest.mark.parametrize("include", [False, True])
def test_a_response_has_the_search_and_its_citations(include: bool) -> None:
    fields = {"include": ["web_search_call.action.sources"]} if include else {}
    done, events = translated([event({"text": TEXT[:4]}), grounded({"text": TEXT[4:]})], **fields)
    for one in events:
        event_of(one)
    response = response_of(done.document())
    message, search = done.document()["output"]
    assert message["content"][0]["annotations"] == [
        cited(0, 9, "https://a.example", "A"),
        cited(0, 9, "https://b.example"),
        cited(10, 23, "https://b.example"),
    ]
    assert search["action"]["queries"] == ["size", "Oslo weather"]
    sources = [{"type": "url", "url": "https://a.example"}, {"type": "url", "url": "https://b.example"}]
    assert search["action"].get("sources") == (sources if include else None)
    assert [one["type"] for one in events if "web_search" in one["type"]] == [
        f"response.web_search_call.{state}" for state in ("in_progress", "searching", "completed")
    ]
    assert accumulated(events)[1].output_text == response.output_text == TEXT
    assert events_of(done.document())[-1]["response"] == done.document()


def test_a_text_that_is_closed_has_no_citations() -> None:
    done, _ = translated([event({"text": TEXT}), grounded(CALL)])
    kinds = [item["type"] for item in done.document()["output"]]
    assert kinds == ["message", "function_call", "web_search_call"]
    assert done.document()["output"][0]["content"][0]["annotations"] == []


def test_the_items_are_given_back_without_effect() -> None:
    done, _ = translated([grounded({"text": TEXT})])
    hi = {"role": "user", "content": "hi"}
    request = read_request({"model": "gemini-3-flash", "input": [hi, *done.document()["output"], hi]})
    assert [content["role"] for content in request.add_to(StoredCalls()).contents] == ["user", "model", "user"]


@pytest.mark.parametrize(
    ("segment", "text", "expected"),
    [
        ({"startIndex": 0, "endIndex": 4}, "Oslo", (0, 4)),
        ({"startIndex": 0, "endIndex": 4, "text": "Oslo"}, "In Oslo", (3, 7)),
        ({"text": "Oslo"}, "Oslo Oslo", (5, 9)),
        ({"startIndex": 0, "endIndex": 99, "text": "gone"}, "Oslo", None),
        ({"startIndex": 5, "endIndex": 2}, "Oslo", None),
        ({"startIndex": "x", "endIndex": True}, "Oslo", None),
        ({}, "Oslo", None),
        (7, "Oslo", None),
    ],
)
def test_the_place_of_a_citation(segment: Any, text: str, expected: tuple[int, int] | None) -> None:
    supports = [{"segment": segment, "groundingChunkIndices": [0]}]
    found = citations_of({"groundingChunks": CHUNKS, "groundingSupports": supports}, text)
    assert [(one["start_index"], one["end_index"]) for one in found] == ([expected] if expected else [])


@pytest.mark.parametrize(
    "grounding", [{}, {"webSearchQueries": []}, {"webSearchQueries": [1]}, {"webSearchQueries": 1}]
)
def test_without_a_query_there_is_no_search(grounding: Any) -> None:
    assert search_of(grounding, with_sources=True) is None
