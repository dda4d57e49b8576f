"""Responses and events as the published openai package types them, without its leniency; and its stream accumulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import httpx2
from openai import OpenAI
from openai.lib.streaming.responses import ResponseStreamEvent
from openai.types.responses import Response
from openai.types.responses import ResponseStreamEvent as RawEvent
from pydantic import BaseModel, TypeAdapter

from addon.core.dialects.responses.answer import Translator, sse
from addon.core.dialects.responses.request import read_request

_EVENTS: TypeAdapter[Any] = TypeAdapter(RawEvent)
# Members that Open Responses requires and the service sends, but the package's type does not know.
_BEYOND_THE_TYPES = {("Response", name) for name in ("store", "presence_penalty", "frequency_penalty")}


def response_of(document: dict[str, Any]) -> Response:
    """The document as a Response. Fails for members that are missing, wrong or unknown."""
    response = Response.model_validate(document)
    _refuse_unknown(response)
    return response


def event_of(event: dict[str, Any]) -> Any:
    parsed = _EVENTS.validate_python(event)
    assert parsed.type == event["type"]
    _refuse_unknown(parsed)
    return parsed


def _refuse_unknown(value: object) -> None:
    if isinstance(value, BaseModel):
        extra = {(type(value).__name__, name) for name in value.model_extra or ()}
        assert extra <= _BEYOND_THE_TYPES
        for name in type(value).model_fields:
            _refuse_unknown(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            _refuse_unknown(item)


def counting() -> Callable[[str], str]:
    """Deterministic, unique ids."""
    numbers = itertools.count(1)
    return lambda kind: f"{kind}_{next(numbers)}"


def translator(**fields: Any) -> Translator:
    wanted = read_request({"model": "gemini-3-flash", "input": "hi", **fields})
    return Translator(wanted, "resp_1", new_id=counting(), now=lambda: 1767225600.5)


def translated(documents: Iterable[dict[str, Any]], **fields: Any) -> tuple[Translator, list[dict[str, Any]]]:
    """A whole answer, and all its events."""
    done = translator(**fields)
    events = done.start()
    for document in documents:
        events += done.feed(document)
    return done, events + done.end()


def accumulated(events: Iterable[dict[str, Any]]) -> tuple[list[ResponseStreamEvent[Any]], Response]:
    """The response that the published client's stream assembles from the events."""
    body = b"".join(map(sse, events))

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    with (
        httpx2.Client(transport=httpx2.MockTransport(answer)) as http,
        OpenAI(api_key="k", base_url="http://localhost/v1", http_client=http, max_retries=0) as client,
        client.responses.stream(model="gemini-3-flash", input="hi") as stream,
    ):
        events_read = list(stream)
    return events_read, events_read[-1].response  # type: ignore[union-attr]
