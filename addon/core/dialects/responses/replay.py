"""Converts a finished Response object to the events of a stream that ends with it. Pure."""

from addon.core.dialects.responses.output import Items
from addon.core.dialects.responses.translator import ENDS, Event
from addon.core.framing.documents import Document

_UNKNOWN_YET = ("completed_at", "error", "incomplete_details", "usage")
"""Members that a Response object does not have before its end."""


def events_of(response: Document) -> list[Event]:
    """The events as from a `Translator`, with each item in one piece."""
    events: list[Event] = []

    def emit(kind: str, members: Document) -> None:
        events.append({"type": kind, "sequence_number": len(events), **members})

    initial = response | dict.fromkeys(_UNKNOWN_YET) | {"status": "in_progress", "output": []}
    for kind in ("response.created", "response.in_progress"):
        emit(kind, {"response": initial})
    ids = (item["id"] for item in response["output"])
    items = Items(emit, lambda _: next(ids))
    for item in response["output"]:
        match item["type"]:
            case "message":
                part = item["content"][0]
                items.text(part["text"], part["logprobs"])
                items.annotate(part["annotations"])
            case "web_search_call":
                items.search(item["action"])
            case "reasoning" if not item["summary"]:
                items.carried(item["encrypted_content"])
            case "reasoning":
                items.of_thoughts = {key: item[key] for key in ("encrypted_content",) if key in item}
                items.thought(item["summary"][0]["text"])
            case _:
                items.call(item["call_id"], item["name"], item["arguments"])
        items.close(item["status"])
    emit(ENDS[response["status"]], {"response": response})
    return events
