"""A chat of google-genai, as a program would have it. Options, then messages, as JSON lines on stdin; ends on an
empty line. Answers on stdout: {"text": …, "history": […]}."""

import asyncio
import json
import sys
from typing import Any

from google import genai
from google.genai import types


def get_weather(city: str) -> dict[str, Any]:
    """The weather of a city."""
    return {"city": city, "said_by": "the client"}


def delete_everything(path: str) -> str:
    """Delete all files below a folder."""
    raise AssertionError(f"the client's own tool was called with {path}")


OPTIONS = json.loads(sys.stdin.readline())
KIND = OPTIONS["kind"]


def make_client() -> genai.Client:
    http = types.HttpOptions(base_url=OPTIONS.get("base_url"), headers=OPTIONS.get("headers"))
    return genai.Client(vertexai=OPTIONS.get("vertex", False), api_key=OPTIONS["key"], http_options=http)


def show(text: str, history: list[types.Content]) -> None:
    contents = [content.model_dump(mode="json", exclude_none=True) for content in history]
    print(json.dumps({"text": text, "history": contents}), flush=True)


def next_words() -> str | None:
    line = sys.stdin.readline().strip()
    return json.loads(line)["say"] if line else None


def main() -> None:
    client = make_client()
    chat = client.chats.create(model=OPTIONS["model"], config=config())
    while (words := next_words()) is not None:
        if KIND == "stream":
            text = "".join(chunk.text or "" for chunk in chat.send_message_stream(words))
        else:
            text = chat.send_message(words).text or ""
        show(text, chat.get_history(curated=True))
    client.close()


async def main_async() -> None:
    client = make_client().aio
    chat = client.chats.create(model=OPTIONS["model"], config=config())
    while (words := next_words()) is not None:
        if KIND == "async-stream":
            text = "".join([chunk.text or "" async for chunk in await chat.send_message_stream(words)])
        else:
            text = (await chat.send_message(words)).text or ""
        show(text, chat.get_history(curated=True))
    await client.aclose()


def config() -> types.GenerateContentConfig:
    own = {function.__name__: function for function in (get_weather, delete_everything)}
    tools: list[Any] = [own[name] for name in OPTIONS.get("tools", ())]
    return types.GenerateContentConfig(tools=tools or None)


if KIND.startswith("async"):
    asyncio.run(main_async())
else:
    main()
