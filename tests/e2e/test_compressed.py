"""Compressed requests: a rewritten request goes upstream in the encoding that its headers name."""

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.e2e.proxies import Proxy, Session, new_session, text_of, user
from tests.e2e.upstreams import Canned, answer

Json = dict[str, Any]

MODELS = "/v1beta/models/gemini-3-flash-preview"
CONTENTS = {"contents": [user("weather in Paris")]}
SAID = json.dumps(
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "Fine."}]}, "index": 0, "finishReason": "STOP"}]}
).encode()

PACKED: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    "gzip": (gzip.compress, gzip.decompress),
    "deflate": (zlib.compress, zlib.decompress),
}

REWRITTEN: dict[str, tuple[str, Json]] = {
    "a placeholder's": (f"{MODELS}:generateContent", CONTENTS),
    "a stream's": (f"{MODELS}:streamGenerateContent?alt=sse", CONTENTS),
    "countTokens": (
        f"{MODELS}:countTokens",
        {"generateContentRequest": {"model": "models/gemini-3-flash-preview", **CONTENTS}},
    ),
    "cachedContents": ("/v1beta/cachedContents", {"model": "models/gemini-3-flash-preview", **CONTENTS}),
}


def sent(canned: Canned, encoding: str) -> Json:
    """What the only request held, read by its headers."""
    (message,) = canned.heard
    head, _, body = message.partition(b"\r\n\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert int(headers[b"content-length"]) == len(body)
    if b"content-encoding" in headers:
        assert headers[b"content-encoding"] == encoding.encode()
        body = PACKED[encoding][1](body)
    found: Json = json.loads(body)
    return found


@pytest.mark.parametrize(
    ("path", "body", "encoding"),
    [(*case, ("gzip", "deflate")[number % 2]) for number, case in enumerate(REWRITTEN.values())],
    ids=REWRITTEN,
)
def test_a_request_that_is_rewritten_is_what_its_headers_say(
    path: str, body: Json, encoding: str, proxy: Proxy, session: Session, canned: Canned
) -> None:
    canned.says = [answer(SAID)]
    packed = PACKED[encoding][0](json.dumps(body).encode())
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    got = httpx2.post(f"{proxy.urls[1]}/@{session.name}{path}", content=packed, headers=headers)
    assert got.status_code == 200
    assert "get_weather" in json.dumps(sent(canned, encoding))


@pytest.mark.parametrize(
    ("path", "body", "encoded", "encoding"),
    [
        (f"{MODELS}:generateContent", CONTENTS, SAID, "gzip"),
        (f"{MODELS}:streamGenerateContent", CONTENTS, b"[" + SAID + b"]", "deflate"),
        (
            "/v1beta/openai/chat/completions",
            {"model": "gemini-3-flash-preview", "messages": [{"role": "user", "content": "Hi"}]},
            b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Fine."},"finish_reason":"stop"}]}',
            "gzip",
        ),
        (
            "/v1beta/interactions",
            {"model": "gemini-3-flash-preview", "input": "Hi"},
            b'{"id":"i1","status":"completed","steps":[{"type":"model_output","content":'
            b'[{"type":"text","text":"Fine."}]}]}',
            "deflate",
        ),
    ],
    ids=["JSON", "a stream", "chat completions", "Interactions"],
)
def test_a_request_that_is_looped_is_what_its_headers_say(
    path: str, body: Json, encoded: bytes, encoding: str, looper: Proxy, canned: Canned
) -> None:
    session = new_session(looper, tools=False)
    canned.says = [answer(encoded)]
    packed = PACKED[encoding][0](json.dumps(body).encode())
    headers = {"content-encoding": encoding, "content-type": "application/json"}
    got = httpx2.post(f"{looper.urls[1]}/@{session.name}{path}", content=packed, headers=headers)
    assert got.status_code == 200, got.text
    assert "Fine." in got.text
    assert "local_" in json.dumps(sent(canned, encoding)), "the tools went along"
    if path.endswith("generateContent"):
        assert text_of(got.json()) == "Fine."
