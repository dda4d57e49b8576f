"""Requests rewritten and answers captured, as the hooks do it: headers, streams, compression, failures."""

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from addon.core.history.own_signatures import own_signature
from addon.core.history.rewriting import DUMMY_SIGNATURE
from store.base import StoreUnavailable
from tests.hooks.harness import GOOGLE, PATH, Hooks, request, response

Make = Callable[..., Hooks]
Json = dict[str, Any]

STREAM = f"https://{GOOGLE}{PATH.replace('generateContent', 'streamGenerateContent?alt=sse')}"
ASKED = b'{"contents":[{"role":"user","parts":[{"text":"weather"}]}]}'
CALL: Json = {"functionCall": {"name": "get_weather", "args": {}, "id": "x1"}}


def document(*parts: Json, **more: Any) -> bytes:
    return json.dumps({"candidates": [{"content": {"role": "model", "parts": list(parts)}, **more}]}).encode()


def event(*parts: Json, **more: Any) -> bytes:
    return b"data: " + document(*parts, **more) + b"\r\n\r\n"


SSE = event({"text": "Let me see."}) + event(CALL) + event({"text": ""}, finishReason="STOP")


# --- requests -------------------------------------------------------------------------------------------------------


async def test_a_request_gets_the_sessions_tools_and_asks_for_no_compression(hooks: Hooks) -> None:
    flow = await hooks.ask(request(body=ASKED, headers={"Accept-Encoding": "gzip, br"}))
    sent = json.loads(flow.request.content or b"")
    assert sent["tools"] == [{"functionDeclarations": [{"name": "get_weather", "description": "A tool."}]}]
    assert flow.request.headers["accept-encoding"] == "identity"
    assert flow.request.headers["content-length"] == str(len(flow.request.content or b""))


@pytest.mark.parametrize("headers", [{}, {"Accept-Encoding": "gzip, br"}])
async def test_a_session_without_a_toolset_is_not_touched(headers: dict[str, str], hooks: Hooks) -> None:
    headers = headers | {"x-graft-session": "other"}
    flow = request(body=ASKED, headers=headers)
    fields = [field for field in flow.request.headers.fields if field[0] != b"x-graft-session"]
    await hooks.ask(flow)
    assert list(flow.request.headers.fields) == fields
    assert flow.request.content == ASKED
    assert not hooks.is_grafted(flow)
    body = gzip.compress(document(CALL, finishReason="STOP"))
    answer = response(b"", content_encoding="gzip")
    answer.raw_content = body
    flow.response = answer
    await hooks.call("responseheaders", flow)
    assert answer.stream is False
    await hooks.call("response", flow)
    assert answer.raw_content == body


async def test_a_chat_with_the_proxy_s_signatures_goes_on_in_a_session_without_a_toolset(hooks: Hooks) -> None:
    signature = own_signature(hooks.store.secret, "turn_1").encode()
    body = b'{"contents":[{"parts":[{"thoughtSignature":"%b"}]}]}'
    flow = await hooks.ask(request(body=body % signature, headers={"x-graft-session": "other"}))
    assert flow.request.content == body % DUMMY_SIGNATURE.encode()
    assert flow.request.headers["content-length"] == str(len(flow.request.content))


@pytest.mark.parametrize(("given", "after"), [("gzip", "gzip"), (None, None)])
async def test_requests_outside_the_filter_are_treated_as_without_a_toolset(
    given: str | None, after: str | None, make: Make
) -> None:
    hooks = make(filter="~hq x-grafted")
    await hooks.tools("get_weather")
    headers = {"accept-encoding": given} if given else {}
    flow = await hooks.ask(request(body=ASKED, headers=headers))
    assert flow.request.content == ASKED
    assert flow.request.headers.get("accept-encoding") == after
    assert not hooks.is_grafted(flow)
    flow = await hooks.ask(request(body=ASKED, headers=headers | {"x-grafted": "yes"}))
    assert flow.request.content != ASKED


@pytest.mark.parametrize("bad", ["\x01", "\x7f", "\udcff", "\n", " "])
async def test_a_url_that_is_none_is_refused_where_tools_are_grafted(bad: str, hooks: Hooks) -> None:
    """mitmproxy takes it; a loop, which sends it as others do, cannot."""
    for session, status in (("default", 400), ("other", None)):
        flow = request(body=ASKED, headers={"x-graft-session": session})
        flow.request.path += f"?x={bad}"
        await hooks.ask(flow)
        assert (flow.response.status_code if flow.response else None) == status
        assert flow.response is None or b"must be percent-encoded" in (flow.response.content or b"")


async def test_a_flow_that_was_answered_by_another_addon_is_left_alone(hooks: Hooks) -> None:
    flow = request(body=ASKED)
    flow.response = response(b"{}")
    await hooks.call("requestheaders", flow)
    await hooks.call("request", flow)
    assert flow.request.content == ASKED


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_request_that_unpacks_to_more_than_allowed_is_refused_and_takes_no_memory(
    encoding: str, pack: Callable[[bytes], bytes], make: Make
) -> None:
    hooks = make(max_body=str(1024 * 1024))
    await hooks.tools("get_weather")
    flow = request(body=b"", headers={"content-encoding": encoding})
    flow.request.raw_content = bomb = pack(ASKED + b" " * 64 * 1024 * 1024)
    tracemalloc.start()
    try:
        await hooks.ask(flow)
        assert tracemalloc.get_traced_memory()[1] < 8 * 1024 * 1024
    finally:
        tracemalloc.stop()
    assert flow.response is not None
    assert (flow.response.status_code, flow.request.raw_content) == (400, bomb)


SURFACES = [
    f"https://{GOOGLE}{PATH}",
    STREAM,
    f"https://{GOOGLE}/v1beta/openai/chat/completions",
    "https://cloudcode-pa.googleapis.com/v1internal:generateContent",
]


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip"])
@pytest.mark.parametrize("url", SURFACES)
async def test_a_request_in_another_encoding_is_refused_if_it_must_be_rewritten(
    url: str, encoding: str, hooks: Hooks
) -> None:
    other = request(url, b"packed", headers={"x-graft-session": "other"})
    other.request.headers["content-encoding"] = encoding
    await hooks.ask(other)
    assert (other.response, other.request.raw_content) == (None, b"packed")
    flow = request(url, b"packed")
    flow.request.headers["content-encoding"] = encoding
    await hooks.ask(flow)
    assert flow.response is not None
    assert flow.response.status_code == 415
    found = json.loads(flow.response.content or b"")
    error = (found[0] if isinstance(found, list) else found)["error"]
    assert error["code"] == 415
    assert f"content encoding '{encoding}' is not supported: use gzip, deflate, or none" in error["message"]


async def test_an_answer_that_is_read_but_not_rewritten_is_asked_for_without_compression(hooks: Hooks) -> None:
    """Without a look at it, nobody would know that it had no call."""
    body = json.dumps(json.loads(ASKED) | {"generationConfig": {"responseMimeType": "application/json"}}).encode()
    flow = await hooks.ask(request(body=body, headers={"Accept-Encoding": "br"}))
    assert flow.request.content == body
    assert flow.request.headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("status", [201, 203, 206])
async def test_everything_that_clients_take_for_an_answer_is_captured(status: int, hooks: Hooks) -> None:
    for content, kind in ((SSE, "text/event-stream"), (document(CALL, finishReason="STOP"), "application/json")):
        made = response(content, kind)
        made.status_code = status
        visible = await hooks.answer(await hooks.ask(request(body=ASKED)), made)
        assert b"functionCall" not in visible
        assert b"Tool call completed" in visible


# --- answers --------------------------------------------------------------------------------------------------------


async def test_a_json_answer_shows_a_placeholder(hooks: Hooks) -> None:
    flow = await hooks.ask(request(body=ASKED))
    got = json.loads(await hooks.answer(flow, response(document(CALL, finishReason="STOP"))))
    (turn,) = (await hooks.store.turns("default")).items
    (part,) = got["candidates"][0]["content"]["parts"]
    assert part == {"text": f"Tool call completed: get_weather [{turn.turn_id}]"}
    assert turn.delivered
    assert flow.response is not None
    assert int(flow.response.headers["content-length"]) == len(flow.response.raw_content or b"")


@pytest.mark.parametrize(
    ("encoding", "pieces"),
    [
        *((encoding, [b"this is ", b"neither"]) for encoding in ("gzip", "br", "zstd", "secret", "gzip, gzip")),
        ("gzip", [gzip.compress(b"{}")[:-4]]),
    ],
)
async def test_an_answer_whose_compression_is_not_what_it_says_is_an_error(
    encoding: str, pieces: list[bytes], hooks: Hooks
) -> None:
    """What cannot be read may hold a call."""
    flow = await hooks.ask(request(body=ASKED))
    flow.response = response(b"")
    flow.response.headers["content-encoding"] = encoding
    await hooks.call("responseheaders", flow)
    flow.response.raw_content = b"".join(pieces)
    await hooks.call("response", flow)
    assert flow.response.status_code == 502
    visible = flow.response.content or b""
    assert b"neither" not in visible
    assert b"cannot be decompressed" in visible
    assert b'"UNAVAILABLE"' in visible


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "application/json"), (503, "text/event-stream"), (404, "application/json")],
)
async def test_a_response_that_is_no_model_s_answer_is_not_read(status: int, kind: str, hooks: Hooks) -> None:
    flow = await hooks.ask(request(body=ASKED))
    made = response(SSE, kind)
    made.status_code = status
    assert await hooks.answer(flow, made) == SSE
    assert (await hooks.store.turns("default")).items == []


@pytest.mark.parametrize("kind", ["text/html", "text/plain; charset=utf-8", "application/octet-stream"])
async def test_an_answer_under_another_name_is_known_by_its_first_bytes(kind: str, hooks: Hooks) -> None:
    for body in (SSE, document(CALL, finishReason="STOP")):
        got = await hooks.answer(await hooks.ask(request(body=ASKED)), response(body, kind))
        assert b"functionCall" not in got
        assert b"Tool call completed" in got
    flow = await hooks.ask(request(body=ASKED))
    assert await hooks.answer(flow, response(b"<html>", kind)) == b"<html>"


@pytest.mark.parametrize(("policy", "status"), [("fail", 503), ("pass", None)])
@pytest.mark.parametrize("method", ["snapshot", "look_up"])
async def test_a_store_that_fails_is_said_so_or_passed_over(
    method: str, policy: str, status: int | None, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = make(on_store_error=policy)
    await hooks.tools("get_weather")
    # a ledger that is not empty is looked at
    flow = await hooks.ask(request(body=ASKED))
    await hooks.answer(flow, response(document(CALL, finishReason="STOP")))

    async def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(hooks.store, method, fails)
    history = [
        {"role": "user", "parts": [{"text": "weather"}]},
        {"role": "model", "parts": [{"text": "Let me see."}]},
        {"role": "user", "parts": [{"text": "and?"}]},
    ]
    body = json.dumps({"contents": history}).encode()
    flow = await hooks.ask(request(body=body))
    assert (flow.response and flow.response.status_code) == status
    if status is None:
        assert flow.request.content == body
    else:
        assert flow.response is not None
        error = json.loads(flow.response.content or b"")["error"]
        assert (error["code"], error["status"]) == (503, "UNAVAILABLE")
        assert flow.response.headers["retry-after"] == "1"


@pytest.mark.parametrize("policy", ["fail", "pass"])
@pytest.mark.parametrize(
    "where",
    [
        "graft.grafter.rewrite",
        "graft.session_config.Toolbox",
        "hooks.looping.Looping.needs_runner",
        "hooks.looping.Looping.divert",
    ],
)
async def test_a_mistake_in_a_request_is_told_or_the_request_goes_on_as_it_came(
    policy: str, where: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a mistake")

    hooks = make(on_store_error=policy)
    await hooks.tools("get_weather")
    monkeypatch.setattr("addon.hooks.looping.Looping.needs_runner", lambda *_: where.endswith("divert"))
    monkeypatch.setattr(f"addon.{where}", mistaken)
    headers = {"Accept-Encoding": "gzip, br", "x-goog-api-key": "k"}
    untouched = request(body=ASKED, headers=headers)
    flow = await hooks.ask(request(body=ASKED, headers=headers))
    if policy == "pass":
        assert flow.response is None
        assert (flow.request.content, flow.request.url) == (ASKED, untouched.request.url)
        assert flow.request.headers.fields == untouched.request.headers.fields
        body = document(CALL, finishReason="STOP")
        assert await hooks.answer(flow, response(body)) == body
    else:
        assert flow.response is not None
        error = json.loads(flow.response.content or b"")["error"]
        assert (error["code"], error["status"]) == (500, "INTERNAL")
        assert "ZeroDivisionError" in error["message"]
    assert not hooks.is_grafted(flow)


async def test_an_answer_that_a_mistake_leaves_unread_is_not_shown(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    flow = await hooks.ask(request(body=ASKED))
    monkeypatch.setattr("addon.graft.machine_shell.Capture.whole", mistaken)
    visible = await hooks.answer(flow, response(document(CALL, finishReason="STOP")))
    assert flow.response is not None
    assert flow.response.status_code == 502
    assert "ZeroDivisionError" in json.loads(visible)["error"]["message"]
    assert b"functionCall" not in visible


async def test_bodies_that_another_addon_wants_streamed_are_rewritten_all_the_same(hooks: Hooks) -> None:
    flow = request(body=ASKED)
    flow.request.stream = True
    await hooks.call("requestheaders", flow)
    assert flow.request.stream is False
    await hooks.call("request", flow)
    answer = response(document(CALL, finishReason="STOP"))
    answer.stream = True
    assert b"functionCall" not in await hooks.answer(flow, answer)
    assert flow.response is not None
    assert flow.response.stream is False


async def test_nothing_is_kept_of_flows_that_are_over(hooks: Hooks) -> None:
    flow = await hooks.ask(request(body=ASKED))
    assert hooks.is_grafted(flow)
    await hooks.call("error", flow)
    assert not hooks.is_grafted(flow)
    flow = await hooks.ask(request(body=ASKED))
    await hooks.answer(flow, response(document({"text": "no call"})))
    assert not hooks.is_grafted(flow)
