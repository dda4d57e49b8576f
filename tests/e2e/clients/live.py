"""A Live session of google-genai, as a program would run it. Reads options, then messages, as JSON lines from stdin,
and ends at an empty line. Writes each received message to stdout as a line: {"got": …}."""

import asyncio
import json
import sys
from typing import Any

from google import genai
from google.genai import types

OPTIONS = json.loads(sys.stdin.readline())


async def listen(session: Any) -> None:
    while True:
        async for message in session.receive():
            print(json.dumps({"got": message.model_dump(mode="json", exclude_none=True, by_alias=True)}), flush=True)


async def send(session: Any, given: dict[str, Any]) -> None:
    match given:
        case {"say": words}:
            turn = types.Content(role="user", parts=[types.Part(text=words)])
            await session.send_client_content(turns=turn, turn_complete=True)
        case {"speak": words}:
            audio = types.Blob(data=words.encode(), mime_type="audio/pcm;rate=16000")
            await session.send_realtime_input(audio=audio)
        case {"silence": _}:
            await session.send_realtime_input(audio_stream_end=True)
        case {"answer": answer}:
            await session.send_tool_response(function_responses=[types.FunctionResponse(**answer)])
        case {"tools": tools}:
            await session.send_context_update(tools=tools)


async def main() -> None:
    http = types.HttpOptions(headers=OPTIONS.get("headers"))
    client = genai.Client(vertexai=OPTIONS.get("vertex", False), api_key=OPTIONS["key"], http_options=http)
    config = types.LiveConnectConfig(**OPTIONS.get("config", {}))
    async with client.aio.live.connect(model=OPTIONS["model"], config=config) as session:
        print(json.dumps({"got": {"setupComplete": {}}}), flush=True)
        listening = asyncio.ensure_future(listen(session))
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            await send(session, json.loads(line))
        listening.cancel()
    await asyncio.wait({listening})
    if not listening.cancelled() and (error := listening.exception()) is not None:
        raise error


asyncio.run(main())
