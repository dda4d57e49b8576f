"""Turns of histories that were cut or edited are found by words that cannot be a coincidence."""

from collections.abc import Sequence

import pytest

from addon.core.framing.documents import Document, encode
from addon.core.history.request import parse
from addon.graft.ledger_evidence import Miss
from store.base import MATCHES, Store
from tests.contents import model, user
from tests.graft.ledgers import (
    ASKED,
    DONE,
    MOVED,
    PLACEHOLDER,
    SAID_SO,
    YES,
    A,
    B,
    C,
    found,
    hits_of,
    kept,
    missed,
    plain,
    read,
    turn_id,
)


async def test_a_history_that_was_cut_is_known_by_enough_words(store: Store) -> None:
    await kept(store, 1, [A, B, YES, DONE])
    await kept(store, 2, [A, B, MOVED, DONE])
    assert await found(store, [YES, DONE, C]) == {}, "a coincidence"
    assert await missed(store, [YES, DONE, C]) == {"Done.": Miss.CONTEXT}
    assert await found(store, [MOVED, DONE, C]) == {1: [turn_id(2)]}
    assert await found(store, [MOVED, DONE, C], asker="key:other") == {}
    await plain(store, [C, B, MOVED, DONE])
    assert await found(store, [MOVED, DONE, C]) == {}
    assert await found(store, [A, B, MOVED, DONE, C]) == {3: [turn_id(2)]}


async def test_short_phrases_are_no_evidence_however_many_there_are(store: Store) -> None:
    chat = [part for n in range(6) for part in (user(f"go on {n}{n}"), model(f"ok {n}{n} then"))]
    await kept(store, 1, [A, B, *chat])
    assert await found(store, [*chat, C]) == {}


@pytest.mark.parametrize("changed", [{"instruction": "It is 10:01."}, {"name": "resumed"}])
async def test_words_decide_if_the_system_instruction_or_the_name_has_changed(
    store: Store, changed: dict[str, str]
) -> None:
    root = {"instruction": "It is 10:00.", "name": "one" if "name" in changed else ""}
    await kept(store, 1, [ASKED, DONE], root=root)
    await kept(store, 2, [A, B], root=root)
    assert await found(store, [ASKED, DONE, C], **root | changed) == {1: [turn_id(1)]}
    assert await found(store, [A, B, C], **root | changed) == {}
    await kept(store, 3, [ASKED, DONE], root=root)
    assert await found(store, [ASKED, DONE, C], **root | changed) == {}


async def test_after_an_edit_a_turn_is_known_by_its_own_words(store: Store) -> None:
    await kept(store, 1, [A, B, ASKED, SAID_SO])
    await kept(store, 2, [A, B, ASKED, DONE])
    edited = [C, B, ASKED]
    assert await found(store, [*edited, SAID_SO, C]) == {3: [turn_id(1)]}
    assert await found(store, [*edited, DONE, C]) == {}
    assert await found(store, [*edited, SAID_SO, C, SAID_SO, C]) == {}, "it was said once"
    assert await found(store, [A, B, ASKED, SAID_SO, C, SAID_SO, C]) == {3: [turn_id(1)]}, "and there"
    await plain(store, [MOVED, SAID_SO])
    assert await found(store, [*edited, SAID_SO, C]) == {}
    assert await missed(store, [*edited, SAID_SO, C]) == {SAID_SO["parts"][0]["text"]: Miss.PLAIN}


async def test_turns_between_those_that_are_known_are_known_too(store: Store) -> None:
    chat = [A, B, YES, DONE, ASKED, SAID_SO, YES, DONE]
    await kept(store, 1, chat[:4])
    await kept(store, 2, chat[:6])
    await kept(store, 3, chat)
    for n in (4, 5):
        await kept(store, n, [C, *chat[1 : 6 if n == 5 else 2], YES, DONE])
    cut = [user("What was before."), B, *chat[2:]]
    assert await found(store, [*cut, C]) == {5: [turn_id(2)], 7: [turn_id(3)]}, "who said yes first is not known"
    edited = [A, B, YES, DONE, user("(edited)"), SAID_SO, YES, DONE]
    assert await found(store, [*edited, C]) == {3: [turn_id(1)], 5: [turn_id(2)], 7: [turn_id(3)]}
    edited[6] = user("no")
    assert await found(store, [*edited, C]) == {3: [turn_id(1)], 5: [turn_id(2)]}


async def test_turns_without_calls_tell_what_is_around_them(store: Store) -> None:
    chat = [A, B, YES, SAID_SO, YES, DONE]
    await plain(store, chat[:4])
    await kept(store, 1, chat)
    await kept(store, 2, [C, B, YES, DONE])
    assert await found(store, [user("before"), B, *chat[2:], C]) == {5: [turn_id(1)]}
    await plain(store, [ASKED, SAID_SO])
    assert await found(store, [user("before"), B, *chat[2:], C]) == {}, "two chats said so"


async def test_the_next_words_identify_a_turn_after_edited_words(store: Store) -> None:
    """Though many turns read as it does: with the words in between, the history of one alone is that of the next."""
    chat = [A, B, ASKED, DONE, YES, SAID_SO]
    await kept(store, 1, chat[:4])
    await plain(store, chat)
    for n in range(2, MATCHES + 4):
        await kept(store, n, [user(f"about {n}"), DONE])
    edited = [A, B, user("(edited)"), *chat[3:], C]
    assert await found(store, edited) == {3: [turn_id(1)]}
    assert await found(store, edited[2:]) == {1: [turn_id(1)]}, "it was cut as well"
    assert await found(store, [*edited[:4], user("no"), SAID_SO, C]) == {}
    await plain(store, chat[:4])
    assert await found(store, edited) == {}, "another answer to the same words had no calls"


async def test_the_next_words_do_not_identify_a_turn_that_also_ends_another_history(store: Store) -> None:
    """A chat that was cut went on from the very words with which another had begun; then they were edited."""
    await kept(store, 1, [A, B, ASKED, DONE])
    await kept(store, 2, [ASKED, DONE])
    await plain(store, [ASKED, DONE, YES, SAID_SO])
    assert await found(store, [user("(edited)"), DONE, YES, SAID_SO, C]) == {}


async def test_the_next_words_identify_no_turn_whose_record_lacks_its_history(store: Store) -> None:
    """As earlier versions wrote it: which entries end like it cannot be looked up."""
    chat = [A, B, ASKED, DONE, YES, SAID_SO]
    await kept(store, 1, chat[:4], pair=b"")
    await plain(store, chat)
    assert await found(store, [A, B, user("(edited)"), *chat[3:], C]) == {}


async def test_what_was_said_next_tells_such_a_turn_if_the_question_before_it_has_not_changed(store: Store) -> None:
    chat = [A, B, ASKED, DONE, YES, SAID_SO]
    await kept(store, 1, chat[:4], pair=b"")
    await plain(store, chat)
    edited = [user("(edited)"), *chat[1:], C]
    assert await found(store, edited) == {3: [turn_id(1)]}
    await plain(store, [C, B, ASKED, DONE])
    assert await found(store, edited) == {}, "another answer to the same question had no calls"


async def test_a_turn_without_calls_behind_a_known_one_is_no_other_chat_s_whatever_follows_it(store: Store) -> None:
    chat, other = [A, B, ASKED, SAID_SO, user("no"), DONE], [C, B, YES, DONE, *WEATHER]
    await kept(store, 1, chat[:4])
    await kept(store, 2, other[:4])
    await plain(store, other)
    mixed = [user("before"), B, *chat[2:], *WEATHER, C]
    assert await found(store, mixed) == {3: [turn_id(1)], 5: [turn_id(2)]}
    await plain(store, chat)
    assert await found(store, mixed) == {3: [turn_id(1)]}


async def test_a_turn_that_the_client_sends_twice_is_an_entry_once(store: Store) -> None:
    """The one with the entry's signature is it, although the other stands where the entry stood."""
    chat = [A, B, ASKED, SAID_SO, YES, DONE]
    signed = model({"text": "Done.", "thoughtSignature": "c2ln" * 6})
    await kept(store, 1, chat[:4])
    await kept(store, 2, chat, true=signed)
    cut = [user("before"), B, *chat[2:]]
    assert await found(store, [*cut, C]) == {3: [turn_id(1)], 5: [turn_id(2)]}
    assert await found(store, [*cut, YES, signed, C]) == {3: [turn_id(1)], 7: [turn_id(2)]}


async def test_in_a_chat_with_a_name_a_neighbour_tells_the_newest_of_regenerated_answers(store: Store) -> None:
    chat, root = [A, B, ASKED, SAID_SO, YES, DONE], {"name": "chat"}
    await kept(store, 1, chat[:4], root=root)
    for n in (2, 3):
        await kept(store, n, chat, root=root)
    cut = [user("before"), B, *chat[2:], C]
    assert await found(store, cut, name="chat") == {3: [turn_id(1)], 5: [turn_id(3)]}


async def test_a_proof_by_the_next_words_is_remembered_until_another_chat_has_them(store: Store) -> None:
    chat = [A, B, ASKED, DONE, YES, SAID_SO]
    await kept(store, 1, chat[:4])
    await plain(store, chat)
    request = read([A, B, user("(edited)"), *chat[3:], C])
    assert [*await hits_of(store, request)] == [3]
    await plain(store, [C, B, ASKED, DONE])
    assert [*await hits_of(store, request)] == []


async def test_a_proof_by_a_later_turn_is_forgotten_with_that_turn(store: Store) -> None:
    """Not only what is stored under the turn's own words counts, but also what is stored under its witness's."""
    chat = [A, B, ASKED, DONE, YES, SAID_SO]
    await kept(store, 1, chat[:4])
    await plain(store, chat)
    edited = [A, B, user("(edited)"), *chat[3:], C]
    request = read(edited)
    assert [*await hits_of(store, request)] == [3]
    await plain(store, [C, B, YES, SAID_SO])
    assert [*await hits_of(store, request)] == [*await hits_of(store, read(edited))] == []


WEATHER = [
    user("What is the weather like in Oslo today, and do I need an umbrella there?"),
    model("It is raining in Oslo today, so yes, take an umbrella with you when you go out."),
]
ANNA, BOB = [user("Hello, I am Anna"), model("Hello Anna")], [user("Hello, I am Bob"), model("Hello Bob")]


async def kept_alike(store: Store, n: int, history: Sequence[Document]) -> None:
    """A step that means the same in every chat."""
    call = await kept(store, n, history, args={"city": "Oslo"})
    await store.answer("default", call.call_id, result={"sky": "rain"})


@pytest.mark.parametrize("has_call", [True, False], ids=["another call", "no call"])
async def test_a_turn_that_two_chats_have_alike_does_not_tell_which_chat_this_is(store: Store, has_call: bool) -> None:
    """Both chats ask the same and hear the same by the same call; then each says "do it" and hears "Done."."""
    await kept_alike(store, 1, [*BOB, *WEATHER])
    await kept_alike(store, 2, [*ANNA, *WEATHER])
    if has_call:
        await kept(store, 3, [*BOB, *WEATHER, YES, DONE], args={"to": "Bob"})
    else:
        await plain(store, [*BOB, *WEATHER, YES, DONE])
    await kept(store, 4, [*ANNA, *WEATHER, YES, DONE], args={"to": "Anna"})
    cut = [*WEATHER, YES, DONE, C]
    assert set(await found(store, cut)) == {1}
    assert (await missed(store, cut)) == {"Done.": Miss.AMBIGUOUS if has_call else Miss.PLAIN}
    assert await found(store, [user("(edited)"), *BOB[1:], *WEATHER, YES, DONE, C]) == {3: [turn_id(2)]}
    whole = await found(store, [*BOB, *WEATHER, YES, DONE, C])
    assert whole == {3: [turn_id(1)], **({5: [turn_id(3)]} if has_call else {})}


async def test_a_later_turn_that_two_chats_have_alike_does_not_tell_which_chat_this_is(store: Store) -> None:
    await kept(store, 3, [*BOB, YES, DONE], args={"to": "Bob"})
    await kept(store, 4, [*ANNA, YES, DONE], args={"to": "Anna"})
    await kept_alike(store, 1, [*BOB, YES, DONE, *WEATHER])
    await kept_alike(store, 2, [*ANNA, YES, DONE, *WEATHER])
    assert set(await found(store, [YES, DONE, *WEATHER, C])) == {3}
    assert set(await found(store, [user("(edited)"), DONE, *WEATHER, C])) == {3}


async def test_a_turn_that_means_the_same_twice_in_one_chat_still_tells_what_follows(store: Store) -> None:
    """An answer that was regenerated alike has the same history, so its neighbours are certain."""
    await kept_alike(store, 1, [*BOB, *WEATHER])
    await kept_alike(store, 2, [*BOB, *WEATHER])
    await kept(store, 3, [*BOB, *WEATHER, YES, DONE], args={"to": "Bob"})
    assert set(await found(store, [*WEATHER, YES, DONE, C])) == {1, 3}


async def test_what_follows_a_turn_is_forgotten_when_that_turn_means_two_things(store: Store) -> None:
    """Also if the turn itself was remembered, and what follows it found later."""
    await kept(store, 1, [*BOB, *WEATHER], args={"city": "Oslo"})
    await kept(store, 2, [*BOB, *WEATHER], args={"city": "Oslo"})
    await kept(store, 3, [*BOB, *WEATHER, YES, DONE], args={"to": "Bob"})
    edited = [user("(edited)"), BOB[1], *WEATHER, YES]
    first = read(edited)
    assert [*await hits_of(store, first)] == [3]
    second = parse(encode({"contents": [*edited, DONE, C]}), (), first.prefix())
    assert [*await hits_of(store, second)] == [3, 5]
    await store.answer("default", "call_1", result={"sky": "rain"})
    assert [*await hits_of(store, second)] == [*await hits_of(store, read([*edited, DONE, C]))] == []


async def test_a_placeholder_tells_what_is_around_it(store: Store) -> None:
    visible_turn = model(PLACEHOLDER.text(["f"], turn_id(1)))
    await kept(store, 1, [A, visible_turn])
    await kept(store, 2, [A, visible_turn, YES, DONE])
    await kept(store, 3, [C, B, YES, DONE])
    cut = [user("before"), B, A, visible_turn, YES, DONE, C]
    assert await found(store, cut) == {3: [turn_id(1)], 5: [turn_id(2)]}
    await plain(store, [A, visible_turn, YES, DONE])
    assert await found(store, cut) == {3: [turn_id(1)]}


EIGHT = "please turn off all lights upstairs now again".split()


def others(*turns: Document) -> list[Document]:
    """A chat of which the session knows nothing: its beginning was cut off, or it was had elsewhere."""
    return [*turns, user("?")]


@pytest.mark.parametrize("count", range(1, 9))
async def test_fewer_than_eight_words_before_a_short_answer_may_be_anyone_s(store: Store, count: int) -> None:
    history = [user(" ".join(EIGHT[:count])), model("Done.")]
    await kept(store, 1, [user("hello"), model("Hi."), *history])
    assert await found(store, others(*history)) == ({1: [turn_id(1)]} if count == 8 else {})
    if count < 8:
        assert await missed(store, others(*history)) == {"Done.": Miss.CONTEXT}


@pytest.mark.parametrize("count", range(1, 7))
async def test_fewer_than_six_words_of_the_model_s_may_be_anyone_s(store: Store, count: int) -> None:
    says = " ".join(["done", *EIGHT[: count - 1]])
    await kept(store, 1, [user("hello"), model(says)])
    assert await found(store, others(user("go on"), model(says))) == ({1: [turn_id(1)]} if count == 6 else {})


@pytest.mark.parametrize("count", range(1, 5))
async def test_phrases_of_fewer_than_four_words_come_together_by_chance(store: Store, count: int) -> None:
    """However many of them: chats of people who say little differ in few words."""
    phrases = [" ".join(EIGHT[at : at + count]) for at in range(4)]
    history = [side(phrase) for phrase in phrases for side in (user, model)]
    await kept(store, 1, [user("hello"), model("Hi."), *history])
    assert await found(store, others(*history)) == ({7: [turn_id(1)]} if count == 4 else {})


async def test_words_that_are_said_twice_in_a_turn_count_once(store: Store) -> None:
    history = [user("no no no no no no no no, do not do that"), model("Done.")]
    await kept(store, 1, [user("hello"), model("Hi."), *history])
    assert await found(store, others(*history)) == {}
