"""OpenAI's Conversations API, beside `/v1/responses`."""

from typing import Any

import pytest
from openai.types.conversations import Conversation, ConversationDeletedResource, ConversationItemList

from addon.core.framing.documents import Document
from store.base import NotDurable
from tests.gateway.conftest import House
from tests.loop.conftest import call, says

PATH = "/v1/conversations"
HELLO: Document = {"type": "message", "role": "user", "content": "I am in Oslo."}
CALL: Document = {"type": "function_call", "call_id": "c1", "name": "locate", "arguments": "{}"}
OUTPUT: Document = {"type": "function_call_output", "call_id": "c1", "output": "Oslo"}

LOCATE = {"type": "function", "name": "locate", "parameters": {"type": "object", "properties": {}}}


def says_all(text: str) -> list[Document]:
    return [says(text, finish="STOP", usageMetadata={})]


async def begin(house: House, **body: Any) -> str:
    made = await house.ask(PATH, body)
    Conversation.model_validate(made, strict=True)
    return str(made["id"])


async def items_of(house: House, name: str, **query: Any) -> list[Document]:
    answer = await house.http.get(f"{PATH}/{name}/items", params={"order": "asc", **query})
    assert answer.status_code == 200, answer.text
    if answer.json()["data"]:
        ConversationItemList.model_validate(answer.json())
    found: list[Document] = answer.json()["data"]
    return found


def texts(items: list[Document]) -> list[str]:
    return [part["text"] for item in items for part in item.get("content", ())]


def asked(body: Document) -> list[str]:
    return [part["text"] for content in body["contents"] for part in content["parts"]]


async def test_a_conversation_is_begun_shown_changed_and_deleted(house: House) -> None:
    name = await begin(house, metadata={"topic": "trip"})
    answer = (await house.http.get(f"{PATH}/{name}")).json()
    assert (answer["object"], answer["metadata"]) == ("conversation", {"topic": "trip"})
    changed = await house.ask(f"{PATH}/{name}", {"metadata": {"topic": "home"}})
    assert changed == {**answer, "metadata": {"topic": "home"}}
    assert (await house.http.get(f"{PATH}/{name}")).json() == changed
    gone = (await house.http.delete(f"{PATH}/{name}")).json()
    assert ConversationDeletedResource.model_validate(gone, strict=True).deleted
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/items")):
        answer = await house.http.request(method, f"{PATH}/{name}{path}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (404, "conversation")
    refused = await house.post("/v1/responses", {"model": "gemini-3-flash", "input": "x", "conversation": name})
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "invalid_request_error")


async def test_items_that_were_added_come_before_the_next_input_once(house: House) -> None:
    upstream = house.upstream(says_all("You are."), says_all("Sure."))
    name = await begin(house, items=[{"role": "developer", "content": "Be brief."}, HELLO])
    more = [{"role": "assistant", "content": "Nice."}, {"role": "user", "content": "It rains."}]
    await house.ask(f"{PATH}/{name}/items", {"items": more})
    assert texts(await items_of(house, name)) == ["Be brief.", "I am in Oslo.", "Nice.", "It rains."]
    await house.respond("Where am I?", conversation={"id": name})
    await house.respond("Sure?", conversation=name)
    first, second = upstream.bodies
    expected = ["I am in Oslo.", "Nice.", "It rains.", "Where am I?"]
    assert asked(first) == expected
    assert first["systemInstruction"] == second["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    expected += ["You are.", "Sure?"]
    assert asked(second) == expected
    assert texts(await items_of(house, name)) == ["Be brief.", *expected, "Sure."]
    newest = (await house.http.get(f"{PATH}/{name}/items", params={"limit": 1})).json()
    assert (texts(newest["data"]), newest["has_more"]) == (["Sure."], True)
    item = await house.http.get(f"{PATH}/{name}/items/{newest['first_id']}")
    assert item.json() == newest["data"][0]


async def test_calls_and_outputs_can_be_added_one_after_the_other(house: House) -> None:
    upstream = house.upstream(says_all("Oslo."))
    name = await begin(house, items=[HELLO])
    for one in (CALL, OUTPUT):
        await house.ask(f"{PATH}/{name}/items", {"items": [one]})
    await house.respond("Where?", conversation=name, tools=[LOCATE])
    (body,) = upstream.bodies
    (step,) = [content for content in body["contents"] if content["role"] == "model"]
    assert step["parts"][0]["functionCall"]["name"] == "locate"
    result, question = body["contents"][2]["parts"]
    assert "Oslo" in str(result["functionResponse"]["response"])
    assert question == {"text": "Where?"}


async def test_a_call_without_an_output_is_named_when_the_model_is_asked(house: House) -> None:
    name = await begin(house, items=[HELLO, CALL])
    answer = await house.respond("Where?", 400, conversation=name)
    assert "c1" in answer["error"]["message"]
    await house.ask(f"{PATH}/{name}/items", {"items": [OUTPUT]})
    house.upstream(says_all("Oslo."))
    await house.respond("Where?", conversation=name)


async def test_only_items_that_no_response_goes_on_from_can_be_removed(house: House) -> None:
    upstream = house.upstream(says_all("Yes."))
    name = await begin(house, items=[HELLO, {"role": "user", "content": "secret"}])
    known, secret = await items_of(house, name)
    answer = await house.http.delete(f"{PATH}/{name}/items/{secret['id']}")
    assert answer.json()["id"] == name
    assert texts(await items_of(house, name)) == ["I am in Oslo."]
    assert (await house.http.get(f"{PATH}/{name}/items/{secret['id']}")).status_code == 404
    await house.respond("Am I?", conversation=name)
    assert asked(upstream.bodies[0]) == ["I am in Oslo.", "Am I?"]
    refused = await house.http.delete(f"{PATH}/{name}/items/{known['id']}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "item_in_use")
    assert texts(await items_of(house, name)) == ["I am in Oslo.", "Am I?", "Yes."]


async def test_a_conversation_of_responses_is_one_of_this_api(house: House) -> None:
    house.upstream([says("Hm. ", call("locate", "c9"), finish="STOP")])
    await house.respond("Where am I?", conversation="mine", tools=[LOCATE])
    answer = (await house.http.get(f"{PATH}/mine")).json()
    assert (answer["id"], answer["metadata"]) == ("mine", {})
    kinds = [item["type"] for item in await items_of(house, "mine")]
    assert kinds == ["message", "message", "function_call"]


async def test_an_added_item_can_be_referred_to(house: House) -> None:
    upstream = house.upstream(says_all("Yes."))
    name = await begin(house, items=[HELLO])
    (item,) = await items_of(house, name)
    await house.respond([{"type": "item_reference", "id": item["id"]}, {"role": "user", "content": "So?"}])
    assert asked(upstream.bodies[0]) == ["I am in Oslo.", "So?"]


async def test_an_item_can_be_added_by_its_id(house: House) -> None:
    upstream = house.upstream(says_all("Yes."), says_all("Sure."))
    response = await house.respond("Is it cold?")
    reference = {"type": "item_reference", "id": response["output"][0]["id"]}
    name = await begin(house, items=[HELLO, reference])
    await house.respond("Why?", conversation=name)
    assert asked(upstream.bodies[-1]) == ["I am in Oslo.", "Yes.", "Why?"]
    refused = await house.ask(f"{PATH}/{name}/items", {"items": [{"type": "item_reference", "id": "msg_x"}]}, 404)
    assert (refused["error"]["param"], "msg_x" in refused["error"]["message"]) == ("items[0].id", True)


async def test_every_item_has_an_id_of_its_own_whatever_ids_come_with_them(house: House) -> None:
    upstream = house.upstream(says_all("Yes."), says_all("Sure."))

    def given(words: str) -> Document:
        return {"role": "user", "content": words, "id": "msg_1"}

    name = await begin(house, items=[given("one")])
    await house.respond([given("two")], conversation=name)
    output = (await items_of(house, name))[-1]
    (added, _) = (await house.ask(f"{PATH}/{name}/items", {"items": [given("three"), output]}))["data"]
    items = await items_of(house, name)
    assert texts(items) == ["one", "two", "Yes.", "three", "Yes."]
    assert len({item["id"] for item in items}) == 5
    assert (items[0]["id"], items[3]["id"]) == ("msg_1", added["id"])
    for item in items:
        found = (await house.http.get(f"{PATH}/{name}/items/{item['id']}")).json()
        assert texts([found]) == texts([item])
    pages = [(await items_of(house, name, limit=1, after=item["id"])) for item in items]
    assert [texts(page) for page in pages] == [["two"], ["Yes."], ["three"], ["Yes."], []]
    removed = await house.http.delete(f"{PATH}/{name}/items/{added['id']}")
    assert removed.status_code == 200, removed.text
    assert texts(await items_of(house, name)) == ["one", "two", "Yes.", "Yes."]
    await house.respond([{"type": "item_reference", "id": items[1]["id"]}])
    assert asked(upstream.bodies[-1]) == ["two"]


async def test_gemini_s_own_door_refuses_a_conversation_with_items_that_it_cannot_read(house: House) -> None:
    name = await begin(house, items=[HELLO])
    answer = await house.gemini("x", 400, conversation=name)
    assert "/v1/responses" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        ("", [], None, "object"),
        ("", {"name": "x"}, "name", "known fields are items, metadata"),
        ("", {"metadata": {"a": 1}}, "metadata.a", "string"),
        ("", {"items": [{"role": "king", "content": "x"}]}, "items[0].role", "king"),
        ("", {"items": [HELLO] * 21}, "items", "at most 20"),
        ("/mine/items", {"items": []}, "items", "at least one"),
        ("/mine/items", {}, "items", "missing"),
        ("/mine", {}, "metadata", "missing"),
    ],
)
async def test_a_bad_request_is_named_in_openai_s_words(
    house: House, path: str, body: Any, param: str | None, words: str
) -> None:
    house.upstream(says_all("hi"))
    await house.respond("x", conversation="mine")
    answer = await house.post(f"{PATH}{path}", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert words in error["message"]
    assert len(await items_of(house, "mine")) == 2


async def test_what_is_not_on_disk_is_not_there(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await begin(house, items=[HELLO])

    async def fail() -> None:
        raise NotDurable("the disk has failed")

    with monkeypatch.context() as patched:
        patched.setattr(house.store, "sync", fail)
        answer = await house.post(f"{PATH}/{name}/items", {"items": [HELLO]})
    assert answer.status_code == 503
    assert len(await items_of(house, name)) == 1
