"""A moment of the fuzzer, and what it has found."""

from collections.abc import AsyncIterator

import pytest

from addon.core.framing.documents import Document, encode
from addon.graft.exchange import Forward
from addon.graft.machine_shell import Capture
from addon.surfaces.incoming import Framing, Incoming
from addon.surfaces.registry import match
from store.base import Store
from store.factory import open_url
from tests.fuzz.__main__ import TARGETS, fuzzed
from tests.fuzz.shapes import SHAPES
from tests.fuzz.targets import Answers
from tests.graft.captures import Stream


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = open_url("memory://", ttl=1e6)
    await store.open()
    yield store
    await store.close()


_TRIES = {"control": 10, "doors": 10, "loops": 15}
"""Of those whose tries take longest."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_bytes_are_too_odd(name: str) -> None:
    wanted = _TRIES.get(name, 50)
    tries, findings = fuzzed(name, seed=1, tries=wanted)
    assert findings == []
    assert tries == wanted


@pytest.mark.parametrize(
    ("path", "body", "events"),
    [
        (
            "/v1beta/openai/chat/completions",
            {"model": "gemini-3-flash", "stream": True, "messages": [{"role": "user", "content": "hi"}]},
            [
                b'{"choices":[{"index":0,"delta":{"content":"a","tool_calls":[{"index":0,"id":"c","type":"function",'
                b'"function":{"name":"hidden_tool","arguments":"{}"}}]}}]}',
                b'{"choices":',
            ],
        ),
        (
            "/v1beta/interactions",
            {"model": "gemini-3-flash", "stream": True, "input": "hi"},
            [
                b'{"event_type":"step.start","index":0,"step":{"type":"function_call","id":"c","name":"hidden_tool"}}',
                b'{"event_type":"step.stop","index":0}',
                b'{"hello":1}',
            ],
        ),
        (
            "/v1beta/interactions",
            {"model": "gemini-3-flash", "stream": True, "input": "hi"},
            [b'{"event_type":"step.start","step":{"type":"function_call","id":"c","name":"hidden_tool"}}'],
        ),
    ],
    ids=["chat: half an event", "interaction: no event", "interaction: a step without an index"],
)
async def test_an_event_that_cannot_be_read_gives_out_no_call_before_it(
    path: str, body: Document, events: list[bytes], store: Store
) -> None:
    answers = Answers(store)
    await answers.open()
    target, config = (
        match("POST", "generativelanguage.googleapis.com", path),
        await answers.grafter.session_config("placeholder"),
    )
    assert target is not None
    assert config is not None
    outcome = await answers.grafter.request(Incoming(target, config.session, encode(body)), config)
    assert isinstance(outcome, Forward)
    assert outcome.exchange is not None
    capture = Stream(answers.grafter, outcome.exchange, "text/event-stream")
    out = b"".join([await capture.feed(b"data: %b\n\n" % event) for event in events]) + await capture.finish()
    assert b"hidden_tool" not in out


@pytest.mark.parametrize("content", ["text", 1, True, [], [1], {"parts": "text"}, {"parts": [1]}, None], ids=repr)
@pytest.mark.parametrize("number", range(len(SHAPES)))
async def test_a_content_of_another_kind_is_no_error_of_the_proxy_s(
    content: object, number: int, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    answers, shape = Answers(store), SHAPES[number]
    await answers.open()
    config = await answers.grafter.session_config("placeholder")
    assert config is not None
    outcome = await answers.grafter.request(Incoming(shape.target, config.session, encode(shape.body)), config)
    assert isinstance(outcome, Forward)
    assert outcome.exchange is not None
    read: Document = {"functionCall": {"name": "x"}, "tool_calls": []}  # or nothing would read it
    document: Document = {"candidates": [{"content": content}, read], "choices": [{"delta": content}, read]}
    body = encode({"response": document, **document})
    if shape.framing is Framing.SSE:
        capture = Stream(answers.grafter, outcome.exchange, "text/event-stream")
        await capture.feed(b"data: %b\n\n" % body)
        await capture.finish()
    else:
        await Capture(answers.grafter, outcome.exchange, "application/json").whole(body)
    assert not [record for record in caplog.records if record.exc_info]
