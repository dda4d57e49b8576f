"""Turns are found by their id, by all that stands before them, and as bare placeholders."""

import pytest

from addon.core.framing.documents import encode
from addon.core.history.request import parse
from addon.graft.ledger_evidence import Miss
from store.base import MATCHES, Store
from tests.contents import call, model, user
from tests.graft.conftest import ON_EACH_BACKEND
from tests.graft.ledgers import PLACEHOLDER, A, B, C, found, hits_of, kept, missed, plain, read, turn_id


@ON_EACH_BACKEND
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


@ON_EACH_BACKEND
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


@ON_EACH_BACKEND
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


@ON_EACH_BACKEND
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


async def test_the_first_turn_of_a_history_is_not_looked_up(store: Store) -> None:
    visible_turn = model(PLACEHOLDER.text(["f"], turn_id(1)))
    await kept(store, 1, [A, visible_turn])
    assert await found(store, [visible_turn, C]) == {}


async def test_sessions_are_apart(store: Store) -> None:
    await kept(store, 1, [A, B], session="other")
    assert await found(store, [A, B, C]) == {}
    assert await found(store, [A, B, C], "other") == {1: [turn_id(1)]}


@ON_EACH_BACKEND
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
