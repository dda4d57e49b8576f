"""Nothing of a deleted session is told in a new session of its name."""

import pytest

from store.base import Store
from tests.contents import call, user
from tests.graft.conftest import WEATHER, Graft, answer


@pytest.mark.parametrize("filler", ["", "x" * 2000], ids=["short", "with a beginning that is remembered"])
async def test_a_chat_of_a_deleted_session_finds_no_turn_in_a_new_session_of_that_name(
    store: Store, filler: str
) -> None:
    graft = Graft(store)
    await graft.tools(WEATHER)
    question = user("weather? " + filler)
    visible = await graft.ask([question], answer(call("get_weather", args={"city": "Oslo"})))
    (one,) = await graft.calls()
    await store.answer("default", one.call_id, result={"sky": "clear"})
    chat = [question, visible, user("and?")]
    assert "clear" in str(await graft.contents(chat))
    assert await store.delete_session("default")
    await graft.tools(WEATHER)
    await graft.ask([user("something else")], answer(call("get_weather", args={"city": "Rome"})))
    sent = str(await graft.contents(chat))
    assert "Oslo" not in sent
    assert "clear" not in sent
