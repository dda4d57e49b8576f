"""OpenAI's other paths at the control API of a real mitmdump, used by the published openai client, unmodified."""

from typing import Any

import openai
import pytest
from websockets.sync.client import connect

from tests.e2e.proxies import Proxy
from tests.e2e.test_doors import MODEL, client, doors
from tests.e2e.upstreams import Gemini

__all__ = ["client", "doors"]


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.smoke)])
def test_chat_completions_have_the_proxy_s_tools(client: openai.OpenAI, gemini: Gemini, stream: bool) -> None:
    messages: Any = [{"role": "user", "content": 'call weather {"city": "Oslo"}'}]
    if stream:
        chunks = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    else:
        text = client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content or ""
    assert text == 'weather returned {"city": "Oslo", "celsius": 4}.'
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Thanks."}]
    client.chat.completions.create(model=MODEL, messages=messages)
    assert "tool_calls" in gemini.last["body"]["messages"][1]


@pytest.mark.smoke
def test_models_and_embeddings(client: openai.OpenAI) -> None:
    first = next(iter(client.models.list()))
    assert client.models.retrieve(first.id).id == first.id
    found = client.embeddings.create(model="gemini-embedding-001", input="hello", dimensions=16)
    assert len(found.data[0].embedding) == 16


def test_a_conversation_goes_on_with_its_summary(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="My name is Ada.")
    compacted = client.responses.compact(model=MODEL, previous_response_id=first.id)
    (item,) = compacted.output
    assert item.type == "compaction"
    given: Any = [item.model_dump(exclude_none=True), {"role": "user", "content": "Hi."}]
    response = client.responses.create(model=MODEL, input=given)
    assert response.status == "completed"


def test_a_conversation_of_items_is_asked_changed_and_deleted(client: openai.OpenAI) -> None:
    made = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "My name is Ada."}], metadata={"topic": "names"}
    )
    call: Any = {"type": "function_call", "call_id": "c1", "name": "spell", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "A, d, a"}
    client.conversations.items.create(made.id, items=[call])
    client.conversations.items.create(made.id, items=[output])
    response = client.responses.create(model=MODEL, conversation=made.id, input='call weather {"city": "Oslo"}')
    assert "celsius" in response.output_text
    items = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert [item.type for item in items] == [
        "message",
        "function_call",
        "function_call_output",
        "message",
        "message",
    ], "the pages follow each other"
    assert client.conversations.items.retrieve(str(items[0].id), conversation_id=made.id) == items[0]
    assert client.conversations.update(made.id, metadata={"topic": "weather"}).metadata == {"topic": "weather"}
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)


@pytest.mark.smoke
def test_a_websocket_has_the_proxy_s_tools(doors: Proxy, client: openai.OpenAI) -> None:
    url = f"{doors.control.url.replace('http', 'ws', 1)}/v1/responses"
    headers = {
        "Authorization": f"Bearer {client.api_key}",
        "x-graft-session": str(client.default_headers["x-graft-session"]),
    }
    with connect(url, additional_headers=headers) as socket:
        socket.send(
            f'{{"type": "response.create", "model": "{MODEL}", "input": "call weather {{\\"city\\": \\"Oslo\\"}}"}}'
        )
        while "response.completed" not in (message := str(socket.recv(timeout=20))):
            assert '"error": {' not in message
        assert "celsius" in message
