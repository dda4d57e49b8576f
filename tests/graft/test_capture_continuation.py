"""Answers that come in several requests, by a continuationToken."""

import pytest

from tests.contents import call, model, user
from tests.graft.captures import (
    ASKED,
    ID,
    PLACEHOLDER,
    paused,
    texts,
    whole,
)
from tests.graft.conftest import WEATHER, Graft, answer

pytestmark = pytest.mark.usefixtures("counted_ids")


async def test_an_answer_in_two_requests_is_one_turn_and_asking_twice_changes_nothing(graft: Graft) -> None:
    await graft.tools(WEATHER)
    first = await whole(graft, paused("Let me look.", call(args={"n": 1})))
    assert texts([first]) == "Let me look."
    assert first["candidates"][0]["finishReason"] == "CONTINUATION"
    assert not (await graft.turns())[0].delivered
    for _ in range(2):
        then = await whole(graft, answer(call("get_weather", args={"n": 2})), continuationToken="t1")
        assert texts([then]) == f"\n\nTool call completed: get_weather, get_weather [{ID}]"
        (turn,) = await graft.turns()
        assert turn.delivered
        assert len(turn.steps[0].slots) == 2
    for stored in await graft.calls():
        await graft.store.answer(stored.session, stored.call_id, result=1)
    out = await graft.contents([user("hi"), model(texts([first]), texts([then])), user("?")])
    assert out[1] == model("Let me look.", call(args={"n": 1}), call(args={"n": 2}))


async def test_a_continuation_of_another_session_is_none_of_ours(graft: Graft) -> None:
    await graft.tools(WEATHER)
    await graft.tools(WEATHER, session="other")
    await whole(graft, paused(call()))
    exchange = await graft.exchange({**ASKED, "continuationToken": "t1"}, session="other")
    assert exchange.resumes is None
    assert (await graft.exchange({**ASKED, "continuationToken": "t1"})).resumes is not None


@pytest.mark.parametrize("token", ["+/A=", "-_A=", "-_A"])
async def test_a_token_is_known_in_either_alphabet_of_base64(graft: Graft, token: str) -> None:
    await graft.tools(WEATHER)
    await whole(graft, paused(call(), token="+/A="))
    assert (await graft.exchange({**ASKED, "continuationToken": token})).resumes is not None
    assert (await graft.exchange({**ASKED, "continuationToken": "+/E="})).resumes is None


async def test_an_answer_that_has_used_its_budget_is_a_turn_and_goes_on_all_the_same(graft: Graft) -> None:
    await graft.tools(WEATHER)
    spent = paused("Once ")
    spent["candidates"][0]["finishReason"] = "MAX_TOKENS"
    first = await whole(graft, spent)
    assert first == spent
    then = await whole(graft, answer("upon ", call()), continuationToken="t1")
    assert texts([then]) == f"upon \n\n{PLACEHOLDER}"
    for stored in await graft.calls():
        await graft.store.answer(stored.session, stored.call_id, result=1)
    out = await graft.contents([user("hi"), model(texts([first]), texts([then])), user("?")])
    assert out[1] == model("Once upon ", call())


async def test_a_step_that_has_used_its_budget_ends_with_its_placeholder_and_without_a_token(graft: Graft) -> None:
    await graft.tools(WEATHER)
    spent = paused("a", call())
    spent["candidates"][0]["finishReason"] = "MAX_TOKENS"
    answered = await whole(graft, spent)
    assert texts([answered]) == f"a\n\n{PLACEHOLDER}"
    assert answered["candidates"][0]["finishReason"] == "STOP"
    assert "continuationToken" not in answered["candidates"][0]
    assert (await graft.exchange({**ASKED, "continuationToken": "t1"})).resumes is None
