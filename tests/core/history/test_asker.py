"""Who asks: the API key or the project, and nothing that changes by itself."""

import pytest

from addon.core.history.keys import asker_of

VERTEX = "/v1/projects/my%2Dproject/locations/global/publishers/google/models/m:generateContent"
VERTEX_OPENAI = "/v1/projects/my-project/locations/global/endpoints/openapi/openai/chat/completions"


@pytest.mark.parametrize(
    ("path", "headers", "asker"),
    [
        ("/v1beta/models/m:generateContent", {}, ""),
        ("/v1beta/models/m:generateContent", {"x-goog-api-key": "AIza1"}, "key:AIza1"),
        ("/v1beta/models/m:generateContent?alt=sse&key=AIza%2B1", {}, "key:AIza+1"),
        ("/v1beta/models/m:generateContent?$key=AIza1", {}, "key:AIza1"),
        ("/v1beta/models/m:generateContent?monkey=1", {}, ""),
        ("/v1beta/openai/chat/completions", {"authorization": "Bearer AIza1"}, "key:AIza1"),
        ("/v1beta/openai/chat/completions", {"authorization": "Bearer ya29.a0Af"}, ""),
        ("/v1beta/openai/chat/completions", {"authorization": "bearer eyJhbGciOi"}, ""),
        ("/v1beta/openai/chat/completions", {"authorization": "Basic dXNlcg=="}, ""),
        ("/v1beta/models/m:x", {"authorization": "Bearer ya29.a", "x-goog-user-project": "p"}, "project:p"),
        (VERTEX, {"authorization": "Bearer ya29.hour1"}, "project:my-project"),
        (VERTEX, {"authorization": "Bearer of-another-kind"}, "project:my-project"),
        (VERTEX_OPENAI, {"authorization": "Bearer of-another-kind"}, "project:my-project"),
        ("/v1internal:generateContent", {"authorization": "Bearer of-another-kind"}, ""),
        ("/v1beta/models/m:x", {"authorization": "Bearer of-another-kind"}, ""),
        (VERTEX, {"authorization": "Bearer ya29.hour2"}, "project:my-project"),
        (VERTEX, {"x-goog-api-key": "AIza1"}, "key:AIza1"),
        ("/v1beta/projects/p/models/m:generateContent", {"authorization": "Bearer ya29.a"}, "project:p"),
        ("/v1internal:generateContent", {"authorization": "Bearer ya29.a"}, ""),
    ],
)
def test_who_asks(path: str, headers: dict[str, str], asker: str) -> None:
    assert asker_of(path, headers.get) == asker
