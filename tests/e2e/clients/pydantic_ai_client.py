"""Turns of a pydantic-ai agent by each of its methods, with the client's function beside the session's tools. Prints a
line of JSON for each."""

import asyncio
import json
import os
from typing import Any

from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = "gemini-3-flash"
QUESTION = 'call note {"n": 1} and call note {"n": 2} then call weather {"city": "Oslo"} and call note {"n": 3}'
TURNS = 3
SESSION = os.environ["SESSION"]


class City(BaseModel):
    name: str
    people: int


def openai() -> OpenAIProvider:
    client = AsyncOpenAI(max_retries=0, default_headers={"x-graft-session": SESSION})
    return OpenAIProvider(openai_client=client)


def google() -> GoogleProvider:
    return GoogleProvider(api_key="a-key", base_url=os.environ["GOOGLE_GEMINI_BASE_URL"])


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "responses": (lambda: OpenAIResponsesModel(MODEL, provider=openai()), {}),
    "stateless": (lambda: OpenAIResponsesModel(MODEL, provider=openai()), {"openai_store": False}),
    "previous": (
        lambda: OpenAIResponsesModel(MODEL, provider=openai()),
        {"openai_previous_response_id": "auto"},
    ),
    "chat": (lambda: OpenAIChatModel(MODEL, provider=openai()), {}),
    "google": (lambda: GoogleModel(MODEL, provider=google()), {}),
}


def note(n: float) -> dict[str, float]:
    """Notes."""
    return {"noted": int(n)}


async def texts_of(model: Any, settings: dict[str, Any], *, stream: bool) -> list[str]:
    agent = Agent(model, model_settings=settings, tools=[note])
    history, texts = list[Any](), list[str]()
    for _ in range(TURNS):
        if stream:
            async with agent.run_stream(QUESTION, message_history=history) as running:
                texts.append(await running.get_output())
                history = running.all_messages()
        else:
            done = await agent.run(QUESTION, message_history=history)
            texts.append(done.output)
            history = done.all_messages()
    return texts


async def main() -> None:
    for name, (model, settings) in KINDS.items():
        for stream in (False, True):
            texts = await texts_of(model(), settings, stream=stream)
            print(json.dumps({"kind": name, "stream": stream, "texts": texts}), flush=True)
    for name in ("responses", "chat", "google"):
        agent = Agent(KINDS[name][0](), output_type=City)
        city = (await agent.run("A city.")).output
        print(json.dumps({"kind": "structured", "city": city.model_dump()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
