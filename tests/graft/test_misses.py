"""A turn whose words the session knows, and that is missed, is counted and logged with its reason."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.graft.ledger_evidence import Miss
from tests.contents import call, model, response, user
from tests.graft.conftest import WEATHER, Graft, answer

OWN: dict[str, Any] = {"tools": [{"functionDeclarations": [{"name": "own"}]}]}


async def mixed(graft: Graft, *parts: Document, asked: str = "hi") -> Document:
    """An answer with a call of the client's own, which it is shown, and maybe one that it is not."""
    return await graft.ask([user(asked)], answer(*parts), **OWN)


async def sent(graft: Graft, visible_turn: Document, asked: str = "hi", **answered: Any) -> None:
    """The client goes on with what it was shown, and that stays as it is."""
    name = visible_turn["parts"][-1]["functionCall"]["name"]
    contents = [user(asked), visible_turn, user(response(name, **answered))]
    for _ in range(2):
        assert (await graft.sent({"contents": contents, **OWN}))["contents"] == contents


async def ambiguous(graft: Graft) -> None:
    for city in ("Oslo", "Rome"):
        visible_turn = await mixed(graft, call(args={"city": city}), call("own"))
    await sent(graft, visible_turn)


async def plain(graft: Graft) -> None:
    await mixed(graft, call(), call("own"))
    await sent(graft, await mixed(graft, call("own")))


async def marks(graft: Graft) -> None:
    await mixed(graft, call(), call("own", id="one"))
    await sent(graft, model(call("own", id="another")), id="another")


async def answers(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough", client_tools="keep")
    for city in ("Oslo", "Rome"):
        visible_turn = await mixed(graft, call(), asked=f"in {city}")
        contents = [user(f"in {city}"), visible_turn, user(response(value={"city": city}))]
        assert (await graft.sent({"contents": contents, **OWN}))["contents"] == contents
    for city in ("Oslo", "Rome"):
        visible_turn = await mixed(graft, call())
        await graft.sent({"contents": [user("hi"), visible_turn, user(response(value={"city": city}))], **OWN})
    await sent(graft, visible_turn, value={"city": "Lima"})


async def context(graft: Graft) -> None:
    visible_turn = await mixed(graft, call(), call("own"))
    await sent(graft, visible_turn, asked="something else")


CASES: dict[Miss, tuple[Callable[[Graft], Awaitable[None]], str]] = {
    Miss.AMBIGUOUS: (ambiguous, "turns of the session that read the same mean different things"),
    Miss.PLAIN: (plain, "a turn without calls reads the same"),
    Miss.MARKS: (marks, "its ids or signatures are not those of the turn that reads the same"),
    Miss.ANSWERS: (answers, "its answers do not tell which of the turns that read the same it is"),
    Miss.CONTEXT: (context, "what stands before it has changed, and its words alone may be a coincidence"),
}


@pytest.mark.parametrize("miss", list(Miss))
async def test_a_miss_is_counted_and_logged_once_with_its_reason(
    graft: Graft, miss: Miss, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "toolgraft")
    await graft.tools(WEATHER, client_tools="keep")
    happens, words = CASES[miss]
    await happens(graft)
    messages = [message for message in caplog.messages if "a model turn stays" in message]
    assert messages == [f"session default: a model turn stays as the client has it: {words}"]
    counted = [line for line in graft.grafter.metrics.render().decode().splitlines() if "ledger_misses_total{" in line]
    assert counted == [f'toolgraft_ledger_misses_total{{reason="{miss}"}} 1.0']
