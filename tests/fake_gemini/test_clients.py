"""Chats of the unmodified published Python client with the strict server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from addon.fake_gemini.server import StrictGemini

if TYPE_CHECKING:
    from google.genai import types


def get_weather(city: str) -> dict[str, Any]:
    """The weather in a city."""
    return {"city": city, "sky": "clear"}


TURNS = [
    ("What is the weather in Paris and Tokyo?", ['"Paris"', '"Tokyo"']),
    (
        'say Sure. call get_weather {"city": "Oslo"} then call get_weather {"city": "Rome"}',
        ['"Oslo"', '"Rome"'],
    ),
    ("What is 2+2?", ["2 + 2 = 4."]),
    ("repeat the results", ['"Paris"', '"Tokyo"', '"Oslo"', '"Rome"']),
]


def chat(url: str, model: str, *, streamed: bool, vertex: bool) -> list[str]:
    """The answers of a chat of four turns with the client's own function calling."""
    from google import genai
    from google.genai import types

    client = genai.Client(vertexai=vertex, api_key="k", http_options=types.HttpOptions(base_url=url))
    config = types.GenerateContentConfig(tools=[get_weather])
    session = client.chats.create(model=model, config=config)
    answers = []
    try:
        for words, _ in TURNS:
            if streamed:
                chunks = list(session.send_message_stream(words))
                found = [p.text or "" for c in chunks for k in c.candidates or [] for p in _parts(k)]
                answers.append("".join(found))
            else:
                answers.append(session.send_message(words).text or "")
    finally:
        client.close()
    return answers


def _parts(candidate: types.Candidate) -> list[types.Part]:
    return (candidate.content and candidate.content.parts) or []


LONG = "say one two three four five six seven in 3 pieces"


def long(url: str, words: str, *, streamed: bool) -> list[str]:
    """The answers of a chat of two turns, the first of them long."""
    from google import genai
    from google.genai import types

    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url))
    session = client.chats.create(model="gemini-4-argon")
    answers = []
    try:
        for message in (words, "What is 2+2?"):
            if streamed:
                answers.append("".join(chunk.text or "" for chunk in session.send_message_stream(message)))
            else:
                answers.append(session.send_message(message).text or "")
    finally:
        client.close()
    return answers


@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "streamed"])
async def test_a_client_asks_for_the_rest_of_a_long_answer(streamed: bool) -> None:
    async with StrictGemini() as server:
        answers = await asyncio.to_thread(long, server.url, LONG, streamed=streamed)
        assert answers == ["one two three four five six seven", "2 + 2 = 4."]
        assert [request["error"] for request in server.refused] == []
        assert len(server.requests) == 4


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "gemini-3-flash-preview", "gemini-3.5-flash"])
@pytest.mark.parametrize("streamed", [False, True], ids=["unary", "streamed"])
@pytest.mark.parametrize("vertex", [False, True], ids=["developer", "vertex"])
async def test_a_chat_with_automatic_function_calling_gets_through(model: str, streamed: bool, vertex: bool) -> None:
    async with StrictGemini() as server:
        answers = await asyncio.to_thread(chat, server.url, model, streamed=streamed, vertex=vertex)
        assert [request["error"] for request in server.refused] == []
        for answer, (_, expected) in zip(answers, TURNS, strict=True):
            assert all(words in answer for words in expected), answer
        assert server.dummy_signatures == 0
        assert len(server.requests) == 7
