"""A chat of google-genai, as a program would run it. Reads options, then messages, as JSON lines from stdin, and ends
at an empty line. Writes answers to stdout: {"text": …, "history": […]}, or "error" if there is no answer."""

import asyncio
import json
import sys
from typing import Any

import httpx2
from google import genai
from google.genai import errors, types


def get_weather(city: str) -> dict[str, Any]:
    """The weather of a city."""
    return {"city": city, "said_by": "the client"}


def delete_everything(path: str) -> str:
    """Delete all files below a folder."""
    raise AssertionError(f"the client's own tool was called with {path}")


OPTIONS = json.loads(sys.stdin.readline())
KIND = OPTIONS["kind"]
FAILURES = (errors.APIError, httpx2.HTTPError)


def make_client() -> genai.Client:
    retries = OPTIONS.get("retries")
    http = types.HttpOptions(
        base_url=OPTIONS.get("base_url"),
        headers=OPTIONS.get("headers"),
        timeout=OPTIONS.get("timeout"),
        retry_options=types.HttpRetryOptions(**retries) if retries else None,
    )
    return genai.Client(vertexai=OPTIONS.get("vertex", False), api_key=OPTIONS["key"], http_options=http)


def show(text: str, history: list[types.Content], error: Exception | None = None) -> None:
    contents = [content.model_dump(mode="json", exclude_none=True) for content in history]
    failed = {} if error is None else {"error": str(error) or type(error).__name__}
    print(json.dumps({"text": text, "history": contents, **failed}), flush=True)


def next_words() -> str | None:
    line = sys.stdin.readline().strip()
    return json.loads(line)["say"] if line else None


def main() -> None:
    client = make_client()
    chat = client.chats.create(model=OPTIONS["model"], config=config())
    while (words := next_words()) is not None:
        text, failed = "", None
        try:
            if KIND == "stream":
                for chunk in chat.send_message_stream(words):
                    text += chunk.text or ""
            else:
                text = chat.send_message(words).text or ""
        except FAILURES as error:
            failed = error
        show(text, chat.get_history(curated=True), failed)
    client.close()


async def main_async() -> None:
    client = make_client().aio
    chat = client.chats.create(model=OPTIONS["model"], config=config())
    while (words := next_words()) is not None:
        text, failed = "", None
        try:
            if KIND == "async-stream":
                async for chunk in await chat.send_message_stream(words):
                    text += chunk.text or ""
            else:
                text = (await chat.send_message(words)).text or ""
        except FAILURES as error:
            failed = error
        show(text, chat.get_history(curated=True), failed)
    await client.aclose()


def config() -> types.GenerateContentConfig:
    own = {function.__name__: function for function in (get_weather, delete_everything)}
    tools: list[Any] = [own[name] for name in OPTIONS.get("tools", ())]
    return types.GenerateContentConfig(tools=tools or None)


if KIND.startswith("async"):
    asyncio.run(main_async())
else:
    main()
