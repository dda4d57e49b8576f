"""Items that a client refers to, or sends again."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.fake_gemini.server import StrictGemini
from addon.gateway.items import ItemIds
from tests.gateway.conftest import House
from tests.gateway.test_responses import TOOLS, TWO, calls, output, text

PIXEL = "data:image/png;base64,iVBORw0KGgo="


def to(item: Document) -> Document:
    return {"type": "item_reference", "id": item["id"]}


async def input_of(home: House, response: Document) -> list[Document]:
    listed = await home.http.get(f"/v1/responses/{response['id']}/input_items?order=asc")
    found: list[Document] = listed.json()["data"]
    return found


@pytest.mark.parametrize("more", [{"type": "item_reference"}, {}, {"type": None}])
async def test_a_history_of_references_is_the_history_itself(home: House, gemini: StrictGemini, more: Document) -> None:
    def given(item: Document) -> Document:
        return {"id": item["id"], **more}

    question = {
        "role": "user",
        "content": [{"type": "input_text", "text": TWO}, {"type": "input_image", "image_url": PIXEL}],
    }
    asked = await home.respond([question], tools=TOOLS)
    one, other = calls(asked)
    (stored,) = await input_of(home, asked)
    await home.restart()
    items = [given(stored), given(one), given(other), output(one, a=1), output(other, b=2)]
    answered = await home.respond(items, tools=TOOLS)
    sent = gemini.requests[-1]["body"]["contents"]
    assert [content["role"] for content in sent] == ["user", "model", "user"]
    assert sent[0]["parts"][0] == {"text": TWO}
    assert sent[0]["parts"][1]["inlineData"]["data"] == PIXEL.partition(",")[2]
    (message,) = [item for item in answered["output"] if item["type"] == "message"]
    outputs = [item for item in await input_of(home, answered) if item["type"] == "function_call_output"]
    items = [*items[:3], *map(given, outputs), given(message), {"role": "user", "content": "Thanks."}]
    await home.respond(items, tools=TOOLS)
    assert [content["role"] for content in gemini.requests[-1]["body"]["contents"]][3:] == ["model", "user"]
    assert (gemini.refused, gemini.dummy_signatures) == ([], 0)


async def test_the_items_of_a_list_are_those_that_were_meant(home: House) -> None:
    first = await home.respond("My name is Ada.")
    answered = await home.respond([to(first["output"][0]), {"role": "user", "content": "Hi."}])
    listed = (await input_of(home, answered))[0]
    assert [listed[name] for name in ("id", "role", "status")] == [first["output"][0]["id"], "assistant", "completed"]
    assert text({"output": [listed]}) == text(first)


@pytest.mark.parametrize("item_id", ["x", "msg_1", "msg_" + "0" * 52, "msg_" + "é" * 48 + "0001", "", None, 7, ["a"]])
async def test_an_unknown_item_is_named(home: House, item_id: Any) -> None:
    given = [{"role": "user", "content": "Hi."}, {"type": "item_reference", "id": item_id}]
    error = (await home.respond(given, status=404))["error"]
    assert (error["param"], error["code"]) == ("input[1].id", "not_found")
    assert f"Item with id '{item_id}' not found" in error["message"]


@pytest.mark.parametrize("more", [{"type": "item_reference", "status": "completed"}, {"content": "Bye."}])
async def test_a_reference_has_an_id_and_nothing_else(home: House, gemini: StrictGemini, more: Document) -> None:
    first = await home.respond("Hi.")
    given = {"role": "user", "content": "Ho."}
    error = (await home.respond([{"id": first["output"][0]["id"], **more}, given], 400))["error"]
    assert (error["param"], error["code"]) == (f"input[0].{[*more][-1]}", "unknown_parameter")
    assert len(gemini.requests) == 1


async def test_items_of_others_deleted_and_unstored_responses_are_unknown(home: House) -> None:
    deleted, unstored = await home.respond("Hi."), await home.respond("Hi.", store=False)
    assert (await home.http.delete(f"/v1/responses/{deleted['id']}")).status_code == 200
    theirs = (await home.post("/v1/responses", {"model": "gemini-3-flash", "input": "Hi."}, x_graft_session="b")).json()
    for response in (deleted, unstored, theirs):
        error = (await home.respond([to(response["output"][0])], status=404))["error"]
        assert response["output"][0]["id"] in error["message"]


async def test_references_count_as_what_they_refer_to(tmp_path: Path, gemini: StrictGemini) -> None:
    """A short request could otherwise become one that no memory can hold."""
    home = House(state=tmp_path, upstream=gemini.url, max_body=10_000)
    await home.open()
    image = "data:image/png;base64," + "A" * 2000
    question = {"role": "user", "content": [{"type": "input_image", "image_url": image}]}
    (stored,) = await input_of(home, await home.respond([question]))
    error = (await home.respond([{"role": "user", "content": "Hi."}, *[to(stored)] * 6], status=413))["error"]
    assert error["param"] == "input[5].id"
    assert "graft_max_body, 10000 bytes" in error["message"]
    assert len(gemini.requests) == 1
    await home.close()


async def test_the_first_unknown_reference_ends_the_search(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for: list[str] = []
    find = home.store.responses

    async def responses(session: str, response_ids: Collection[str]) -> Any:
        looked_for.extend(response_ids)
        return await find(session, response_ids)

    monkeypatch.setattr(home.store, "responses", responses)
    unknown = [{"type": "item_reference", "id": f"msg_{n:048x}0001"} for n in range(1000)]
    assert (await home.respond(unknown, status=404))["error"]["param"] == "input[0].id"
    assert len(looked_for) <= 50


def test_ids_are_different_and_know_their_response() -> None:
    ids = ItemIds("resp_" + "ab" * 24)
    assert [ids("msg"), ids("fc"), ids("msg")] == [
        f"{kind}_{'ab' * 24}{n:04x}" for n, kind in ((1, "msg"), (2, "fc"), (3, "msg"))
    ]


@pytest.mark.parametrize("together", [True, False])
async def test_a_question_that_comes_again_with_the_outputs_is_not_asked_twice(
    home: House, gemini: StrictGemini, together: bool
) -> None:
    """So does the AI SDK with a conversation."""
    question = {"role": "user", "content": [{"type": "input_text", "text": TWO}]}
    asked = await home.respond([question], tools=TOOLS, conversation="c")
    one, other = calls(asked)
    if together:
        answered = await home.respond([question, output(one, a=1), output(other, b=2)], conversation="c")
    else:
        await home.respond([question, output(one, a=1)], conversation="c")
        answered = await home.respond([question, to(other), output(other, b=2)], conversation="c")
    assert text(answered)
    sent = gemini.requests[-1]["body"]["contents"]
    assert [content["role"] for content in sent] == ["user", "model", "user"]
    assert all("functionResponse" in part for part in sent[2]["parts"])
    assert gemini.refused == []


async def test_another_question_with_the_outputs_is_asked(home: House, gemini: StrictGemini) -> None:
    asked = await home.respond(TWO, tools=TOOLS, conversation="c")
    one, other = calls(asked)
    words = {"role": "user", "content": "And be brief."}
    await home.respond([words, output(one, a=1), output(other, b=2)], conversation="c")
    assert gemini.requests[-1]["body"]["contents"][2]["parts"][-1] == {"text": "And be brief."}
