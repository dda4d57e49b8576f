"""Requests and answers as text that people read."""

import base64
import json
from typing import Any

import pytest

from addon.core.summaries import answer_lines, request_lines

Json = dict[str, Any]

CALL = {"functionCall": {"name": "get_weather", "args": {"city": "Oslo"}, "id": "x1"}, "thoughtSignature": "abc"}
IMAGE = {"inlineData": {"mimeType": "image/png", "data": "A" * 40000}}
RESULT = {
    "functionResponse": {"name": "get_weather", "id": "x1", "response": {"celsius": 4}, "parts": [IMAGE, {"x": 1}]}
}


def test_a_request_is_shown_turn_by_turn_with_its_tools() -> None:
    request = {
        "system_instruction": {"parts": [{"text": "Be brief.\nAlways."}]},
        "contents": [
            {"parts": [{"text": "Weather?"}, IMAGE]},
            {"role": "model", "parts": [{"text": "Hm.", "thought": True}, {"text": "Let me look."}, CALL]},
            {"role": "user", "parts": [RESULT, {"fileData": {"mimeType": "text/plain", "fileUri": "gs://a"}}]},
        ],
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "get_weather",
                        "description": "The weather.",
                        "parameters": {"type": "OBJECT", "properties": {"city": {}, "day": {}}},
                    }
                ]
            },
            {"googleSearch": {}},
        ],
        "generationConfig": {"temperature": 0},
    }
    assert list(request_lines(request)) == [
        "system",
        "  Be brief.",
        "  Always.",
        "user",
        "  Weather?",
        "  [image/png, 29.3 KB]",
        "model",
        "  ~ Hm.",
        "  Let me look.",
        '  → get_weather({"city": "Oslo"}) [x1]',
        "user",
        '  ← get_weather [x1]: {"celsius": 4}, [image/png, 29.3 KB], a part',
        "  [text/plain at gs://a]",
        "tools",
        "  get_weather(city, day): The weather.",
        "  googleSearch",
        'generationConfig: {"temperature": 0}',
    ]


def test_the_texts_of_a_stream_are_joined() -> None:
    def event(*parts: Json, **more: Any) -> Json:
        return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **more}]}

    usage = {"promptTokenCount": 1200, "candidatesTokenCount": 30, "thoughtsTokenCount": 1}
    events = [event({"text": "It is "}), event({"text": "4\n"}), event({"text": "degrees."}, CALL, finishReason="STOP")]
    assert list(answer_lines([*events, {"usageMetadata": usage}])) == [
        "model",
        "  It is 4",
        "  degrees.",
        '  → get_weather({"city": "Oslo"}) [x1]',
        "finish: STOP",
        "usage: 1.2k tokens in, 31 out",
    ]


def test_candidates_and_errors_are_told_apart() -> None:
    candidates = [{"index": n, "content": {"parts": [{"text": str(n)}]}} for n in (0, 1)]
    lines = ["model, candidate 0", "  0", "model, candidate 1", "  1"]
    assert list(answer_lines([{"candidates": candidates}])) == lines
    error = {"error": {"code": 400, "status": "INVALID_ARGUMENT", "message": "a\nb"}}
    assert list(answer_lines([error])) == ["error 400 INVALID_ARGUMENT: a\\nb"]


def test_hostile_words_can_neither_move_the_terminal_nor_pass_for_another_line() -> None:
    evil = "a\x1b[2Jb\u202ec\r"
    part = {"functionCall": {"name": f"f\nuser\n{evil}", "args": {evil: evil}}}
    contents = [{"role": f"model\n{evil}", "parts": [{"text": evil}, part, {evil: evil}]}]
    tools = [
        {"functionDeclarations": [{"name": evil, "description": f"\n{evil}", "parameters": {"properties": {evil: 1}}}]}
    ]
    lines = list(request_lines({"contents": contents, "tools": tools}))
    assert len(lines) == 6
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("size", [100_000])
def test_long_arguments_are_cut(size: int) -> None:
    part = {"functionCall": {"name": "f", "args": {"text": "x" * size}}}
    (_, line) = request_lines({"contents": [{"parts": [part]}]})
    assert len(line) < 5000


@pytest.mark.parametrize("document", [{}, {"a": 1}, {"contents": []}, {"contents": "x"}, {"contents": [1]}])
def test_what_is_no_conversation_is_refused(document: Json) -> None:
    with pytest.raises(ValueError, match="no conversation"):
        list(request_lines(document))
    with pytest.raises(ValueError, match="no answer"):
        list(answer_lines([document]))


def test_odd_shapes_are_shown_as_they_are() -> None:
    odd: list[Any] = [{"parts": {"text": "one"}}, {"parts": [1, {"text": 2}, {"functionCall": 3}]}, {"role": 4}]
    request = {"contents": odd, "tools": [1, {"functionDeclarations": [2, {"parameters": 5}]}], "toolConfig": [6]}
    lines = list(request_lines(request))
    assert lines[:2] == ["user", "  one"]
    json.dumps(lines)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_the_size_of_an_image_is_that_of_its_bytes(size: int) -> None:
    image = {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(b"x" * size).decode()}}
    lines = [*request_lines({"contents": [{"role": "user", "parts": [image]}]})]
    assert lines[-1].strip() == f"[image/png, {size} bytes]"
