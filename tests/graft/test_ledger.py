"""Which of a history's turns the ledger knows, and the answers that clients give themselves."""

from collections.abc import Sequence
from typing import Any

import pytest

from addon.core.documents import Document, encode
from addon.core.placeholder import Placeholder
from addon.core.request import Request, parse
from addon.core.turns import chain_key, pair_key, visible_digest
from addon.graft.ledger import Hits, hits_of, take_answers, true_turn
from addon.graft.prefixes import SMALLEST, Prefixes
from store.base import Store
from store.models import Call, Slot, Status, Step, Turn
from tests.graft.conftest import call, model, response, user

PLACEHOLDER = Placeholder("Tool call completed: {names} [{turn_id}]")


def turn_id(n: int) -> str:
    return f"turn_{n:016x}"


def digest(content: Document) -> bytes:
    return visible_digest(content["parts"])


def keys(history: Sequence[Document]) -> list[bytes]:
    """Chain and pair of the last turn of a history of single Contents."""
    chain = b""
    for content in history:
        chain = chain_key(chain, content["role"], digest(content))
    return [chain, pair_key(digest(history[-2]), digest(history[-1]))]


async def kept(
    store: Store,
    n: int,
    history: Sequence[Document],
    *,
    session: str = "default",
    said: Document | None = None,
    **fields: Any,
) -> Call:
    """An entry of one call for the last turn of the history."""
    one = Call(
        call_id=f"call_{n}",
        session=session,
        name="f",
        args={"n": n},
        turn_id=turn_id(n),
        created_at=1e6,
        updated_at=1e6,
    )
    known = {"visible": history[-1]["parts"], "delivered": True, "user_key": digest(history[-2])}
    turn = Turn(
        turn_id=turn_id(n),
        session=session,
        steps=[Step(content=said or model(call("f", args={"n": n})), slots=[Slot(name="f", call_id=one.call_id)])],
        created_at=1e6,
        **{**known, **fields},
    )
    await store.save_turn(turn, [one], keys(history))
    return one


def read(contents: Sequence[Document]) -> Request:
    return parse(encode({"contents": list(contents)}))


async def found(store: Store, contents: Sequence[Document], session: str = "default") -> dict[int, list[str]]:
    request = read(contents)
    hits = await hits_of(store, session, request.body, request.history, PLACEHOLDER)
    return {index: [true.turn_id for true in true_turns] for index, true_turns in hits.items()}


A, B, C = user("a"), model("b"), user("c")


async def test_by_the_id_before_everything_else(store: Store) -> None:
    shown = model(PLACEHOLDER.text(["f"], turn_id(2)))
    await kept(store, 1, [A, shown])
    await kept(store, 2, [C, B])
    assert await found(store, [A, shown, C]) == {1: [turn_id(2)]}


async def test_several_ids_of_one_turn_in_their_order_and_each_once(store: Store) -> None:
    for n in (1, 2):
        await kept(store, n, [A, B])
    texts = [PLACEHOLDER.text(["f"], turn_id(n)) for n in (2, 9, 1, 2)]
    assert await found(store, [A, model(*texts), C]) == {1: [turn_id(2), turn_id(1)]}


async def test_by_all_that_stands_before_it(store: Store) -> None:
    await kept(store, 1, [A, B, C, B])
    await kept(store, 2, [C, B, C, B])
    assert await found(store, [A, B, C, B, C]) == {3: [turn_id(1)]}
    assert await found(store, [C, B, C, B, C]) == {3: [turn_id(2)]}


async def test_by_the_turn_before_it_only_if_one_can_be_meant(store: Store) -> None:
    await kept(store, 1, [A, B, C, B])
    assert await found(store, [C, B, C]) == {1: [turn_id(1)]}
    await kept(store, 2, [C, B, C, B])
    assert await found(store, [C, B, C]) == {}


async def test_a_turn_that_stands_elsewhere_for_sure_is_not_meant_by_the_turn_before(store: Store) -> None:
    await kept(store, 1, [A, B])
    assert await found(store, [A, B, A, B, A]) == {1: [turn_id(1)]}
    late = [user("x"), B, A, B, C]
    assert await found(store, late) == {3: [turn_id(1)]}


async def test_the_newest_that_was_delivered_wins(store: Store) -> None:
    await kept(store, 1, [A, B])
    await kept(store, 2, [A, B])
    await kept(store, 3, [A, B], delivered=False)
    assert await found(store, [A, B, C]) == {1: [turn_id(2)]}


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
    seen = model(call("own"))
    for n, mark in enumerate(marks, 1):
        await kept(store, n, [A, seen], said=model(call("own", **mark)))
    assert await found(store, [A, model(call("own", **own)), C]) == ({} if meant is None else {1: [turn_id(meant)]})
    if meant is None or len(marks) == 1 or own.get("id") == "x1" or own.get("signature") in ("+/8", "-_8="):
        cut = await found(store, [B, C, B, A, model(call("own", **own)), C])
        assert cut == ({} if meant is None else {4: [turn_id(meant)]}), "nor by the turn before it alone"


SAID = model(call("f"))


def after(value: Any = None, *later: Document) -> list[Document]:
    """A chat in which the client answered a call that was passed through."""
    return [A, SAID, user(response("f", value)) if value is not None else user("no"), *later]


async def went_on(store: Store, chat: list[Document]) -> list[str]:
    """Which turn the client's is found to be; its answers are taken."""
    request = read(chat)
    hits = await hits_of(store, "default", request.body, request.history, PLACEHOLDER)
    await take_answers(store, "default", request.body, request.history, hits)
    return [true.turn_id for true_turns in hits.values() for true in true_turns]


async def results(store: Store) -> list[Any]:
    return [one.result for one in (await store.calls()).items]


async def passes(store: Store, n: int, **fields: Any) -> None:
    await kept(store, n, [A, SAID], said=SAID, delivery="passthrough", **fields)


async def test_where_nothing_tells_two_chats_apart_no_answer_is_taken(store: Store) -> None:
    await passes(store, 1)
    await passes(store, 2)
    assert await went_on(store, after({"t": 1})) == []
    assert await went_on(store, after()) == [turn_id(2)], "without answers of its own the turn cannot stand"
    assert await results(store) == [None, None]
    await passes(store, 3, delivered=False)
    await store.answer("call_2", result={"t": 2})
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
    assert await went_on(store, after()) == [turn_id(2)], "without answers of its own the turn cannot stand"


async def test_the_same_chat_with_the_same_answers_again_is_the_newest(store: Store) -> None:
    for n in (1, 2):
        await passes(store, n)
        assert await went_on(store, after({"t": 1})) == [turn_id(n)]
    assert await results(store) == [{"t": 1}, {"t": 1}]
    assert await went_on(store, after()) == [turn_id(2)], "there is no difference"


async def test_what_an_answer_told_is_not_remembered_for_another_answer(store: Store) -> None:
    prefixes = Prefixes()
    long = user("x" * SMALLEST)
    for n in (1, 2):
        await kept(store, n, [long, SAID], said=SAID, delivery="passthrough")
        await store.answer(f"call_{n}", result={"t": n})
    for n in (1, 2, 1):
        body = encode({"contents": [long, SAID, user(response("f", {"t": n}))]})
        request = parse(body, (), prefixes.find("s", (), body))
        hits = await hits_of(store, "default", body, request.history, PLACEHOLDER)
        prefixes.keep("s", (), request)
        assert [true.turn_id for true in hits[1]] == [turn_id(n)]
    assert request.known is not None


async def test_what_begins_a_history_is_not_looked_for(store: Store) -> None:
    shown = model(PLACEHOLDER.text(["f"], turn_id(1)))
    await kept(store, 1, [A, shown])
    assert await found(store, [shown, C]) == {}


async def test_sessions_are_apart(store: Store) -> None:
    await kept(store, 1, [A, B], session="other")
    assert await found(store, [A, B, C]) == {}
    assert await found(store, [A, B, C], "other") == {1: [turn_id(1)]}


async def test_bare_placeholders_take_the_newest_step_after_the_same_words_for_good(store: Store) -> None:
    bare = model("Tool call completed")
    shown = model(PLACEHOLDER.text(["f"], turn_id(1)))
    await kept(store, 1, [A, shown])
    await kept(store, 2, [A, shown])
    await kept(store, 3, [C, shown])
    assert await found(store, [A, bare, C]) == {1: [turn_id(2)]}
    await kept(store, 4, [A, shown])
    assert await found(store, [A, bare, C]) == {1: [turn_id(2)]}
    assert await found(store, [user("other"), bare, C]) == {}
    unknown = model(PLACEHOLDER.text(["f"], turn_id(99)))
    assert await found(store, [A, unknown, C]) == {}


async def test_bare_placeholders_of_two_chats_after_the_same_words_mean_each_its_own_step(store: Store) -> None:
    bare = model("Tool call completed")
    shown = model(PLACEHOLDER.text(["f"], turn_id(1)))
    one, two = [user("one"), B, A], [user("two"), B, A]
    await kept(store, 1, [*one, shown])
    assert await found(store, [*one, bare, C]) == {3: [turn_id(1)]}
    await kept(store, 2, [*two, shown])
    assert await found(store, [*two, bare, C]) == {3: [turn_id(2)]}
    assert await found(store, [*one, bare, C]) == {3: [turn_id(1)]}
    await kept(store, 3, [*one, shown])
    assert await found(store, [user("three"), B, A, bare, C]) == {3: [turn_id(3)]}, "not what another chat's means"


async def test_a_bare_placeholder_is_no_step_that_the_same_history_tells_already(store: Store) -> None:
    bare, shown = model("Tool call completed"), model(PLACEHOLDER.text(["f"], turn_id(1)))
    await kept(store, 1, [A, shown])
    for chat in ([A, shown, A, bare, C], [A, bare, A, shown, C]):
        assert list((await found(store, chat)).values()) == [[turn_id(1)]]
    await kept(store, 2, [A, shown, A, shown])
    assert await found(store, [A, shown, A, bare, C]) == {1: [turn_id(1)], 3: [turn_id(2)]}


async def test_what_was_found_is_remembered_until_the_ledger_changes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await kept(store, 1, [A, B])
    request = read([A, B, C])
    looked: list[int] = []
    look_up = store.look_up

    async def noted(*args: Any, **kwargs: Any) -> Any:
        looked.append(1)
        return await look_up(*args, **kwargs)

    monkeypatch.setattr(store, "look_up", noted)

    async def look() -> Hits:
        return await hits_of(store, "default", request.body, request.history, PLACEHOLDER)

    first = await look()
    assert (await look())[1][0] is first[1][0]
    assert len(looked) == 1
    await store.answer(one.call_id, result={"r": 1})
    assert (await look())[1][0].answers == {one.call_id: {"r": 1}}
    assert len(looked) == 2


async def test_an_empty_ledger_is_not_even_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "look_up", None)
    assert await found(store, [A, model("Tool call completed"), C]) == {}


@pytest.mark.parametrize(
    ("status", "fields", "answer"),
    [
        (Status.PENDING, {}, None),
        (Status.RUNNING, {}, None),
        (Status.DONE, {"result": {"a": 1}}, {"a": 1}),
        (Status.DONE, {"result": "text"}, {"result": "text"}),
        (Status.DONE, {"result": None}, {"result": None}),
        (Status.FAILED, {"error": "broken"}, {"error": "broken"}),
        (Status.DENIED, {"error": "denied"}, {"error": "denied"}),
    ],
)
def test_a_true_turn_has_the_answers_that_there_are(status: Status, fields: Any, answer: Any) -> None:
    one = Call(
        call_id="c", session="s", name="f", args={}, turn_id="t", created_at=1, updated_at=1, status=status, **fields
    )
    thought = {"text": "Hm", "thought": True}
    entry = Turn(
        turn_id="t",
        session="s",
        visible=[thought, {"text": " Let me "}, {"text": "look. "}],
        steps=[Step(content=model(call("f")), slots=[Slot(name="f", call_id="c"), Slot(name="own")])],
        created_at=1,
    )
    true = true_turn(entry, {"c": one})
    assert true.answers == {"c": answer}
    assert true.visible_text == "Let me look."
    assert not true.passthrough
    assert true_turn(entry, {}).answers == {"c": None}


async def passed_through(store: Store, answered: Document) -> tuple[bool, Call]:
    said = model(call("f", args={"n": 1}))
    await kept(store, 1, [A, said], delivery="passthrough")
    request = read([A, said, answered])
    hits = await hits_of(store, "default", request.body, request.history, PLACEHOLDER)
    taken = await take_answers(store, "default", request.body, request.history, hits)
    return taken, await store.call("call_1")


async def test_a_clients_own_answer_is_stored_and_the_first_wins(store: Store) -> None:
    taken, one = await passed_through(store, user(response("f", {"mine": 1})))
    assert (taken, one.status, one.result) == (True, Status.DONE, {"mine": 1})
    taken, one = await passed_through(store, user(response("f", {"mine": 2})))
    assert (taken, one.result) == (False, {"mine": 1})


async def test_without_an_answer_nothing_is_stored(store: Store) -> None:
    taken, one = await passed_through(store, user("no"))
    assert (taken, one.status) == (False, Status.PENDING)


async def test_an_answer_that_comes_in_between_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = store.answer

    async def late(call_id: str, **kwargs: Any) -> Any:
        await answer(call_id, result={"first": 1})
        return await answer(call_id, **kwargs)

    monkeypatch.setattr(store, "answer", late)
    taken, one = await passed_through(store, user(response("f", {"mine": 1})))
    assert one.result == {"first": 1}
    assert not taken


async def test_what_was_found_for_the_beginning_goes_on_with_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = [user("hi"), model({"text": f"[Tool call completed: f [{turn_id(1)}]"}), user("and?")]
    await kept(store, 1, chat[:2])
    first = read(chat)
    found = await hits_of(store, "default", first.body, first.history, PLACEHOLDER)
    assert list(found) == [1]
    known = first.prefix()
    assert known is not None
    longer = encode({"contents": [*chat, model({"text": "so"}), user("more")]})
    asked: list[int] = []
    look_up = store.look_up

    async def counted(session: str, **wanted: Any) -> Any:
        asked.append(len(wanted["keys"]))
        return await look_up(session, **wanted)

    monkeypatch.setattr(store, "look_up", counted)
    second = parse(longer, (), known)
    assert await hits_of(store, "default", second.body, second.history, PLACEHOLDER) == found
    assert asked == [2]  # the new turn's chain and pair
    await kept(store, 2, [user("elsewhere"), model({"text": "other"})])
    assert list(await hits_of(store, "default", second.body, second.history, PLACEHOLDER)) == [1]
    assert asked == [2, 4]


async def test_a_turn_that_goes_on_is_looked_up_anew(store: Store) -> None:
    chat = [user("hi"), model({"text": "done"})]
    await kept(store, 1, chat)
    first = read(chat)
    assert list(await hits_of(store, "default", first.body, first.history, PLACEHOLDER)) == [1]
    known = first.prefix()
    assert known is not None
    body = encode({"contents": [*chat, model({"text": " and more"}), user("?")]})
    again = parse(body, (), known)
    assert await hits_of(store, "default", again.body, again.history, PLACEHOLDER) == {}
    assert again.history.turns[1].text == "done and more"
