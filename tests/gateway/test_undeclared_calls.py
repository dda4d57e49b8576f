"""A call of a tool that nobody declared is told to the model, never to a client: at the front doors as elsewhere."""

from typing import Any

import pytest

from addon.core.framing.documents import Document
from tests.gateway.conftest import House

OWN: Document = {"functionDeclarations": [{"name": "own", "description": "A function."}]}
OPENAI: Document = {"type": "function", "name": "own", "parameters": {"type": "object", "properties": {}}}
COMPUTER: Document = {"computerUse": {"environment": "ENVIRONMENT_BROWSER"}}


def says(*parts: Document) -> Document:
    candidate = {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "modelVersion": "gemini-3-flash", "responseId": "r"}


def call(name: str) -> Document:
    return {"functionCall": {"id": "f1", "name": name, "args": {}}, "thoughtSignature": "c2ln"}


@pytest.mark.parametrize("declares", [False, True])
@pytest.mark.parametrize("door", ["gemini", "respond"])
async def test_a_front_door_hands_out_no_call_that_nobody_declared(house: House, door: str, declares: bool) -> None:
    model = house.upstream([says(call("made_up"))], [says({"text": "done"})])
    tools = {"gemini": [OWN], "respond": [OPENAI]}[door] if declares else []
    answered: Any = await getattr(house, door)("hi", **({"tools": tools} if tools else {}))
    assert "made_up" not in str(answered)
    assert "done" in str(answered)
    assert "unknown tool: made_up" in str(model.bodies[1])


@pytest.mark.parametrize("door", ["gemini", "respond"])
async def test_a_declared_function_is_the_caller_s(house: House, door: str) -> None:
    house.upstream([says(call("own"))])
    answered = await getattr(house, door)("hi", tools={"gemini": [OWN], "respond": [OPENAI]}[door])
    assert "own" in str(answered)


async def test_functions_that_a_tool_brings_along_are_the_caller_s(house: House) -> None:
    house.upstream([says(call("click_at"))])
    assert "click_at" in str(await house.gemini("hi", tools=[COMPUTER]))
