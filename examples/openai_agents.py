"""An agent of OpenAI's Agents SDK that asks Gemini: the proxy runs the session's tools, the agent its own.

    ./run_proxy.sh --set graft_tools=examples/weather.py
    ./run_proxy.sh run --openai -- python examples/openai_agents.py "What is the weather in Oslo, and what do I pack?"

It needs the package `openai-agents`. The answer is streamed.
"""

import asyncio
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled
from openai.types.responses import ResponseTextDeltaEvent

set_tracing_disabled(True)  # traces would go to OpenAI


@function_tool
def pack(celsius: float) -> dict[str, str]:
    """What to pack for a temperature."""
    return {"wear": "a coat" if celsius < 10 else "a shirt"}


async def main(question: str) -> None:
    agent = Agent(name="Traveller", instructions="Be brief.", model="gemini-3-flash", tools=[pack])
    running = Runner.run_streamed(agent, question)
    async for event in running.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            print(event.data.delta, end="", flush=True)
    print()


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:]) or "What is the weather in Oslo, and what do I pack?"))
