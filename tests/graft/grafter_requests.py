"""Shared by the tests of the grafter."""

from typing import Any

from addon.core.framing.documents import Document
from addon.surfaces.incoming import Framing, Operation
from tests.contents import call, user
from tests.graft.conftest import WEATHER, Graft, answer, target

STREAM = target(Operation.STREAM, Framing.SSE)
OWN: Document = {"functionDeclarations": [{"name": "own"}]}
SOON = 5.0


async def answer_all(graft: Graft, result: Any, session: str = "default") -> None:
    for one in await graft.calls(session):
        if not one.status.final:
            await graft.store.answer(one.session, one.call_id, result=result)


async def pending(graft: Graft, **policy: Any) -> list[Document]:
    """A history with a step without results as its last model turn."""
    await graft.tools(WEATHER, **policy)
    visible_turn = await graft.ask([user("hi")], answer("Let me look.", call()))
    return [user("hi"), visible_turn, user("?")]
