"""Requests that the real service accepted are accepted here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from addon.fake_gemini import routes, rules
from addon.fake_gemini.errors import Refused
from addon.fake_gemini.fields import read
from tests.recorded import at_least, exchanges

Json = dict[str, Any]

# deliberately stricter than the service, which accepted these calls of functions no longer declared
UNDECLARED = "is not declared in tools of this request."


def requests(status: int = 200) -> Iterator[tuple[Json, routes.Route, routes.Model, Json]]:
    """Whole requests that were answered with this status: exchange, route, model, body."""
    for exchange in exchanges():
        body = exchange["request_body"]
        if isinstance(body, dict) and body.keys() == {"type", "content"}:
            body = body["content"]
        path = "/" + exchange["url"].partition("://")[2].partition("/")[2].partition("?")[0]
        route = routes.find_route(path)
        whole = exchange["fidelity"]["request"] in ("verbatim", "reserialized", "normalized", "invented")
        if exchange["status"] != status or route is None or not whole or not isinstance(body, dict):
            continue
        if route.method in ("generateContent", "streamGenerateContent"):
            # the oldest models no longer exist; their requests are judged as 2.0's
            model = routes.find_model(exchange["model"] or "") or routes.Model("gemini-2.0-flash", (2, 0))
            yield exchange, route, model, body


def judge(
    route: routes.Route, model: routes.Model, body: Json, *, check_declared: bool, check_signatures: bool = False
) -> None:
    message = "CodeAssistRequest" if route.surface == "codeassist" else "GenerateContentRequest"
    request = read(body, message, route.place)
    request = request.get("request", request)
    rules.check_cached(request)
    options = rules.Options(check_signatures=check_signatures, check_declared=check_declared)
    rules.check(request, model, route.place, stream=route.method.startswith("stream"), options=options)


def test_every_recorded_request_is_accepted() -> None:
    refused: dict[str, str] = {}
    count = 0
    for exchange, route, model, body in requests():
        count += 1
        try:
            judge(route, model, body, check_declared=False)
        except Refused as e:
            refused[exchange["id"]] = e.message
    assert count > at_least(45, 1000)
    assert refused == {}


def test_the_one_stricter_rule_refuses_few_and_nothing_else_does() -> None:
    messages = []
    for _, route, model, body in requests():
        try:
            judge(route, model, body, check_declared=True)
        except Refused as e:
            messages.append(e.message)
    assert len(messages) < 30
    assert all(message.endswith(UNDECLARED) for message in messages)


SAME_WORDS = ("Function calling with a response mime type", "Function call is missing a thought_signature", "Unable to")


def test_recorded_refusals_are_repeated_in_the_same_words() -> None:
    count = 0
    for exchange, route, model, body in requests(400):
        message = json.loads(exchange["response_body"])["error"]["message"]
        if message.startswith(SAME_WORDS):
            count += 1
            with pytest.raises(Refused) as refused:
                judge(route, model, body, check_declared=True, check_signatures=True)
            assert refused.value.message == message
    assert count >= at_least(1, 3)
