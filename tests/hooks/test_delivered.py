"""Whatever a client of a session with tools is given is noted, whoever made it; what cannot be noted is refused."""

import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from mitmproxy import http

from addon.core.history.keys import Keys, asker_digest
from addon.core.history.visible import visible_digest
from store.base import StoreUnavailable
from tests.hooks.harness import GOOGLE, PATH, Hooks, request, response
from tests.hooks.test_grafting import ASKED, CALL, STREAM, document, event

Make = Callable[..., Hooks]

SAYS = document({"text": "Done."}, finishReason="STOP")
OTHER = SAYS.replace(b"Done", b"Well")
STREAMED = event({"text": "Do"}) + event({"text": "ne."}, finishReason="STOP")
CHAT = f"https://{GOOGLE}/v1beta/openai/chat/completions"
CHAT_ASKED = b'{"model":"m","messages":[{"role":"user","content":"weather"}]}'
CHAT_SAYS = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}]}'
WRAPPED = "https://cloudcode-pa.googleapis.com/v1internal:generateContent"
WRAPPED_ASKED = b'{"model":"m","project":"p","request":%b}' % ASKED
WRAPPED_SAYS = b'{"response":%b}' % SAYS


class Notes:
    """The keys that the hooks' store has noted."""

    def __init__(self, hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[bytes] = []
        self._secret = hooks.store.secret
        save_plain = hooks.store.save_plain

        async def noting(session: str, keys: Sequence[bytes], chain: bytes = b"") -> None:
            self.keys.append(keys[0])
            await save_plain(session, keys, chain)

        monkeypatch.setattr(hooks.store, "save_plain", noting)

    def count(self, text: str = "Done.", asker: str = "") -> int:
        own = Keys(self._secret, asker_digest(self._secret, asker), "", b"").own(visible_digest([{"text": text}]))
        return self.keys.count(own)


class Script:
    """A user's script, which answers, or edits answers."""

    def __init__(self, **hooks: Callable[[http.HTTPFlow], None]) -> None:
        vars(self).update(hooks)


def answers(body: bytes, kind: str = "application/json") -> Callable[[http.HTTPFlow], None]:
    def answer(flow: http.HTTPFlow) -> None:
        flow.response = http.Response.make(200, body, {"content-type": kind})

    return answer


def edits(flow: http.HTTPFlow) -> None:
    assert flow.response is not None
    flow.response.content = (flow.response.content or b"").replace(b"Well", b"Done")


def edits_stream(flow: http.HTTPFlow) -> None:
    assert flow.response is not None
    flow.response.stream = lambda chunk: chunk.replace(b"Well", b"Done")


def compresses(flow: http.HTTPFlow) -> None:
    assert flow.response is not None
    flow.response.encode("br")


async def exchanged(hooks: Hooks, flow: http.HTTPFlow, text: http.Response | None = None) -> http.HTTPFlow:
    """Run all hooks of a flow. `text`: the upstream's answer, unless another addon has answered."""
    await hooks.call("requestheaders", flow)
    await hooks.call("request", flow)
    if flow.response is not None:
        await hooks.call("responseheaders", flow)
        await hooks.call("response", flow)
    else:
        assert text is not None
        await hooks.answer(flow, text)
    return flow


@pytest.mark.parametrize("when", ["before", "requestheaders", "request"])
@pytest.mark.parametrize(
    ("url", "asked", "text"),
    [
        (f"https://{GOOGLE}{PATH}", ASKED, SAYS),
        (STREAM, ASKED, STREAMED),
        (STREAM.replace("?alt=sse", ""), ASKED, b"[%b]" % SAYS),
        (CHAT, CHAT_ASKED, CHAT_SAYS),
        (CHAT, CHAT_ASKED.replace(b'"m",', b'"m","stream":true,'), b"data: %b\n\n" % CHAT_SAYS),
        (WRAPPED, WRAPPED_ASKED, WRAPPED_SAYS),
    ],
    ids=["json", "events", "array", "chat", "chat stream", "wrapped"],
)
async def test_an_answer_of_another_addon_is_noted(
    when: str, url: str, asked: bytes, text: bytes, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a script before toolgraft or behind it, of `map_local`, of `--server-replay`."""
    notes = Notes(hooks, monkeypatch)
    kind = "text/event-stream" if text.startswith(b"data:") else "application/json"
    flow = request(url, asked)
    if when == "before":
        answers(text, kind)(flow)
    else:
        hooks.script = Script(**{when: answers(text, kind)})
    await exchanged(hooks, flow)
    assert flow.response is not None
    assert flow.response.content == text
    assert notes.count(asker="project:p" if url == WRAPPED else "") == 1


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ({"response": edits}, OTHER),
        ({"responseheaders": edits_stream}, OTHER),
        ({"response": compresses}, SAYS),
        ({"response": lambda flow: answers(SAYS)(flow)}, OTHER),
        (
            {"response": edits},
            document({"text": "Well."}, CALL, finishReason="STOP"),
        ),
    ],
    ids=["body", "stream callable", "compression", "another answer", "with a hidden call"],
)
async def test_an_edited_answer_is_noted_as_the_client_gets_it(
    script: dict[str, Any], text: bytes, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes(hooks, monkeypatch)
    hooks.script = Script(**script)
    flow = await exchanged(hooks, request(body=ASKED), response(text))
    assert flow.response is not None
    parts = json.loads(flow.response.content or b"")["candidates"][0]["content"]["parts"]
    received = "".join(part["text"] for part in parts)
    assert received.startswith("Done.")
    assert notes.count(received) == 1


async def test_an_answer_with_a_hidden_call_is_no_note_if_a_script_changes_its_layout(
    hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def indents(flow: http.HTTPFlow) -> None:
        assert flow.response is not None
        flow.response.content = json.dumps(json.loads(flow.response.content or b""), indent=2).encode()

    notes = Notes(hooks, monkeypatch)
    hooks.script = Script(response=indents)
    text = document({"text": "Done."}, CALL, finishReason="STOP")
    flow = await exchanged(hooks, request(body=ASKED), response(text))
    assert flow.response is not None
    assert b"turn_" in (flow.response.content or b"")
    assert notes.keys == []


@pytest.mark.parametrize("encoding", [None, "gzip"])
@pytest.mark.parametrize("breaks", [False, True])
async def test_a_stream_outside_the_filter_is_noted_as_it_passes(
    breaks: bool, encoding: str | None, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = make(filter="~hq x-grafted")
    await hooks.tools("get_weather")
    notes = Notes(hooks, monkeypatch)
    flow = await hooks.ask(request(STREAM, ASKED))
    body = STREAMED if encoding is None else gzip.compress(STREAMED)
    answer = response(body, "text/event-stream", **({"content_encoding": encoding} if encoding else {}))
    answer.raw_content = None
    flow.response = answer
    await hooks.call("responseheaders", flow)
    stage: Any = flow.response.stream
    at = len(event({"text": "Do"})) if encoding is None else len(body) // 2
    pieces = [body[:at], body[at:]]
    out = b"".join(b"".join(stage(piece)) for piece in pieces[: 1 if breaks else 2])
    if breaks:
        await hooks.call("error", flow)
        assert (out, notes.count()) == (body[:at], 0)
        assert encoding is not None or notes.count("Do") == 1
        return
    assert stage(b"") == []
    await hooks.call("response", flow)
    assert (out, notes.count()) == (body, 1)


async def test_an_answer_that_passes_because_the_store_failed_is_noted(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise StoreUnavailable("gone")

    hooks = make(on_store_error="pass")
    await hooks.tools("get_weather")
    runtime = hooks.lifecycle.runtime
    assert runtime is not None
    notes = Notes(hooks, monkeypatch)
    with monkeypatch.context() as failing:
        failing.setattr(runtime.grafter, "_request", fails)
        await exchanged(hooks, request(body=ASKED), response(SAYS))
    assert notes.count() == 1


UNREAD = [
    pytest.param(b"\xef\xbb\xbf" + ASKED, id="byte order mark"),
    pytest.param(ASKED[:-1] + b',"contents":[]}', id="duplicate member"),
    pytest.param(ASKED[:-1] + b',"toolConfig":{},"tool_config":{}}', id="both spellings"),
    pytest.param(b"nope", id="no JSON"),
    pytest.param(b"[]", id="no object"),
    pytest.param(b"", id="empty"),
]


@pytest.mark.parametrize("body", UNREAD)
@pytest.mark.parametrize("url", [f"https://{GOOGLE}{PATH}", STREAM, CHAT, WRAPPED])
async def test_a_request_that_cannot_be_read_is_refused(
    url: str, body: bytes, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = make()
    await hooks.tools("get_weather")
    for _ in range(2):
        flow = await hooks.ask(request(url, body))
        assert flow.response is not None
        assert flow.response.status_code == 400
        error = json.loads(flow.response.content or b"")
        assert "toolgraft: the request cannot be read: " in str(error)
    assert sum("cannot be read" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("body", UNREAD)
async def test_an_unread_request_passes_if_the_user_wants_it(
    body: bytes, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = make(on_unread="pass")
    await hooks.tools("get_weather")
    for _ in range(2):
        flow = await hooks.ask(request(body=body))
        assert flow.request.content == body
        assert await hooks.answer(flow, response(b"fine")) == b"fine"
    assert sum("passed on unchanged" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.parametrize("raw", [b"this is no gzip", zlib.compress(ASKED)])
@pytest.mark.parametrize("policy", ["fail", "pass"])
async def test_a_request_whose_compression_is_not_what_it_says(raw: bytes, policy: str, make: Make) -> None:
    hooks = make(on_unread=policy)
    await hooks.tools("get_weather")
    flow = request(body=b"{}", headers={"content-encoding": "gzip"})
    flow.request.raw_content = raw
    await hooks.ask(flow)
    assert (flow.response.status_code if flow.response else None) == (400 if policy == "fail" else None)
    assert flow.request.raw_content == raw


async def test_an_answer_that_cannot_be_decompressed_is_refused_also_if_nothing_was_grafted(hooks: Hooks) -> None:
    """It could not be noted."""
    asked = ASKED[:-1] + b',"generationConfig":{"responseMimeType":"application/json"}}'
    answer = response(b"", content_encoding="br")
    answer.raw_content = b"not for this proxy"
    flow = await exchanged(hooks, request(body=asked), answer)
    assert flow.response is not None
    assert flow.response.status_code == 502


async def test_an_answer_that_is_an_error_is_no_note(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(hooks, monkeypatch)

    def refuses(flow: http.HTTPFlow) -> None:
        flow.response = http.Response.make(429, SAYS, {"content-type": "application/json"})

    hooks.script = Script(request=refuses)
    await exchanged(hooks, request(body=ASKED))
    assert notes.keys == []
