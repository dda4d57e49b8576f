"""The history of a request that the grafter rewrites: steps from the ledger instead of what the client saw."""

from typing import Any

import pytest

from addon.core.framing.documents import Document, encode
from addon.core.framing.streams import sse_event
from addon.graft.machine_shell import note_answer
from store.base import Store
from tests.contents import call, model, response, user
from tests.graft.captures import Stream
from tests.graft.conftest import EVENTS, JSON, ON_EACH_BACKEND, SEARCH, WEATHER, Graft, answer
from tests.graft.grafter_requests import OWN, STREAM, answer_all

# --- the ledger --------------------------------------------------------------------------------------------------


async def test_a_placeholder_is_found_by_its_id_in_a_chat_that_was_cut_at_its_front(graft: Graft) -> None:
    await graft.tools(WEATHER)
    one = await graft.ask([user("a")], answer(call(args={"n": 1}, id="x", signature="c2ln")))
    await answer_all(graft, {"n": 1})
    out = await graft.contents([user("something else"), model("b"), user("a"), one, user("?")])
    assert out[3:5] == [model(call(args={"n": 1}, id="x", signature="c2ln")), user(response(value={"n": 1}, id="x"))]


async def test_a_placeholder_of_another_session_stays_text_even_beside_a_step_of_the_same_words(graft: Graft) -> None:
    await graft.tools(WEATHER)
    await graft.tools(WEATHER, session="other")
    visible_turn = await graft.ask([user("a")], answer(call()))
    await graft.ask([user("a")], answer(call()), session="other")
    await answer_all(graft, {"n": 1})
    await answer_all(graft, {"n": 1}, "other")
    history = [user("a"), visible_turn, user("?")]
    assert await graft.contents(history, session="other") == history
    assert await graft.contents(history) != history


async def test_chunks_kept_apart_or_joined_are_one_turn_whatever_clients_lose_on_the_way(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    called = call(args={"n": 1.0}, id="x", signature="c2ln")
    parts: list[Any] = [{"text": "Th", "thought": True}, "Let me ", "look.", called]
    before = [user("hi"), model({"inlineData": {"mimeType": "image/png", "data": "-_-_"}}), user("go")]
    await graft.ask(before, answer(*parts))
    await answer_all(graft, {"t": 1})
    sent = {"functionCall": {"name": "get_weather", "args": {"n": 1}}}
    image = {"inline_data": {"mime_type": "image/png", "data": "+/+/"}}
    for run in (
        [model("Let me look.", sent)],
        [model("\nLet me "), model(""), model("look.\n", " "), model(sent)],
        [{"role": "model", "parts": {"text": "Let me look."}}, model({"thought": True, "text": "Hm"}), model(sent)],
    ):
        out = await graft.contents([user("hi"), model(image), user("go"), *run, user("?")])
        assert model("Let me look.", called) in out
        assert user(response(value={"t": 1}, id="x")) in out


async def test_images_in_a_clients_own_result_are_stored_as_its_parts(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    called = call(id="x", signature="c2ln")
    await graft.ask([user("hi")], answer(called))
    answered = response(value={"t": 1}, id="x")
    answered["functionResponse"]["parts"] = [
        {"inline_data": {"mime_type": "image/png", "data": "-_-_"}},
        {"inlineData": {"mimeType": "image/png", "data": "no base64!"}},
    ]
    history = [user("hi"), model(called), user(answered)]
    assert await graft.contents(history) == history
    (one,) = (await graft.store.calls()).items
    stored = await graft.store.call("default", one.call_id)
    assert (stored.result, stored.parts) == ({"t": 1}, [{"inlineData": {"mimeType": "image/png", "data": "+/+/"}}])
    assert await graft.contents([*history, model("Cold."), user("?")]) == [*history, model("Cold."), user("?")]


@ON_EACH_BACKEND
async def test_a_turn_with_the_same_words_in_another_chat_is_found_by_all_before_it(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    chats = [[user(first), model("ok"), user("weather?")] for first in ("Oslo", "Bergen")]
    for n, chat in enumerate(chats):
        await graft.ask(chat, answer(call(signature=f"sig{n}")))
    for n, chat in enumerate(chats):
        out = await graft.contents([*chat, model(call()), user(response())])
        assert out[3] == model(call(signature=f"sig{n}"))
    # cut at its front it could be either
    cut = [user("weather?"), model(call()), user(response())]
    assert await graft.contents(cut) == cut


async def test_a_chat_cut_at_its_front_is_found_by_words_that_are_no_coincidence(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    words = user("What will the weather be like in Oslo tomorrow afternoon?")
    for asked in (words, user("weather?")):
        await graft.ask([user("Oslo"), model("ok"), asked], answer(call(signature="c2ln")))
        out = await graft.contents([asked, model(call()), user(response())])
        assert (out[1] == model(call(signature="c2ln"))) is (asked is words)


async def test_a_turn_stands_in_a_history_only_once_unless_its_id_says_so(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    await graft.ask([user("weather?")], answer(call(signature="c2ln")))
    twice = [user("weather?"), model(call()), user(response(), "thanks"), model("ok"), user("weather?"), model(call())]
    out = await graft.contents([*twice, user(response())])
    assert out[1] == model(call(signature="c2ln"))
    assert out[5] == model(call())


async def test_the_newest_completely_delivered_of_regenerated_answers_wins(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    for n in (1, 2):
        await graft.ask([user("hi")], answer(call("own"), call(signature=f"sig{n}")), tools=[OWN])
    cut = Stream(graft.grafter, await graft.exchange({"contents": [user("hi")], "tools": [OWN]}, STREAM), EVENTS)
    await cut.feed(b"data: " + encode(answer(call("own"), call(signature="sig3"))) + b"\r\n\r\n")
    out = await graft.contents([user("hi"), model(call("own")), user(response("own"))])
    assert out[1] == model(call("own"), call(signature="sig2"))


async def test_a_regenerated_answer_that_was_passed_through_is_known_by_its_signature_only(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    for n in (1, 2):
        await graft.ask([user("hi")], answer(call(signature=f"sig{n}"), call()))
    lost = [user("hi"), model(call(), call()), user(response(value={"t": 1}), response(value={"t": 2}))]
    assert await graft.contents(lost) == lost
    assert [c.result for c in await graft.calls()] == [None] * 4
    kept = [lost[0], model(call(signature="sig1"), call()), lost[2]]
    assert await graft.contents(kept) == kept
    assert [c.result for c in await graft.calls()] == [{"t": 1}, {"t": 2}, None, None]


async def test_the_same_chat_twice_is_told_apart_by_the_ids_of_its_calls(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    for name in ("one", "two"):
        await graft.ask([user("hi")], answer(call(id=name, signature=name)))
    out = await graft.contents([user("hi"), model(call(id="one")), user(response(id="one"))])
    assert out[1] == model(call(id="one", signature="one"))


async def test_a_placeholder_without_its_id_is_its_step_until_another_chat_begins_alike(graft: Graft) -> None:
    await graft.tools(WEATHER)
    bare = [user("hi"), model("Tool call completed"), user("?")]
    assert await graft.contents(bare) == bare
    await graft.ask([user("hi")], answer(call(args={"n": 1})))
    await answer_all(graft, {"t": 1})
    assert (await graft.contents(bare))[1] == model(call(args={"n": 1}))
    await graft.ask([user("hi")], answer(call(args={"n": 2})))
    await answer_all(graft, {"t": 2})
    assert await graft.contents(bare) == bare
    other = [user("bye"), model("Tool call completed: get_weather"), user("?")]
    assert await graft.contents(other) == other


async def test_words_that_a_model_imitates_are_no_call(graft: Graft) -> None:
    """A turn without calls is noted, and is none in any chat."""
    await graft.tools(WEATHER)
    await graft.ask([user("hi")], answer(call()))
    await answer_all(graft, {"t": 1})
    text = await graft.ask([user("hi")], answer("Tool call completed: get_weather"))
    chat = [user("hi"), text, user("?")]
    assert await graft.contents(chat) == chat


async def test_an_id_is_no_token_for_whoever_has_it(graft: Graft) -> None:
    """A model quotes the id of another user's chat, which the user has pasted."""
    await graft.tools(WEATHER)
    placeholder = await graft.ask([user("hi")], answer(call()), asker="key:one")
    await answer_all(graft, {"t": 1})
    line = placeholder["parts"][0]["text"]
    for asker in ("key:one", "key:two"):
        for text in (f"You mean: {line}", line):
            quoted = await graft.ask([user(f"What is {line}?")], answer(text), asker=asker)
            chat = [user(f"What is {line}?"), quoted, user("?")]
            assert await graft.contents(chat, asker=asker) == chat
        forged = [user("yo"), placeholder, user("?")]
        assert await graft.contents(forged, asker=asker) == forged


async def test_the_second_placeholder_without_its_id_is_the_next_step(graft: Graft) -> None:
    await graft.tools(WEATHER)
    chat = [user("hi")]
    for n in (1, 2, 3):
        await graft.ask(chat, answer(call(args={"n": n})))
        await answer_all(graft, {"t": n})
        chat += [model("Tool call completed"), user("hi")]
        out = await graft.contents(chat)
        numbers = [p["functionCall"]["args"]["n"] for c in out for p in c["parts"] if "functionCall" in p]
        assert numbers == list(range(1, n + 1))


async def test_a_repeated_placeholder_vanishes(graft: Graft) -> None:
    await graft.tools(WEATHER)
    visible_turn = await graft.ask([user("hi")], answer(call()))
    await answer_all(graft, {"t": 1})
    out = await graft.contents([user("hi"), visible_turn, user("a"), visible_turn, user("b")])
    assert out == [user("hi"), model(call()), user(response(value={"t": 1})), user("a"), user("b")]


async def test_the_same_history_is_rewritten_the_same_and_a_late_result_is_told(graft: Graft) -> None:
    await graft.tools(WEATHER, SEARCH)
    visible_turn = await graft.ask([user("hi")], answer(call(), call("search")))
    history = [user("hi"), visible_turn, user("?")]
    assert await graft.contents(history) == history
    one, two = await graft.calls()
    await graft.store.answer(one.session, one.call_id, result={"t": 1})
    partly = await graft.contents(history)
    assert partly == await graft.contents(history)
    assert partly[2] == user(response(value={"t": 1}), response("search", {"error": "no result"}))
    await graft.store.answer(two.session, two.call_id, error="broken")
    assert (await graft.contents(history))[2]["parts"][1] == response("search", {"error": "broken"})


async def test_earlier_steps_are_rewritten_without_any_result(graft: Graft) -> None:
    await graft.tools(WEATHER, on_pending="block")
    visible_turn = await graft.ask([user("hi")], answer(call()))
    out = await graft.contents([user("hi"), visible_turn, user("?"), model("Well."), user("so?")])
    assert out[1:3] == [model(call()), user(response(value={"error": "no result"}))]


@ON_EACH_BACKEND
async def test_a_long_chat_is_rewritten_the_same_read_cold_and_read_on(store: Store) -> None:
    warm = Graft(store)
    await warm.tools(WEATHER)
    chat = [user("x" * 6000)]
    for n in range(6):
        visible_turn = await warm.ask(chat, answer(call(args={"n": n})))
        await answer_all(warm, {"t": n})
        chat += [visible_turn, user(f"and {n}?")]
        cold = Graft(store)
        assert await warm.contents(chat) == await cold.contents(chat)
    call_parts = [part for c in await warm.contents(chat) for part in c["parts"] if "functionCall" in part]
    assert [part["functionCall"]["args"] for part in call_parts] == [{"n": n} for n in range(6)]


# --- passthrough and mixed ---------------------------------------------------------------------------------------


@ON_EACH_BACKEND
async def test_passthrough_stores_the_clients_response_and_the_first_answer_wins(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    visible_turn = await graft.ask([user("hi")], answer(call(id="x")))
    history = [user("hi"), visible_turn, user(response(value={"mine": 1}, id="x"))]
    assert await graft.contents(history) == history
    (stored,) = await graft.calls()
    assert stored.result == {"mine": 1}
    retry = [user("hi"), visible_turn, user(response(value={"mine": 2}, id="x"))]
    assert await graft.contents(retry) == retry  # in place, whatever the store holds
    assert (await graft.calls())[0].result == {"mine": 1}


async def test_passthrough_inserts_what_is_missing(graft: Graft) -> None:
    await graft.tools(WEATHER, SEARCH, delivery="passthrough")
    visible_turn = await graft.ask([user("hi")], answer(call(), call("search")))
    await graft.store.answer("default", (await graft.calls())[0].call_id, result={"t": 1})
    out = await graft.contents([user("hi"), visible_turn, user(response("search", {"s": 1}))])
    assert out[2] == user(response(value={"t": 1}), response("search", {"s": 1}))
    assert [one.result for one in await graft.calls()] == [{"t": 1}, {"s": 1}]


async def test_passthrough_under_another_name_is_taken_too(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough", client_tools="keep")
    own = [{"functionDeclarations": [WEATHER]}]
    visible_turn = await graft.ask([user("hi")], answer(call("get_weather_g2")), tools=own)
    history = [user("hi"), visible_turn, user(response("get_weather_g2", {"mine": 1}))]
    assert (await graft.sent({"contents": history, "tools": own}))["contents"] == history
    assert (await graft.calls())[0].result == {"mine": 1}


@pytest.mark.parametrize("policy", ["pass", "block"])
async def test_a_mixed_step_is_restored_whole_whatever_is_pending(graft: Graft, policy: str) -> None:
    await graft.tools(WEATHER, client_tools="keep", on_pending=policy)
    visible_turn = await graft.ask([user("hi")], answer(call(id="w"), call("own", id="o")), tools=[OWN])
    assert visible_turn == model(call("own", id="o"))
    body: Document = {"tools": [OWN], "contents": [user("hi"), visible_turn, user(response("own", id="o"), "?")]}
    sent = await graft.sent(body)
    assert sent["contents"][1] == model(call(id="w"), call("own", id="o"))
    expected = user(response(value={"error": "no result"}, id="w"), response("own", id="o"))
    assert sent["contents"][2:] == [expected, user("?")]
    await answer_all(graft, {"t": 1})
    assert (await graft.sent(body))["contents"][2]["parts"][0] == response(value={"t": 1}, id="w")


@pytest.mark.parametrize("text", ["Tool call completed: get_weather", "Tool call completed"])
@pytest.mark.parametrize("way", ["whole", "stream", "unread"])
async def test_a_model_s_words_that_read_as_a_placeholder_without_its_id_are_not_another_chat_s_step(
    graft: Graft, way: str, text: str
) -> None:
    await graft.tools(WEATHER)
    await graft.ask([user("hi")], answer(call()))
    await answer_all(graft, {"t": 1})
    exchange = await graft.exchange({"contents": [user("hi")]}, STREAM)
    if way == "whole":
        await graft.ask([user("hi")], answer(text))
    elif way == "unread":
        await note_answer(graft.grafter, exchange, JSON, encode(answer(text)))
    else:
        capture = Stream(graft.grafter, exchange, EVENTS)
        await capture.feed(sse_event(encode(answer(text[:9], finish=None))))
        await capture.feed(sse_event(encode(answer(text[9:]))))
        await capture.finish()
    bare = [user("hi"), model(text), user("?")]
    assert await graft.contents(bare) == bare
