"""Turns are found by their id, by all that stands before them, and as bare placeholders."""

import pytest

from addon.core.framing.documents import Document, encode
from addon.core.history.request import parse
from addon.graft.ledger_evidence import Miss
from store.base import MATCHES, Store
from tests.contents import call, model, user
from tests.graft.conftest import ON_EACH_BACKEND
from tests.graft.ledgers import PLACEHOLDER, A, B, C, found, found_strictly, hits_of, kept, missed, plain, read, turn_id


def with_id(n: int, text: str = "") -> Document:
    """What the client receives of a turn whose call is replaced by a placeholder."""
    return model(text + PLACEHOLDER.after(text, ["f"], turn_id(n)))


@ON_EACH_BACKEND
async def test_by_the_id_before_everything_else(store: Store) -> None:
    await kept(store, 1, [A, with_id(2)])
    await kept(store, 2, [A, with_id(2)])
    assert await found(store, [A, with_id(2), C]) == {1: [turn_id(2)]}
    signed = model({**with_id(2)["parts"][0], "thoughtSignature": "b3Ro"})
    assert await found(store, [A, signed, C]) == {1: [turn_id(2)]}, "whatever else the client sends"


QUOTED = PLACEHOLDER.text(["f"], turn_id(1))


@pytest.mark.parametrize(
    ("chat", "asker", "is_found"),
    [
        pytest.param([A, with_id(1), C], "key:one", True, id="the chat itself"),
        pytest.param([C, B, A, with_id(1), C], "key:one", True, id="after other turns"),
        pytest.param([A, with_id(1), C], "key:two", False, id="of another asker"),
        pytest.param([C, B, A, with_id(1), C], "key:two", False, id="of another asker, after other turns"),
        pytest.param([C, with_id(1), A], "key:one", False, id="after other words of the user"),
        pytest.param([A, model(f"You wrote: {QUOTED}"), C], "key:one", False, id="quoted in a sentence"),
        pytest.param([A, model(f"{QUOTED} is what I said."), C], "key:one", False, id="quoted at its beginning"),
        pytest.param([A, model(f"You wrote:\n{QUOTED}\nThat is all."), C], "key:one", False, id="quoted in a line"),
        pytest.param([A, model(f"No.\n\n{QUOTED}"), C], "key:one", False, id="with other words before it"),
    ],
)
async def test_an_id_is_no_token_for_whoever_has_it(
    store: Store, chat: list[Document], asker: str, is_found: bool
) -> None:
    await kept(store, 1, [A, with_id(1)], root={"asker": "key:one"})
    hits = await found(store, chat, asker=asker)
    assert list(hits.values()) == ([[turn_id(1)]] if is_found else [])


async def test_a_turn_that_was_noted_without_calls_is_none_whatever_id_it_quotes(store: Store) -> None:
    await kept(store, 1, [user("hi"), B, A, with_id(1)])
    await plain(store, [A, with_id(1)])
    assert await found(store, [A, with_id(1), C]) == {}
    assert await found(store, [C, B, A, with_id(1), C]) == {}
    assert await found(store, [user("hi"), B, A, with_id(1), C]) == {3: [turn_id(1)]}, "its whole history"


async def test_a_turn_with_an_id_after_changed_words_is_known_by_a_known_turn_beside_it(store: Store) -> None:
    await kept(store, 1, [A, with_id(1)])
    await kept(store, 2, [A, with_id(1), user("the long result"), with_id(2)], before=turn_id(1))
    long = [A, with_id(1), user("the long result"), with_id(2), user("go on"), with_id(3)]
    await kept(store, 3, long, before=turn_id(2))
    cut = user("[removed]")
    for chat, expected, known in (
        ([A, with_id(1), cut, with_id(2), C], {1: 1, 3: 2}, {1: 1}),
        ([cut, with_id(2), user("go on"), with_id(3), C], {1: 2, 3: 3}, {3: 3}),
        ([cut, with_id(1), cut, with_id(2), user("go on"), with_id(3), C], {1: 1, 3: 2, 5: 3}, {5: 3}),
        ([A, with_id(1), cut, with_id(3), C], {1: 1}, {1: 1}),
        ([cut, with_id(1), cut, with_id(2), C], {}, {}),
    ):
        assert await found(store, chat) == {at: [turn_id(n)] for at, n in expected.items()}
        assert await found_strictly(store, chat) == {at: [turn_id(n)] for at, n in known.items()}


async def test_a_record_that_lacks_a_call_is_told_with_it(store: Store) -> None:
    """As earlier versions wrote it of a call that the model had marked as a thought."""
    one = await kept(store, 1, [A, with_id(1)], true=model())
    request = read([A, with_id(1), C])
    ((true,),) = (await hits_of(store, request)).values()
    assert [(step.content, [slot.call_id for slot in step.slots]) for step in true.steps] == [
        (model(call("f", args={"n": 1})), [one.call_id])
    ]


@pytest.mark.parametrize("tail", ["", "\nDone!", "\n\nI did it again for you, as you asked me to do just now."])
async def test_a_noted_imitation_is_none_in_a_history_that_was_cut(store: Store, tail: str) -> None:
    await kept(store, 1, [A, with_id(1)])
    imitated = model(QUOTED + tail)
    await plain(store, [A, with_id(1), C, B, A, imitated])
    for cut in ([C, B, A, imitated, C], [A, imitated, C]):
        assert await found(store, cut) == {}


async def test_joined_turns_are_found_if_each_follows_the_one_before_it(store: Store) -> None:
    await kept(store, 1, [A, with_id(1, "Well.")])
    await kept(store, 2, [A, with_id(1, "Well."), C, with_id(2)], before=turn_id(1))
    await kept(store, 3, [A, with_id(3)])
    one, two, three = (with_id(n, "Well." if n == 1 else "")["parts"][0]["text"] for n in (1, 2, 3))
    for texts, expected in (
        ((one, two), [1, 2]),
        ((f"{one}\n\n{two}",), [1, 2]),
        ((one, two, one.removeprefix("Well.").strip()), [1, 2]),
        ((one, PLACEHOLDER.text(["f"], turn_id(9)), two, "The end."), [1, 2]),
        ((one, three), [1]),
        ((two, one), []),
        ((f"{one} {two}",), []),
    ):
        expected_hits = {1: [turn_id(n) for n in expected]} if expected else {}
        assert await found(store, [A, model(*texts), B, C]) == expected_hits, texts


async def test_a_repeated_placeholder_belongs_to_the_turn_that_it_repeats(store: Store) -> None:
    await kept(store, 1, [A, with_id(1, "Well.")])
    assert await found(store, [A, with_id(1, "Well."), user("?"), with_id(1), C]) == {1: [turn_id(1)], 3: [turn_id(1)]}
    assert await found(store, [C, with_id(1), user("?"), with_id(1), C]) == {}


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


async def test_sub_agents_with_one_name_are_told_apart_by_their_system_instructions(store: Store) -> None:
    for n, instruction in ((1, "Write."), (2, "Read.")):
        await kept(store, n, [A, B], root={"name": "one", "instruction": instruction})
    assert await found(store, [A, B, C], name="one", instruction="Write.") == {1: [turn_id(1)]}
    await plain(store, [A, B], name="one", instruction="Read.")
    assert await found(store, [A, B, C], name="one", instruction="Write.") == {1: [turn_id(1)]}
    assert await found(store, [A, B, C], name="one", instruction="Read.") == {}
    await plain(store, [A, B], name="one", instruction="Sing.")
    assert await found(store, [A, B, C], name="one", instruction="Sing.") == {}


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
    await kept(store, 1, [A, with_id(1)])
    assert await found(store, [with_id(1), C]) == {}


async def test_sessions_are_apart(store: Store) -> None:
    await kept(store, 1, [A, B], session="other")
    assert await found(store, [A, B, C]) == {}
    assert await found(store, [A, B, C], "other") == {1: [turn_id(1)]}


BARE = model("Tool call completed")


@pytest.mark.parametrize("text", ["Tool call completed", "Tool call completed: f"])
async def test_a_placeholder_without_its_id_is_found_by_all_that_stands_before_it(store: Store, text: str) -> None:
    one, two, bare = [user("one"), B, A], [user("two"), B, A], model(text)
    await kept(store, 1, [*one, with_id(1)])
    await kept(store, 2, [*two, with_id(2)])
    assert await found(store, [*one, bare, C]) == {3: [turn_id(1)]}
    assert await found(store, [*two, bare, C]) == {3: [turn_id(2)]}
    assert await found(store, [user("three"), B, A, bare, C]) == {}, "another chat"
    assert await found(store, [A, bare, C]) == {}, "words alone prove nothing"
    assert await found(store, [*one, bare, C], asker="key:other") == {}
    assert await found(store, [*one, model(f"Yes.\n{text}"), C]) == {}, "the text before it differs"


@pytest.mark.parametrize("keeps_ids", [True, False])
async def test_the_second_placeholder_without_its_id_is_found_whenever_the_client_drops_the_ids(
    store: Store, keeps_ids: bool
) -> None:
    bare, well = model("Tool call completed: f"), model("Well.\n\nTool call completed: f")
    first, second = (with_id(1), with_id(2, "Well.")) if keeps_ids else (bare, well)
    await kept(store, 1, [A, with_id(1)])
    await kept(store, 2, [A, first, C, with_id(2, "Well.")])
    await kept(store, 3, [A, first, C, second, A, with_id(3)])
    hits = await found(store, [A, bare, C, well, A, bare, C])
    assert hits == {1: [turn_id(1)], 3: [turn_id(2)], 5: [turn_id(3)]}


async def test_a_placeholder_without_its_id_that_the_model_may_have_written_is_missed(store: Store) -> None:
    """Models imitate what they see."""
    await kept(store, 1, [A, with_id(1)])
    assert await found(store, [A, BARE, C]) == {1: [turn_id(1)]}
    await plain(store, [A, BARE])
    assert await found(store, [A, BARE, C]) == {}


async def test_a_placeholder_without_its_id_may_be_the_end_of_a_longer_history(store: Store) -> None:
    await kept(store, 1, [A, with_id(1)])
    await kept(store, 2, [C, B, A, with_id(2)])
    assert await found(store, [A, BARE, C]) == {}
    assert await found(store, [C, B, A, BARE, C]) == {3: [turn_id(2)]}
    await plain(store, [A, B, C, B, A, BARE])
    assert await found(store, [C, B, A, BARE, C]) == {}


async def test_placeholders_without_ids_in_chats_that_began_alike_are_missed(store: Store) -> None:
    await kept(store, 1, [A, with_id(1)])
    await kept(store, 2, [A, with_id(2)])
    assert await found(store, [A, BARE, C]) == {}
    assert await missed(store, [A, BARE, C]) == {"Tool call completed": Miss.AMBIGUOUS}
    await kept(store, 3, [A, with_id(3)], root={"name": "chat"})
    assert await found(store, [A, BARE, C], name="chat") == {1: [turn_id(3)]}


async def test_a_placeholder_without_its_id_is_found_once_there_is_a_step(store: Store) -> None:
    chat = [user("a"), BARE]
    first = read([*chat, C])
    assert await hits_of(store, first) == {}
    first.history.identify(first.body)  # as for a note
    known = first.prefix()
    assert known is not None
    await kept(store, 1, [A, with_id(1)])
    assert list(await hits_of(store, parse(encode({"contents": [*chat, C]}), (), known))) == [1]
