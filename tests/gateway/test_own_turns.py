"""A conversation at a front door knows its own turns by their ids, whatever else in a request has changed."""

import itertools

import pytest

from addon.core.framing.documents import Document
from tests.gateway.conftest import MODEL, House
from tests.loop.conftest import call, says

_STEP, _DONE = [says(call("lookup"), finish="STOP")], [says("Done.", finish="STOP")]
_INSTRUCTIONS = {"/v1/gemini": "systemInstruction", "/v1/responses": "instructions"}


@pytest.fixture
async def ready(house: House) -> House:
    """A house with a tool that answers something else each time."""
    numbers = itertools.count()

    async def lookup() -> Document:
        return {"found": next(numbers)}

    house.proxy.tools.add("lookup", lookup)
    await house.open()
    return house


def _found(contents: list[Document]) -> list[int]:
    """The results that a request holds."""
    parts = [part for content in contents for part in content["parts"]]
    return [part["functionResponse"]["response"]["found"] for part in parts if "functionResponse" in part]


@pytest.mark.parametrize("path", _INSTRUCTIONS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["conversation", "previous_response_id"])
async def test_hidden_calls_are_in_the_next_turn_under_other_instructions(
    ready: House, path: str, stream: bool, by: str
) -> None:
    upstream = ready.upstream(_STEP, _DONE, _STEP, _DONE, _DONE)
    known: Document = {"conversation": "chat"} if by == "conversation" else {}
    for number in range(3):
        asked: Document = {"model": MODEL, "input": "do it", _INSTRUCTIONS[path]: f"it is {number} o'clock"}
        answer = await ready.post(path, {**asked, **known, "stream": stream})
        assert "Done." in answer.text
        if by == "previous_response_id":
            (known[by],) = {word for word in answer.text.split('"') if word.startswith("resp_")} - {known.get(by)}
    assert [_found(body["contents"]) for body in upstream.bodies] == [[], [0], [0], [0, 1], [0, 1]]


@pytest.mark.parametrize("path", _INSTRUCTIONS)
async def test_conversations_that_read_the_same_keep_their_own_calls(ready: House, path: str) -> None:
    chats = {"a": [_STEP, _DONE], "b": [_STEP, _DONE], "plain": [_DONE]}
    upstream = ready.upstream(*(answer for answers in chats.values() for answer in answers), *[_DONE] * 12)
    asked: Document = {"model": MODEL, "input": "a long question, of which each word is the same. " * 50}
    for chat in chats:
        await ready.post(path, {**asked, "conversation": chat})
    for _ in range(4):
        found = []
        for chat in ("a", "plain", "b"):
            await ready.post(path, {**asked, "input": "more", "conversation": chat})
            found.append(_found(upstream.bodies[-1]["contents"]))
        assert found == [[0], [], [1]]


async def test_a_model_turn_of_the_client_s_own_is_none_of_the_conversation(ready: House) -> None:
    own = [{"role": "model", "parts": [{"text": "Done."}]}, {"role": "user", "parts": [{"text": "and?"}]}]
    upstream = ready.upstream(_STEP, _DONE, _STEP, _DONE, _DONE)
    await ready.gemini("do it", conversation="chat")
    await ready.gemini([{"role": "user", "parts": [{"text": "do it"}]}, *own], conversation="chat")
    await ready.gemini("more", conversation="chat", systemInstruction="other")
    assert _found(upstream.bodies[-1]["contents"]) == [0, 1]
    assert [content["role"] for content in upstream.bodies[-1]["contents"]] == ["user", "model"] * 5 + ["user"]
