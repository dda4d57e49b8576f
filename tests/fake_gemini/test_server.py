"""The server over HTTP: surfaces, credentials, framing, the log, and its settings for tests."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from addon.fake_gemini.reply import Shape
from addon.fake_gemini.rules import Options
from addon.fake_gemini.server import StrictGemini, listen
from tests.plain_http import NO_TLS

Json = dict[str, Any]

TOOLS = [
    {
        "functionDeclarations": [
            {
                "name": "get_weather",
                "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
            }
        ]
    }
]
THREE, TWO = "gemini-3-flash-preview", "gemini-2.5-flash"
DEVELOPER = "/v1beta/models/{}:{}"
VERTEX = "/v1beta1/projects/p/locations/global/publishers/google/models/{}:{}"
EXPRESS = "/v1/publishers/google/models/{}:{}"
FIREBASE = "/v1beta/projects/p/locations/global/publishers/google/models/{}:{}"
FIREBASE_DEVELOPER = "/v1beta/projects/p/models/{}:{}"
KEY = {"x-goog-api-key": "k"}
BEARER = {"authorization": "Bearer t"}


def body(words: str, **more: Any) -> Json:
    return {"contents": [{"role": "user", "parts": [{"text": words}]}], "tools": TOOLS, **more}


@contextlib.asynccontextmanager
async def gemini(**options: Any) -> AsyncIterator[tuple[StrictGemini, httpx2.AsyncClient]]:
    async with (
        StrictGemini(**options) as server,
        httpx2.AsyncClient(verify=NO_TLS, base_url=server.url, headers=KEY, timeout=10) as client,
    ):
        yield server, client


def events(text: str) -> list[Json]:
    """The events of a stream, after checking that its framing is exactly the service's."""
    assert text.endswith("\r\n\r\n")
    found = text.removesuffix("\r\n\r\n").split("\r\n\r\n")
    assert all(event.startswith("data: {") for event in found)
    return [json.loads(event.removeprefix("data: ")) for event in found]


def parts(document: Json) -> list[Json]:
    return list(document["candidates"][0].get("content", {}).get("parts", []))


@pytest.mark.parametrize("path", [DEVELOPER, VERTEX, EXPRESS, FIREBASE, FIREBASE_DEVELOPER, "/" + DEVELOPER])
async def test_every_surface_answers_in_its_own_key_order(path: str) -> None:
    async with gemini() as (server, client):
        url = server.url + path.format(THREE, "generateContent")
        answer = await client.post(url, json=body("weather in Paris and Rome"))
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json; charset=UTF-8"
        content = answer.json()["candidates"][0]["content"]
        developer = path in (DEVELOPER, FIREBASE_DEVELOPER, "/" + DEVELOPER)
        assert list(content) == (["parts", "role"] if developer else ["role", "parts"])
        first, second = content["parts"]
        assert list(first) == ["functionCall", "thoughtSignature"]
        assert list(second) == ["functionCall"]
        assert ("id" in first["functionCall"]) is (path != EXPRESS)
        assert answer.text.startswith('{\n  "candidates": [\n')


async def test_code_assist_has_its_envelope_and_needs_a_bearer_token() -> None:
    async with gemini() as (_, client):
        path = "/v1internal:streamGenerateContent?alt=sse"
        request = body("weather in Paris")
        envelope = {"model": THREE, "project": "p", "request": request}
        refused = await client.post(path, json=envelope)
        assert refused.status_code == 401
        assert "API keys are not supported by this API." in refused.json()["error"]["message"]
        answer = await client.post(path, json=envelope, headers=BEARER)
        first = events(answer.text)[0]
        assert list(first) == ["response", "traceId", "metadata"]
        (part,) = parts(first["response"])
        assert list(part) == ["thoughtSignature", "functionCall"]
        assert re.fullmatch(r"call_\d{7}", part["functionCall"]["id"])
        counted = await client.post(
            "/v1internal:countTokens",
            json={"request": {"model": f"models/{THREE}", "contents": request["contents"]}},
            headers=BEARER,
        )
        assert counted.json() == {"totalTokens": 5}


async def test_two_puts_call_and_finish_in_one_event_and_three_adds_one() -> None:
    async with gemini() as (_, client):
        for model, expected in ((TWO, ["STOP"]), (THREE, [None, "STOP"])):
            path = DEVELOPER.format(model, "streamGenerateContent?alt=sse")
            answer = await client.post(path, json=body("weather in Paris"))
            assert answer.headers["content-type"] == "text/event-stream"
            found = events(answer.text)
            assert [e["candidates"][0].get("finishReason") for e in found] == expected
            assert parts(found[0])[0]["functionCall"]["args"] == {"city": "Paris"}
            assert len({e["responseId"] for e in found}) == 1
        assert parts(found[1]) == [{"text": ""}]


async def test_the_text_of_three_ends_with_a_signature() -> None:
    async with gemini() as (_, client):
        unary = await client.post(DEVELOPER.format(THREE, "generateContent"), json=body("hello"))
        assert "thoughtSignature" in parts(unary.json())[-1]
        answer = await client.post(DEVELOPER.format(THREE, "streamGenerateContent?alt=sse"), json=body("hello"))
        *texts, last = (parts(e)[0] for e in events(answer.text))
        assert "".join(t["text"] for t in texts).startswith('You said: "hello"')
        assert last["text"] == ""
        assert last["thoughtSignature"]


async def test_without_alt_sse_a_stream_is_an_array_in_the_services_framing() -> None:
    async with gemini() as (_, client):
        answer = await client.post(DEVELOPER.format(THREE, "streamGenerateContent"), json=body("hello"))
        assert answer.headers["content-type"] == "application/json; charset=UTF-8"
        assert answer.text.startswith('[{\n  "candidates"')
        assert answer.text.endswith("}\n]")
        assert answer.text.count("}\n,\r\n{") == len(answer.json()) - 1


async def test_errors_of_streams_take_the_form_of_the_stream() -> None:
    async with gemini() as (_, client):
        bad: Json = {"contents": []}
        sse = await client.post(DEVELOPER.format(THREE, "streamGenerateContent?alt=sse"), json=bad)
        assert (sse.status_code, sse.headers["content-type"]) == (400, "text/event-stream")
        assert sse.text.startswith('{\n  "error": {\n    "code": 400,')
        array = await client.post(DEVELOPER.format(THREE, "streamGenerateContent"), json=bad)
        assert array.json()[0]["error"]["code"] == 400
        unary = await client.post(DEVELOPER.format(THREE, "generateContent"), json=bad)
        assert unary.json()["error"]["status"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("path", "headers", "status", "words"),
    [
        (DEVELOPER.format(THREE, "generateContent"), {}, 403, "Method doesn't allow unregistered callers"),
        (VERTEX.format(THREE, "generateContent"), {}, 401, "Request is missing required authentication credential."),
        (DEVELOPER.format(THREE, "generateContent"), {"x-goog-api-key": "bad"}, 400, "API key not valid."),
        (DEVELOPER.format("gemini-5.0-flash", "generateContent"), KEY, 404, "models/gemini-5.0-flash is not found"),
        (DEVELOPER.format("gemini-1.5-flash", "generateContent"), KEY, 404, "is not supported for generateContent."),
        ("/v1beta/nothing", KEY, 404, "was not found on this server."),
    ],
)
async def test_credentials_and_models_are_checked(path: str, headers: dict[str, str], status: int, words: str) -> None:
    async with (
        StrictGemini() as server,
        httpx2.AsyncClient(verify=NO_TLS, base_url=server.url, headers=headers) as client,
    ):
        answer = await client.post(path, json=body("hello"))
        assert answer.status_code == status
        assert words in answer.json()["error"]["message"]


async def test_a_key_may_be_in_the_query_or_a_bearer_token() -> None:
    async with StrictGemini() as server, httpx2.AsyncClient(verify=NO_TLS, base_url=server.url) as client:
        path = DEVELOPER.format(THREE, "generateContent")
        assert (await client.post(f"{path}?key=k", json=body("hello"))).status_code == 200
        assert (await client.post(path, json=body("hello"), headers=BEARER)).status_code == 200


async def test_a_body_that_is_not_json_is_refused() -> None:
    async with gemini() as (_, client):
        answer = await client.post(DEVELOPER.format(THREE, "generateContent"), content=b"{")
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("Invalid JSON payload received. Unexpected token.")


async def test_unary_answers_are_gzip_where_the_client_takes_it_and_event_streams_never() -> None:
    async with gemini() as (_, client):
        for encoding, packed in (("gzip, deflate", True), ("identity", False)):
            client.headers["accept-encoding"] = encoding
            path = DEVELOPER.format(THREE, "generateContent")
            async with client.stream("POST", path, json=body("hello")) as answer:
                raw = b"".join([piece async for piece in answer.aiter_raw()])
            assert (answer.headers.get("content-encoding") == "gzip") is packed
            assert json.loads(gzip.decompress(raw) if packed else raw)["candidates"]
            path = DEVELOPER.format(THREE, "streamGenerateContent?alt=sse")
            assert "content-encoding" not in (await client.post(path, json=body("hello"))).headers


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ("", [2, 1]),
        ("each", [1, 1, 1]),
        ("trailing=0", [2]),
        ("bare_finish", [2, 0]),
        ("usage", [2, 1, None]),
        ("each,trailing=0,usage", [1, 1, None]),
    ],
)
async def test_a_header_or_the_words_shape_the_stream(shape: str, expected: list[int | None]) -> None:
    async with gemini() as (_, client):
        path = DEVELOPER.format(THREE, "streamGenerateContent?alt=sse")
        words = "weather in Paris and Rome"
        by_header = await client.post(path, json=body(words), headers={"x-demo-shape": shape})
        by_words = await client.post(path, json=body(f"{words} [demo:{shape}]"))
        for answer in (by_header, by_words):
            assert [len(parts(e)) if "candidates" in e else None for e in events(answer.text)] == expected


async def test_an_unknown_knob_is_refused() -> None:
    async with gemini() as (_, client):
        path = DEVELOPER.format(THREE, "streamGenerateContent?alt=sse")
        answer = await client.post(path, json=body("hello"), headers={"x-demo-shape": "sideways"})
        assert "no such knob: sideways" in answer.text


async def test_no_finish_ends_a_stream_without_a_reason() -> None:
    async with gemini(shape=Shape(no_finish=True)) as (_, client):
        answer = await client.post(DEVELOPER.format(THREE, "streamGenerateContent?alt=sse"), json=body("hello"))
        assert not any("finishReason" in e["candidates"][0] for e in events(answer.text))


async def test_a_cut_breaks_the_connection() -> None:
    async with gemini(shape=Shape(cut=1)) as (server, client):
        path = DEVELOPER.format(THREE, "streamGenerateContent?alt=sse")
        async with client.stream("POST", path, json=body("hello")) as answer:
            pieces = answer.aiter_raw()
            assert len(events((await anext(pieces)).decode())) == 1
            with pytest.raises(httpx2.RemoteProtocolError):
                await anext(pieces)
        assert server.requests[-1]["status"] == 200


async def test_bytes_cut_the_stream_anywhere_and_nothing_is_lost() -> None:
    async with gemini(shape=Shape(bytes=7)) as (_, client):
        path = DEVELOPER.format(THREE, "streamGenerateContent?alt=sse")
        answer = await client.post(path, json=body("héllo ☀"))
        assert "héllo ☀" in "".join(parts(e)[0]["text"] for e in events(answer.text))


async def test_vertex_streams_arguments_in_pieces() -> None:
    async with gemini() as (_, client):
        request = body(
            'call get_weather {"city": "Boston", "days": [1, {"a b": true}], "x": null}',
            toolConfig={"functionCallingConfig": {"mode": "AUTO", "streamFunctionCallArguments": True}},
        )
        answer = await client.post(VERTEX.format(THREE, "streamGenerateContent?alt=sse"), json=request)
        found = [parts(e)[0]["functionCall"] for e in events(answer.text)[:-1]]
        assert found[0]["willContinue"]
        assert "args" not in found[0]
        assert [p["partialArgs"][0] for p in found[1:-1]] == [
            {"jsonPath": "$.city", "stringValue": "Bos", "willContinue": True},
            {"jsonPath": "$.city", "stringValue": "ton"},
            {"jsonPath": "$.days[0]", "numberValue": 1},
            {"jsonPath": "$.days[1]['a b']", "boolValue": True},
            {"jsonPath": "$.x", "nullValue": "NULL_VALUE"},
        ]
        assert found[-1] == {}


async def test_each_candidate_makes_the_same_calls_with_ids_of_its_own() -> None:
    async with gemini() as (_, client):
        request = body("weather in Paris", generationConfig={"candidateCount": 2})
        answer = (await client.post(DEVELOPER.format(THREE, "generateContent"), json=request)).json()
        one, two = (c["content"]["parts"][0]["functionCall"] for c in answer["candidates"])
        assert one["args"] == two["args"]
        assert one["id"] != two["id"]
        assert [c["index"] for c in answer["candidates"]] == [0, 1]


async def test_a_failed_call_comes_without_content_and_continuation_with_a_token() -> None:
    async with gemini() as (_, client):
        path = DEVELOPER.format(THREE, "generateContent")
        failed = (await client.post(path, json=body("finish MALFORMED_FUNCTION_CALL"))).json()
        assert failed["candidates"] == [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]
        cut = (await client.post(path, json=body("finish CONTINUATION"))).json()
        token = cut["candidates"][0]["continuationToken"]
        rest = await client.post(path, json=body("finish CONTINUATION", continuationToken=token))
        assert parts(rest.json())[0]["text"].startswith("... and so on")


async def test_thoughts_come_first_where_they_are_asked_for() -> None:
    async with gemini() as (_, client):
        request = body("weather in Paris", generationConfig={"thinkingConfig": {"includeThoughts": True}})
        unary = await client.post(DEVELOPER.format(THREE, "generateContent"), json=request)
        assert [p.get("thought") for p in parts(unary.json())] == [True, None]
        stream = await client.post(DEVELOPER.format(THREE, "streamGenerateContent?alt=sse"), json=request)
        assert [parts(e)[0].get("thought") for e in events(stream.text)] == [True, None, None]


async def test_the_shape_in_the_words_holds_for_every_step_that_they_led_to() -> None:
    async with gemini() as (_, client):
        contents = body("weather in Paris [demo:usage]")["contents"]
        path = DEVELOPER.format(TWO, "streamGenerateContent?alt=sse")
        first = events((await client.post(path, json=body("", contents=contents))).text)
        response = {"functionResponse": {"name": "get_weather", "response": {}}}
        contents += [first[0]["candidates"][0]["content"], {"role": "user", "parts": [response]}]
        second = events((await client.post(path, json=body("", contents=contents))).text)
        assert ["candidates" in e for e in (first[-1], second[-1])] == [False, False]


async def test_signatures_survive_a_restart() -> None:
    contents = body("weather in Paris")["contents"]
    path = DEVELOPER.format(THREE, "generateContent")
    async with gemini() as (_, client):
        contents.append((await client.post(path, json=body("weather in Paris"))).json()["candidates"][0]["content"])
    response = {"functionResponse": {"name": "get_weather", "response": {"sky": "clear"}}}
    async with gemini() as (server, client):
        request = body("", contents=[*contents, {"role": "user", "parts": [response]}])
        answer = await client.post(path, json=request)
        assert 'get_weather returned {"sky": "clear"}.' in parts(answer.json())[0]["text"]
        assert server.dummy_signatures == 0


async def test_a_dummy_signature_is_counted_by_the_server() -> None:
    call = {"functionCall": {"name": "get_weather", "args": {}}, "thoughtSignature": "skip_thought_signature_validator"}
    response = {"functionResponse": {"name": "get_weather", "response": {}}}
    contents = [
        {"parts": [{"text": "hi"}]},
        {"role": "model", "parts": [call]},
        {"role": "user", "parts": [response]},
    ]
    async with gemini() as (server, client):
        path = DEVELOPER.format(THREE, "generateContent")
        assert (await client.post(path, json=body("", contents=contents))).status_code == 200
        assert server.dummy_signatures == 1
        stats = (await client.get("/_demo/stats")).json()
        assert stats == {"accepted": 1, "refused": 0, "dummy_signatures": 1}


async def test_options_relax_the_rules() -> None:
    call = {"functionCall": {"name": "other", "args": {}}, "thoughtSignature": "AAAA"}
    response = {"functionResponse": {"name": "other", "response": {}}}
    request = body(
        "", contents=[{"parts": [{"text": "hi"}]}, {"role": "model", "parts": [call]}, {"parts": [response]}]
    )
    async with gemini(options=Options(check_signatures=False, check_declared=False)) as (_, client):
        assert (await client.post(DEVELOPER.format(THREE, "generateContent"), json=request)).status_code == 200


async def test_count_tokens_takes_what_its_surface_takes() -> None:
    async with gemini() as (_, client):
        contents = body("hello there")["contents"]
        developer = DEVELOPER.format(THREE, "countTokens")
        assert (await client.post(developer, json={"contents": contents})).json()["totalTokens"] == 3
        inner = {"generateContentRequest": {"model": f"models/{THREE}", "contents": contents, "tools": TOOLS}}
        assert (await client.post(developer, json=inner)).json()["totalTokens"] == 43
        refused = await client.post(developer, json={"contents": contents, "tools": TOOLS})
        assert 'Unknown name "tools": Cannot find field.' in refused.json()["error"]["message"]
        vertex = await client.post(VERTEX.format(THREE, "countTokens"), json={"contents": contents, "tools": TOOLS})
        assert vertex.json()["totalTokens"] == 43


@pytest.mark.parametrize("base", ["/v1beta/", "/v1beta1/projects/p/locations/global/"])
async def test_cached_content_gives_its_tools_and_contents(base: str) -> None:
    async with gemini() as (_, client):
        stored = {"model": f"models/{THREE}", **body("weather in Paris"), "ttl": "60s"}
        name = (await client.post(f"{base}cachedContents", json=stored)).json()["name"]
        relative = f"/v1beta/{name}" if base == "/v1beta/" else f"/v1beta1/{name}"
        assert (await client.get(relative)).json()["name"] == name
        request = {"contents": [{"role": "user", "parts": [{"text": "please"}]}], "cachedContent": name}
        path = (DEVELOPER if base == "/v1beta/" else VERTEX).format(THREE, "generateContent")
        answer = (await client.post(path, json=request)).json()
        assert parts(answer)[0]["functionCall"]["name"] == "get_weather"
        refused = await client.post(path, json=request | {"tools": TOOLS})
        assert refused.json()["error"]["message"].startswith("CachedContent can not be used with GenerateContent")
        other = await client.post(path.replace(THREE, TWO), json=request)
        assert other.json()["error"]["message"] == "Cached content model does not match the model in the request."
        assert (await client.delete(relative)).json() == {}
        assert (await client.post(path, json=request)).status_code == 403


async def test_a_model_is_described() -> None:
    async with gemini() as (_, client):
        assert (await client.get(f"/v1beta/models/{THREE}")).json()["name"] == f"models/{THREE}"


async def test_every_request_is_kept_for_tests_to_look_at() -> None:
    async with gemini() as (server, client):
        path = DEVELOPER.format(THREE, "generateContent")
        await client.post(path, json=body("hello"), headers={"x-mine": "1"})
        await client.post(path, json={"contents": []})
        first, second = server.requests
        assert (first["method"], first["path"], first["status"], first["error"]) == ("POST", path, 200, None)
        assert first["body"] == body("hello")
        assert first["headers"]["x-mine"] == "1"
        assert "contents is not specified" in second["error"]
        assert server.refused == [second]
        assert (await client.get("/_demo/requests")).json() == server.requests


async def test_a_port_that_is_taken_is_an_error() -> None:
    async with StrictGemini() as server:
        with pytest.raises(OSError, match="in use"):
            listen(server.port)


@pytest.mark.e2e
async def test_it_runs_as_a_process() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "addon.fake_gemini.server", "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            line = (await process.stdout.readline()).decode()
        url = line.removeprefix("listening on ").strip()
        async with httpx2.AsyncClient(verify=NO_TLS, base_url=url, headers=KEY, timeout=10) as client:
            path = DEVELOPER.format(THREE, "generateContent")
            for _ in range(2):
                assert parts((await client.post(path, json=body("hello"))).json())
            stream = DEVELOPER.format(THREE, "streamGenerateContent?alt=sse")
            found = events((await client.post(stream, json=body("hello"))).text)
            assert found[-1]["candidates"][0]["finishReason"] == "STOP"
            chunked = await client.post(path, content=_pieces(json.dumps(body("hello")).encode()))
            assert chunked.status_code == 200
    finally:
        process.terminate()
        await process.wait()


async def _pieces(whole: bytes) -> AsyncIterator[bytes]:
    for n in range(0, len(whole), 50):
        yield whole[n : n + 50]
