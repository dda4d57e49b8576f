"""Errors in OpenAI's form, and the published client's exception for each."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from addon.core.dialects.responses.errors import Invalid, error_document, error_status

GEMINI = {"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED"}}
BAD_KEY = {
    "error": {
        "code": 400,
        "message": "API key not valid.",
        "status": "INVALID_ARGUMENT",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
    }
}

EXCEPTIONS: dict[int, type[openai.APIStatusError]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    403: openai.PermissionDeniedError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    422: openai.UnprocessableEntityError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
}


@pytest.mark.parametrize(("status", "kind"), EXCEPTIONS.items())
def test_the_published_client_raises_its_own_exception(status: int, kind: type[openai.APIStatusError]) -> None:
    body = error_document(status, "what went wrong", param="input", code="c")

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, json=body)

    with (
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        openai.OpenAI(api_key="k", base_url="http://localhost/v1", http_client=http, max_retries=0) as client,
        pytest.raises(kind, match="what went wrong") as caught,
    ):
        client.responses.create(model="gemini-3-flash", input="hi")

    assert (caught.value.param, caught.value.code) == ("input", "c")
    assert caught.value.type == body["error"]["type"]


SOURCES: dict[str, tuple[Any, dict[str, Any]]] = {
    "bad input": (
        Invalid("input is missing", "input", "missing_required_parameter"),
        {"message": "input is missing", "param": "input", "code": "missing_required_parameter"},
    ),
    "Gemini's own": (GEMINI, {"message": "quota", "param": None, "code": None}),
    "Gemini's own in a list": ([GEMINI], {"message": "quota", "param": None, "code": None}),
    "an error without words": ({"error": {"code": 400}}, {"message": "Gemini returned an error: {'code': 400}"}),
    "an error that is a word": ({"error": "no"}, {"message": "no"}),
    "nothing": ([], {"message": "Gemini returned an error: []"}),
    "words": ("no", {"message": "no"}),
}


@pytest.mark.parametrize(("source", "expected"), SOURCES.values(), ids=SOURCES)
def test_an_error_says_what_its_source_says(source: Any, expected: dict[str, Any]) -> None:
    error = error_document(400, source)["error"]

    assert error.items() >= expected.items()
    assert error["type"] == "invalid_request_error"
    assert set(error) == {"message", "type", "param", "code"}
    json.dumps(error)


@pytest.mark.parametrize(
    ("status", "source", "expected"),
    [(429, GEMINI, 429), (400, BAD_KEY, 401), (400, [BAD_KEY], 401), (200, GEMINI, 502), (503, {"error": "x"}, 503)],
    ids=["as it is", "a wrong key", "a wrong key in a list", "no error's status", "without details"],
)
def test_a_status_is_the_one_that_openais_clients_know(status: int, source: Any, expected: int) -> None:
    assert error_status(status, source) == expected
