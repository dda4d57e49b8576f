"""The store's contract for responses: adding, reading, deleting, expiry."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.base import Store, StoreUnavailable, UnknownResponse
from store.factory import open_url
from store.models import Document, GivenCall, Policy, Response, UndeliveredAnswer
from tests.store.conftest import TTL, URLS, Clock
from tests.store.response_records import a_part, a_response, chat, ids_of_history, outcome, there

# --- adding and reading ---------------------------------------------------------------------------------------


async def test_a_response_comes_back_as_it_was_added(store: Store) -> None:
    await store.add_response(a_response("r0"))
    response = a_response(
        "r1",
        "r0",
        conversation="é😀\x00 / chat",
        tools={"declarations": [{"name": "f", "large": 2**80, "float": 1.0}], "none": None},
        calls={"call_1": a_part(), "call_2": a_part("t")},
        document={"id": "r1", "output": [{"text": "é😀\x00"}], "empty": {}},
    )
    await store.add_response(response)
    assert await store.response("one", "r1") == response
    assert (await store.history("one", "r1"))[-1] == response
    assert (await store.response("one", "r0")).tools is None
    await store.add_response(bare := Response(response_id="r2", session="one", tools={}, document={}, created_at=2.5))
    assert await store.response("one", "r2") == bare, "nothing in them is not none"


async def test_several_responses_are_read_at_once(store: Store) -> None:
    await chat(store, "r1", "r2", "r3", name="chat")
    await store.add_response(a_response("r4", session="two"))
    await store.delete_response("one", "r2")
    found = await store.responses("one", ["r3", "r1", "r2", "r4", "none"])
    assert found == {one: await store.response("one", one) for one in ("r1", "r2", "r3")}
    assert found["r2"].document is None
    assert await store.responses("one", []) == {}
    assert await store.responses("none", ["r1"]) == {}


async def test_later_changes_of_a_caller_s_documents_change_nothing_in_the_store(store: Store) -> None:
    content, document, part, tools = {"parts": [{"text": "a"}]}, {"id": "r1"}, a_part(), {"a": 1}
    response = a_response(contents=[content], document=document, calls={"c": part}, tools=tools)
    before = response.model_copy(deep=True)
    await store.add_response(response)
    for given_in in (content, document, part, tools):
        given_in.clear()
    assert await store.response("one", "r1") == before
    assert (await store.given_calls("one", ["c"]))["c"].part == a_part()


async def test_responses_leave_no_events(store: Store) -> None:
    await chat(store, "r1", "r2", name="chat")
    await store.delete_response("one", "r1")
    assert await store.events(after=None) == []


async def test_an_unknown_response_is_unknown(store: Store) -> None:
    for attempt in (
        store.response("one", "r1"),
        store.history("one", "r1"),
        store.delete_response("one", "r1"),
        store.add_response(a_response("r2", "r1")),
    ):
        with pytest.raises(UnknownResponse, match="r1 in session one"):
            await attempt
    assert await there(store, "r1", "r2") == ""


async def test_an_id_that_is_taken_is_refused_and_nothing_is_changed(store: Store) -> None:
    await chat(store, "r1", name="chat")
    repeated = a_response("r1", conversation="other", document={"other": 1}, calls={"c": a_part()})
    with pytest.raises(ValueError, match="r1 in session one already"):
        await store.add_response(repeated)
    assert (await store.response("one", "r1")).document == {"id": "r1"}
    assert await store.conversation("one", "other") is None
    assert await store.given_calls("one", ["c"]) == {}


async def test_a_value_that_json_cannot_hold_is_refused_and_nothing_is_written(store: Store) -> None:
    bad = {"text": "\ud800"}
    for response in (a_response(document=bad), a_response(tools=bad), a_response(calls={"c": bad})):
        with pytest.raises(ValueError, match="surrogates"):
            await store.add_response(response.model_copy(update={"conversation": "chat"}))
    assert await there(store, "r1") == ""
    assert await store.conversation("one", "chat") is None


async def test_numbers_that_json_does_not_have_are_null(store: Store) -> None:
    odd, null = {"a": [float("nan"), float("inf"), 1.5]}, {"a": [None, None, 1.5]}
    await store.add_response(a_response("r1", contents=[odd], tools=odd, document=odd, calls={"c": odd}))
    kept = await store.response("one", "r1")
    assert [kept.contents, kept.tools, kept.document, kept.calls] == [[null], null, null, {"c": null}]
    assert (await store.given_calls("one", ["c"]))["c"].part == null


async def test_a_closed_store_keeps_no_responses(store: Store) -> None:
    await store.close()
    for attempt in (
        store.add_response(a_response()),
        store.response("one", "r1"),
        store.conversation("one", "chat"),
        store.history("one", "r1"),
        store.given_calls("one", ["c"]),
        store.delete_response("one", "r1"),
    ):
        with pytest.raises(StoreUnavailable):
            await attempt


# --- deleting -------------------------------------------------------------------------------------------------


async def test_a_response_that_nothing_needs_is_deleted_with_its_calls(store: Store) -> None:
    await store.add_response(a_response("r1", calls={"c": a_part()}))
    await store.delete_response("one", "r1")
    assert await there(store, "r1") == ""
    assert await store.given_calls("one", ["c"]) == {}
    with pytest.raises(UnknownResponse):
        await store.delete_response("one", "r1")
    await store.add_response(a_response("r1"))
    assert await there(store, "r1") == "r1"


async def test_a_deleted_response_that_others_follow_keeps_its_place(store: Store) -> None:
    await chat(store, "r1", "r2", "r3")
    await store.delete_response("one", "r2")
    assert await there(store, "r1", "r2", "r3") == "r1 (r2) r3"
    assert await ids_of_history(store, "r3") == ["r1", "r2", "r3"]
    assert (await store.history("one", "r3"))[1].contents == a_response("r2").contents
    with pytest.raises(UnknownResponse):
        await store.delete_response("one", "r2")


async def test_with_the_last_that_follows_go_those_that_were_kept_for_it(store: Store) -> None:
    await chat(store, "r1", "r2", "r3", "r4", "r5")
    for response_id in ("r2", "r4", "r3"):
        await store.delete_response("one", response_id)
    assert await there(store, "r1", "r2", "r3", "r4", "r5") == "r1 (r2) (r3) (r4) r5"
    await store.delete_response("one", "r5")
    assert await there(store, "r1", "r2", "r3", "r4", "r5") == "r1"
    await store.delete_response("one", "r1")
    assert await there(store, "r1") == ""


async def test_responses_that_another_branch_needs_are_kept(store: Store) -> None:
    await chat(store, "r1", "r2", "r3")
    await store.add_response(a_response("r4", "r2"))
    for response_id in ("r1", "r2", "r3"):
        await store.delete_response("one", response_id)
    assert await there(store, "r1", "r2", "r3", "r4") == "(r1) (r2) r4"
    await store.delete_response("one", "r4")
    assert await there(store, "r1", "r2", "r4") == ""


async def test_a_conversation_goes_on_from_a_deleted_response(store: Store) -> None:
    await chat(store, "r1", "r2", name="chat")
    await store.delete_response("one", "r2")
    await store.delete_response("one", "r1")
    assert await store.conversation("one", "chat") == "r2"
    assert await there(store, "r1", "r2") == "(r1) (r2)"
    await store.add_response(a_response("r3", "r2", conversation="chat"), head="r2")
    assert await ids_of_history(store, "r3") == ["r1", "r2", "r3"]


# --- sessions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [None, {"object": "response"}])
async def test_a_response_that_was_added_can_be_taken_back(store: Store, document: Document | None) -> None:
    more: Any = {"session": "one", "created_at": store.clock(), "document": document}
    first = Response(response_id="r1", conversation="chat", **more)
    await store.add_response(first)
    second = Response(response_id="r2", conversation="chat", previous="r1", calls={"c": {"text": "x"}}, **more)
    await store.add_response(second, head="r1", undelivered=UndeliveredAnswer(b"key", "proxy", {"a": 1}))
    await store.take_back("one", "r2", head="r1")
    assert await store.conversation("one", "chat") == "r1"
    assert await store.given_calls("one", ["c"]) == {}
    assert await store.take_answer("one", b"key", window=60, proxy_id="other") is None
    with pytest.raises(UnknownResponse):
        await store.response("one", "r2")
    with pytest.raises(UnknownResponse):
        await store.take_back("one", "r2", head="r1")
    await store.add_response(second, head="r1")
    assert [one.response_id for one in await store.history("one", "r2")] == ["r1", "r2"]
    await store.take_back("one", "r2", head="r1")
    await store.take_back("one", "r1")
    assert await store.conversation("one", "chat") is None
    with pytest.raises(UnknownResponse):
        await store.response("one", "r1")


async def test_responses_after_a_withdrawn_one_keep_their_history(store: Store) -> None:
    more: Any = {"session": "one", "created_at": store.clock()}
    await store.add_response(Response(response_id="r1", conversation="chat", **more))
    await store.add_response(Response(response_id="r2", previous="r1", conversation="fork", document={}, **more))
    await store.add_response(Response(response_id="r3", previous="r2", conversation="fork", **more), head="r2")
    await store.take_back("one", "r2")
    assert await store.conversation("one", "fork") == "r3"
    assert [one.response_id for one in await store.history("one", "r3")] == ["r1", "r2", "r3"]


async def test_sessions_are_isolated(store: Store) -> None:
    await chat(store, "r1", "r2", name="chat", calls={"c": a_part("one")})
    assert await there(store, "r1", "r2", session="two") == ""
    assert await store.conversation("two", "chat") is None
    assert await store.given_calls("two", ["c"]) == {}
    for attempt in (
        store.history("two", "r2"),
        store.delete_response("two", "r2"),
        store.add_response(a_response("r3", "r2", session="two")),
    ):
        with pytest.raises(UnknownResponse):
            await attempt
    await store.add_response(
        a_response("r1", session="two", conversation="chat", document={"two": 2}, calls={"c": a_part("two")})
    )
    assert (await store.response("one", "r1")).document == {"id": "r1"}
    assert await store.conversation("one", "chat") == "r2"
    assert (await store.given_calls("one", ["c"]))["c"].part == a_part("one")
    await store.delete_response("two", "r1")
    assert await there(store, "r1", "r2") == "r1 r2"


async def test_deleting_a_session_deletes_its_responses_and_no_others(store: Store) -> None:
    for session in ("one", "two"):
        await chat(store, "r1", "r2", name="chat", session=session, calls={f"c-{session}": a_part()})
    assert await store.delete_session("one") is True, "responses are something, also without a policy"
    assert await there(store, "r1", "r2") == ""
    assert await store.conversation("one", "chat") is None
    assert await store.given_calls("one", ["c-one"]) == {}
    assert await store.delete_session("one") is False
    assert await ids_of_history(store, "r2", "two") == ["r1", "r2"]
    assert await store.conversation("two", "chat") == "r2"
    assert await store.given_calls("two", ["c-two"]) != {}


# --- upkeep ---------------------------------------------------------------------------------------------------


async def test_a_thread_expires_as_a_whole_once_nothing_was_added_to_it_for_the_ttl(store: Store, clock: Clock) -> None:
    await store.put_policy("one", Policy())
    await chat(store, "r1", "r2", name="chat", calls={"c": a_part()})
    await chat(store, "x1", "x2", name="idle", calls={"d": a_part()})
    clock.now += TTL
    await store.add_response(a_response("r3", "r1"))
    clock.now += 1
    assert await store.expire() == 2 + 1, "and the event of the session"
    assert await there(store, "x1", "x2") == ""
    assert await store.conversation("one", "idle") is None
    assert await store.given_calls("one", ["c", "d"]) == {"c": GivenCall(a_part(), "r2")}
    assert await there(store, "r1", "r2", "r3") == "r1 r2 r3", "no end without its beginning, nor the other branch"
    assert await store.conversation("one", "chat") == "r2"
    clock.now += TTL - 1
    assert await store.expire() == 0, "not older than the ttl yet"
    clock.now += 1
    assert await store.expire() == 3
    assert await store.conversation("one", "chat") is None
    await chat(store, "r1", name="chat")
    assert await store.conversation("one", "chat") == "r1"


async def test_the_last_use_of_a_thread_is_not_forgotten_with_the_response_that_was_it(
    store: Store, clock: Clock
) -> None:
    await chat(store, "r1")
    clock.now += TTL
    await store.add_response(a_response("r2", "r1"))
    await store.delete_response("one", "r2")
    clock.now += 1
    assert await store.expire() == 0
    assert await there(store, "r1") == "r1"


async def test_threads_of_two_sessions_expire_apart(store: Store, clock: Clock) -> None:
    await chat(store, "r1", name="chat", session="one")
    clock.now += TTL
    await chat(store, "r1", name="chat", session="two")
    clock.now += 1
    assert await store.expire() == 1
    assert await store.conversation("one", "chat") is None
    assert await store.conversation("two", "chat") == "r1"


# --- all backends alike ---------------------------------------------------------------------------------------

IDS = st.sampled_from([f"r{number}" for number in range(6)])
NAMES = st.sampled_from(["a", "b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), IDS, st.none() | IDS, st.none() | NAMES, st.booleans()),
        st.tuples(st.just("go on"), IDS, NAMES, st.booleans()),
        st.tuples(st.just("delete"), IDS),
        st.tuples(st.just("expire"), st.sampled_from([1.0, TTL])),
    ),
    max_size=25,
)


@pytest.mark.e2e
@given(steps=STEPS)
def test_all_backends_give_the_same_results_for_any_operations(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    folder: Path = tmp_path_factory.mktemp("alike")
    clocks = {name: Clock() for name in URLS}
    stores = {
        name: open_url(url(folder), ttl=TTL, clock=clocks[name], uptime=clocks[name]) for name, url in URLS.items()
    }

    async def take_all() -> None:
        for store in stores.values():
            await store.open()
        try:
            for step in steps:
                outcomes = {name: await outcome(store, clocks[name], step) for name, store in stores.items()}
                assert all(one == outcomes["memory"] for one in outcomes.values()), step
        finally:
            for store in stores.values():
                await store.close()

    asyncio.run(take_all())
