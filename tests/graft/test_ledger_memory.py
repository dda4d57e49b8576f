"""What was found is remembered until a write concerns it."""

from typing import Any

import pytest

from addon.core.framing.documents import encode
from addon.core.history.request import parse
from addon.core.history.steps import TrueTurn
from addon.graft.ledger import SMALLEST, Prefixes
from addon.graft.ledger_search import TrueTurns
from store.base import Store
from store.budget import Budget
from tests.contents import model, response, user
from tests.graft import ledgers
from tests.graft.ledgers import (
    ASKED,
    DONE,
    MOVED,
    PLACEHOLDER,
    SAID,
    SAID_SO,
    YES,
    A,
    B,
    C,
    found,
    hits_of,
    kept,
    keys_of,
    plain,
    read,
    turn_id,
)


async def test_a_finding_by_one_answer_is_not_remembered_for_another(store: Store) -> None:
    prefixes = Prefixes(Budget())
    long = user("x" * SMALLEST)
    for n in (1, 2):
        await kept(store, n, [long, SAID], true=SAID, delivery="passthrough")
        await store.answer("default", f"call_{n}", result={"t": n})
    for n in (1, 2, 1):
        body = encode({"contents": [long, SAID, user(response("f", {"t": n}))]})
        request = parse(body, (), prefixes.find("s", (), body))
        hits = await hits_of(store, request)
        prefixes.keep("s", (), request)
        assert [true.turn_id for true in hits[1]] == [turn_id(n)]
    assert request.known_prefix is not None


@pytest.mark.parametrize(("limit", "is_kept"), [(200_000, True), (60_000, False)])
async def test_true_turns_that_take_much_memory_are_looked_up_again(store: Store, limit: int, is_kept: bool) -> None:
    long = user("x" * SMALLEST)
    one = await kept(store, 1, [long, B])
    await store.answer("default", one.call_id, result={"r": "z" * 10_000})
    prefixes = Prefixes(budget := Budget(limit))
    found: list[TrueTurn] = []
    for text in ("a", "b", "c"):
        body = encode({"contents": [long, B, user(text)]})
        request = parse(body, (), prefixes.find("s", (), body))
        found += (await hits_of(store, request))[1]
        prefixes.keep("s", (), request)
    assert request.known_prefix is not None
    assert (found[0] is found[2]) is is_kept
    assert found[0].responses == found[2].responses
    assert (budget.sizes()["restored"] > 0) is is_kept


class Looks:
    """How often the ledger was looked at for a history, and for how many of its turns."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[int] = []
        look_up = store.look_up

        async def noted(session: str, **wanted: Any) -> Any:
            if "known" in wanted:
                self.turns.append(len(wanted["known"]))
            return await look_up(session, **wanted)

        monkeypatch.setattr(store, "look_up", noted)

    def since(self) -> list[int]:
        looked_up, self.turns = self.turns, []
        return looked_up


async def test_a_finding_is_remembered_until_a_write_concerns_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks(store, monkeypatch)
    one = await kept(store, 1, [A, B])
    request = read([A, B, A, DONE, C])
    first = await hits_of(store, request)
    assert list(first) == [1]
    assert looks.since() == [2]
    await kept(store, 2, [ASKED, SAID_SO])
    await plain(store, [MOVED, SAID_SO])
    await store.answer("default", "call_2", result={"r": 2})
    assert (await hits_of(store, request))[1][0] is first[1][0]
    assert looks.since() == [], "of another chat"
    await store.answer("default", one.call_id, result={"r": 1})
    assert (await hits_of(store, request))[1][0].responses == {one.call_id: {"response": {"r": 1}}}
    assert looks.since() == [1], "its result"
    await kept(store, 3, [A, B, A, DONE])
    assert list(await hits_of(store, request)) == [1, 3]
    assert looks.since() == [1], "its words"
    await plain(store, [A, B])
    assert list(await hits_of(store, request)) == [3]
    assert looks.since() == [1], "a turn without calls"


async def test_a_finding_from_several_turns_is_checked_again_with_each(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in (1, 2):
        await kept(store, n, [A, B], args={"x": 1})
    looks = Looks(store, monkeypatch)
    request = read([A, B, C])
    assert list(await hits_of(store, request)) == [1]
    await store.answer("default", "call_1", result={"r": 1})
    assert await hits_of(store, request) == {}
    await store.answer("default", "call_2", result={"r": 1})
    assert list(await hits_of(store, request)) == [1]
    assert looks.since() == [1, 1, 1]


async def test_a_turn_is_known_by_its_id_in_other_histories_too_until_a_write_concerns_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = TrueTurns(store, Budget(12 * 40_000))
    visible_turn, other = (model(PLACEHOLDER.text(["f"], turn_id(n))) for n in (1, 2))
    one = await kept(store, 1, [A, visible_turn])
    await kept(store, 1, [A, visible_turn], session="other")
    look_up, asked = store.look_up, list[str]()

    async def noted(session: str, **wanted: Any) -> Any:
        asked.extend(wanted.get("turn_ids", ()))
        return await look_up(session, **wanted)

    monkeypatch.setattr(store, "look_up", noted)

    async def found_after(text: str, session: str = "default") -> list[TrueTurn]:
        asked.clear()
        request = read([user(text), B, A, visible_turn, C])
        hits = await ledgers.look_up(store, request, session, keys_of(store), cache=known)
        return list(hits.get(3, ()))

    (first,) = await found_after("one chat")
    assert asked == [turn_id(1)]
    assert await found_after("another chat") == [first]
    await kept(store, 2, [A, other])
    await plain(store, [A, SAID_SO])
    assert await found_after("a third one") == [first]
    assert asked == [], "no write concerned it"
    assert (await found_after("a third one", "other"))[0] is not first
    await store.answer("default", one.call_id, result={"r": "z" * 10_000})
    (answered,) = await found_after("one chat")
    assert answered.responses == {one.call_id: {"response": {"r": "z" * 10_000}}}
    assert await found_after("another chat") != [answered], "it takes too much memory"
    await store.delete_session("default")
    assert await found_after("one chat") == []


async def test_an_id_that_is_not_known_yet_is_looked_for_again(store: Store) -> None:
    await kept(store, 1, [A, B])
    request = read([A, model(PLACEHOLDER.text(["f"], turn_id(2))), C])
    assert await hits_of(store, request) == {}
    await kept(store, 2, [A, model(PLACEHOLDER.text(["f"], turn_id(2)))])
    assert list(await hits_of(store, request)) == [1]


async def test_writes_that_are_not_known_any_more_concern_everything(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(store, monkeypatch)
    await kept(store, 1, [A, B])
    request = read([A, B, C])
    await hits_of(store, request)
    monkeypatch.setattr(store, "changes", lambda session, since: None)
    await kept(store, 2, [ASKED, SAID_SO])
    assert list(await hits_of(store, request)) == [1]
    assert looks.since() == [1, 1]


async def test_a_finding_for_one_asker_is_not_for_another(store: Store) -> None:
    one, other = {"asker": "key:one"}, {"asker": "key:other"}
    await kept(store, 1, [A, B], root=one)
    request = read([A, B, C])
    for _ in range(2):
        assert list(await hits_of(store, request, **one)) == [1]
        assert await hits_of(store, request, **other) == {}
        assert await hits_of(store, request, **one, instruction="Be rude.") == {}
        assert await hits_of(store, request, **one, name="a chat") == {}


async def test_a_proof_by_words_is_remembered_under_any_system_instruction(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(store, monkeypatch)
    await kept(store, 1, [ASKED, SAID_SO])
    request = read([ASKED, SAID_SO, YES, DONE, C])
    for minute in range(3):
        assert list(await hits_of(store, request, instruction=f"It is 10:{minute}.")) == [1]
    assert looks.since() == [2]


async def test_an_empty_ledger_is_not_even_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "look_up", None)
    assert await found(store, [A, model("Tool call completed"), C]) == {}


async def test_findings_for_a_beginning_stay_with_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = [user("hi"), model({"text": f"[Tool call completed: f [{turn_id(1)}]"}), user("and?")]
    await kept(store, 1, chat[:2])
    first = read(chat)
    found = await hits_of(store, first)
    assert list(found) == [1]
    known = first.prefix()
    assert known is not None
    longer = encode({"contents": [*chat, model({"text": "so"}), user("more")]})
    looks = Looks(store, monkeypatch)
    second = parse(longer, (), known)
    assert await hits_of(store, second) == found
    assert looks.since() == [1], "the new turn"
    await kept(store, 2, [user("elsewhere"), model({"text": "so"})])
    assert list(await hits_of(store, second)) == [1]
    assert looks.since() == [1]


async def test_a_turn_that_goes_on_is_looked_up_anew(store: Store) -> None:
    chat = [user("hi"), model({"text": "done"})]
    await kept(store, 1, chat)
    first = read(chat)
    assert list(await hits_of(store, first)) == [1]
    known = first.prefix()
    assert known is not None
    body = encode({"contents": [*chat, model({"text": " and more"}), user("?")]})
    reparsed = parse(body, (), known)
    assert await hits_of(store, reparsed) == {}
    assert reparsed.history.turns[1].text == "done and more"
