"""A response that a front door has given to its end, and its conversation's place, are on disk."""

from typing import Any

import httpx2
import pytest

from addon.fake_gemini.server import StrictGemini
from store.base import NotDurable, StoreUnavailable
from tests.gateway.conftest import URL, House
from tests.loop.conftest import call, says


@pytest.fixture
def writes(home: House, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each write of a response and each sync of the store, in order; and what was sent to the client."""
    writes: list[str] = []

    def noted(name: str) -> None:
        method = getattr(home.store, name)

        async def note(*arguments: Any, **named: Any) -> Any:
            result = await method(*arguments, **named)
            writes.append(name)
            return result

        monkeypatch.setattr(home.store, name, note)

    for name in ("add_response", "delete_response", "sync"):
        noted(name)
    return writes


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/gemini", "/v1/responses"])
async def test_the_end_of_an_answer_comes_after_the_sync_of_its_response(
    home: House, writes: list[str], path: str, stream: bool
) -> None:
    document = {"model": "gemini-3-flash", "input": "hello", "conversation": "chat", "stream": stream}

    end = {("/v1/gemini", True): b"STOP", ("/v1/responses", True): b"event: response.completed"}.get(
        (path, stream), b"{"
    )

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        async def note(message: Any) -> None:
            if end in message.get("body", b""):
                writes.append("the end is sent")
            await send(message)

        await home.app(scope, receive, note)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(noting), base_url=URL) as client:
        answer = await client.post(path, json=document)
    assert answer.status_code == 200, answer.text
    assert writes == ["add_response", "sync", "the end is sent"]


async def test_a_deletion_is_safe_when_it_is_acknowledged(home: House, gemini: StrictGemini, writes: list[str]) -> None:
    response = await home.respond("hello")
    writes.clear()
    answer = await home.http.delete(f"/v1/responses/{response['id']}")
    assert answer.status_code == 200
    assert writes == ["delete_response", "sync"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/gemini", "/v1/responses"])
@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
async def test_a_refused_turn_is_not_in_the_conversation(
    house: House, monkeypatch: pytest.MonkeyPatch, begun: bool, path: str, stream: bool
) -> None:
    async def send() -> str:
        return "sent"

    house.proxy.tools.add("send", send)
    await house.proxy.close()
    await house.open()
    step, answer = [says(call("send", "c1"), finish="STOP")], [says("done", finish="STOP")]
    upstream = house.upstream(*[answer] * begun, step, answer, answer, answer)
    document = {"model": "gemini-3-flash", "conversation": "chat"}
    if begun:
        await house.post(path, document | {"input": "before"})
    sync = house.store.sync

    async def failing() -> None:
        monkeypatch.setattr(house.store, "sync", sync)
        raise NotDurable("the disk has failed")

    monkeypatch.setattr(house.store, "sync", failing)
    refused = await house.post(path, document | {"input": "refused", "stream": stream})
    assert "the response could not be safely stored: send the same request again" in refused.text
    await house.post(path, document | {"input": "another"})
    contents = upstream.bodies[-1]["contents"]
    assert "refused" not in str(contents)
    assert ("before" in str(contents)) == begun
    retry = await house.post(path, document | {"input": "refused", "stream": stream})
    assert "done" in retry.text
    assert house.proxy.tools.begun == ["send"]
    history = str(upstream.bodies[-1]["contents"])
    assert history.count("refused") == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/gemini", "/v1/responses"])
@pytest.mark.parametrize("conversation", ["chat", None])
async def test_an_answer_that_could_not_be_kept_is_not_the_client_s_and_its_tools_do_not_run_again(
    house: House, monkeypatch: pytest.MonkeyPatch, conversation: str | None, path: str, stream: bool
) -> None:
    async def send() -> str:
        return "sent"

    house.proxy.tools.add("send", send)
    await house.proxy.close()
    await house.open()
    step, answer = [says(call("send", "c1"), finish="STOP")], [says("done", finish="STOP")]
    upstream = house.upstream(step, answer, answer, step, answer)
    document = {"model": "gemini-3-flash", "input": "x", "stream": stream, "conversation": conversation}
    add = house.store.add_response

    async def failing(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(house.store, "add_response", add)
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(house.store, "add_response", failing)
    lost = await house.post(path, document)
    assert "the response could not be safely stored: send the same request again" in lost.text
    retry = await house.post(path, document)
    assert "done" in retry.text
    assert house.proxy.tools.begun == ["send"]
    assert len(upstream.bodies) == 3
    assert upstream.bodies[1] == upstream.bodies[2]
    await house.post(path, document)
    assert house.proxy.tools.begun == ["send"] * 2
