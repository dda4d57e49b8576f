"""A table of all URLs of surfaces, and of URLs that only look like them."""

from __future__ import annotations

import importlib
import pkgutil
import timeit
from urllib.parse import urlsplit

import pytest

import addon.surfaces
from addon.surfaces.incoming import Framing, Operation, Target
from addon.surfaces.registry import SURFACES, is_surface_host, is_surface_path, match, match_path
from addon.surfaces.surface import Surface
from tests.recorded import at_least, exchanges

GENERATE, STREAM, COUNT, CACHE = Operation.GENERATE, Operation.STREAM, Operation.COUNT, Operation.CACHE
JSON, SSE, ARRAY = Framing.JSON, Framing.SSE, Framing.ARRAY

DEV = "generativelanguage.googleapis.com"
REGIONAL = "us-central1-aiplatform.googleapis.com"
GLOBAL = "aiplatform.googleapis.com"
FIRE = "firebasevertexai.googleapis.com"
CODE = "cloudcode-pa.googleapis.com"
PROJECT = "/v1/projects/p-1/locations/us-central1"
BETA = "/v1beta1/projects/p-1/locations/global/publishers/google/models"

MATCHES = [
    # the Developer API
    (DEV, "/v1beta/models/gemini-3-flash:generateContent", "developer", GENERATE, JSON, "gemini-3-flash"),
    (DEV, "/v1/models/gemini-3-flash:generateContent", "developer", GENERATE, JSON, "gemini-3-flash"),
    (DEV, "/v1alpha/models/gemini-3-flash:generateContent", "developer", GENERATE, JSON, "gemini-3-flash"),
    (DEV, "//v1beta/models/m:generateContent", "developer", GENERATE, JSON, "m"),
    (DEV, "/v1beta/models/m:generateContent?key=REDACTED", "developer", GENERATE, JSON, "m"),
    (DEV, "/v1beta/models/m:generateContent?%24alt=json%3Benum-encoding%3Dint", "developer", GENERATE, JSON, "m"),
    (DEV, "/v1beta/models/m%3AgenerateContent", "developer", GENERATE, JSON, "m"),
    (DEV, "/v1beta/models%2Fm:generateContent", "developer", GENERATE, JSON, "m"),
    (DEV, "/v1beta/tunedModels/mine-1a2b:generateContent", "developer", GENERATE, JSON, "mine-1a2b"),
    (DEV, "/v1beta/tunedModels/mine:streamGenerateContent?alt=sse", "developer", STREAM, SSE, "mine"),
    (DEV, "/v1beta/models/m:streamGenerateContent?alt=sse", "developer", STREAM, SSE, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent?alt=sse&key=REDACTED", "developer", STREAM, SSE, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent?key=REDACTED&alt=sse", "developer", STREAM, SSE, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent?$alt=sse", "developer", STREAM, SSE, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent?%24alt=sse", "developer", STREAM, SSE, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent?$alt=sse%3Benum-encoding=int", "developer", STREAM, SSE, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent", "developer", STREAM, ARRAY, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent?alt=json", "developer", STREAM, ARRAY, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent?key=alt=sse", "developer", STREAM, ARRAY, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent?salt=sse", "developer", STREAM, ARRAY, "m"),
    (DEV, "/v1beta/models/m:streamGenerateContent?%24alt=json%3Benum-encoding=int", "developer", STREAM, ARRAY, "m"),
    (DEV, "/v1beta/models/m:countTokens", "developer", COUNT, JSON, "m"),
    (DEV, "/v1beta/cachedContents", "developer", CACHE, JSON, ""),
    (DEV, "/v1beta/cachedContents?key=REDACTED", "developer", CACHE, JSON, ""),
    (DEV.upper(), "/v1beta/models/m:generateContent", "developer", GENERATE, JSON, "m"),
    (DEV + ":443", "/v1beta/models/m:generateContent", "developer", GENERATE, JSON, "m"),
    (DEV + ".", "/v1beta/models/m:generateContent", "developer", GENERATE, JSON, "m"),
    ("generativelanguage.mtls.googleapis.com", "/v1/models/m:countTokens", "developer", COUNT, JSON, "m"),
    # Vertex AI: every kind of host
    (REGIONAL, PROJECT + "/publishers/google/models/m:generateContent", "vertex", GENERATE, JSON, "m"),
    ("europe-west4-aiplatform.googleapis.com", BETA + "/m:generateContent", "vertex", GENERATE, JSON, "m"),
    (GLOBAL, BETA + "/gemini-2.5-pro-exp-03-25:generateContent", "vertex", GENERATE, JSON, "gemini-2.5-pro-exp-03-25"),
    (GLOBAL, BETA + "/gemini-1.5-pro@001:generateContent", "vertex", GENERATE, JSON, "gemini-1.5-pro@001"),
    ("aiplatform.us.rep.googleapis.com", BETA + "/m:generateContent", "vertex", GENERATE, JSON, "m"),
    ("aiplatform.eu.rep.googleapis.com", BETA + "/m:countTokens", "vertex", COUNT, JSON, "m"),
    ("aiplatform.mtls.googleapis.com", BETA + "/m:generateContent", "vertex", GENERATE, JSON, "m"),
    ("us-east5-aiplatform.mtls.googleapis.com", BETA + "/m:generateContent", "vertex", GENERATE, JSON, "m"),
    ("aiplatform.eu.rep.mtls.googleapis.com", BETA + "/m:generateContent", "vertex", GENERATE, JSON, "m"),
    ("US-Central1-AIPlatform.googleapis.com:443", BETA + "/m:generateContent", "vertex", GENERATE, JSON, "m"),
    # … and every kind of path
    (GLOBAL, "/v1/publishers/google/models/m:generateContent", "vertex", GENERATE, JSON, "m"),
    (GLOBAL, "/v1beta1/publishers/google/models/m:streamGenerateContent?alt=sse", "vertex", STREAM, SSE, "m"),
    (GLOBAL, "/v1beta1/publishers/google/models/m:countTokens?key=K", "vertex", COUNT, JSON, "m"),
    (REGIONAL, PROJECT + "/endpoints/123456:generateContent", "vertex", GENERATE, JSON, "123456"),
    (REGIONAL, PROJECT + "/endpoints/123456:streamGenerateContent?alt=sse", "vertex", STREAM, SSE, "123456"),
    (REGIONAL, "/v1beta1/endpoints/123456:generateContent", "vertex", GENERATE, JSON, "123456"),
    (REGIONAL, PROJECT + "/publishers/google/models/m:streamGenerateContent", "vertex", STREAM, ARRAY, "m"),
    (REGIONAL, PROJECT + "/publishers/google/models/m:streamGenerateContent?alt=sse", "vertex", STREAM, SSE, "m"),
    (REGIONAL, PROJECT + "/publishers/google/models/m:countTokens", "vertex", COUNT, JSON, "m"),
    (REGIONAL, PROJECT + "/cachedContents", "vertex", CACHE, JSON, ""),
    (REGIONAL, "/v1beta1/projects/p/locations/l/cachedContents", "vertex", CACHE, JSON, ""),
    (
        REGIONAL,
        "/v1/projects/example.com:p/locations/l/publishers/google/models/m:countTokens",
        "vertex",
        COUNT,
        JSON,
        "m",
    ),
    # Firebase AI
    (
        FIRE,
        "/v1beta/projects/p/locations/us-central1/publishers/google/models/m:generateContent",
        "firebase",
        GENERATE,
        JSON,
        "m",
    ),
    (FIRE, "/v1beta/projects/p/models/m:generateContent", "firebase", GENERATE, JSON, "m"),
    (FIRE, "/v1beta/projects/p/models/m:streamGenerateContent?alt=sse", "firebase", STREAM, SSE, "m"),
    (FIRE, "/v1beta/projects/p/models/m:streamGenerateContent", "firebase", STREAM, ARRAY, "m"),
    (FIRE, "/v1beta/projects/p/models/m:countTokens", "firebase", COUNT, JSON, "m"),
    # Code Assist
    (CODE, "/v1internal:generateContent", "codeassist", GENERATE, JSON, ""),
    (CODE, "/v1internal:streamGenerateContent?alt=sse", "codeassist", STREAM, SSE, ""),
    (CODE, "/v1internal:streamGenerateContent", "codeassist", STREAM, ARRAY, ""),
    (CODE, "/v1internal:countTokens", "codeassist", COUNT, JSON, ""),
    ("daily-cloudcode-pa.googleapis.com", "/v1internal:streamGenerateContent?alt=sse", "codeassist", STREAM, SSE, ""),
    ("daily-cloudcode-pa.sandbox.googleapis.com", "/v1internal:generateContent", "codeassist", GENERATE, JSON, ""),
    ("autopush-cloudcode-pa.sandbox.googleapis.com", "/v1internal:generateContent", "codeassist", GENERATE, JSON, ""),
    # OpenAI's language; how the answer comes is told by the body
    # Interactions: whether it streams is said in the body
    (DEV, "/v1beta/interactions", "interactions", GENERATE, JSON, ""),
    (DEV, "/v1/interactions?alt=sse", "interactions", GENERATE, JSON, ""),
    (REGIONAL, "/v1beta1/projects/p/locations/l/interactions", "interactions", GENERATE, JSON, ""),
    (DEV, "/v1beta/openai/chat/completions", "chat", GENERATE, JSON, ""),
    (DEV, "/v1/openai/chat/completions", "chat", GENERATE, JSON, ""),
    (DEV, "//v1beta/openai/chat/completions", "chat", GENERATE, JSON, ""),
    (REGIONAL, PROJECT + "/endpoints/openapi/chat/completions", "chat", GENERATE, JSON, ""),
    (GLOBAL, "/v1beta1/projects/p/locations/global/endpoints/openapi/chat/completions", "chat", GENERATE, JSON, ""),
]


@pytest.mark.parametrize(
    ("host", "path", "surface", "operation", "framing", "model"), MATCHES, ids=[m[0] + m[1] for m in MATCHES]
)
def test_a_request_to_a_surface_is_recognised_by_host_and_path_and_by_path_alone(
    host: str, path: str, surface: str, operation: Operation, framing: Framing, model: str
) -> None:
    enveloped = surface == "codeassist"
    expected = Target(
        surface=surface,
        operation=operation,
        framing=framing,
        model=model,
        request_path=("request",) if enveloped else (),
        response_path=("response",) if enveloped and operation is not COUNT else (),
        is_vertex=surface == "vertex" or (surface == "firebase" and "/locations/" in path),
        resource="" if surface != "developer" or not model else f"{'tunedM' if 'tunedM' in path else 'm'}odels/{model}",
    )
    assert match("POST", host, path) == expected
    assert match_path("POST", path) == expected
    assert is_surface_host(host)


FOREIGN = [
    ("GET", DEV, "/v1beta/models"),
    ("GET", DEV, "/v1beta/models/m"),
    ("GET", DEV, "/v1beta/models/m:generateContent"),
    ("OPTIONS", DEV, "/v1beta/models/m:generateContent"),
    ("GET", DEV, "/v1beta/cachedContents"),
    ("PATCH", DEV, "/v1beta/cachedContents/c1"),
    ("DELETE", DEV, "/v1beta/cachedContents/c1"),
    ("POST", DEV, "/v1beta/cachedContents/c1"),
    ("POST", DEV, "/v1beta/models/m:batchGenerateContent"),
    ("POST", DEV, "/v1beta/models/m:embedContent"),
    ("POST", DEV, "/v1beta/models/m:batchEmbedContents"),
    ("POST", DEV, "/v1beta/models/m:predict"),
    ("POST", DEV, "/v1beta/models/m:generateContents"),
    ("POST", DEV, "/v1beta/models/m/operations:generateContent"),
    ("POST", DEV, "/v1beta/models/:generateContent"),
    ("POST", DEV, "/v1beta/models/m:generateContent/"),
    ("POST", DEV, "/v2/models/m:generateContent"),
    ("GET", DEV, "/v1beta/interactions"),
    ("POST", DEV, "/v1beta/interactions/v1_x/cancel"),
    ("GET", DEV, "/v1beta/openai/chat/completions"),
    ("POST", DEV, "/v1beta/openai/chat/completions/c1"),
    ("POST", DEV, "/v1beta/openai/embeddings"),
    ("POST", DEV, "/v1beta/openai/images/generations"),
    ("POST", DEV, "/v1/chat/completions"),
    ("POST", DEV, "/upload/v1beta/files"),
    ("POST", DEV, "/?x=/v1beta/models/m:generateContent"),
    ("POST", DEV, ""),
    ("POST", REGIONAL, PROJECT + "/publishers/google/models/m:predict"),
    ("POST", REGIONAL, PROJECT + "/publishers/anthropic/models/claude:rawPredict"),
    ("POST", REGIONAL, PROJECT + "/endpoints/1234/chat/completions"),
    ("POST", REGIONAL, "/v1beta/openai/embeddings"),
    ("POST", REGIONAL, PROJECT + "/cachedContents/c1"),
    ("GET", REGIONAL, PROJECT + "/cachedContents"),
    ("POST", FIRE, "/v1beta/projects/p/templates/t:templateGenerateContent"),
    ("POST", CODE, "/v1internal:loadCodeAssist"),
    ("POST", CODE, "/v1internal:generateChat"),
    ("GET", CODE, "/v1internal/operations/o1"),
]


@pytest.mark.parametrize(("method", "host", "path"), FOREIGN, ids=[" ".join(f) for f in FOREIGN])
def test_other_requests_to_the_same_hosts_match_nothing(method: str, host: str, path: str) -> None:
    assert match(method, host, path) is None
    assert match_path(method, path) is None


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "127.0.0.1:8081",
        "[::1]:443",
        "",
        "googleapis.com",
        "storage.googleapis.com",
        "generativelanguage.googleapis.com.example.com",
        "generativelanguage.googleapis.com@example.com",
        "xgenerativelanguage.googleapis.com",
        "generativelanguageXgoogleapis.com",
        "example.com/x-aiplatform.googleapis.com",
        "myaiplatform.googleapis.com",
        "evil-cloudcode-pa.googleapis.com",
    ],
)
def test_a_foreign_host_with_a_surfaces_path_matches_nothing(host: str) -> None:
    path = "/v1beta/models/m:generateContent"
    assert not is_surface_host(host)
    assert match("POST", host, path) is None
    assert match_path("POST", path) is not None


@pytest.mark.parametrize(
    ("host", "path"),
    [
        (CODE, "/v1beta/models/m:generateContent"),
        (DEV, "/v1internal:generateContent"),
        (DEV, BETA + "/m:generateContent"),
        (REGIONAL, "/v1beta/models/m:generateContent"),
    ],
)
def test_a_path_of_one_surface_at_the_host_of_another_matches_nothing(host: str, path: str) -> None:
    assert match("POST", host, path) is None


def test_firebase_by_host_takes_the_path_that_by_path_alone_is_vertex() -> None:
    path = PROJECT + "/publishers/google/models/m:generateContent"
    by_host, by_path = match("POST", FIRE, path), match_path("POST", path)
    assert by_host is not None
    assert by_host.surface == "firebase"
    assert by_path is not None
    assert by_path.surface == "vertex"


@pytest.mark.parametrize(
    ("host", "path", "is_vertex"),
    [
        (DEV, "/v1beta/models/m:generateContent", False),
        (DEV, "/v1beta/cachedContents", False),
        (REGIONAL, PROJECT + "/publishers/google/models/m:generateContent", True),
        (GLOBAL, "/v1/publishers/google/models/m:streamGenerateContent", True),
        (REGIONAL, PROJECT + "/cachedContents", True),
        (REGIONAL, PROJECT + "/endpoints/1:generateContent", True),
        (FIRE, PROJECT.replace("v1", "v1beta") + "/publishers/google/models/m:generateContent", True),
        (FIRE, "/v1beta/projects/p/models/m:generateContent", False),
        (CODE, "/v1internal:generateContent", False),
    ],
)
def test_which_requests_vertex_ai_processes(host: str, path: str, is_vertex: bool) -> None:
    found = match("POST", host, path)
    assert found is not None
    assert found.is_vertex is is_vertex


LIVE = "/ws/google.ai.generativelanguage.{}.GenerativeService.BidiGenerateContent{}"
LIVE_VERTEX = "/ws/google.cloud.aiplatform.{}.LlmBidiService/BidiGenerateContent"


@pytest.mark.parametrize(
    ("host", "path"),
    [
        (DEV, LIVE.format("v1beta", "")),
        (DEV, LIVE.format("v1", "?key=REDACTED")),
        (DEV, "/" + LIVE.format("v1alpha", "Constrained?access_token=REDACTED")),
        (REGIONAL, LIVE_VERTEX.format("v1beta1")),
        (GLOBAL, "/" + LIVE_VERTEX.format("v1")),
    ],
)
def test_live_is_a_websocket_and_so_a_get(host: str, path: str) -> None:
    expected = Target("live", Operation.LIVE, JSON, "", (), ())
    assert match("GET", host, path) == match_path("GET", path) == expected
    assert match("POST", host, path) is match_path("POST", path) is None
    assert match("GET", "example.com", path) is None


@pytest.mark.parametrize(
    "path", [LIVE.format("v1", "Music"), "/ws/google.ai.generativelanguage.v1.Other.BidiGenerateContent", "/ws/", "/"]
)
def test_other_websockets_are_not_live(path: str) -> None:
    assert match("GET", DEV, path) is match_path("GET", path) is None


def test_every_surface_is_registered_once() -> None:
    names = [info.name for info in pkgutil.iter_modules(addon.surfaces.__path__)]
    modules = [importlib.import_module(f"addon.surfaces.{name}") for name in names]
    defined = [one.name for module in modules for one in vars(module).values() if isinstance(one, Surface)]
    assert sorted(defined) == sorted({surface.name for surface in SURFACES})
    assert len(SURFACES) == len(defined)


def test_a_foreign_host_costs_less_than_two_microseconds() -> None:
    hosts = [f"host-{i}.example.com" for i in range(100)]
    rounds = 50

    def run() -> None:
        for host in hosts:
            match("POST", host, "/v1beta/models/m:generateContent")

    assert min(timeit.repeat(run, number=rounds, repeat=5)) / rounds / len(hosts) < 2e-6


def test_every_recorded_url_matches_its_recording() -> None:
    urls_found = 0
    for exchange in exchanges():
        url = urlsplit(exchange["url"])
        path = url.path + ("?" + url.query if url.query else "")
        by_host = match(exchange["method"], url.netloc, path)
        assert match_path(exchange["method"], path) == by_host, url
        operation = next((o for o in (GENERATE, STREAM, COUNT) if url.path.endswith(":" + o)), None)
        if exchange["method"] == "POST" and url.path.endswith("/cachedContents"):
            operation = CACHE
        if exchange["api"] in ("openai-compat", "interactions"):
            operation = GENERATE
        if operation is None:
            assert by_host is None, url
            continue
        assert by_host is not None, url
        surface = {"devapi": "developer", "openai-compat": "chat"}.get(exchange["api"], exchange["api"])
        framing = JSON if operation is not STREAM else SSE if "alt=sse" in url.query else ARRAY
        assert (by_host.surface, by_host.operation, by_host.framing) == (surface, operation, framing), url
        named_in_body = by_host.surface in ("codeassist", "chat", "interactions")
        assert operation is CACHE or named_in_body or f"/{by_host.model}:" in url.path
        urls_found += 1
    assert urls_found > at_least(55, 1000)


FLASH = "/v1beta/models/gemini-3-flash:generateContent"


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        (DEV, FLASH, True),
        (DEV + ".", FLASH, True),
        (DEV, FLASH + "?key=k", True),
        (DEV, FLASH + "#x", True),
        (DEV, "/x/.." + FLASH, True),
        (DEV, "/x/%2e%2E" + FLASH, True),
        (DEV, "/x/%252e%252e" + FLASH, True),
        (DEV, "/../.." + FLASH, True),
        (DEV, "/." + FLASH, True),
        (DEV, FLASH.replace("/models", ";x=1/models"), True),
        (DEV, FLASH + ";jsessionid=1", True),
        (DEV, FLASH.replace("/models", "\\models"), True),
        (DEV, FLASH.replace("/models", "%5Cmodels"), True),
        (DEV, FLASH.replace("/models", "//models"), True),
        (DEV, FLASH.replace("v1beta", "V1Beta").replace("models", "MODELS"), True),
        (DEV, FLASH.replace("generate", "GENERATE"), True),
        (DEV, FLASH + "%00", True),
        (DEV, FLASH + "/", True),
        (DEV, "/ws/x/../google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent", True),
        (CODE, "/V1INTERNAL:generateContent", True),
        (DEV, "/v1beta/models", False),
        (DEV, FLASH + "/../x", False),
        (CODE, FLASH, False),
        ("example.com", FLASH, False),
    ],
)
def test_a_surfaces_path_is_recognised_in_any_spelling(host: str, path: str, expected: bool) -> None:
    assert is_surface_path(host, path) is expected
