"""Chat completions by the published `openai` client: calls in pieces, and streams that end with an error."""

import json
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.completions import MODEL, Chat, Json, chunk
from tests.e2e.proxies import Proxy, Session
from tests.e2e.upstreams import END, Canned, chunked


def streamed(*events: Json | str, ends: bool = True) -> list[bytes]:
    """An answer of the upstream, event by event."""
    data = (f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode() for event in events)
    return [*chunked(data, "text/event-stream", "Connection: close"), *([END] if ends else [])]


def piece(index: int, arguments: str, **more: Any) -> Json:
    name = more.pop("name", None)
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "function": function, **more}]}


PIECES = [
    chunk({"role": "assistant", "content": ""}),
    chunk(piece(0, "", id="x", type="function", name="weather")),
    chunk(piece(0, '{"city":')),
    chunk(piece(0, ' "Oslo"}')),
    chunk(piece(1, "", id="y", type="function", name="hour")),
    chunk(piece(1, "{}")),
    chunk({}, "tool_calls"),
]

WORDS = [chunk({"role": "assistant", "content": "It is "}), chunk({"content": "noon."}), chunk({}, "stop")]


def by_canned(looper: Proxy, session: Session) -> Json:
    return {"base_url": f"{looper.urls[1]}/@{session.name}/v1beta/openai"}


@pytest.mark.parametrize("kind", ["stream", "async-stream"])
def test_calls_that_come_piece_by_piece_are_run(looper: Proxy, bare: Session, canned: Canned, kind: str) -> None:
    canned.first = [streamed(*PIECES, "[DONE]"), streamed(*WORDS, "[DONE]")]
    chat = Chat(kind, by_canned(looper, bare))
    assert chat.say("What time is it in Oslo?") == "It is noon."
    second = json.loads(canned.heard[1].partition(b"\r\n\r\n")[2])
    assert second["messages"][1:] == [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}},
                {"id": "y", "type": "function", "function": {"name": "hour", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "x", "content": '{"city":"Oslo","celsius":4}'},
        {"role": "tool", "tool_call_id": "y", "content": '{"hour":12}'},
    ]


def test_the_client_s_own_calls_reach_it_piece_by_piece(looper: Proxy, bare: Session, canned: Canned) -> None:
    bare.policy(client_tools="keep")
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "hour")]
    canned.says = streamed(*PIECES, "[DONE]")
    url = f"{by_canned(looper, bare)['base_url']}/chat/completions"
    words = [{"role": "user", "content": "hi"}]
    asked = {"model": MODEL, "stream": True, "messages": words, "tools": tools}
    got = httpx2.post(url, json=asked, timeout=20)
    assert got.text == "".join(f"data: {json.dumps(event)}\n\n" for event in PIECES) + "data: [DONE]\n\n"


def test_a_stream_that_tells_of_an_error_ends_with_it(looper: Proxy, bare: Session, canned: Canned) -> None:
    error = {"error": {"code": 503, "message": "It is overloaded.", "status": "UNAVAILABLE"}}
    canned.first = [streamed(*PIECES, "[DONE]"), streamed(WORDS[0], error, "[DONE]")]
    with pytest.raises(openai.APIError, match="It is overloaded"):
        Chat("stream", by_canned(looper, bare)).say("What time is it?")
    canned.says = streamed(WORDS[0], error, "[DONE]")
    with pytest.raises(openai.APIError, match="It is overloaded"):
        Chat("stream", by_canned(looper, bare)).say("What time is it?")


def test_a_model_that_is_gone_in_the_middle_of_a_loop_is_an_error(looper: Proxy, bare: Session, canned: Canned) -> None:
    canned.first = [streamed(*PIECES, "[DONE]"), streamed(WORDS[0], ends=False)]
    with pytest.raises(openai.APIError, match="the connection to the model broke"):
        Chat("stream", by_canned(looper, bare)).say("What time is it?")
