"""Turns are found by the ids and signatures that clients echo, and by the answers to their calls."""

from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.core.history.keys import marks_of
from addon.graft.ledger import store_client_results
from addon.graft.ledger_evidence import Miss
from store.base import Store
from tests.contents import call, model, response, user
from tests.graft.ledgers import SAID, A, B, C, found, hits_of, kept, keys_of, missed, read, turn_id


@pytest.mark.parametrize(
    ("marks", "own", "meant"),
    [
        ([{"id": "x1"}, {"id": "x2"}], {"id": "x1"}, 1),
        ([{"id": "x1"}, {"id": "x2"}], {}, 2),
        ([{"id": "x1"}, {"id": "x2"}], {"id": "x3"}, None),
        ([{"id": "x1"}], {"id": "x3"}, None),
        ([{"signature": "-_8="}, {"signature": "c2ln"}], {"signature": "+/8"}, 1),
        ([{"signature": "-_8="}, {"signature": "c2ln"}], {"signature": "b3Ro"}, None),
        ([{"signature": "-_8="}], {"signature": "b3Ro"}, None),
        ([{}], {"signature": "b3Ro"}, None),
        ([{"signature": "-_8="}, {}], {"signature": "skip_thought_signature_validator"}, 2),
        ([{"signature": "-_8="}, {"signature": "c2ln"}], {"id": "made up", "signature": "-_8="}, 1),
        ([{"id": "x1"}, {}], {"id": "made up"}, 2),
        ([{}, {}], {"id": "made up"}, 2),
    ],
)
async def test_chats_with_the_same_words_are_told_apart_by_the_ids_and_the_signatures_that_clients_echo(
    store: Store, marks: list[dict[str, str]], own: dict[str, str], meant: int | None
) -> None:
    visible = model(call("own"))
    for n, mark in enumerate(marks, 1):
        await kept(store, n, [A, visible], true=model(call("own", **mark)))
    assert await found(store, [A, model(call("own", **own)), C]) == ({} if meant is None else {1: [turn_id(meant)]})
    echoes = own.get("id") == "x1" or own.get("signature") in ("+/8", "-_8=")
    cut = await found(store, [B, C, B, A, model(call("own", **own)), C])
    assert cut == ({4: [turn_id(1)]} if echoes else {})


async def test_marks_that_several_turns_have_tell_nothing(store: Store) -> None:
    marks = [{"id": "call_0"}, {"id": "call_0"}, {"signature": "c2ln"}, {"signature": "c2ln"}, {"signature": "b3Ro"}]
    for n, mark in enumerate(marks, 1):
        true = model(call("own", **mark), call("f", args={"n": n}))
        await kept(store, n, [user(f"{n}"), model(call("own"))], true=true)
    for mark in ({"id": "call_0"}, {"signature": "c2ln"}):
        assert await found(store, [A, model(call("own", **mark)), C]) == {}
    assert await found(store, [A, model(call("own", id="call_0", signature="b3Ro")), C]) == {1: [turn_id(5)]}
    keys = keys_of(store)
    await store.save_plain("default", [keys.mark(*mark) for mark in marks_of([model(call(signature="b3Ro"))])])
    assert await found(store, [A, model(call("own", signature="b3Ro")), C]) == {}


@pytest.mark.parametrize("mark", [{"id": "call_0"}, {"signature": "c2ln"}])
async def test_of_turns_with_the_same_history_a_mark_that_others_have_too_tells_which_it_is(
    store: Store, mark: dict[str, str]
) -> None:
    visible = model(call("own"))
    for n, (asked, marked) in enumerate(((A, mark), (A, {}), (C, mark)), 1):
        true = model(call("own", **marked), call("f", args={"n": n}))
        await kept(store, n, [asked, visible], true=true)
    assert await found(store, [A, model(call("own", **mark)), C]) == {1: [turn_id(1)]}


@pytest.mark.parametrize("mark", [{"id": "1"}, {"signature": "c2ln"}])
async def test_an_edited_turn_is_the_client_s_own_even_if_it_echoes_marks(store: Store, mark: dict[str, str]) -> None:
    given = model(call("own", args={"n": 1}, **mark))
    await kept(store, 1, [A, model(call("own", args={"n": 1}))], true=given)
    assert await found(store, [C, given, A]) == {1: [turn_id(1)]}
    assert await found(store, [C, model(call("own", args={"n": 2}, **mark)), A]) == {}


async def test_marks_of_two_turns_in_one_run_tell_nothing(store: Store) -> None:
    for n, signature in enumerate(("c2ln", "b3Ro"), 1):
        visible = {"text": "Done.", "thoughtSignature": signature}
        await kept(store, n, [A, model(visible)], true=model(call("f", args={"n": n}), visible))
    both = model({"text": "Do", "thoughtSignature": "c2ln"}, {"text": "ne.", "thoughtSignature": "b3Ro"})
    assert await found(store, [C, both, A]) == {}


def after(value: Any = None, *later: Document) -> list[Document]:
    """A chat in which the client answered a call that was passed through."""
    return [A, SAID, user(response("f", value)) if value is not None else user("no"), *later]


async def went_on(store: Store, chat: list[Document]) -> list[str]:
    """Which turn the client's is found to be; its answers are taken."""
    request = read(chat)
    hits = await hits_of(store, request)
    await store_client_results(store, "default", request.body, request.history, hits)
    return [true.turn_id for true_turns in hits.values() for true in true_turns]


async def results(store: Store) -> list[Any]:
    return [one.result for one in (await store.calls()).items]


async def passes(store: Store, n: int, **fields: Any) -> None:
    await kept(store, n, [A, SAID], true=SAID, delivery="passthrough", **fields)


async def test_no_answer_is_used_if_two_chats_cannot_be_told_apart(store: Store) -> None:
    await passes(store, 1)
    await passes(store, 2)
    assert await went_on(store, after({"t": 1})) == []
    assert await went_on(store, after()) == [turn_id(2)], "without answers of its own the turn cannot stand"
    assert await results(store) == [None, None]
    await passes(store, 3, delivered=False)
    await store.answer("default", "call_2", result={"t": 2})
    assert await went_on(store, after({"t": 1})) == [turn_id(1)], "the one that has no other answer"
    assert await results(store) == [{"t": 1}, {"t": 2}, None]


async def test_chats_with_the_same_words_are_told_apart_by_the_answers_they_had(store: Store) -> None:
    await passes(store, 1)
    assert await went_on(store, after({"t": 1})) == [turn_id(1)]
    await passes(store, 2)
    assert await went_on(store, after({"t": 1}, model("a"), user("b"))) == [turn_id(1)]
    assert await results(store) == [{"t": 1}, None], "not what the other chat was answered"
    assert await went_on(store, after({"t": 2})) == [turn_id(2)]
    assert await results(store) == [{"t": 1}, {"t": 2}]
    assert await went_on(store, after({"t": 3})) == []
    assert await missed(store, after({"t": 3})) == {"": Miss.ANSWERS}
    assert await went_on(store, after()) == [], "one of two answers"


async def test_the_same_chat_with_the_same_answers_again_is_the_newest(store: Store) -> None:
    for n in (1, 2):
        await passes(store, n)
        assert await went_on(store, after({"t": 1})) == [turn_id(n)]
    assert await results(store) == [{"t": 1}, {"t": 1}]
    assert await went_on(store, after()) == [turn_id(2)], "there is no difference"
