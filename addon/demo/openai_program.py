"""A program that uses OpenAI's Responses API: it gets calls of its own function, and the proxy runs the tools."""

import json
from collections.abc import AsyncGenerator, Iterator

from addon.demo.stage import Json, Stage
from addon.demo.story import Beat, Control, Scene, check_that, tool_names

QUESTION = (
    'call get_coordinates {"place": "Cairo"} then call get_weather {"latitude": 30.04, "longitude": 31.24} '
    'then call pack {"celsius": 31}'
)
PACK: Json = {
    "type": "function",
    "name": "pack",
    "description": "What to pack for a temperature.",
    "parameters": {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]},
}
_REQUEST = {"model": "gemini-3-flash", "tools": [PACK]}


async def play(stage: Stage) -> AsyncGenerator[Beat]:
    """Raises DemoFailed."""
    yield Scene(
        "The same tools for an OpenAI program",
        "It asks the front door as OpenAI's clients do, and declares a function of its own, pack.",
    )
    first = await stage.respond({**_REQUEST, "input": QUESTION})
    calls = list(of_type(first, "function_call"))
    yield Control("POST /v1/responses", ", ".join(f"call {call['name']}({call['arguments']})" for call in calls))
    names = tool_names(stage.upstream)
    yield check_that("Gemini got pack beside the tools that the proxy runs", {"pack", "get_weather"} <= {*names})
    yield check_that("the program saw the call of its own function, and no other", names_of(calls) == ["pack"])

    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": json.dumps({"wear": "a hat"})}
        for call in calls
    ]
    second = await stage.respond({**_REQUEST, "input": outputs, "previous_response_id": first["id"]})
    words = "".join(part["text"] for message in of_type(second, "message") for part in message["content"])
    yield Control("POST /v1/responses, with its result", words)
    yield check_that("the answer knows the weather and what to pack", "31" in words and "a hat" in words)


def of_type(response: Json, kind: str) -> Iterator[Json]:
    return (item for item in response["output"] if item["type"] == kind)


def names_of(calls: list[Json]) -> list[str]:
    return [str(call["name"]) for call in calls]
