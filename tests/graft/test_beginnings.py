"""Whoever does not have all of an answer may go on with any beginning of it, which is none of another chat's turns."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, encode
from addon.core.history.visible import PREFIXES
from store.base import Store, StoreUnavailable
from store.models import Turn
from tests.contents import call, model, user
from tests.graft.captures import Stream
from tests.graft.conftest import EVENTS, JSON, WEATHER, Graft, answer
from tests.graft.test_notes import ARRAY, ASKED, SAID, STREAM, WRAPPED, Noted, body_of, expected, framed

Ending = Callable[[Stream], Awaitable[object]]
ENDINGS: dict[str, Ending] = {
    "the client hangs up": Stream.hang_up,
    "it cannot be read on": lambda fed: fed.feed(httpx2.DecodingError("no gzip")),
    "there is no finishReason": Stream.finish,
}


@pytest.fixture
def noted(store: Store, monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(store, monkeypatch)


async def begun(graft: Graft, documents: Sequence[Document], to: Any = STREAM, **body: Any) -> Stream:
    """A stream as far as these documents."""
    exchange = await graft.streamed_exchange(body_of(to, {**ASKED, **body}), to)
    capture = Stream(graft.grafter, exchange, JSON if to is ARRAY else EVENTS)
    for chunk in [b"[", *map(encode, documents)] if to is ARRAY else framed(to, documents):
        await capture.feed(chunk)
    return capture


def own_keys(noted: Noted) -> set[bytes]:
    return {keys[0] for keys, _ in noted.notes}


async def own_of(graft: Graft, *texts: str) -> set[bytes]:
    return {(await expected(graft, {"text": text}))[0][0] for text in texts}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("to", [STREAM, ARRAY, WRAPPED], ids=["events", "array", "envelope"])
async def test_each_beginning_of_what_was_sent_is_noted(graft: Graft, noted: Noted, to: Any, ending: Ending) -> None:
    await graft.tools(WEATHER)
    capture = await begun(graft, SAID[:2], to)
    assert noted.notes == []
    await ending(capture)
    wanted = [await expected(graft, {"text": text}, to=to) for text in ("We", "Well,")]
    assert sorted(noted.notes) == sorted(wanted)
    await capture.runner.settle_handover(False)
    assert len(noted.notes) == 2, "once"


@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("how", ["hung up", "error"])
async def test_a_chat_that_goes_on_with_a_beginning_is_not_given_the_calls_of_another(
    graft: Graft, how: str, length: int
) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    own: dict[str, Any] = {"tools": [{"functionDeclarations": [{"name": "own"}]}]}
    says = [*[answer(text, finish=None) for text in ("Do", "ne", ".")][: length + 1], answer(call("own"), finish=None)]
    capture = await begun(graft, [*says, {"error": {"code": 503}}] if how == "error" else says, **own)
    await capture.finish() if how == "error" else await capture.hang_up()
    kept = model("Done."[: (2, 4, 5)[length]])
    for other in (kept, model(*kept["parts"], call("own"))):
        body: Document = {"contents": [user("hi"), other, user("?")], **own}
        if len(other["parts"]) > 1:
            body["contents"][2] = user({"functionResponse": {"name": "own", "response": {}}}, "?")
        shown_to_other = await graft.ask([user("hi")], answer(*other["parts"], call()), **own)
        if len(other["parts"]) > 1:
            assert shown_to_other == other, "what the other client has reads the same"
        assert (await graft.sent(body))["contents"] == body["contents"]


async def test_only_so_many_beginnings_are_noted_and_none_that_is_long(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER)
    words = [f"{number} " for number in range(2 * PREFIXES)]
    await (await begun(graft, [answer(word, finish=None) for word in words])).hang_up()
    texts = ["".join(words[:count]) for count in [*range(1, PREFIXES + 1), len(words)]]
    assert own_keys(noted) == await own_of(graft, *texts)
    noted.notes.clear()
    await (await begun(graft, [answer(text, finish=None) for text in ("a", "b" * 70_000, "c", "d")])).hang_up()
    assert own_keys(noted) == await own_of(graft, "a", "a" + "b" * 70_000 + "cd")


async def test_the_same_holds_once_there_was_a_call(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER)
    words = [f"{number} " for number in range(2 * PREFIXES)]
    await (await begun(graft, [*[answer(word, finish=None) for word in words], answer(call(), finish=None)])).hang_up()
    texts = ["".join(words[:count]) for count in [*range(1, PREFIXES + 1), len(words)]]
    assert own_keys(noted) == await own_of(graft, *texts)


async def test_thoughts_are_no_beginnings_and_candidates_have_their_own(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER)
    thought = {"text": "Hm.", "thought": True}
    other = answer("No", finish=None)
    other["candidates"][0]["index"] = 1
    await (await begun(graft, [answer(thought, finish=None), answer("Yes", finish=None), other])).hang_up()
    assert own_keys(noted) == await own_of(graft, "Yes", "No")


async def test_a_whole_turn_that_the_client_may_have_is_still_found(graft: Graft) -> None:
    """It was sent to its end, and then the client was gone: it has all of it, or a beginning."""
    await graft.tools(WEATHER)
    says = [answer(text, finish=None) for text in ("Do", "ne.")]
    capture = await begun(graft, [*says, answer(call(), finish="STOP")])
    await capture.hang_up()
    (turn,), (made,) = await graft.turns(), await graft.calls()
    await graft.store.answer("default", made.call_id, result={})
    assert call() in (await graft.contents([user("hi"), model(*turn.visible), user("?")]))[1]["parts"]
    for text in ("Do", "Done."):
        contents = [user("hi"), model(text), user("?")]
        assert await graft.contents(contents) == contents


async def test_an_answer_of_one_document_has_no_beginnings(graft: Graft, noted: Noted) -> None:
    await graft.tools(WEATHER)
    capture = Stream(graft.grafter, await graft.exchange(ASKED), JSON)
    await capture.feed(encode(answer("Done."))[:-10])
    await capture.hang_up()
    assert noted.notes == []


async def test_nothing_is_noted_of_a_session_that_hides_nothing(graft: Graft, noted: Noted) -> None:
    await graft.tools(client_tools="keep")
    await (await begun(graft, SAID[:2])).hang_up()
    assert noted.notes == []


@pytest.mark.parametrize("to", [STREAM, ARRAY], ids=["events", "array"])
async def test_beginnings_of_an_answer_that_is_not_grafted_are_noted_as_well(
    graft: Graft, noted: Noted, to: Any
) -> None:
    await graft.tools(WEATHER)
    capture = await begun(graft, SAID[:2], to, generationConfig={"responseMimeType": "application/json"})
    await capture.hang_up()
    assert own_keys(noted) == await own_of(graft, "We", "Well,")


async def test_a_turn_that_the_store_did_not_take_is_noted_later(
    graft: Graft, store: Store, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client has it, with `graft_on_store_error=pass`, and nothing is to be found for it."""
    graft = Graft(store, on_store_error="pass")
    await graft.tools(WEATHER, client_tools="keep")
    own: dict[str, Any] = {"tools": [{"functionDeclarations": [{"name": "own"}]}]}
    says = answer(call("own"), call())

    async def fails(*_: Any) -> Turn:
        raise StoreUnavailable("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(store, "save_turn", fails)
        visible = await graft.ask([user("hi")], says, **own)
    assert visible == model(call("own"))
    assert len(noted.notes) == 1
    assert await graft.ask([user("hi")], says, **own) == visible
    body: Document = {"contents": [user("hi"), visible, user({"functionResponse": {"name": "own", "response": {}}})]}
    assert (await graft.sent({**body, **own}))["contents"] == body["contents"]
