"""Streams of the Interactions API that name their interaction late, twice, or at its end alone."""

from typing import Any

import pytest

from addon.core.framing.documents import Document, decode
from addon.core.framing.streams import SseDecoder
from addon.surfaces.registry import match
from tests.loop.conftest import Proxy, Scripted
from tests.loop.test_empty_rounds import CALL, SURFACES, events, step

SURFACE = SURFACES["Interactions"]
TEXT = step({"type": "model_output"}, {"type": "text", "text": "done"})
CALLED = step(CALL | {"arguments": {}})


def created(**interaction: Any) -> Document:
    return {"event_type": "interaction.created", "interaction": interaction}


def completed(**interaction: Any) -> Document:
    return {"event_type": "interaction.completed", "interaction": interaction}


@pytest.mark.parametrize(
    "begins",
    [
        [],
        [created(status="in_progress")],
        [completed(id="v1_a", status="in_progress")],
        [completed(id="v1_a", status="completed"), *TEXT],
    ],
    ids=["never", "without an id", "as complete", "as complete, before its call"],
)
async def test_a_client_may_continue_by_any_name_that_it_was_given(begins: list[Document], proxy: Proxy) -> None:
    async def lookup(**args: Any) -> Any:
        return "found"

    proxy.tools.add("lookup", lookup)
    await proxy.open()
    upstream = Scripted(
        events(*begins, *CALLED, completed(id="v1_a", status="requires_action"), b"[DONE]"),
        events(*TEXT, completed(id="v1_b", status="completed"), b"[DONE]"),
    )
    answer = await SURFACE.ask(proxy, upstream)
    documents = [decode(one.data or b"") for one in SseDecoder().feed(answer) if one.data != b"[DONE]"]
    names = {one["interaction"]["id"] for one in documents if "id" in one.get("interaction", {})}
    assert len(names) == 1
    more: Document = {**SURFACE.body, "input": "more", "previous_interaction_id": names.pop()}
    target = match("POST", "generativelanguage.googleapis.com", "/v1beta/interactions")
    assert target is not None
    forward = await proxy.forwarded(more, target)
    assert decode(forward.body)["previous_interaction_id"] == "v1_b"
