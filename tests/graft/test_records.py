"""The records that an answer leaves in the store."""

import pytest

from addon.core.answer import Candidate, Captured
from addon.core.documents import encode
from addon.core.interactions import kept, mark
from addon.core.request import parse
from addon.core.steps import Slot
from addon.graft.records import call_of, keys_of, step_of, turn_of
from addon.surfaces import match_path
from store.models import Slot as SlotRecord
from store.models import Status, Step
from tests.graft.conftest import WEATHER, Graft, model, user

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
    turn = turn_of(exchange, "turn_1", [], [STEP] * steps, delivered=True, now=1.0)
    assert turn.delivery == expected


async def test_a_turn_holds_the_usage_of_each_request_that_it_took(graft: Graft) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange({"contents": [user("x")]})
    usage = [{"totalTokenCount": 1}, {"totalTokenCount": 2}]
    turn = turn_of(exchange, "turn_1", [{"text": "a"}], [STEP], delivered=False, now=5.0, usage=usage)
    assert turn.usage == usage
    assert (turn.visible, turn.delivered, turn.created_at) == ([{"text": "a"}], False, 5.0)
    assert (turn.model, turn.surface, turn.session) == ("gemini-2.5-flash", "developer", "default")


async def test_a_call_knows_its_place_and_one_of_an_unknown_tool_has_failed_already(graft: Graft) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange({"contents": [user("x")]})
    known = Captured("call_1", "get_weather", {"a": 1}, "g1", 2, known=True)
    record = call_of(exchange, "turn_1", known, now=5.0, number=3)
    assert (record.status, record.error, record.gemini_id) == (Status.PENDING, None, "g1")
    assert (record.round, record.index, record.args, record.turn_id) == (3, 2, {"a": 1}, "turn_1")
    unknown = call_of(exchange, "turn_1", known._replace(name="nonsense", known=False), now=5.0)
    assert (unknown.status, unknown.error, unknown.round) == (Status.FAILED, "unknown tool: nonsense", 0)


async def test_a_turn_is_found_by_all_before_it_and_by_what_is_just_before_it(graft: Graft) -> None:
    await graft.tools(WEATHER)
    shown = [{"text": "said"}]
    chats = [["a", "q"], ["b", "q"], ["a", "other"]]
    keys = []
    for first, second in chats:
        contents = [user(first), model("yes"), user(second)]
        keys.append(keys_of(await graft.exchange({"contents": contents}), shown))
    (chain, pair), (other_chain, same_pair), (_, other_pair) = keys
    assert chain != other_chain, "another chat"
    assert pair == same_pair, "the same words just before"
    assert pair != other_pair


async def test_a_turn_that_the_service_keeps_is_found_by_each_of_its_ids_too(graft: Graft) -> None:
    await graft.tools(WEATHER)
    target = match_path("POST", "/v1beta/interactions")
    assert target is not None
    exchange = await graft.exchange({"model": "m", "input": "hi"}, target)
    shown = [mark("v1_a"), {"text": "said"}, mark("v1_b")]
    keys = keys_of(exchange, shown)
    assert len(set(keys)) == 4
    for interaction in ("v1_a", "v1_b"):
        named = parse(encode({"contents": [*kept(interaction), user("and?")]})).history
        named.identify(encode({"contents": [*kept(interaction), user("and?")]}))
        assert named.turns[1].chain in keys[2:]


def test_a_step_is_what_the_model_said_and_whose_its_calls_are() -> None:
    candidate = Candidate(0, "turn_1")
    candidate.say({"text": "a"})
    candidate.slots += [Slot("f", "call_1"), Slot("own", None)]
    step = step_of(candidate)
    assert step.content == {"role": "model", "parts": [{"text": "a"}]}
    assert step.slots == [SlotRecord(name="f", call_id="call_1"), SlotRecord(name="own", call_id=None)]
