"""Chats of one asker that read alike, of which each keeps its own calls, whatever its client cuts, drops or changes."""

import re

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.graft.exchange import Forward
from addon.graft.machine_shell import note_answer
from addon.surfaces.incoming import Incoming, Target
from tests.contents import call, model, response, user
from tests.graft.conftest import WEATHER, Graft, answer, target

EDIT: Document = {"functionDeclarations": [{"name": "edit", "parameters": {"type": "OBJECT"}}]}
GO = user("go")


def edit(x: int, **more: object) -> Document:
    return call("edit", args={"x": x, **more})


async def answered(graft: Graft, body: Document, says: Document, to: Target | None = None) -> Document:
    """The answer to a request; its calls get results of their own."""
    outcome = await graft.request(body, to or target())
    assert isinstance(outcome, Forward)
    assert outcome.exchange is not None
    document = decode(await graft.captured(outcome.exchange, encode(says)))
    for one in await graft.calls():
        if not one.status.final:
            await graft.store.answer(one.session, one.call_id, result=f"result {one.args}")
    content = (document.get("response") or document)["candidates"][0]["content"]
    assert isinstance(content, dict)
    return content


def asked(*contents: Document) -> Document:
    return {"contents": list(contents), "tools": [EDIT]}


async def sent(graft: Graft, body: Document, to: Target | None = None) -> str:
    return encode(await graft.sent(body, to or target())).decode()


@pytest.mark.parametrize("proof", ["judged", "strict"])
@pytest.mark.parametrize("hides", [True, False], ids=["own call", "no call"])
@pytest.mark.parametrize("ids", [{}, {"id": "call_0"}], ids=["no id", "counted id"])
async def test_a_cut_history_is_not_another_chat_s_that_began_with_these_words(
    graft: Graft, proof: str, hides: bool, ids: Document
) -> None:
    await graft.tools(WEATHER, client_tools="keep", delivery="placeholder", proof=proof)

    def edited(x: int) -> Document:
        return call("edit", args={"x": x}, **ids)

    await answered(graft, asked(GO), answer(call(args={"city": "Bergen"}), edited(2)))
    own = [call(args={"city": "Arendal"})] if hides else []
    await answered(graft, asked(user("hello"), model("hi"), GO), answer(*own, edited(1)))
    cut = asked(GO, model(edited(1)), user(response("edit", {"r": 1}, **ids)))
    assert "Bergen" not in await sent(graft, cut)


async def test_a_cut_history_of_many_words_is_its_own_if_another_chat_began_with_them(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep", delivery="placeholder")
    words = user("Please rename the module of invoices to billing and check the weather in Paris first")
    await answered(graft, asked(words), answer(call(args={"city": "Bergen"}), edit(2)))
    await answered(graft, asked(user("hello"), model("hi"), words), answer(call(args={"city": "Arendal"}), edit(1)))
    cut = await sent(graft, asked(words, model(edit(1)), user(response("edit", {"r": 1}))))
    assert "Arendal" in cut
    assert "Bergen" not in cut


async def test_a_noted_answer_with_changed_arguments_is_no_other_answer(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep", delivery="placeholder")
    await answered(graft, asked(GO), answer(call(args={"city": "Bergen"}), edit(2)))
    exchange = await graft.exchange(asked(GO))
    await note_answer(graft.grafter, exchange, "application/json", encode(answer(edit(1, n=None))))
    assert "Bergen" not in await sent(graft, asked(GO, model(edit(1)), user(response("edit", {"r": 1}))))


async def test_a_branch_of_a_chat_with_a_name_keeps_its_own_call(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep", delivery="placeholder")
    to = target(surface="codeassist")

    def named(*contents: Document) -> Document:
        return {"project": "p", "model": "gemini-2.5-flash", "request": {"session_id": "s1", **asked(*contents)}}

    for x, city in ((1, "Arendal"), (2, "Bergen")):
        await answered(graft, named(GO), {"response": answer(call(args={"city": city}), edit(x, n=None))}, to)
    assert "Bergen" not in await sent(graft, named(GO, model(edit(1)), user(response("edit", {"r": 1}))), to)


def without_id(content: Document) -> Document:
    return model(re.sub(r" \[turn_\w+\]", "", content["parts"][0]["text"]))


@pytest.mark.parametrize("way", ["captured", "noted"])
async def test_an_imitated_line_is_no_call_when_the_client_drops_ids_later(graft: Graft, way: str) -> None:
    await graft.tools(WEATHER, delivery="placeholder")
    first = await answered(graft, {"contents": [GO]}, answer(call(args={"c": 1})))
    history, line = [GO, first, user("again")], without_id(first)
    says = answer(line["parts"][0]["text"])
    if way == "captured":
        await answered(graft, {"contents": history}, says)
    else:
        exchange = await graft.exchange({"contents": history})
        await note_answer(graft.grafter, exchange, "application/json", encode(says))
    other = without_id(await answered(graft, {"contents": [GO]}, answer(call(args={"c": 1}))))
    await answered(graft, {"contents": [GO, other, user("again")]}, answer(call(args={"c": "other"})))
    chat = [GO, without_id(first), user("again"), line, user("so?")]
    assert "other" not in await sent(graft, {"contents": chat})


async def test_a_request_that_is_not_grafted_is_of_the_one_asker_too(graft: Graft) -> None:
    await graft.tools(WEATHER, askers="one")
    config = await graft.grafter.session_config("default")
    assert config is not None
    body = {"contents": [GO]}
    grafted = await graft.exchange(body, asker="key:one")
    for asker in ("key:one", "key:two"):
        incoming = Incoming(target=target(), session="default", body=encode(body), asker=asker)
        ungrafted = graft.grafter.ungrafted(incoming, config)
        assert ungrafted is not None
        assert ungrafted.keys.asker == grafted.keys.asker


@pytest.mark.parametrize("proof", ["judged", "strict"])
async def test_a_policy_says_whether_words_prove_anything(graft: Graft, proof: str) -> None:
    words = user("Please send the invoice for March to Anna, and keep a copy of it.")
    done = "I have sent the invoice for March to Anna, and kept a copy."
    await graft.tools(WEATHER, client_tools="keep", delivery="passthrough", proof=proof)
    signed = call(args={"n": 1}, signature="c2ln" * 6)
    await answered(graft, {"contents": [user("hi"), model("yes"), words]}, answer(done, signed))
    cut = [words, model(done, call(args={"n": 1})), user(response(value={"r": 1}))]
    assert ("c2ln" in await sent(graft, {"contents": cut})) is (proof == "judged")
