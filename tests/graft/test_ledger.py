"""Which of a history's turns the ledger knows, and the answers that clients give themselves."""

from collections.abc import Sequence
from typing import Any

import pytest

from addon.core.framing.documents import Document, encode
from addon.core.history.keys import Keys, asker_digest, marks_of
from addon.core.history.placeholder import Placeholder
from addon.core.history.request import Request, parse
from addon.core.history.steps import TrueTurn
from addon.core.history.turns import chain_key, visible_digest, windows
from addon.graft import ledger
from addon.graft.evidence import Miss, true_turn
from addon.graft.ledger import take_answers
from addon.graft.ledger_search import Hits
from addon.graft.prefixes import SMALLEST, Prefixes
from store.base import MATCHES, Store
from store.models import Call, Slot, Status, Step, Turn
from tests.contents import call, model, response, user

PLACEHOLDER = Placeholder("Tool call completed: {names} [{turn_id}]")


def turn_id(n: int) -> str:
    return f"turn_{n:016x}"


def digest(content: Document) -> bytes:
    return visible_digest(content["parts"])


def keys_of(store: Store, *, asker: str = "", name: str = "", instruction: str = "") -> Keys:
    return Keys(store.secret, asker_digest(store.secret, asker), name, instruction.encode())


def made(keys: Keys, history: Sequence[Document], marked: Document | None = None) -> tuple[bytes, list[bytes]]:
    """Chain and keys of the last turn of a history of single Contents."""
    chain = b""
    for content in history:
        chain = chain_key(chain, content["role"], digest(content))
    own = keys.own(digest(history[-1]))
    sent = windows([digest(content) for content in history[:-1]], digest(history[-1]))
    marks = [keys.mark(*mark) for mark in marks_of([marked or history[-1]])]
    windowed = [keys.window(own, window) for window in sent]
    return chain, [own, keys.history(own, chain), keys.whole(own, chain), *windowed, *marks]


async def kept(
    store: Store,
    n: int,
    history: Sequence[Document],
    *,
    session: str = "default",
    true: Document | None = None,
    args: Any = None,
    root: dict[str, str] | None = None,
    **fields: Any,
) -> Call:
    """An entry of one call for the last turn of the history; `root` is what `keys_of` takes."""
    keys = keys_of(store, **root or {})
    chain, found_by = made(keys, history, true)
    one = Call(
        call_id=f"call_{n}",
        session=session,
        name="f",
        args=args or {"n": n},
        turn_id=turn_id(n),
        created_at=1e6,
        updated_at=1e6,
    )
    known = {
        "visible": (true if true and digest(true) == digest(history[-1]) else history[-1])["parts"],
        "delivered": True,
        "user_key": keys.user(digest(history[-2])),
        "chain": keys.mask_chain(turn_id(n).encode(), chain),
        "pair": keys.window(keys.own(digest(history[-1])), windows([digest(history[-2])], digest(history[-1]))[0]),
    }
    turn = Turn(
        turn_id=turn_id(n),
        session=session,
        steps=[Step(content=true or model(call("f", args=one.args)), slots=[Slot(name="f", call_id=one.call_id)])],
        created_at=1e6,
        **{**known, **fields},
    )
    await store.save_turn(turn, [one], found_by)
    return one


async def plain(store: Store, history: Sequence[Document], **root: str) -> None:
    """A turn without calls, for the last turn of the history."""
    keys = keys_of(store, **root)
    chain, found_by = made(keys, history)
    await store.save_plain("default", found_by, keys.mask_chain(found_by[0], chain))


def read(contents: Sequence[Document]) -> Request:
    return parse(encode({"contents": list(contents)}))


async def hits_of(store: Store, request: Request, session: str = "default", **root: str) -> Hits:
    keys = keys_of(store, **root)
    revision = store.revision(session)
    return await ledger.hits_of(store, session, revision, keys, request.body, request.history, PLACEHOLDER)


async def missed(store: Store, contents: Sequence[Document], **root: str) -> dict[str, Miss]:
    """Why each turn that was missed was, by its text."""
    request, misses = read(contents), dict[str, Miss]()
    keys = keys_of(store, **root)
    await ledger.hits_of(
        store,
        "default",
        store.revision("default"),
        keys,
        request.body,
        request.history,
        PLACEHOLDER,
        lambda turn, miss: misses.update({turn.text: miss}),
    )
    return misses


async def found(
    store: Store, contents: Sequence[Document], session: str = "default", **root: str
) -> dict[int, list[str]]:
    hits = await hits_of(store, read(contents), session, **root)
    return {index: [true.turn_id for true in true_turns] for index, true_turns in hits.items()}


A, B, C = user("a"), model("b"), user("c")


async def test_by_the_id_before_everything_else(store: Store) -> None:
    visible_turn = model(PLACEHOLDER.text(["f"], turn_id(2)))
    await kept(store, 1, [A, visible_turn])
    await kept(store, 2, [C, B])
    assert await found(store, [A, visible_turn, C]) == {1: [turn_id(2)]}
    signed = model({**visible_turn["parts"][0], "thoughtSignature": "b3Ro"})
    assert await found(store, [A, signed, C]) == {1: [turn_id(2)]}, "whatever else the client sends"


async def test_a_record_that_lacks_a_call_is_told_with_it(store: Store) -> None:
    """As earlier versions wrote it of a call that the model had marked as a thought."""
    visible_turn = model(PLACEHOLDER.text(["f"], turn_id(1)))
    one = await kept(store, 1, [A, visible_turn], true=model())
    request = read([A, visible_turn, C])
    ((true,),) = (await hits_of(store, request)).values()
    assert [(step.content, [slot.call_id for slot in step.slots]) for step in true.steps] == [
        (model(call("f", args={"n": 1})), [one.call_id])
    ]


async def test_several_ids_of_one_turn_in_their_order_and_each_once(store: Store) -> None:
    for n in (1, 2):
        await kept(store, n, [A, B])
    texts = [PLACEHOLDER.text(["f"], turn_id(n)) for n in (2, 9, 1, 2)]
    assert await found(store, [A, model(*texts), C]) == {1: [turn_id(2), turn_id(1)]}


# --- all that stands before it -----------------------------------------------------------------------------------


async def test_by_all_that_stands_before_it(store: Store) -> None:
    await kept(store, 1, [A, B, C, B])
    await kept(store, 2, [C, B, C, B])
    assert await found(store, [A, B, C, B, C]) == {3: [turn_id(1)]}
    assert await found(store, [C, B, C, B, C]) == {3: [turn_id(2)]}


@pytest.mark.parametrize("other", [{"asker": "key:other"}, {"instruction": "Be rude."}, {"name": "other"}])
async def test_asker_chat_name_and_system_instruction_belong_to_the_history(
    store: Store, other: dict[str, str]
) -> None:
    root = {"asker": "key:one", "instruction": "Be brief.", "name": "one"}
    await kept(store, 1, [A, B], root=root)
    assert await found(store, [A, B, C], **root) == {1: [turn_id(1)]}
    if "instruction" not in other:
        assert await found(store, [A, B, C], **root | other) == {}
    unnamed = root | {"name": ""}
    await kept(store, 2, [C, B], root=unnamed)
    assert await found(store, [C, B, A], **unnamed) == {1: [turn_id(2)]}
    assert await found(store, [C, B, A], **unnamed | other) == {}


async def test_a_chat_that_has_a_name_is_known_under_any_system_instruction(store: Store) -> None:
    await kept(store, 1, [A, B], root={"name": "one", "instruction": "It is 10:00."})
    assert await found(store, [A, B, C], name="one", instruction="It is 10:01.") == {1: [turn_id(1)]}
    assert await found(store, [A, B, C], instruction="It is 10:00.") == {}


async def test_the_newest_delivered_of_equal_turns_is_used(store: Store) -> None:
    await kept(store, 1, [A, B], args={"x": 1})
    await kept(store, 2, [A, B], args={"x": 1})
    await kept(store, 3, [A, B], args={"x": 1}, delivered=False)
    assert await found(store, [A, B, C]) == {1: [turn_id(2)]}


@pytest.mark.parametrize("name", ["", "chat"])
async def test_turns_that_mean_different_things_are_missed_unless_the_chat_has_a_name(store: Store, name: str) -> None:
    await kept(store, 1, [A, B], args={"x": 2**53}, root={"name": name})
    await kept(store, 2, [A, B], args={"x": 2**53 + 1}, root={"name": name})
    await kept(store, 3, [A, B], delivered=False, root={"name": name})
    assert await found(store, [A, B, C], name=name) == ({1: [turn_id(2)]} if name else {})
    assert await missed(store, [A, B, C], name=name) == ({} if name else {"b": Miss.AMBIGUOUS})


async def test_the_same_call_with_another_result_is_another_meaning(store: Store) -> None:
    for n in (1, 2):
        await kept(store, n, [A, B], args={"x": 1})
    assert await found(store, [A, B, C]) == {1: [turn_id(2)]}, "neither has a result"
    await store.answer("default", "call_1", result={"r": 1})
    assert await found(store, [A, B, C]) == {}
    await store.answer("default", "call_2", result={"r": 1})
    assert await found(store, [A, B, C]) == {1: [turn_id(2)]}
    await kept(store, 3, [A, B], args={"x": 1})
    await store.answer("default", "call_3", error="broken")
    assert await found(store, [A, B, C]) == {}


async def test_more_turns_than_can_be_compared_are_missed(store: Store) -> None:
    for n in range(MATCHES):
        await kept(store, n, [A, B], args={"x": 1})
    assert await found(store, [A, B, C]) == {1: [turn_id(MATCHES - 1)]}
    await kept(store, MATCHES, [A, B], args={"x": 1})
    assert await found(store, [A, B, C]) == {}


async def test_a_turn_without_calls_that_reads_the_same_makes_it_a_miss(store: Store) -> None:
    await kept(store, 1, [A, B])
    await plain(store, [A, B], asker="key:other")
    await plain(store, [C, B])
    assert await found(store, [A, B, C]) == {1: [turn_id(1)]}
    await plain(store, [A, B])
    assert await found(store, [A, B, C]) == {}
    assert await missed(store, [A, B, C]) == {"b": Miss.PLAIN}
    assert await missed(store, [C, B, A]) == {}, "it is known, and nothing is hidden in it"


async def test_a_history_that_may_be_the_end_of_another_is_missed(store: Store) -> None:
    await kept(store, 1, [A, B])
    assert await found(store, [A, B, C]) == {1: [turn_id(1)]}
    await kept(store, 2, [C, B, A, B])
    assert await found(store, [A, B, C]) == {}
    assert await missed(store, [A, B, C]) == {"b": Miss.AMBIGUOUS}
    assert await found(store, [C, B, A, B, C]) == {3: [turn_id(2)]}
    await plain(store, [A, B, C, B, A, B])
    assert await found(store, [C, B, A, B, C]) == {}


# --- words that cannot be a coincidence ---------------------------------------------------------------------------

ASKED = user("Please send the invoice for March to Anna, and keep a copy of it.")
SAID_SO = model("I have sent the invoice for March to Anna, and kept a copy.")
MOVED = user("Could you move the meeting on the budget to Friday afternoon?")
DONE, YES = model("Done."), user("yes")


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
    signed = model({"text": "Done.", "thoughtSignature": "c2ln"})
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
    edited = [user("edited"), visible_turn, YES, DONE, C]
    assert await found(store, edited) == {1: [turn_id(1)], 3: [turn_id(2)]}
    await plain(store, [A, visible_turn, YES, DONE])
    assert await found(store, edited) == {1: [turn_id(1)]}


# --- what clients echo --------------------------------------------------------------------------------------------


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


SAID = model(call("f"))


def after(value: Any = None, *later: Document) -> list[Document]:
    """A chat in which the client answered a call that was passed through."""
    return [A, SAID, user(response("f", value)) if value is not None else user("no"), *later]


async def went_on(store: Store, chat: list[Document]) -> list[str]:
    """Which turn the client's is found to be; its answers are taken."""
    request = read(chat)
    hits = await hits_of(store, request)
    await take_answers(store, "default", request.body, request.history, hits)
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


async def test_a_finding_by_one_answer_is_not_remembered_for_another(store: Store) -> None:
    prefixes = Prefixes()
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


@pytest.mark.parametrize(("capacity", "is_kept"), [(100_000, True), (50_000, False)])
async def test_true_turns_that_take_much_memory_are_looked_up_again(store: Store, capacity: int, is_kept: bool) -> None:
    long = user("x" * SMALLEST)
    one = await kept(store, 1, [long, B])
    await store.answer("default", one.call_id, result={"r": "z" * 10_000})
    prefixes = Prefixes(rewritten_capacity=capacity)
    found: list[TrueTurn] = []
    for text in ("a", "b", "c"):
        body = encode({"contents": [long, B, user(text)]})
        request = parse(body, (), prefixes.find("s", (), body))
        found += (await hits_of(store, request))[1]
        prefixes.keep("s", (), request)
    assert request.known_prefix is not None
    assert (found[0] is found[2]) is is_kept
    assert found[0].answers == found[2].answers
    assert (prefixes.rewritten_size > 0) is is_kept


async def test_the_first_turn_of_a_history_is_not_looked_up(store: Store) -> None:
    visible_turn = model(PLACEHOLDER.text(["f"], turn_id(1)))
    await kept(store, 1, [A, visible_turn])
    assert await found(store, [visible_turn, C]) == {}


async def test_sessions_are_apart(store: Store) -> None:
    await kept(store, 1, [A, B], session="other")
    assert await found(store, [A, B, C]) == {}
    assert await found(store, [A, B, C], "other") == {1: [turn_id(1)]}


async def test_bare_placeholders_take_the_newest_step_after_the_same_words_for_good(store: Store) -> None:
    bare = model("Tool call completed")
    visible_turn = model(PLACEHOLDER.text(["f"], turn_id(1)))
    await kept(store, 1, [A, visible_turn])
    await kept(store, 2, [A, visible_turn])
    await kept(store, 3, [C, visible_turn])
    assert await found(store, [A, bare, C]) == {1: [turn_id(2)]}
    await kept(store, 4, [A, visible_turn])
    assert await found(store, [A, bare, C]) == {1: [turn_id(2)]}
    assert await found(store, [user("other"), bare, C]) == {}
    unknown = model(PLACEHOLDER.text(["f"], turn_id(99)))
    assert await found(store, [A, unknown, C]) == {}


async def test_a_bare_placeholder_whose_text_is_not_kept_is_bound_when_there_is_a_step(store: Store) -> None:
    chat = [user("a"), model("Tool call completed")]
    first = read([*chat, C])
    assert await hits_of(store, first) == {}
    first.history.identify(first.body)  # as for a note
    known = first.prefix()
    assert known is not None
    await kept(store, 1, [A, model(PLACEHOLDER.text(["f"], turn_id(1)))])
    assert list(await hits_of(store, parse(encode({"contents": [*chat, C]}), (), known))) == [1]


async def test_bare_placeholders_of_two_chats_after_the_same_words_mean_each_its_own_step(store: Store) -> None:
    bare = model("Tool call completed")
    visible_turn = model(PLACEHOLDER.text(["f"], turn_id(1)))
    one, two = [user("one"), B, A], [user("two"), B, A]
    await kept(store, 1, [*one, visible_turn])
    assert await found(store, [*one, bare, C]) == {3: [turn_id(1)]}
    await kept(store, 2, [*two, visible_turn])
    assert await found(store, [*two, bare, C]) == {3: [turn_id(2)]}
    assert await found(store, [*one, bare, C]) == {3: [turn_id(1)]}
    await kept(store, 3, [*one, visible_turn])
    assert await found(store, [user("three"), B, A, bare, C]) == {3: [turn_id(3)]}, "not what another chat's means"


async def test_a_bare_placeholder_is_no_step_that_the_same_history_tells_already(store: Store) -> None:
    bare, visible_turn = model("Tool call completed"), model(PLACEHOLDER.text(["f"], turn_id(1)))
    await kept(store, 1, [A, visible_turn])
    for chat in ([A, visible_turn, A, bare, C], [A, bare, A, visible_turn, C]):
        assert list((await found(store, chat)).values()) == [[turn_id(1)]]
    await kept(store, 2, [A, visible_turn, A, visible_turn])
    assert await found(store, [A, visible_turn, A, bare, C]) == {1: [turn_id(1)], 3: [turn_id(2)]}


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
    assert (await hits_of(store, request))[1][0].answers == {one.call_id: {"r": 1}}
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


async def test_an_id_that_is_not_known_yet_is_looked_for_again(store: Store) -> None:
    await kept(store, 1, [A, B])
    request = read([A, model(PLACEHOLDER.text(["f"], turn_id(2))), C])
    assert await hits_of(store, request) == {}
    await kept(store, 2, [C, B])
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
    true = model(call("f", args={"n": 1}))
    await kept(store, 1, [A, true], delivery="passthrough")
    request = read([A, true, answered])
    hits = await hits_of(store, request)
    taken = await take_answers(store, "default", request.body, request.history, hits)
    return taken, await store.call("default", "call_1")


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

    async def late(session: str, call_id: str, **kwargs: Any) -> Any:
        await answer(session, call_id, result={"first": 1})
        return await answer(session, call_id, **kwargs)

    monkeypatch.setattr(store, "answer", late)
    taken, one = await passed_through(store, user(response("f", {"mine": 1})))
    assert one.result == {"first": 1}
    assert not taken


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
    anew = parse(body, (), known)
    assert await hits_of(store, anew) == {}
    assert anew.history.turns[1].text == "done and more"


# --- how many words are no coincidence --------------------------------------------------------------------------------

EIGHT = "please turn off all lights upstairs now again".split()
"""Eight different words, which come from another chat where a user says some of them and the model does as told."""


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
