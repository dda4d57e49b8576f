"""The store's contract for conversations, and for the calls that clients were given."""

import asyncio

import pytest

from store.base import ConversationMoved, Store, UnknownResponse
from store.models import GivenCall, Response
from tests.store.conftest import TTL, Clock
from tests.store.response_records import a_part, a_response, chat, ids_of_history, there

# --- history --------------------------------------------------------------------------------------------------


async def test_a_history_of_many_turns_is_given_in_order(store: Store) -> None:
    ids = [f"r{number}" for number in range(200)]
    await chat(store, *ids, name="chat", tools={"a": 1})
    history = await store.history("one", "r199")
    assert [response.response_id for response in history] == ids
    assert history[7].contents == a_response("r7").contents
    assert await ids_of_history(store, "r120") == ids[:121]


async def test_only_the_last_of_a_history_has_its_tools_and_its_document(store: Store) -> None:
    await chat(store, "r1", "r2", "r3", tools={"a": 1})
    first, second, third = await store.history("one", "r3")
    assert [first.document, first.tools, second.document, second.tools] == [None] * 4
    assert third == await store.response("one", "r3")
    assert (await store.response("one", "r1")).tools == {"a": 1}


async def test_several_may_follow_one_response_and_each_has_its_own_history(store: Store) -> None:
    await chat(store, "r1", "r2")
    await store.add_response(a_response("r3", "r2"))
    await store.add_response(a_response("r4", "r1"))
    await store.add_response(a_response("r5", "r4"))
    assert await ids_of_history(store, "r3") == ["r1", "r2", "r3"]
    assert await ids_of_history(store, "r5") == ["r1", "r4", "r5"]


# --- conversations --------------------------------------------------------------------------------------------


async def test_a_conversation_is_at_the_last_response_that_was_added_to_it(store: Store) -> None:
    assert await store.conversation("one", "chat") is None
    await chat(store, "r1", name="chat")
    assert await store.conversation("one", "chat") == "r1"
    await store.add_response(a_response("r2", "r1", conversation="chat"), head="r1")
    await store.add_response(a_response("r3", "r2"))
    assert await store.conversation("one", "chat") == "r2"
    assert await store.conversation("one", "Chat") is None


@pytest.mark.parametrize("head", [None, "r1", "never"])
async def test_a_conversation_that_is_elsewhere_is_not_moved_and_nothing_is_changed(
    store: Store, clock: Clock, head: str | None
) -> None:
    await chat(store, "r1", "r2", name="chat")
    late = a_response("late", head, conversation="chat", calls={"c": a_part()})
    clock.now += TTL
    with pytest.raises(ConversationMoved, match="chat is at response r2") as error:
        await store.add_response(late, head=head)
    assert error.value.head == "r2"
    assert await store.conversation("one", "chat") == "r2"
    assert await there(store, "r1", "r2", "late") == "r1 r2"
    assert await store.given_calls("one", ["c"]) == {}
    clock.now += 1
    assert await store.expire() == 2, "what was refused is no use of the thread"


async def test_a_conversation_that_is_gone_is_not_made_anew_by_who_goes_on_with_it(store: Store) -> None:
    with pytest.raises(ConversationMoved, match="chat does not exist, and not at r1") as error:
        await store.add_response(a_response("r2", "r1", conversation="chat"), head="r1")
    assert error.value.head is None
    await store.add_response(a_response("r1"))
    with pytest.raises(ConversationMoved):
        await store.add_response(a_response("r2", "r1", conversation="chat"), head="r1")


async def test_one_of_two_concurrent_writers_moves_the_conversation(store: Store) -> None:
    await chat(store, "r1", name="chat")
    both = [store.add_response(a_response(f"r{n}", "r1", conversation="chat"), head="r1") for n in (2, 3)]
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), ConversationMoved]
    assert await store.conversation("one", "chat") == "r2"


async def test_a_conversation_may_begin_in_the_middle_of_another(store: Store) -> None:
    await chat(store, "r1", "r2", "r3", name="chat")
    await store.add_response(a_response("r4", "r2", conversation="fork"))
    assert await ids_of_history(store, "r4") == ["r1", "r2", "r4"]
    assert (await store.conversation("one", "chat"), await store.conversation("one", "fork")) == ("r3", "r4")


@pytest.mark.parametrize(
    "response",
    [a_response("r2", "r1"), a_response("r2", None, conversation="chat"), a_response("r2", "r0", conversation="chat")],
    ids=["no conversation", "follows none", "follows another"],
)
async def test_a_response_that_moves_a_conversation_follows_its_head(store: Store, response: Response) -> None:
    await chat(store, "r0", "r1", name="chat")
    with pytest.raises(ValueError, match="moves no conversation on from r1"):
        await store.add_response(response, head="r1")
    assert await there(store, "r0", "r1", "r2") == "r0 r1"


# --- locks ----------------------------------------------------------------------------------------------------


async def locked(
    store: Store, holder: str, proxy_id: str = "p1", *, session: str = "one", name: str = "a chat"
) -> bool:
    return await store.lock_conversation(session, name, holder=holder, proxy_id=proxy_id)


async def test_one_holder_at_a_time_has_the_lock_of_a_conversation(store: Store) -> None:
    for proxy in ("p1", "p2"):
        await store.hold(proxy, 60.0)
    assert [await locked(store, "h1"), await locked(store, "h1")] == [True, True], "the same again changes nothing"
    assert [await locked(store, "h2"), await locked(store, "h2", "p2")] == [False, False]
    assert await locked(store, "h2", session="two"), "another session"
    assert await locked(store, "h2", name="A chat"), "another conversation"
    await store.unlock_conversation("one", "a chat", holder="h2")
    assert not await locked(store, "h2"), "only its holder ends it"
    for _ in range(2):
        await store.unlock_conversation("one", "a chat", holder="h1")
    assert await locked(store, "h2", "p2")
    assert not await locked(store, "h1")
    assert await store.conversation("one", "a chat") is None


@pytest.mark.parametrize("how", ["dropped", "expired"])
async def test_a_lock_ends_with_the_lease_of_its_proxy(store: Store, clock: Clock, how: str) -> None:
    await store.hold("p1", 60.0)
    await store.hold("p2", 3600.0)
    assert await locked(store, "h1", "p1")
    clock.now += 59
    assert not await locked(store, "h2", "p2")
    if how == "dropped":
        await store.drop("p1")
    else:
        clock.now += 2
    assert await locked(store, "h2", "p2")
    await store.unlock_conversation("one", "a chat", holder="h1")
    await store.hold("p1", 60.0)
    assert not await locked(store, "h1", "p1"), "the other holder still has it"


# --- calls that clients were given ----------------------------------------------------------------------------


async def test_given_calls_are_found_by_their_ids_with_their_parts(store: Store) -> None:
    await store.add_response(a_response("r1", calls={"c1": a_part("1"), "c2": a_part("2")}))
    await store.add_response(a_response("r2", calls={"c3": a_part("3")}))
    found = await store.given_calls("one", ["c1", "c3", "c4", "c1"])
    assert found == {"c1": GivenCall(a_part("1"), "r1"), "c3": GivenCall(a_part("3"), "r2")}
    assert await store.given_calls("one", []) == {}


async def test_the_calls_alone_can_be_kept(store: Store) -> None:
    bare = Response(response_id="r1", session="one", calls={"c1": a_part()}, created_at=1.0)
    await store.add_response(bare)
    assert await store.given_calls("one", ["c1"]) == {"c1": GivenCall(a_part(), "r1")}
    assert await store.response("one", "r1") == bare
    with pytest.raises(UnknownResponse):
        await store.delete_response("one", "r1")
    assert await store.given_calls("one", ["c1"]) != {}


async def test_a_call_id_that_is_given_again_means_the_later_call(store: Store) -> None:
    await store.add_response(a_response("r1", calls={"c": a_part("1")}))
    await store.add_response(a_response("r2", calls={"c": a_part("2")}))
    assert await store.given_calls("one", ["c"]) == {"c": GivenCall(a_part("2"), "r2")}
    await store.delete_response("one", "r1")
    assert await store.given_calls("one", ["c"]) == {"c": GivenCall(a_part("2"), "r2")}
    await store.delete_response("one", "r2")
    assert await store.given_calls("one", ["c"]) == {}


async def test_the_first_of_two_calls_of_one_id_goes_after_the_second(store: Store) -> None:
    await store.add_response(a_response("r1", calls={"c": a_part("1")}))
    await store.add_response(a_response("r2", calls={"c": a_part("2")}))
    await store.delete_response("one", "r2")
    await store.delete_response("one", "r1")
    assert await there(store, "r1", "r2") == ""
