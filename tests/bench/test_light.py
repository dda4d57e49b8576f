"""The benchmarks' upstream in a loop."""

import asyncio
import json
from typing import Any

import pytest

from bench.light import Light

RESULT = {"contents": [{"role": "user", "parts": [{"functionResponse": {"name": "a", "response": {}}}]}]}


async def parts(query: str, body: dict[str, Any]) -> list[list[str]]:
    """The kinds of the parts in each document of an answer; calls by name."""
    documents = await parts_of_documents(query, body)
    return [
        [part["functionCall"]["name"] if "functionCall" in part else "text" for part in found] for found in documents
    ]


async def parts_of_documents(query: str, body: dict[str, Any]) -> list[list[dict[str, Any]]]:
    server = await asyncio.get_running_loop().create_server(Light, "127.0.0.1", 0)
    async with server, asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        content = json.dumps(body).encode()
        writer.write(b"POST /x?%s HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % (query.encode(), len(content)) + content)
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "chunked" in head:
            lines = (await reader.readuntil(b"\r\n0\r\n\r\n")).decode().splitlines()
            documents = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        else:
            documents = [json.loads(await reader.readexactly(int(head.partition("content-length: ")[2].split()[0])))]
        writer.close()
    return [document["candidates"][0]["content"]["parts"] for document in documents]


@pytest.mark.parametrize(
    ("query", "first", "second"),
    [
        ("loop=a,b", [["a", "b"]], [["text"]]),
        ("loop=a%2Cb", [["a", "b"]], [["text"]]),
        ("alt=sse&events=3&first=0.001&loop=a", [["text"], ["a"], ["text"]], [["text"]] * 3),
        ("alt=sse&events=2", [["text"]] * 2, [["text"]] * 2),
        ("call=a", [["a"]], [["a"]]),
    ],
)
async def test_calls_are_asked_for_until_there_are_results(
    query: str, first: list[list[str]], second: list[list[str]]
) -> None:
    assert await parts(query, {"contents": []}) == first
    assert await parts(query, RESULT) == second


@pytest.mark.parametrize("words", ["3 events", "3 events, 1 ms apart"])
async def test_the_body_may_say_how_many_events_a_stream_has(words: str) -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": f"Answer in {words}."}]}]}
    assert await parts("alt=sse", body) == [["text"]] * 3


@pytest.mark.parametrize("query", ["", "alt=sse&events=2"])
async def test_no_two_answers_say_the_same_unless_they_are_asked_to(query: str) -> None:
    one, other = [await parts_of_documents(query, {"contents": []}) for _ in range(2)]
    assert one != other
    assert [len(parts) for parts in one] == [len(parts) for parts in other]
    one, other = [await parts_of_documents(f"{query}&same", {"contents": []}) for _ in range(2)]
    assert one == other
