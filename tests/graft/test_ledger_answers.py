"""True turns have the answers to their calls; answers of the client's own are stored."""

from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.graft.ledger import store_client_results
from addon.graft.ledger_evidence import true_turn
from store.base import Store
from store.models import Call, Slot, Status, Step, Turn
from tests.contents import call, model, response, user
from tests.graft.ledgers import A, hits_of, kept, read


@pytest.mark.parametrize(
    ("status", "fields", "answer"),
    [
        (Status.PENDING, {}, None),
        (Status.RUNNING, {}, None),
        (Status.DONE, {"result": {"a": 1}}, {"a": 1}),
        (Status.DONE, {"result": "text"}, {"result": "text"}),
        (Status.DONE, {"result": None}, {"result": None}),
        (Status.FAILED, {"error": "broken"}, {"error": "broken"}),
        (Status.DENIED, {"error": "denied"}, {"error": "denied"}),
    ],
)
def test_a_true_turn_has_the_answers_that_there_are(status: Status, fields: Any, answer: Any) -> None:
    one = Call(
        call_id="c", session="s", name="f", args={}, turn_id="t", created_at=1, updated_at=1, status=status, **fields
    )
    thought = {"text": "Hm", "thought": True}
    entry = Turn(
        turn_id="t",
        session="s",
        visible=[thought, {"text": " Let me "}, {"text": "look. "}],
        steps=[Step(content=model(call("f")), slots=[Slot(name="f", call_id="c"), Slot(name="own")])],
        created_at=1,
    )
    true = true_turn(entry, {"c": one})
    assert true.responses == {"c": None if answer is None else {"response": answer}}
    assert true.visible_text == "Let me look."
    assert not true.passthrough
    assert true_turn(entry, {}).responses == {"c": None}


async def passed_through(store: Store, answered: Document) -> tuple[bool, Call]:
    true = model(call("f", args={"n": 1}))
    await kept(store, 1, [A, true], delivery="passthrough")
    request = read([A, true, answered])
    hits = await hits_of(store, request)
    taken = await store_client_results(store, "default", request.body, request.history, hits)
    return taken, await store.call("default", "call_1")


async def test_a_clients_own_answer_is_stored_and_the_first_wins(store: Store) -> None:
    taken, one = await passed_through(store, user(response("f", {"mine": 1})))
    assert (taken, one.status, one.result) == (True, Status.DONE, {"mine": 1})
    taken, one = await passed_through(store, user(response("f", {"mine": 2})))
    assert (taken, one.result) == (False, {"mine": 1})


async def test_without_an_answer_nothing_is_stored(store: Store) -> None:
    taken, one = await passed_through(store, user("no"))
    assert (taken, one.status) == (False, Status.PENDING)


async def test_an_answer_that_comes_in_between_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = store.answer

    async def late(session: str, call_id: str, **kwargs: Any) -> Any:
        await answer(session, call_id, result={"first": 1})
        return await answer(session, call_id, **kwargs)

    monkeypatch.setattr(store, "answer", late)
    taken, one = await passed_through(store, user(response("f", {"mine": 1})))
    assert one.result == {"first": 1}
    assert not taken
