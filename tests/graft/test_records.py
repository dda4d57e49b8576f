"""The records that an answer leaves in the store."""

from typing import Any

import pytest

from addon.core.answer import Candidate, CapturedCall
from addon.core.dialects.interaction_requests import kept_history, mark_part
from addon.core.framing.documents import Document
from addon.core.history.keys import marks_of
from addon.core.history.steps import CallSlot
from addon.graft.owners import ByHand, InitialState
from addon.graft.turn_records import call_of, keys_of, step_of, turn_of
from addon.surfaces.registry import match_path
from store.backends._sqlite_ledger import HEAD, OTHER, OWN
from store.backends.memory import MemoryStore
from store.models import Slot as SlotRecord
from store.models import Status, Step
from tests.contents import model, user
from tests.graft.conftest import WEATHER, Graft, target

STEP = Step(content=model("x"))


@pytest.mark.parametrize(
    ("delivery", "steps", "expected"),
    [
        ("auto", 1, "placeholder"),
        ("auto", 2, "loop"),
        ("passthrough", 1, "passthrough"),
        ("placeholder", 1, "placeholder"),
    ],
)
async def test_a_turn_says_how_it_was_delivered(graft: Graft, delivery: str, steps: int, expected: str) -> None:
    await graft.tools(WEATHER, delivery=delivery)
    exchange = await graft.exchange({"contents": [user("x")]})
    turn = turn_of(exchange, "turn_1", [], [STEP] * steps, now=1.0)
    assert turn.delivery == expected


async def test_a_turn_holds_the_usage_of_each_request_that_it_took(graft: Graft) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange({"contents": [user("x")]})
    usage = [{"totalTokenCount": 1}, {"totalTokenCount": 2}]
    turn = turn_of(exchange, "turn_1", [{"text": "a"}], [STEP], now=5.0, usage=usage)
    assert turn.usage == usage
    assert (turn.visible, turn.delivered, turn.created_at) == ([{"text": "a"}], False, 5.0)
    assert (turn.model, turn.surface, turn.session) == ("gemini-2.5-flash", "developer", "default")


async def test_a_call_knows_its_place_and_one_of_an_unknown_tool_has_failed_already(graft: Graft) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange({"contents": [user("x")]})
    known = CapturedCall("call_1", "get_weather", {"a": 1}, "g1", 2)
    record = call_of(
        exchange, "turn_1", known, InitialState("loop", approval=True, redeliver=True, proxy_id="p"), now=5.0, number=3
    )
    assert (record.status, record.error, record.gemini_id) == (Status.PENDING, None, "g1")
    assert (record.round, record.index, record.args, record.turn_id) == (3, 2, {"a": 1}, "turn_1")
    assert (record.owner, record.approval, record.redeliver, record.proxy_id) == ("loop", "waiting", True, "p")
    assert not record.released
    nonsense = known._replace(name="nonsense", fault="unknown tool: nonsense")
    initial_state = ByHand(MemoryStore()).initial_state(exchange.config, nonsense, runs=False)
    unknown = call_of(exchange, "turn_1", nonsense, initial_state, now=5.0)
    assert (unknown.status, unknown.error, unknown.round) == (Status.FAILED, "unknown tool: nonsense", 0)


async def test_a_turn_is_found_by_its_words_by_all_before_it_and_by_some_of_it(graft: Graft) -> None:
    await graft.tools(WEATHER)
    visible = [{"text": "said"}]
    chats = [["a", "q"], ["b", "q"], ["a", "other"]]
    found = []
    for first, second in chats:
        contents = [user(first), model("yes"), user(second)]
        found.append(keys_of(await graft.exchange({"contents": contents}), visible))
    (own, history, whole, two, four), other_start, other_end = found
    assert other_start[0] == other_end[0] == own
    assert other_start[3] == two, "the same words just before"
    assert not {history, whole, four} & {*other_start, *other_end}
    assert two not in other_end
    assert {key[:HEAD] for key in found[0]} == {own[:HEAD]}, "a store keeps them together, and packs them"
    assert [len(key) for key in found[0]] == [OWN, *[OTHER] * 4]


async def test_keys_tell_who_asks_and_in_which_chat(graft: Graft) -> None:
    await graft.tools(WEATHER)
    body: Document = {"contents": [user("a")], "systemInstruction": {"parts": [{"text": "Be brief."}]}}
    visible = [{"text": "said"}]
    own, history, whole, window = keys_of(await graft.exchange(body, asker="key:one"), visible)
    assert [own, history, whole, window] == keys_of(await graft.exchange(body, asker="key:one"), visible)
    assert not {own, history, whole, window} & {*keys_of(await graft.exchange(body, asker="key:two"), visible)}
    body["systemInstruction"] = "Be brief, it is 10:00."
    changed = keys_of(await graft.exchange(body, asker="key:one"), visible)
    assert changed[0::2] == [own, whole]
    assert changed[1] != history
    assert changed[3] == window


async def test_in_code_assist_the_project_asks_and_the_chat_may_have_a_name(graft: Graft) -> None:
    await graft.tools(WEATHER)
    visible = [{"text": "said"}]

    async def keys(project: str, **request: Any) -> list[bytes]:
        body: Document = {"model": "m", "request": {**request, "contents": [user("a")]}, "project": project}
        return keys_of(await graft.exchange(body, target(surface="codeassist")), visible)

    plain = await keys("p")
    assert not {*plain} & {*await keys("q")}
    for form in ({"session_id": "one"}, {"sessionId": "one"}):
        named = await keys("p", **form)
        assert named[0::3] == plain[0::3]
        assert named[1:3] != plain[1:3]
        assert named == await keys("p", session_id="one")
        assert named[1:3] != (await keys("p", session_id="two"))[1:3]


async def test_an_entry_says_which_of_its_keys_it_has_with_the_user_turn_before_it(graft: Graft) -> None:
    await graft.tools(WEATHER)
    visible = [{"text": "b"}]

    async def pair(*contents: Document) -> bytes:
        exchange = await graft.exchange({"contents": list(contents)})
        turn = turn_of(exchange, "turn_1", visible, [STEP], now=1.0)
        assert turn.pair in keys_of(exchange, visible)
        return turn.pair

    assert await pair(user("a")) == await pair(user("before"), model("b"), user("a")) != await pair(user("other"))


async def test_nothing_that_is_stored_tells_who_asked(graft: Graft) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange({"contents": [user("a")]}, asker="key:secret-key")
    turn = turn_of(exchange, "turn_1", [{"text": "[turn_1]"}], [STEP], now=1.0)
    assert "secret-key" not in repr(exchange.keys.__slots__) + turn.model_dump_json()
    assert exchange.request.history.turns[-1].digest not in (turn.pair, turn.chain)


async def test_a_turn_that_the_service_keeps_is_found_by_each_of_its_ids_too(graft: Graft) -> None:
    await graft.tools(WEATHER)
    target = match_path("POST", "/v1beta/interactions")
    assert target is not None
    exchange = await graft.exchange({"model": "m", "input": "hi"}, target)
    visible = [mark_part("v1_a"), {"text": "said"}, mark_part("v1_b")]
    keys = keys_of(exchange, visible)
    assert len(set(keys)) == 6
    for interaction in ("v1_a", "v1_b"):
        (named,) = marks_of(kept_history(interaction))
        assert exchange.keys.mark(*named) in keys


def test_a_step_is_what_the_model_said_and_whose_its_calls_are() -> None:
    candidate = Candidate(0, "turn_1")
    candidate.add_true({"text": "a"})
    candidate.slots += [CallSlot("f", "call_1"), CallSlot("own", None)]
    step = step_of(candidate)
    assert step.content == {"role": "model", "parts": [{"text": "a"}]}
    assert step.slots == [SlotRecord(name="f", call_id="call_1"), SlotRecord(name="own", call_id=None)]
