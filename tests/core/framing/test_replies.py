"""The proxy's own answers, in the requested form."""

import pytest

from addon.core.framing.documents import decode
from addon.core.framing.replies import content_type, error, framed, text_answer


@pytest.mark.parametrize(
    ("form", "path", "body"),
    [
        ("json", (), b'{"a":1}'),
        ("sse", (), b'data: {"a":1}\r\n\r\n'),
        ("array", (), b'[{"a":1}]'),
        ("json", ("response",), b'{"response":{"a":1}}'),
        ("sse", ("response",), b'data: {"response":{"a":1}}\r\n\r\n'),
        ("array", ("x", "y"), b'[{"x":{"y":{"a":1}}}]'),
    ],
)
def test_framed(form: str, path: tuple[str, ...], body: bytes) -> None:
    assert framed({"a": 1}, form, path) == body


def test_content_types() -> None:
    assert content_type("sse") == "text/event-stream"
    assert content_type("json") == content_type("array") == "application/json; charset=UTF-8"


def test_an_answer_of_one_text_is_one_that_every_chat_keeps() -> None:
    (candidate,) = text_answer("Hi\n", "m", "r")["candidates"]
    assert candidate["content"] == {"parts": [{"text": "Hi\n"}], "role": "model"}
    assert candidate["finishReason"] == "STOP"
    assert decode(framed(text_answer("Hi\n", "m", "r"), "sse").removeprefix(b"data: ").strip())["responseId"] == "r"


def test_an_error_in_googles_shape() -> None:
    assert error(503, "UNAVAILABLE", "why") == {"error": {"code": 503, "message": "why", "status": "UNAVAILABLE"}}
