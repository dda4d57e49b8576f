"""The wire of chat completions: a whole exchange, from the client's body to the client's events."""

import json
from typing import Any

import pytest

from addon.core.dialects import chat_answers
from addon.core.dialects.chat_answers import Completions
from addon.core.framing.documents import decode, encode
from addon.core.framing.streams import SseDecoder
from addon.surfaces.chat import ChatWire
from addon.surfaces.incoming import Framing, Operation
from addon.surfaces.registry import match, wire_of
from tests.recorded import at_least, exchanges

HOST, PATH = "generativelanguage.googleapis.com", "/v1beta/openai/chat/completions"

Json = dict[str, Any]


def wire() -> ChatWire:
    target = match("POST", HOST, PATH)
    assert target is not None
    made = wire_of(target)
    assert isinstance(made, ChatWire)
    return made


def body(**members: Any) -> bytes:
    return encode({"model": "gemini-3-flash", "messages": [{"role": "user", "content": "hi"}], **members})


@pytest.mark.parametrize(
    ("stream", "operation", "framing"),
    [
        (True, Operation.STREAM, Framing.SSE),
        (False, Operation.GENERATE, Framing.JSON),
        (None, Operation.GENERATE, Framing.JSON),
        ("true", Operation.GENERATE, Framing.JSON),
    ],
)
def test_the_body_determines_the_framing_of_the_answer(stream: Any, operation: Operation, framing: Framing) -> None:
    speaks = wire()
    request = speaks.read(body(stream=stream))
    assert (speaks.target.operation, speaks.target.framing) == (operation, framing)
    assert request.value("model") == b'"gemini-3-flash"'


def test_a_loop_continues_behind_the_clients_messages_and_stops_forcing_calls() -> None:
    speaks = wire()
    tools = [{"type": "function", "function": {"name": "f"}}]
    sent = body(tools=tools, tool_choice="required", user="u")
    request = speaks.read(sent)
    assert speaks.next_request(request, [], None) == sent
    called = {
        "role": "model",
        "parts": [{"functionCall": {"id": "x", "name": "f", "args": {}}, "thoughtSignature": "s"}],
    }
    answered = {"role": "user", "parts": [{"functionResponse": {"id": "x", "name": "f", "response": {"a": 1}}}]}
    later = decode(speaks.next_request(request, [called, answered], "AUTO"))
    assert later == {
        **decode(sent),
        "tool_choice": "auto",
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "x",
                        "type": "function",
                        "function": {"name": "f", "arguments": "{}"},
                        "extra_content": {"google": {"thought_signature": "s"}},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "x", "content": '{"a":1}'},
        ],
    }
    assert decode(speaks.next_request(request, [called, answered], "NONE"))["tool_choice"] == "none"


STREAM = (
    b'data: {"choices":[{"delta":{"content":"a","role":"assistant"},"index":0}],"id":"c1","created":7,"model":"m"}\n\n'
    b'data: {"choices":[{"delta":{},"finish_reason":"stop","index":0}],"id":"c1","created":7,"model":"m"}\n\n'
    b"data: [DONE]\n\n"
)


def test_a_stream_ends_with_one_done() -> None:
    speaks = wire()
    speaks.read(body(stream=True))
    items = SseDecoder().feed(STREAM)
    out = b""
    for item in items:
        if item.data != b"[DONE]":
            assert speaks.unwrap(decode(item.data or b"")) is not None
        out += speaks.passthrough_event(item)
    assert out + speaks.end() == STREAM


def test_an_event_is_written_in_the_framing_of_openai() -> None:
    speaks = wire()
    speaks.read(body(stream=True))
    raw = decode(SseDecoder().feed(STREAM)[0].data or b"")
    visible = speaks.unwrap(raw)
    assert visible is not None
    event = speaks.event({**visible, "responseId": "c0"}, raw)
    assert event.startswith(b"data: {")
    assert event.endswith(b"}\n\n")
    assert decode(event[6:]) == {
        **raw,
        "id": "c0",
        "object": "chat.completion.chunk",
        "choices": [{**raw["choices"][0], "finish_reason": None}],
    }


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_of_the_proxy_s_own(stream: bool) -> None:
    speaks = wire()
    speaks.read(body(stream=stream))
    answer = {"candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}], "responseId": "turn_1"}
    kind, reply = speaks.reply(answer)
    if not stream:
        assert kind.startswith("application/json")
        assert decode(reply)["choices"][0]["message"] == {"role": "assistant", "content": "hi"}
        return
    assert kind == "text/event-stream"
    event, done, rest = reply.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    (choice,) = decode(event.removeprefix(b"data: "))["choices"]
    assert (choice["delta"], choice["finish_reason"]) == ({"role": "assistant", "content": "hi"}, "stop")


def test_errors_are_objects_that_every_client_reads() -> None:
    error = {"error": {"code": 503, "message": "no", "status": "UNAVAILABLE"}}
    speaks = wire()
    speaks.read(body(stream=True))
    assert decode(speaks.error(error)) == error
    assert speaks.error_event(error) == b"data: %b\n\ndata: [DONE]\n\n" % encode(error)


def test_recorded_exchanges_stay_what_they_are() -> None:
    answers = 0
    for exchange in exchanges():
        if exchange["api"] != "openai-compat":
            continue
        given, answer = (exchange[side] for side in ("request_body", "response_body"))
        given = given["content"] if "content" in given else given
        answer = json.loads(answer) if isinstance(answer, str) else answer
        answer = answer.get("content", answer)
        speaks, sent = wire(), json.dumps(given, indent=1).encode()
        request = speaks.read(sent)
        assert speaks.write(request, {}, None) is sent
        spans = [span for turn in request.history.turns for span in turn.spans]
        assert len(spans) == len(given["messages"])
        whole = speaks.write(request, {}, [(spans[0][0], spans[-1][1])])
        assert decode(whole) == given
        response = speaks.unwrap(answer)
        assert response is not None
        assert decode(speaks.whole_body(response, answer)) == answer
        answers += 1
    assert answers >= at_least(1, 3)


def test_arguments_in_many_pieces_are_read_when_their_last_bracket_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bytes] = []

    def counted(data: bytes) -> Any:
        reads.append(data)
        return decode(data)

    monkeypatch.setattr(chat_answers, "decode", counted)
    answers = Completions()
    pieces = ['{"a": "', *["}x{" for _ in range(50)], '", "b": [{}', "]", "}"]
    parts = []
    for number, piece in enumerate(pieces):
        function = {"arguments": piece} | ({"name": "f"} if number == 0 else {})
        delta = {"tool_calls": [{"index": 0, "id": "c" if number == 0 else None, "function": function}]}
        response = answers.read({"choices": [{"index": 0, "delta": delta}]})
        assert response is not None
        parts += response["candidates"][0]["content"]["parts"]
    assert [part["functionCall"].get("willContinue", False) for part in parts] == [True] * (len(pieces) - 1) + [False]
    assert parts[-1]["functionCall"]["args"] == {"a": "}x{" * 50, "b": [{}]}
    assert len(reads) == 1
