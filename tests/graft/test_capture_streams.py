"""Calls of streams are captured, however the stream is cut."""

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from addon.core.framing.documents import Document
from addon.core.framing.streams import ArrayDecoder
from addon.graft import rounds, turn_records
from addon.surfaces.incoming import Framing, Operation, Target
from store.factory import open_url
from tests.contents import call, model, user
from tests.graft.captures import (
    ARRAY,
    ASKED,
    FRAMINGS,
    ID,
    OWN,
    PIECES,
    PLACEHOLDER,
    STREAM,
    Stream,
    framed,
    kind,
    parts,
    read,
    stream,
    streamed,
    texts,
)
from tests.graft.conftest import EVENTS, JSON, SEARCH, WEATHER, Graft, answer, target

pytestmark = pytest.mark.usefixtures("counted_ids")


@FRAMINGS
async def test_events_without_a_call_are_forwarded_byte_for_byte(graft: Graft, to: Target) -> None:
    await graft.tools(WEATHER)
    body = framed(to, [answer("a", finish=None), answer("b", usageMetadata={"n": 1})]).replace(b":", b" : ", 1)
    if to.framing is Framing.SSE:
        body = b"data:" + body.removeprefix(b"data :").replace(b"\r\n\r\n", b"\n\n", 1)
    capture = Stream(graft.grafter, await graft.exchange(ASKED, to), kind(to))
    assert await capture.feed(body) + await capture.finish() == body


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
    capture = Stream(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    first = framed(STREAM, [answer("a", finish=None)])
    assert await capture.feed(first + framed(STREAM, [answer(call(), finish=None)]) + b"data: {") == first
    assert [c.name for c in await graft.calls()] == ["get_weather"]
    assert not (await graft.turns())[0].delivered


async def test_calls_are_in_the_store_before_their_event_is_given_back(graft: Graft) -> None:
    await graft.tools(WEATHER)
    capture = Stream(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    for n in (1, 2):
        await capture.feed(framed(STREAM, [answer(call(args={"n": n}), finish=None)]))
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
    capture = Stream(graft.grafter, await graft.exchange(ASKED, ARRAY), JSON)
    out = await capture.feed(framed(ARRAY, events).removesuffix(b"\n]") + end) + await capture.finish()
    assert texts(read(ARRAY, out)).startswith("before" if shows else "Tool call")


@pytest.mark.parametrize("body", [b"[]", b" [ ] ", b"", b'{"error":{"code":503}}', b"[\n]", b"nonsense"])
async def test_an_array_that_holds_nothing_goes_on_as_it_came(graft: Graft, body: bytes) -> None:
    await graft.tools(WEATHER)
    capture = Stream(graft.grafter, await graft.exchange(ASKED, ARRAY), JSON)
    assert await capture.feed(body) + await capture.finish() == body


async def test_an_error_in_a_stream_goes_on_as_it_came(graft: Graft) -> None:
    await graft.tools(WEATHER)
    error = b'{\n  "error": {\n    "code": 400\n  }\n}\n'
    capture = Stream(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    assert await capture.feed(error) + await capture.finish() == error
    after = framed(STREAM, [answer(call(), finish=None)]) + b'data: {"error":{}}\r\n\r\n'
    capture = Stream(graft.grafter, await graft.exchange(ASKED, STREAM), EVENTS)
    assert await capture.feed(after) == b'data: {"error":{}}\r\n\r\n'


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
        monkeypatch.setattr(turn_records, "new_turn_id", lambda: f"turn_{next(turns):016x}")
        monkeypatch.setattr(rounds, "new_call_id", lambda: f"call_{next(calls)}")
        await store.delete_session("default")
        await graft.tools(WEATHER, SEARCH, **policy)
        capture = Stream(graft.grafter, await graft.exchange(ASKED | {"tools": [OWN]}, to), kind(to))
        out = b"".join([await capture.feed(chunk) for chunk in chunks]) + await capture.finish()
        return out, (await graft.turns(), await graft.calls())

    yield run
    await store.close()


@FRAMINGS
@pytest.mark.parametrize("script", SCRIPTS)
async def test_a_stream_is_the_same_whole_byte_by_byte_and_cut_anywhere(
    fresh: Callable[..., Any], to: Target, script: str
) -> None:
    policy, events = SCRIPTS[script]
    data = framed(to, events)
    expected = await fresh(to, policy, [data])
    read(to, expected[0])
    assert await fresh(to, policy, one_by_one(data)) == expected
    for at in range([*SCRIPTS].index(script), len(data), 7):
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
    contents = await graft.contents([*ASKED["contents"], model(visible), user("b")])
    assert str(contents).count("'functionResponse'") == calls
