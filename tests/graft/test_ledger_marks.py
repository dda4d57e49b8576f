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

ONE, TWO, THREE, SHORT = "-_8-" * 6, "c2ln" * 6, "b3Ro" * 6, "c2ln"
"""Signatures. The short one could be guessed."""


@pytest.mark.parametrize(
    ("marks", "own", "meant"),
    [
        ([{"id": "x1"}, {"id": "x2"}], {"id": "x1"}, 1),
        ([{"id": "x1"}, {"id": "x2"}], {}, 2),
        ([{"id": "x1"}, {"id": "x2"}], {"id": "x3"}, None),
        ([{"id": "x1"}], {"id": "x3"}, None),
        ([{"signature": ONE}, {"signature": TWO}], {"signature": "+/8+" * 6}, 1),
        ([{"signature": ONE}, {"signature": TWO}], {"signature": THREE}, None),
        ([{"signature": ONE}], {"signature": THREE}, None),
        ([{}], {"signature": THREE}, None),
        ([{"signature": ONE}, {}], {"signature": "skip_thought_signature_validator"}, 2),
        ([{"signature": ONE}, {"signature": TWO}], {"id": "made up", "signature": ONE}, 1),
        ([{"signature": SHORT}, {"signature": TWO}], {"signature": SHORT}, 1),
        ([{"id": "x1", "signature": SHORT}, {"id": "x2", "signature": SHORT}], {"id": "x2", "signature": SHORT}, 2),
        ([{"id": "x1"}, {}], {"id": "made up"}, 2),
        ([{}, {}], {"id": "made up"}, 2),
    ],
)
async def test_chats_with_the_same_words_are_told_apart_by_the_ids_and_the_signatures_that_clients_echo(
    store: Store, marks: list[dict[str, str]], own: dict[str, str], meant: int | None
) -> None:
    """Every mark chooses among turns with the same history; only one that nobody can guess also proves a turn of a
    history that was cut."""
    visible = model(call("own"))
    for n, mark in enumerate(marks, 1):
        await kept(store, n, [A, visible], true=model(call("own", **mark)))
    assert await found(store, [A, model(call("own", **own)), C]) == ({} if meant is None else {1: [turn_id(meant)]})
    cut = await found(store, [B, C, B, A, model(call("own", **own)), C])
    assert cut == ({4: [turn_id(1)]} if own.get("signature") in (ONE, "+/8+" * 6) else {})


@pytest.mark.parametrize("mark", [{"id": "call_0"}, {"signature": ONE}])
async def test_a_mark_proves_nothing_to_another_asker(store: Store, mark: dict[str, str]) -> None:
    visible = model(call("own", **mark))
    await kept(store, 1, [A, visible], true=visible, root={"asker": "key:one"})
    for chat in ([A, visible, C], [C, B, A, visible, C]):
        assert await found(store, chat, asker="key:two") == {}
    assert await found(store, [A, visible, C], asker="key:one") == {1: [turn_id(1)]}


async def test_ids_that_are_counted_in_every_chat_are_no_proof(store: Store) -> None:
    visible = model(call("own", id="call_0"))
    await kept(store, 1, [user("hi"), B, A, visible], true=visible)
    assert await found(store, [user("hello"), B, A, visible, C]) == {}


async def test_marks_that_several_turns_have_tell_nothing(store: Store) -> None:
    marks = [{"id": "call_0"}, {"id": "call_0"}, {"signature": TWO}, {"signature": TWO}, {"signature": THREE}]
    for n, mark in enumerate(marks, 1):
        true = model(call("own", **mark), call("f", args={"n": n}))
        await kept(store, n, [C, B, A, model(call("own"))], true=true)
    for mark in ({"id": "call_0"}, {"signature": TWO}):
        assert await found(store, [A, model(call("own", **mark)), C]) == {}
    assert await found(store, [A, model(call("own", id="call_0", signature=THREE)), C]) == {1: [turn_id(5)]}
    keys = keys_of(store)
    await store.save_plain("default", [keys.mark(*mark) for mark in marks_of([model(call(signature=THREE))])])
    assert await found(store, [A, model(call("own", signature=THREE)), C]) == {}


@pytest.mark.parametrize("mark", [{"id": "call_0"}, {"signature": TWO}])
async def test_of_turns_with_the_same_history_a_mark_that_others_have_too_tells_which_it_is(
    store: Store, mark: dict[str, str]
) -> None:
    visible = model(call("own"))
    for n, (asked, marked) in enumerate(((A, mark), (A, {}), (C, mark)), 1):
        true = model(call("own", **marked), call("f", args={"n": n}))
        await kept(store, n, [asked, visible], true=true)
    assert await found(store, [A, model(call("own", **mark)), C]) == {1: [turn_id(1)]}


async def test_an_edited_or_moved_turn_is_the_client_s_own_even_if_it_echoes_marks(store: Store) -> None:
    given = model(call("own", args={"n": 1}, signature=TWO))
    await kept(store, 1, [A, model(call("own", args={"n": 1}))], true=given)
    assert await found(store, [C, B, A, given, C]) == {3: [turn_id(1)]}
    changed = model(call("own", args={"n": 1, "unit": "C"}, signature=TWO))
    assert await found(store, [C, B, A, changed, A]) == {3: [turn_id(1)]}, "clients fill in defaults"
    for edited in (model("so", call("own", signature=TWO)), model(call("owner", signature=TWO))):
        assert await found(store, [C, B, A, edited, A]) == {}
    assert await found(store, [C, changed, A]) == {}
    assert await found(store, [C, given, A]) == {}


async def test_a_signed_turn_with_calls_is_found_if_the_client_drops_the_text_beside_them(store: Store) -> None:
    """As clients of chat completions do, whose `content` is then null."""
    await kept(store, 1, [A, model("Look.", call("own", signature=TWO))])
    for texts, expected in (((), {3: [turn_id(1)]}), (("Look.",), {3: [turn_id(1)]}), (("Hm.",), {})):
        assert await found(store, [C, B, A, model(*texts, call("own", signature=TWO)), C]) == expected
    assert await found(store, [C, B, C, model(call("own", signature=TWO)), C]) == {}


async def test_marks_of_two_turns_in_one_run_tell_nothing(store: Store) -> None:
    for n, signature in enumerate((TWO, THREE), 1):
        visible = {"text": "Done.", "thoughtSignature": signature}
        await kept(store, n, [A, model(visible)], true=model(call("f", args={"n": n}), visible))
    both = model({"text": "Do", "thoughtSignature": TWO}, {"text": "ne.", "thoughtSignature": THREE})
    assert await found(store, [C, B, A, both, C]) == {}


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
