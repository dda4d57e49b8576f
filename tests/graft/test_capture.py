"""Calls of whole answers are captured, and the client sees what it may."""

from typing import Any

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.graft.exchange import Reply
from addon.graft.machine_shell import Capture
from addon.surfaces.incoming import Operation
from store.models import CachedTools, Status
from tests.contents import call, model
from tests.graft.captures import ASKED, ID, OWN, PLACEHOLDER, streamed, texts, whole
from tests.graft.conftest import EVENTS, JSON, ON_EACH_BACKEND, WEATHER, Graft, answer, target

pytestmark = pytest.mark.usefixtures("counted_ids")


@ON_EACH_BACKEND
async def test_calls_become_a_placeholder_and_are_stored(graft: Graft) -> None:
    await graft.tools(WEATHER)
    answered = await whole(
        graft, answer(call(args={"city": "Oslo"}, id="x1", signature="c2ln"), usageMetadata={"n": 1})
    )
    assert answered == answer(PLACEHOLDER, usageMetadata={"n": 1})
    (stored,) = await graft.calls()
    assert (stored.name, stored.args, stored.gemini_id, stored.turn_id) == ("get_weather", {"city": "Oslo"}, "x1", ID)
    assert stored.status is Status.PENDING
    (turn,) = await graft.turns()
    assert turn.steps[0].content == model(call(args={"city": "Oslo"}, id="x1", signature="c2ln"))
    assert turn.delivered
    assert turn.visible == [{"text": PLACEHOLDER}]


async def test_a_placeholder_follows_text_after_a_blank_line(graft: Graft) -> None:
    await graft.tools(WEATHER)
    answered = await whole(graft, answer("Let me look.", call()))
    assert texts([answered]) == f"Let me look.\n\n{PLACEHOLDER}"


@pytest.mark.parametrize(("finish", "answered"), [("STOP", "STOP"), (1, 1), ("MAX_TOKENS", "STOP"), (None, "STOP")])
async def test_a_placeholder_ends_with_stop_in_the_form_that_was_asked_for(
    graft: Graft, finish: Any, answered: Any
) -> None:
    await graft.tools(WEATHER)
    says = answer(call(), finish=finish)
    says["candidates"][0]["finishMessage"] = "Model generated function call(s)."
    candidate = (await whole(graft, says))["candidates"][0]
    assert candidate["finishReason"] == answered
    assert "finishMessage" not in candidate


async def test_the_tokens_of_a_hidden_call_are_hidden(graft: Graft) -> None:
    await graft.tools(WEATHER)
    tokens = {"chosenCandidates": [{"token": "get_weather", "logProbability": -1}]}
    for part, is_visible in ((call(), False), ("Hi.", True)):
        says = answer(part)
        says["candidates"][0]["logprobsResult"] = tokens
        assert ("logprobsResult" in (await whole(graft, says))["candidates"][0]) is is_visible
        (event, *_) = await streamed(graft, [says])
        assert ("logprobsResult" in event["candidates"][0]) is is_visible


@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
async def test_the_message_about_a_wrong_call_is_hidden(graft: Graft, finish: str) -> None:
    await graft.tools(WEATHER)
    says = answer("Hm.", finish=finish)
    says["candidates"][0]["finishMessage"] = "get_weather(city='Oslo')"
    assert await whole(graft, says) == answer("Hm.", finish=finish)


async def test_an_answer_without_calls_is_the_same_object(graft: Graft) -> None:
    await graft.tools(WEATHER)
    body = b' { "candidates" : [ ] , "x": "functionCall" } '
    assert await Capture(graft.grafter, await graft.exchange(ASKED), JSON).whole(body) is body


@pytest.mark.parametrize("body", [b'{"candidates"', b'["text"]', b"<html>", b'{"error":{"functionCall":1}}', b""])
async def test_bytes_that_are_not_understood_pass_unchanged(graft: Graft, body: bytes) -> None:
    await graft.tools(WEATHER)
    assert await graft.captured(await graft.exchange(ASKED), body) == body


@pytest.mark.parametrize("body", [b'{"functionCall"', b'["functionCall"]', b'<p>"functionCall"'])
async def test_a_call_in_what_is_not_understood_is_not_shown(graft: Graft, body: bytes) -> None:
    await graft.tools(WEATHER)
    for content_type in (JSON, EVENTS, "text/plain"):
        capture = Capture(graft.grafter, await graft.exchange(ASKED), content_type)
        out = await capture.whole(body)
        answered = out.body if isinstance(out, Reply) else out
        assert b"functionCall" not in answered
        assert b'"code":502' in answered


async def test_each_candidate_has_a_turn_of_its_own(graft: Graft) -> None:
    await graft.tools(WEATHER)
    one, two, three = (answer(p)["candidates"][0] for p in (call(args={"n": 1}), "text", call(args={"n": 3})))
    answered = await whole(graft, {"candidates": [one, {**two, "index": 1}, {**three, "index": 2}]})
    visible = [candidate["content"]["parts"][0]["text"] for candidate in answered["candidates"]]
    ids = [turn.turn_id for turn in await graft.turns()]
    assert len(set(ids)) == 2
    assert visible[1] == "text"
    assert ids[0] in visible[0]
    assert ids[1] in visible[2]
    assert [(c.args, c.turn_id) for c in await graft.calls()] == [({"n": 1}, ids[0]), ({"n": 3}, ids[1])]


async def test_an_unknown_tool_in_strip_mode_fails_at_once(graft: Graft) -> None:
    await graft.tools(WEATHER)
    answered = await whole(graft, answer(call("made_up")))
    assert "made_up" in texts([answered])
    (stored,) = await graft.calls()
    assert (stored.status, stored.error) == (Status.FAILED, "unknown tool: made_up")


async def test_in_keep_mode_a_renamed_call_is_stored_under_the_toolsets_name(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    own = [{"functionDeclarations": [WEATHER]}]
    await whole(graft, answer(call("get_weather_g2")), tools=own)
    assert [c.name for c in await graft.calls()] == ["get_weather"]
    assert await whole(graft, answer(call("get_weather")), tools=own) == answer(call("get_weather"))


async def test_the_client_sees_only_its_own_calls_of_a_mixed_step(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    answered = await whole(graft, answer("a", call("own", id="o"), call(id="w")), tools=[OWN])
    assert answered == answer("a", call("own", id="o"))
    (turn,) = await graft.turns()
    assert turn.steps[0].content == model("a", call("own", id="o"), call(id="w"))
    assert [slot.call_id for slot in turn.steps[0].slots] == [None, "call_1"]


async def test_passthrough_shows_the_calls_byte_for_byte_and_captures_them(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    body = b'{"candidates" : [ {"content": {"parts": [{"functionCall": {"name": "get_weather"}}]}} ]}'
    assert await Capture(graft.grafter, await graft.exchange(ASKED), JSON).whole(body) == body
    assert [c.name for c in await graft.calls()] == ["get_weather"]
    assert (await graft.turns())[0].delivery == "passthrough"


async def test_the_envelope_stays_around_the_answer(graft: Graft) -> None:
    await graft.tools(WEATHER)
    to = target(surface="codeassist")
    asked: Document = {"model": "gemini-3-flash", "request": ASKED}
    exchange = await graft.exchange(asked, to)
    body = encode({"response": answer(call()), "traceId": "t"})
    answered = decode(await graft.captured(exchange, body))
    assert answered == {"response": answer(PLACEHOLDER), "traceId": "t"}
    assert (await graft.calls())[0].model == "gemini-3-flash"


async def test_hidden_server_tools_do_not_show_and_nothing_else_changes(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    to = target(model="gemini-3-flash")
    used = {"toolCall": {"toolType": "GOOGLE_SEARCH", "id": "1"}, "thoughtSignature": "c2ln"}
    got = {"toolResponse": {"toolType": "GOOGLE_SEARCH", "id": "1"}}
    answered = await whole(graft, answer(used, got, "Found."), to, tools=[{"googleSearch": {}}])
    assert answered == answer("Found.")
    (turn,) = await graft.turns()
    assert turn.steps[0].content == model(used, got, "Found.")


async def test_a_cache_remembers_the_names_that_it_was_made_with(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    to = target(Operation.CACHE)
    exchange = await graft.exchange({**ASKED, "tools": [{"functionDeclarations": [WEATHER]}]}, to)
    body = b'{"name": "cachedContents/abc"}'
    assert await Capture(graft.grafter, exchange, JSON).whole(body) is body
    cached = await graft.store.cached_tools("default", "cachedContents/abc")
    assert isinstance(cached, CachedTools)
    assert cached.names == {"get_weather": "get_weather_g2"}
