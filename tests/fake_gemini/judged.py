"""Requests, and the strict local Gemini's verdicts."""

from __future__ import annotations

import copy
from typing import Any

from addon.fake_gemini import routes, rules, signatures
from addon.fake_gemini.fields import read

Json = dict[str, Any]
WEATHER: Json = {
    "name": "get_weather",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
}
TIME: Json = {"name": "get_time"}
TOOLS = [{"functionDeclarations": [WEATHER, TIME]}]
USER = {"role": "user", "parts": [{"text": "hi"}]}
MODEL = {"role": "model", "parts": [{"text": "hello"}]}


def call(name: str = "get_weather", signature: str | None = "", **more: Any) -> Json:
    """A functionCall part with its own signature, unless `signature` is given; None: without one."""
    body = {"name": name, "args": {"city": "Paris"}, **more}
    part: Json = {"functionCall": body}
    if signature is not None:
        part["thoughtSignature"] = signature or signatures.sign_call(body)
    return part


def response(name: str = "get_weather", **more: Any) -> Json:
    return {"functionResponse": {"name": name, "response": {"output": "ok"}, **more}}


def content(*parts: Json, role: str = "user") -> Json:
    return {"role": role, "parts": list(parts)}


def replied(*parts: Json) -> Json:
    return content(*parts, role="model")


def declared(**changes: Any) -> Json:
    return {"tools": [{"functionDeclarations": [{**WEATHER, **changes}]}]}


def calling(**config: Any) -> Json:
    return {"toolConfig": {"functionCallingConfig": config}}


def judge(body: Json, model: str = "gemini-3-flash-preview", place: str = "developer", *, stream: bool = False) -> int:
    found = routes.find_model(model)
    assert found is not None
    places = frozenset(place.split())
    before = copy.deepcopy(body)
    request = read({"contents": [USER]} | body, "GenerateContentRequest", places)
    rules.check_cached(request)
    dummies = rules.check(request, found, places, stream=stream)
    assert body == before, "the input is not changed"
    return dummies


SECOND = [USER, replied(call(), call("get_time", None)), content(response(), response("get_time"))]
