"""Answers in odd shapes: arguments in pieces, invalid Unicode, unusual parts."""

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.graft.exchange import Forward
from addon.graft.machine_shell import Capture
from addon.surfaces.incoming import Framing, Target
from store.models import Status
from tests.contents import call, model, response, user
from tests.graft.captures import (
    ARRAY,
    ASKED,
    OWN,
    PIECES,
    PLACEHOLDER,
    STREAM,
    framed,
    kind,
    parts,
    piece,
    read,
    stream,
    streamed,
    texts,
    whole,
)
from tests.graft.conftest import SEARCH, WEATHER, Graft, answer, target

pytestmark = pytest.mark.usefixtures("counted_ids")


ASSEMBLED = {"city": "Oslo", "days": [{"n": 1}, {"n": 2.5}], "odd key": True, "none": None}


@pytest.mark.parametrize("end", [{"functionCall": {}}, piece("$.city", goes_on=False, stringValue="!")])
async def test_arguments_that_come_in_pieces_are_put_together(graft: Graft, end: Document) -> None:
    await graft.tools(WEATHER)
    signed = {**end, "thoughtSignature": "c2ln"}
    answered = await streamed(
        graft, [*[answer(p, finish=None) for p in PIECES], answer(signed, finish=None), answer("")]
    )
    assert texts(answered) == PLACEHOLDER
    city = "Oslo!" if end["functionCall"] else "Oslo"
    assert [c.args for c in await graft.calls()] == [{**ASSEMBLED, "city": city}]
    (part,) = (await graft.turns())[0].steps[0].content["parts"]
    assert part["thoughtSignature"] == "c2ln"
    assert part["functionCall"].keys() == {"name", "args"}


async def test_a_call_that_begins_ends_the_one_before_it(graft: Graft) -> None:
    await graft.tools(WEATHER, SEARCH)
    pieces = [piece(name="get_weather"), piece("$.a", numberValue=1), piece(name="search"), {"functionCall": {}}]
    await streamed(graft, [answer(p, finish=None) for p in pieces])
    assert [(c.name, c.args) for c in await graft.calls()] == [("get_weather", {"a": 1}), ("search", {})]


@pytest.mark.parametrize("ends", [[answer("", finish="MAX_TOKENS")], []], ids=["finish", "end of the stream"])
async def test_a_call_whose_arguments_never_end_is_what_came_of_it(
    graft: Graft, ends: list[Document], caplog: pytest.LogCaptureFixture
) -> None:
    await graft.tools(WEATHER)
    pieces = [piece(name="get_weather"), piece("$.city", stringValue="Os", willContinue=True)]
    for _ in range(2):
        answered = await streamed(graft, [*[answer(p, finish=None) for p in pieces], *ends])
        assert "Tool call completed: get_weather" in texts(answered)
        assert answered[-1]["candidates"][0]["finishReason"] == "STOP"
    assert [(c.args, c.status) for c in await graft.calls()] == [({"city": "Os"}, Status.PENDING)] * 2
    assert all(turn.delivered for turn in await graft.turns())
    assert len([r for r in caplog.records if "ended within the arguments" in r.getMessage()]) == 1


async def test_pieces_of_the_clients_own_call_pass_and_its_turn_is_known_by_the_whole_call(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    own = [answer(piece(name="own"), finish=None), answer(piece("$.a", numberValue=1), finish=None)]
    own.append(answer({"functionCall": {}}, finish=None))
    answered = await streamed(graft, [*own, answer(call())], tools=[OWN])
    assert answered[:3] == own
    out = await graft.contents([user("hi"), model(call("own", args={"a": 1})), user(response("own"))])
    assert out[1] == model(call("own", args={"a": 1}), call())


# --- odd shapes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        {"candidates": [{"content": {"parts": [{"functionCall": {"args": []}}]}}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": 7, "id": 7, "args": "x"}}, 3, None]}}]},
        {"candidates": [{"content": None, "index": "x", "x": {"functionCall": 1}}, 7]},
        {"candidates": {"content": {"parts": {"functionCall": {"name": "f"}}}}},
        {"candidates": [{"content": {"parts": [{"text": 7}, {"text": "x"}, {"functionCall": {"name": "f"}}]}}]},
        {"candidates": [{"content": {"parts": [{"functionCall": {"partialArgs": [{"jsonPath": "$[9]"}, 3, {}]}}]}}]},
    ],
)
async def test_odd_shapes_raise_nothing(graft: Graft, event: Document) -> None:
    await graft.tools(WEATHER, delivery="placeholder")
    await stream(graft, [event, event, answer("")])
    await whole(graft, event)


async def test_a_history_that_cannot_be_read_does_not_break_the_answer(graft: Graft) -> None:
    await graft.tools(WEATHER)
    odd: Document = {"contents": [user("hi"), {"role": "user", "parts": [{"inlineData": "x"}]}]}
    assert texts(read(STREAM, await stream(graft, [answer(call())], STREAM, odd))) == PLACEHOLDER


async def test_a_signature_in_an_empty_part_is_kept_in_that_part(graft: Graft) -> None:
    await graft.tools(WEATHER)
    empty = {"text": "", "thoughtSignature": "c2ln"}
    events = [answer("a", finish=None), answer("b", empty, finish=None), answer(call(), finish=None), answer("")]
    await streamed(graft, events)
    assert (await graft.turns())[0].steps[0].content["parts"] == [{"text": "ab"}, empty, call()]


async def test_thoughts_are_shown_and_not_told_again_but_for_their_signatures(graft: Graft) -> None:
    await graft.tools(WEATHER)
    thought, signed = {"text": "Hm.", "thought": True}, {"text": "Hm!", "thought": True, "thoughtSignature": "c2ln"}
    answered = await whole(graft, answer(thought, signed, call()))
    assert parts(answered)[:2] == [thought, signed]
    assert (await graft.turns())[0].steps[0].content["parts"] == [signed, call()]


@pytest.mark.parametrize("delivery", ["placeholder", "passthrough"])
@pytest.mark.parametrize("client_tools", ["strip", "keep"])
async def test_a_call_that_is_marked_as_a_thought_is_told_again_with_its_result(
    graft: Graft, delivery: str, client_tools: str
) -> None:
    """Also beside another call, whichever of them is signed."""
    await graft.tools(WEATHER, SEARCH, delivery=delivery, client_tools=client_tools)
    marked, signed = {**call(), "thought": True}, call("search", "c2ln")
    for n, model_parts in enumerate([[marked], [marked, signed], [signed, marked]]):
        asked = user(f"question {n}")
        visible = await graft.ask([asked], answer(*model_parts))
        for one in await graft.calls():
            if not one.status.final:
                await graft.store.answer(one.session, one.call_id, result={"of": one.name})
        given = [response("search"), response()] if delivery == "passthrough" else []
        contents = await graft.contents([asked, visible, user(*given, "and?")])
        assert [part.get("functionCall", {}).get("name") for part in contents[1]["parts"]] == [
            part["functionCall"]["name"] for part in model_parts
        ]
        responses = [part["functionResponse"]["name"] for part in contents[2]["parts"] if "functionResponse" in part]
        assert responses == [part["functionCall"]["name"] for part in model_parts]


@pytest.mark.parametrize("policy", ["placeholder", "passthrough"])
async def test_arguments_nested_beyond_reason_fail_at_once(graft: Graft, policy: str) -> None:
    await graft.tools(WEATHER, delivery=policy)
    for depth in (700, 101, 100):
        args: Document = {}
        for _ in range(depth - 1):
            args = {"a": args}
        answered = await whole(graft, answer(call(args=args)))
        assert answered == answer(call(args=args)) if policy == "passthrough" else "completed" in texts([answered])
    failed, other, fine = await graft.calls()
    assert (failed.status, failed.args) == (other.status, other.args) == (Status.FAILED, {})
    assert failed.error == "arguments nested more than 100 levels deep"
    assert (fine.status, fine.error) == (Status.PENDING, None)


async def test_a_part_that_is_no_media_does_not_break_the_answer(graft: Graft) -> None:
    await graft.tools(WEATHER)
    answered = await whole(graft, answer({"inlineData": "x"}, call()))
    assert parts(answered) == [{"inlineData": "x"}, {"text": PLACEHOLDER}]
    history = [user("hi"), {**model({"inlineData": "x"}), "parts": parts(answered)}, user("?"), model("a"), user("b")]
    assert "functionCall" in (await graft.contents(history))[1]["parts"][1]


# --- texts that are no Unicode -----------------------------------------------------------------------------------

HALF = rb"\ud83d"


@pytest.mark.parametrize("policy", ["placeholder", "passthrough"])
@pytest.mark.parametrize("to", [target(), STREAM, ARRAY], ids=["json", "sse", "array"])
@pytest.mark.parametrize("half", [HALF, b"\xff"], ids=["half a pair", "no UTF-8"])
async def test_a_call_is_captured_although_a_text_beside_it_or_in_it_is_no_unicode(
    graft: Graft, to: Target, policy: str, half: bytes
) -> None:
    await graft.tools(WEATHER, delivery=policy)
    event = answer("Hm HALF", call(args={"city": "HALF"}))
    data = (encode(event) if to.framing is Framing.JSON else framed(to, [event])).replace(b"HALF", half)
    out = await Capture(graft.grafter, await graft.exchange(ASKED, to), kind(to)).whole(data)
    assert isinstance(out, bytes)
    assert [one.args for one in await graft.calls()] == [{"city": "\ufffd"}]
    assert (b"functionCall" in out) is (policy == "passthrough")
    if policy == "placeholder":
        answered = read(to, out) if to.framing is not Framing.JSON else [decode(out)]
        assert texts(answered) == f"Hm \ufffd\n\n{PLACEHOLDER}"


async def test_a_request_with_half_a_surrogate_pair_is_rewritten_like_any_other(graft: Graft) -> None:
    await graft.tools(WEATHER)
    visible = await graft.ask([user("hi")], answer(call(id="x")))
    (stored,) = await graft.calls()
    await graft.store.answer("default", stored.call_id, result={"sky": "blue"})
    body = encode({"contents": [user("hi"), visible, user("and HALF?")]}).replace(b"HALF", HALF)
    outcome = await graft.request(body)
    assert isinstance(outcome, Forward)
    contents = decode(outcome.body)["contents"]
    assert contents[1] == model(call(id="x"))
    assert contents[-1]["parts"][-1] == {"text": "and \ufffd?"}
