"""What the client gets of an answer and what the store holds then, in every framing and cut anywhere."""

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from addon.core.answers.answer import AnswerRewriter
from addon.core.framing import sse
from addon.core.framing.documents import Document, decode, encode
from addon.core.framing.json_array import ArrayDecoder
from addon.graft import journal, reading
from addon.graft.capture import Capture
from addon.graft.exchange import Forward, Reply
from addon.surfaces.base import Framing, Operation, Target
from store.base import Store, StoreUnavailable
from store.factory import open_url
from store.models import CachedTools, Status
from tests.contents import call, model, response, user
from tests.graft.conftest import EVENTS, JSON, SEARCH, WEATHER, Graft, answer, target

STREAM = target(Operation.STREAM, Framing.SSE)
ARRAY = target(Operation.STREAM, Framing.ARRAY)
ID = "turn_0000000000000001"
PLACEHOLDER = f"Tool call completed: get_weather [{ID}]"
OWN: Document = {"functionDeclarations": [{"name": "own"}]}
ASKED: Document = {"contents": [user("hi")]}

pytestmark = pytest.mark.usefixtures("counted_ids")


def kind(to: Target) -> str:
    return EVENTS if to.framing is Framing.SSE else JSON


def framed(to: Target, events: Sequence[Document]) -> bytes:
    wrapped = [{"response": event, "traceId": "t"} if to.response_path else event for event in events]
    if to.framing is Framing.SSE:
        return b"".join(sse.encode(encode(event)) for event in wrapped)
    return b"[" + b"\n,\r\n".join(encode(event) for event in wrapped) + b"\n]"


def read(to: Target, data: bytes) -> list[Document]:
    """A strict client's reading of a stream: every byte of it belongs to an event or a good array."""
    if to.framing is Framing.ARRAY:
        events = decode(data)
    else:
        assert data == b"" or data.endswith(b"\r\n\r\n")
        chunks = data.split(b"\r\n\r\n")[:-1]
        assert all(chunk.startswith(b"data: {") for chunk in chunks)
        events = [decode(chunk.removeprefix(b"data: ")) for chunk in chunks]
    return [event["response"] for event in events] if to.response_path else list(events)


async def stream(graft: Graft, events: Sequence[Document], to: Target = STREAM, body: Document = ASKED) -> bytes:
    capture = Capture(graft.grafter, await graft.exchange(body, to), kind(to))
    out = capture.feed(framed(to, events)) + capture.finish()
    capture.settle_handover(True)
    return out


async def streamed(graft: Graft, events: Sequence[Document], to: Target = STREAM, **body: Any) -> list[Document]:
    answered = read(to, await stream(graft, events, to, {**ASKED, **body}))
    for event in answered:
        for candidate in event.get("candidates", ()):
            assert event in events or candidate["content"]["parts"], "a made event without a part"
            assert all(part for part in candidate.get("content", {}).get("parts", ())), "an empty part"
    return answered


async def whole(graft: Graft, says: Document, to: Target | None = None, **body: Any) -> Document:
    exchange = await graft.exchange({**ASKED, **body}, to)
    answered = decode(await graft.captured(exchange, encode(says)))
    assert isinstance(answered, dict)
    return answered


def parts(event: Document, at: int = 0) -> list[Document]:
    found = event["candidates"][at]["content"]["parts"]
    assert isinstance(found, list)
    return found


def texts(events: Sequence[Document]) -> str:
    return "".join(
        part.get("text", "")
        for event in events
        for candidate in event.get("candidates", ())
        for part in candidate.get("content", {}).get("parts", ())
        if not part.get("thought")
    )


# --- whole answers -----------------------------------------------------------------------------------------------


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


# --- streams -----------------------------------------------------------------------------------------------------

FRAMINGS = pytest.mark.parametrize("to", [STREAM, ARRAY], ids=["sse", "array"])


@FRAMINGS
async def test_events_without_a_call_are_forwarded_byte_for_byte(graft: Graft, to: Target) -> None:
    await graft.tools(WEATHER)
    body = framed(to, [answer("a", finish=None), answer("b", usageMetadata={"n": 1})]).replace(b":", b" : ", 1)
    if to.framing is Framing.SSE:
        body = b"data:" + body.removeprefix(b"data :").replace(b"\r\n\r\n", b"\n\n", 1)
    capture = Capture(graft.grafter, await graft.exchange(ASKED, to), kind(to))
    assert capture.feed(body) + capture.finish() == body


@FRAMINGS
async def test_a_trailing_finish_event_takes_the_placeholder_and_the_usage(graft: Graft, to: Target) -> None:
    await graft.tools(WEATHER)
    answered = await streamed(
        graft,
        [
            answer("Well.", finish=None, responseId="r"),
            answer(call(args={"n": 1}), finish=None, usageMetadata={"n": 1}, responseId="r"),
            answer(call(args={"n": 2}), finish=None, responseId="r"),
            answer("", responseId="r"),
        ],
        to,
    )
    assert len(answered) == 2
    assert answered[1]["usageMetadata"] == {"n": 1}
    assert answered[1]["candidates"][0]["finishReason"] == "STOP"
    assert texts(answered) == f"Well.\n\nTool call completed: get_weather, get_weather [{ID}]"
    (turn,) = await graft.turns()
    assert [c.args for c in await graft.calls()] == [{"n": 1}, {"n": 2}]
    assert turn.steps[0].content["parts"][1:] == [call(args={"n": 1}), call(args={"n": 2})]
    assert turn.delivered


@FRAMINGS
async def test_calls_in_one_event_with_its_finish_become_one_event(graft: Graft, to: Target) -> None:
    await graft.tools(WEATHER, SEARCH)
    answered = await streamed(graft, [answer(call(), call("search"))], to)
    assert answered == [answer(f"Tool call completed: get_weather, search [{ID}]")]


@FRAMINGS
async def test_a_stream_that_ends_cleanly_without_a_finish_reason_gets_an_event_of_its_own(
    graft: Graft, to: Target
) -> None:
    await graft.tools(WEATHER)
    events = [answer(call(), finish=None, responseId="r", modelVersion="m", usageMetadata={"n": 1})]
    answered = await streamed(graft, events, to)
    assert answered == [answer(PLACEHOLDER, responseId="r", modelVersion="m", usageMetadata={"n": 1})]
    assert (await graft.turns())[0].delivered


async def test_a_stream_that_is_cut_stays_cut_and_its_calls_are_stored(graft: Graft) -> None:
    await graft.tools(WEATHER)
    capture = Capture(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    first = framed(STREAM, [answer("a", finish=None)])
    assert capture.feed(first + framed(STREAM, [answer(call(), finish=None)]) + b"data: {") == first
    assert [c.name for c in await graft.calls()] == ["get_weather"]
    assert not (await graft.turns())[0].delivered


async def test_calls_are_in_the_store_before_their_event_is_given_back(graft: Graft) -> None:
    await graft.tools(WEATHER)
    capture = Capture(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    for n in (1, 2):
        capture.feed(framed(STREAM, [answer(call(args={"n": n}), finish=None)]))
        assert len(await graft.calls()) == n


@pytest.mark.parametrize("kept", list(itertools.product([True, False], repeat=3)))
async def test_an_array_stays_an_array_whichever_element_is_dropped(graft: Graft, kept: tuple[bool, ...]) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    events = [answer(f"{i}" if keep else call(), finish=None) for i, keep in enumerate(kept)]
    answered = await streamed(graft, events, ARRAY)
    kept_numbers = "".join(str(i) for i, keep in enumerate(kept) if keep)
    assert texts(answered).startswith(kept_numbers)
    assert ("Tool call completed" in texts(answered)) is not all(kept)


@pytest.mark.parametrize("end", [b"", b"\n", b"]", b"\n]\n"])
@pytest.mark.parametrize("shows", [True, False])
async def test_an_array_is_closed_once_however_the_upstream_ends_it(graft: Graft, shows: bool, end: bytes) -> None:
    await graft.tools(WEATHER)
    events = [*([answer("before", finish=None)] if shows else []), answer(call(), finish="STOP")]
    capture = Capture(graft.grafter, await graft.exchange(ASKED, ARRAY), JSON)
    out = capture.feed(framed(ARRAY, events).removesuffix(b"\n]") + end) + capture.finish()
    assert texts(read(ARRAY, out)).startswith("before" if shows else "Tool call")


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b"", b'{"error":{"code":503}}', b"[\n]", b"nonsense"])
async def test_an_array_that_holds_nothing_goes_on_as_it_came(graft: Graft, body: bytes) -> None:
    await graft.tools(WEATHER)
    capture = Capture(graft.grafter, await graft.exchange(ASKED, ARRAY), JSON)
    assert capture.feed(body) + capture.finish() == body


async def test_an_error_in_a_stream_goes_on_as_it_came(graft: Graft) -> None:
    await graft.tools(WEATHER)
    error = b'{\n  "error": {\n    "code": 400\n  }\n}\n'
    capture = Capture(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    assert capture.feed(error) + capture.finish() == error
    after = framed(STREAM, [answer(call(), finish=None)]) + b'data: {"error":{}}\r\n\r\n'
    capture = Capture(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    assert capture.feed(after) == b'data: {"error":{}}\r\n\r\n'


async def test_a_mixed_stream_gives_the_client_its_own_calls_and_a_finish_with_a_part(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    events = [answer(call("own"), finish=None), answer(call(), usageMetadata={"n": 2})]
    answered = await streamed(graft, events, tools=[OWN])
    assert parts(answered[0]) == [call("own")]
    assert parts(answered[1]) == [{"text": "", "thought": True}]
    assert answered[1]["candidates"][0]["finishReason"] == "STOP"
    events = [answer(call(), finish=None, usageMetadata={"n": 1}), answer(call("own"))]
    other = await streamed(graft, events, tools=[OWN])
    assert other == [answer(call("own"), usageMetadata={"n": 1})]


async def test_usage_of_a_dropped_event_is_not_lost_and_never_older_than_what_came_after(graft: Graft) -> None:
    await graft.tools(WEATHER)
    answered = await streamed(
        graft,
        [
            answer(call(), finish=None, usageMetadata={"n": 1}),
            answer("text", finish=None, usageMetadata={"n": 2}),
            answer(""),
        ],
    )
    assert [event.get("usageMetadata") for event in answered] == [{"n": 2}, None]
    mixed: list[Document] = [answer(call("own"), finish=None), answer(call(), finish=None, usageMetadata={"n": 3})]
    await graft.tools(WEATHER, client_tools="keep")
    answered = await streamed(graft, mixed, tools=[OWN])
    assert answered[1]["usageMetadata"] == {"n": 3}
    assert parts(answered[1]) == [{"text": "", "thought": True}]


async def test_a_passthrough_stream_is_byte_for_byte(graft: Graft) -> None:
    await graft.tools(WEATHER, delivery="passthrough")
    events = [answer("a", finish=None), answer(call(), finish=None), answer("")]
    assert await stream(graft, events) == framed(STREAM, events)
    (turn,) = await graft.turns()
    assert turn.visible == [{"text": "a"}, call()]
    assert turn.delivered


async def test_the_envelope_stays_around_every_event(graft: Graft) -> None:
    await graft.tools(WEATHER)
    to = target(Operation.STREAM, Framing.SSE, surface="codeassist")
    asked: Document = {"model": "gemini-3-flash", "request": ASKED}
    data = await stream(graft, [answer("a", finish=None), answer(call(), finish=None), answer("")], to, asked)
    assert texts(read(to, data)) == f"a\n\n{PLACEHOLDER}"
    made = await stream(graft, [answer(call(), finish=None)], to, asked)
    assert texts(read(to, made)).startswith("Tool call completed")


@pytest.mark.parametrize("other", [{}, {"content": {"parts": [{"text": ""}], "role": "model"}}, {"content": None}])
async def test_every_candidate_of_an_event_that_is_made_anew_holds_a_part(graft: Graft, other: Document) -> None:
    await graft.tools(WEATHER)
    one, two = answer(call())["candidates"][0], {**other, "finishReason": "SAFETY", "index": 1}
    (answered,) = await streamed(graft, [{"candidates": [one, two]}])
    assert parts(answered, 1) == [{"text": "", "thought": True}]
    assert answered["candidates"][1]["finishReason"] == "SAFETY"
    moved = [answer("text", finish=None), answer(call(), finish=None, usageMetadata={"n": 1}), {"candidates": [two]}]
    await graft.tools(WEATHER, client_tools="keep")
    assert parts((await streamed(graft, moved))[1]) == [{"text": "", "thought": True}]


async def test_several_candidates_of_a_stream_end_each_for_itself(graft: Graft) -> None:
    await graft.tools(WEATHER)

    def of(index: int, *model_parts: Any, finish: Any = None) -> Document:
        return {**answer(*model_parts, finish=finish)["candidates"][0], "index": index}

    answered = await streamed(
        graft,
        [
            {"candidates": [of(0, call(args={"n": 0})), of(1, "b")]},
            {"candidates": [of(1, call(args={"n": 1}))]},
            {"candidates": [of(0, "", finish="STOP")]},
            {"candidates": [of(1, "", finish="STOP")]},
        ],
    )
    visible = [(c["index"], c["content"]["parts"]) for event in answered for c in event["candidates"]]
    assert [index for index, _ in visible] == [1, 0, 1]
    ids = [c.turn_id for c in await graft.calls()]
    assert ids[0] in visible[1][1][0]["text"]
    assert ids[1] in visible[2][1][0]["text"]
    assert len(set(ids)) == 2


# --- partial arguments -------------------------------------------------------------------------------------------


def piece(path: str | None = None, goes_on: bool = True, name: str | None = None, **value: Any) -> Document:
    pieces = {"partialArgs": [{"jsonPath": path, **value}]} if path else {}
    fields: Document = {**({"name": name} if name else {}), **pieces, **({"willContinue": True} if goes_on else {})}
    return {"functionCall": fields}


PIECES = [
    piece(name="get_weather"),
    piece("$.city", stringValue="Os", willContinue=True),
    piece("$.city", stringValue="lo"),
    piece("$.days[0].n", numberValue=1),
    piece("$.days[1].n", numberValue=2.5),
    piece("$['odd key']", boolValue=True),
    piece("$.none", nullValue="NULL_VALUE"),
]
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
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


async def test_pieces_of_the_clients_own_call_pass_and_its_turn_is_known_by_the_whole_call(graft: Graft) -> None:
    await graft.tools(WEATHER, client_tools="keep")
    own = [answer(piece(name="own"), finish=None), answer(piece("$.a", numberValue=1), finish=None)]
    own.append(answer({"functionCall": {}}, finish=None))
    answered = await streamed(graft, [*own, answer(call())], tools=[OWN])
    assert answered[:3] == own
    out = await graft.contents([user("hi"), model(call("own", args={"a": 1})), user(response("own"))])
    assert out[1] == model(call("own", args={"a": 1}), call())


# --- errors in a stream ------------------------------------------------------------------------------------------

ERROR: Document = {"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}


@FRAMINGS
@pytest.mark.parametrize("policy", ["placeholder", "passthrough"])
async def test_a_stream_that_ends_in_an_error_stays_cut(graft: Graft, to: Target, policy: str) -> None:
    await graft.tools(WEATHER, delivery=policy)
    document = answer("a", call(), finish=None)
    answered = read(to, await stream(graft, [document, ERROR], to))
    assert answered == [document if policy == "passthrough" else answer("a", finish=None), ERROR]
    (turn,) = await graft.turns()
    assert not turn.delivered
    assert [c.status for c in await graft.calls()] == [Status.PENDING]
    history = {"contents": [user("hi"), model("a"), user("?")]}
    assert await graft.contents(history["contents"]) == history["contents"], "found by what the client sees of it"


@pytest.mark.parametrize("error", [ERROR, [ERROR]], ids=["bare", "in a list"])
async def test_an_error_outside_the_envelope_cuts_the_stream_too(graft: Graft, error: Any) -> None:
    await graft.tools(WEATHER)
    to = target(Operation.STREAM, Framing.SSE, surface="codeassist")
    exchange = await graft.exchange({"model": "gemini-3-flash", "request": ASKED}, to)
    capture = Capture(graft.grafter, exchange, EVENTS)
    end = sse.encode(encode(error))
    assert capture.feed(framed(to, [answer(call(), finish=None)]) + end) + capture.finish() == end
    assert not (await graft.turns())[0].delivered


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
    await graft.tools(WEATHER)
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


# --- what nobody foresaw -----------------------------------------------------------------------------------------


def mistaken(monkeypatch: pytest.MonkeyPatch, name: str, of: type = AnswerRewriter) -> None:
    def mistake(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(of, name, mistake)


@FRAMINGS
@pytest.mark.parametrize("where", ["feed", "close", "decoder"])
async def test_a_mistake_ends_a_stream_with_an_error_and_leaks_no_call(
    graft: Graft, monkeypatch: pytest.MonkeyPatch, to: Target, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    await graft.tools(WEATHER)
    capture = Capture(graft.grafter, await graft.exchange(ASKED, to), kind(to))
    if where == "decoder":
        mistaken(monkeypatch, "feed", type(capture.machine.reading.decoder))
    else:
        mistaken(monkeypatch, where)
    data = framed(to, [answer(call(), finish=None)])
    out = b"".join([capture.feed(data[:20]), capture.feed(data[20:]), capture.finish(), capture.feed(data)])
    assert b"functionCall" not in out
    assert out.count(b'"INTERNAL"') == 1
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    assert b'toolgraft_errors_total{kind="graft"} 1.0' in graft.grafter.metrics.render()
    assert b'kind="store"' not in graft.grafter.metrics.render()


@FRAMINGS
@pytest.mark.parametrize("policy", ["fail", "pass"])
async def test_after_a_mistake_the_rest_passes_unchanged_but_never_a_call(
    store: Store, monkeypatch: pytest.MonkeyPatch, to: Target, policy: str
) -> None:
    graft = Graft(store, on_store_error=policy)
    await graft.tools(WEATHER)
    mistaken(monkeypatch, "feed")
    odd = answer("a", finish=None, continuationToken="makes it looked at")
    answered = read(to, await stream(graft, [odd, answer(call(), finish=None), answer("")], to))
    assert answered[0] == odd
    assert [one["error"]["status"] for one in answered[1:]] == ["INTERNAL"]


async def test_a_mistake_under_a_whole_answer_is_an_error(graft: Graft, monkeypatch: pytest.MonkeyPatch) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange(ASKED)
    mistaken(monkeypatch, "feed")
    out = await Capture(graft.grafter, exchange, JSON).whole(encode(answer(call())))
    assert isinstance(out, Reply)
    assert (out.status, decode(out.body)["error"]["status"]) == (500, "INTERNAL")


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


# --- continuation ------------------------------------------------------------------------------------------------


def paused(*model_parts: Any, token: str = "t1") -> Document:
    says = answer(*model_parts, finish="CONTINUATION")
    says["candidates"][0]["continuationToken"] = token
    return says


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


async def test_a_stream_can_pause_and_go_on(graft: Graft) -> None:
    await graft.tools(WEATHER)
    answered = await streamed(graft, [answer("a", finish=None), paused(call())])
    assert "completed" not in texts(answered)
    then = await streamed(graft, [answer("b", finish=None), answer("")], continuationToken="t1")
    assert texts(then) == f"b\n\n{PLACEHOLDER}"


def checkpoint(*model_parts: Any, token: str) -> Document:
    says = answer(*model_parts, finish=None)
    says["candidates"][0]["continuationToken"] = token
    return says


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


async def test_a_stream_that_breaks_off_goes_on_from_its_checkpoint(graft: Graft) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange(ASKED, STREAM)
    capture = Capture(graft.grafter, exchange, kind(STREAM))
    events = [answer("a ", finish=None), checkpoint("b ", call(args={"n": 1}), token="t1"), answer("lost", finish=None)]
    answered = read(STREAM, capture.feed(framed(STREAM, events)))
    assert "t1" in str(answered)
    capture.on_hangup()
    then = await streamed(graft, [answer("c", call(args={"n": 2}), finish=None), answer("")], continuationToken="t1")
    assert texts(then) == f"c\n\nTool call completed: get_weather, get_weather [{ID}]"
    for stored in await graft.calls():
        await graft.store.answer(stored.session, stored.call_id, result=1)
    out = await graft.contents([user("hi"), model("a b ", texts(then)), user("?")])
    assert out[1] == model("a b ", call(args={"n": 1}), "c", call(args={"n": 2}))


# --- a store that fails ------------------------------------------------------------------------------------------


def failing(graft: Graft, monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    save, left = graft.store.save_turn, itertools.count(after, -1)

    async def save_turn(*args: Any, **kwargs: Any) -> None:
        if next(left) <= 0:
            raise StoreUnavailable("disk full")
        await save(*args, **kwargs)

    monkeypatch.setattr(graft.store, "save_turn", save_turn)


@FRAMINGS
@pytest.mark.parametrize("lead", [[], [answer("a", finish=None)]], ids=["first", "later"])
async def test_a_store_that_fails_in_a_stream_ends_it_with_an_error(
    graft: Graft, monkeypatch: pytest.MonkeyPatch, to: Target, lead: list[Document]
) -> None:
    await graft.tools(WEATHER)
    failing(graft, monkeypatch)
    answered = read(to, await stream(graft, [*lead, answer(call(), finish=None), answer("")], to))
    assert answered[: len(lead)] == lead
    assert len(answered) == len(lead) + 1
    assert answered[-1]["error"]["status"] == "UNAVAILABLE"
    assert "the store does not answer" in answered[-1]["error"]["message"]


@FRAMINGS
async def test_with_the_pass_policy_an_answer_goes_on_and_shows_no_call(
    store: Store, monkeypatch: pytest.MonkeyPatch, to: Target
) -> None:
    graft = Graft(store, on_store_error="pass")
    await graft.tools(WEATHER, client_tools="keep")
    failing(graft, monkeypatch)
    events = [answer("a", finish=None), answer(call(), finish=None), answer("b", finish=None), answer("")]
    assert texts(await streamed(graft, events, to)) == f"ab\n\n{PLACEHOLDER}"
    events = [answer(call(), finish=None), answer(call("own"), finish=None), answer("")]
    mixed = await streamed(graft, events, to, tools=[OWN])
    assert mixed == [answer(call("own"), finish=None), answer("")], "the client's own are its own"
    assert texts([await whole(graft, answer("a", call()))]).startswith("a\n\nTool call completed")
    assert await graft.turns() == []


async def test_a_store_that_fails_under_a_whole_answer_is_a_503(graft: Graft, monkeypatch: pytest.MonkeyPatch) -> None:
    await graft.tools(WEATHER)
    exchange = await graft.exchange(ASKED)
    failing(graft, monkeypatch)
    out = await Capture(graft.grafter, exchange, JSON).whole(encode(answer(call())))
    assert isinstance(out, Reply)
    assert (out.status, decode(out.body)["error"]["status"]) == (503, "UNAVAILABLE")


async def test_a_store_that_fails_at_the_end_is_told_after_what_was_said(
    graft: Graft, monkeypatch: pytest.MonkeyPatch
) -> None:
    await graft.tools(WEATHER)
    failing(graft, monkeypatch, after=1)
    answered = read(STREAM, await stream(graft, [answer(call(), finish=None)]))
    assert [list(event) for event in answered] == [["error"]]


async def test_a_store_that_fails_at_the_end_of_an_array_leaves_a_good_array(
    graft: Graft, monkeypatch: pytest.MonkeyPatch
) -> None:
    await graft.tools(WEATHER)
    failing(graft, monkeypatch, after=1)
    answered = read(ARRAY, await stream(graft, [answer(call(), finish=None)], ARRAY))
    assert [list(event) for event in answered] == [["error"]]


@pytest.mark.parametrize("after", [0, 1, 2])
async def test_with_the_pass_policy_an_array_stays_one_wherever_the_store_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    graft = Graft(store, on_store_error="pass")
    await graft.tools(WEATHER)
    failing(graft, monkeypatch, after=after)
    read(ARRAY, await stream(graft, [answer(call(), finish=None), answer(call(), finish=None)], ARRAY))


async def test_every_captured_call_is_counted_once(graft: Graft) -> None:
    await graft.tools(WEATHER)
    await streamed(graft, [answer(call(), finish=None), answer(call(), finish=None), answer("")])
    await whole(graft, paused(call()))
    await whole(graft, answer(call()), continuationToken="t1")
    assert b'toolgraft_calls_total{outcome="captured"} 4.0' in graft.grafter.metrics.render()


# --- cut anywhere ------------------------------------------------------------------------------------------------

Cut = Callable[[bytes], list[bytes]]


def one_by_one(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


SCRIPTS: dict[str, tuple[dict[str, Any], list[Document]]] = {
    "placeholder": ({}, [answer("Ø", finish=None), answer(call(), call("search"), finish=None), answer("")]),
    "mixed": ({"client_tools": "keep"}, [answer(call(), finish=None), answer(call("own"), finish=None), answer("")]),
    "passthrough": ({"delivery": "passthrough"}, [answer("a", finish=None), answer(call(args={"x": '}]"'}))]),
    "pieces": ({}, [*[answer(p, finish=None) for p in PIECES[:3]], answer({"functionCall": {}}, finish=None)]),
}


@pytest.fixture
async def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    """Runs a stream cut in the given way against an empty store: what came out, and what was stored."""
    store = open_url("memory://", ttl=1e6, clock=lambda: 1.0)
    await store.open()
    graft = Graft(store)

    async def run(to: Target, policy: dict[str, Any], chunks: list[bytes]) -> tuple[bytes, Any]:
        turns, calls = itertools.count(1), itertools.count(1)
        monkeypatch.setattr(journal, "new_turn_id", lambda: f"turn_{next(turns):016x}")
        monkeypatch.setattr(reading, "new_call_id", lambda: f"call_{next(calls)}")
        await store.delete_session("default")
        await graft.tools(WEATHER, SEARCH, **policy)
        capture = Capture(graft.grafter, await graft.exchange(ASKED | {"tools": [OWN]}, to), kind(to))
        out = b"".join([capture.feed(chunk) for chunk in chunks]) + capture.finish()
        return out, (await graft.turns(), await graft.calls())

    yield run
    await store.close()


@FRAMINGS
@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_stream_is_the_same_whole_byte_by_byte_and_cut_at_each_position(
    fresh: Callable[..., Any], to: Target, script: str
) -> None:
    policy, events = SCRIPTS[script]
    data = framed(to, events)
    expected = await fresh(to, policy, [data])
    read(to, expected[0])
    assert await fresh(to, policy, one_by_one(data)) == expected
    for at in range(len(data)):
        assert await fresh(to, policy, [data[:at], data[at:]]) == expected, at


def test_arrays_in_these_tests_are_cut_as_the_service_cuts_them() -> None:
    items = ArrayDecoder().feed(framed(ARRAY, [answer("a"), answer("b")]))
    assert [item.data is not None for item in items] == [True, True, False]


@pytest.mark.parametrize("last", ["STOP", None])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_call_behind_a_finish_reason_has_a_placeholder(graft: Graft, last: str | None, calls: int) -> None:
    await graft.tools(WEATHER)
    events = [answer("a", finish="STOP"), *[answer(call(args={"n": n}), finish=last) for n in range(calls)]]
    visible = texts(await streamed(graft, events))
    (turn,) = await graft.turns()
    assert turn.turn_id in visible
    assert len(await graft.calls()) == calls
    for one in await graft.calls():
        await graft.store.answer("default", one.call_id, result={"n": one.args["n"]})
    contents = await graft.contents([user("a"), model(visible), user("b")])
    assert str(contents).count("'functionResponse'") == calls
