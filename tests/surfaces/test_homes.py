"""The host that serves a surface's path."""

import pytest

from addon.surfaces.registry import home_of, is_surface_host


@pytest.mark.parametrize(
    ("path", "host"),
    [
        ("/v1beta/models/gemini-3-flash:generateContent", None),
        ("/v1/models/gemini-3-flash:generateContent", None),
        ("/v1beta/cachedContents", None),
        ("/v1internal:generateContent", "cloudcode-pa.googleapis.com"),
        ("/v1internal:loadCodeAssist", "cloudcode-pa.googleapis.com"),
        ("//v1internal:streamGenerateContent?alt=sse", "cloudcode-pa.googleapis.com"),
        (
            "/v1/projects/p/locations/europe-west4/publishers/google/models/m:countTokens",
            "europe-west4-aiplatform.googleapis.com",
        ),
        ("/v1/projects/p/locations/us/publishers/google/models/m:x", "aiplatform.us.rep.googleapis.com"),
        ("/v1beta1/projects/p/locations/eu/publishers/google/models/m:x", "aiplatform.eu.rep.googleapis.com"),
        ("/v1beta1/projects/p/locations/global/publishers/google/models/m:x", "aiplatform.googleapis.com"),
        ("/v1beta1/publishers/google/models/m:generateContent", "aiplatform.googleapis.com"),
        ("/v1beta/projects/p/locations/us/publishers/google/models/m:x", "firebasevertexai.googleapis.com"),
        ("/v1beta/projects/p/models/m:generateContent", "firebasevertexai.googleapis.com"),
        ("/upload/v1beta/files", None),
        ("//ws/google.cloud.aiplatform.v1beta1.LlmBidiService/BidiGenerateContent", "aiplatform.googleapis.com"),
        ("/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent?key=k", None),
    ],
)
def test_a_path_shows_which_host_serves_it(path: str, host: str | None) -> None:
    assert home_of(path) == host
    assert host is None or is_surface_host(host)
