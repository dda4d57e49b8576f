"""Text and arguments in many events cost in proportion to their number, in every language that the proxy speaks: what
has gone before is not read, copied or joined again for each event."""

import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import pytest

from addon.core.framing import streams
from addon.core.framing.documents import Document, encode
from addon.core.live import Frame, LiveMachine
from addon.core.tools.tool_plan import Toolbox
from addon.graft.exchange import Exchange
from addon.graft.machine import AnswerMachine
from addon.graft.machine_protocol import Effect, Wait
from addon.graft.owners import ByHand
from addon.settings import Settings
from addon.surfaces.incoming import Framing
from addon.surfaces.registry import match
from store.backends.memory import MemoryStore
from tests.contents import user
from tests.graft.conftest import EVENTS, JSON, WEATHER, Graft, answer
from tests.graft.test_machine import TARGETS, Runs

HOST = "generativelanguage.googleapis.com"
PATHS = {"chat": "/v1beta/openai/chat/completions", "interactions": "/v1beta/interactions"}
NATIVE = [name for name in TARGETS if name != "json"]
TEXT = "word " * 200
MANY = 64

type Model = Callable[[str, int], Iterator[bytes]]
"""Its answer, by what it says ("text, call, text") and in how many events each text and each call's arguments come."""


# --- what the model says ------------------------------------------------------------------------------------------


def gemini(name: str) -> Model:
    def says(what: str, count: int) -> Iterator[bytes]:
        to = TARGETS[name]
        piece = {"partialArgs": [{"jsonPath": "$.x", "stringValue": TEXT}], "willContinue": True}
        pieces = [{"name": "get_weather", "id": "x", "willContinue": True}, *[piece] * count, {}]
        words = {
            "text": [answer(TEXT, finish=None)] * count,
            "call": [answer({"functionCall": piece}, finish=None) for piece in pieces],
        }
        documents = [*chain.from_iterable(words[one] for one in what.split(", ")), answer("", finish="STOP")]
        for number, document in enumerate(documents):
            data = encode({"response": document} if to.response_path else document)
            if to.framing is Framing.SSE:
                yield streams.sse_event(data)
            else:
                yield (b",\r\n" if number else b"[") + data
        if to.framing is Framing.ARRAY:
            yield b"]"

    return says


def chat(what: str, count: int) -> Iterator[bytes]:
    def chunk(finish: str | None = None, **delta: Any) -> bytes:
        choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
        return streams.sse_event(
            encode({"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]})
        )

    def piece(arguments: str, **more: str) -> bytes:
        return chunk(tool_calls=[{"index": 0, "type": "function", "function": {**more, "arguments": arguments}}])

    words = {
        "text": [chunk(content=TEXT)] * count,
        "call": [piece('{"x":"', name="get_weather"), *[piece(TEXT)] * count, piece('"}')],
    }
    for one in what.split(", "):
        yield from words[one]
    yield chunk("tool_calls" if "call" in what else "stop")
    yield streams.sse_event(b"[DONE]")


def interactions(what: str, count: int) -> Iterator[bytes]:
    def event(kind: str, **members: Any) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({**members, "event_type": kind}))

    steps: dict[str, tuple[Document, list[Document]]] = {
        "text": ({"type": "model_output"}, [{"type": "text", "text": TEXT}] * count),
        "call": (
            {"type": "function_call", "id": "x", "name": "get_weather", "arguments": {}},
            [{"type": "arguments_delta", "arguments": piece} for piece in ('{"x":"', *[TEXT] * count, '"}')],
        ),
    }
    yield event("interaction.created", interaction={"id": "v1_a", "status": "in_progress", "model": "m"})
    for index, (step, deltas) in enumerate(steps[one] for one in what.split(", ")):
        yield event("step.start", index=index, step=step)
        for delta in deltas:
            yield event("step.delta", index=index, delta=delta)
        yield event("step.stop", index=index)
    status = "requires_action" if "call" in what else "completed"
    yield event("interaction.completed", interaction={"id": "v1_a", "status": status})


MODELS: dict[str, Model] = {**{name: gemini(name) for name in NATIVE}, "chat": chat, "interactions": interactions}


async def exchange_of(graft: Graft, name: str) -> Exchange:
    if name in TARGETS:
        body: Document = {"contents": [user("hi")]}
        return await graft.exchange({"model": "m", "request": body} if name == "wrapped" else body, TARGETS[name])
    asked: dict[str, Document] = {
        "chat": {"messages": [{"role": "user", "content": "hi"}]},
        "interactions": {"input": "hi"},
    }
    return await graft.exchange({"model": "m", "stream": True, **asked[name]}, match("POST", HOST, PATHS[name]))


# --- what it costs ------------------------------------------------------------------------------------------------


class Work:
    """The calls and the rounds of loops in Python, and the new bytes."""

    def __init__(self) -> None:
        self.steps = 0
        self.bytes = 0

    def measure(self, events: Iterable[Any], take: Callable[[Any], object]) -> None:
        """What it costs to take these, each after the other."""
        monitoring, tool = sys.monitoring, sys.monitoring.PROFILER_ID
        kinds = (monitoring.events.PY_START, monitoring.events.JUMP)

        def count(*where: object) -> None:
            self.steps += 1

        monitoring.use_tool_id(tool, "work")
        for kind in kinds:
            monitoring.register_callback(tool, kind, count)
        monitoring.set_events(tool, sum(kinds))
        tracemalloc.start()
        try:
            for event in events:
                before, _ = tracemalloc.get_traced_memory()
                tracemalloc.reset_peak()
                take(event)
                self.bytes += tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)


def assert_in_proportion(once: Work, twice: Work) -> None:
    assert twice.steps < 2.4 * once.steps
    assert twice.bytes < 2.4 * once.bytes


def content_type(name: str) -> str:
    return JSON if name == "array" else EVENTS


@pytest.mark.parametrize("what", ["text", "text, call, text"])
@pytest.mark.parametrize("name", NATIVE)
async def test_of_an_answer_without_a_loop(graft: Graft, name: str, what: str) -> None:
    await graft.tools(WEATHER)

    async def work(count: int) -> Work:
        work, store = Work(), MemoryStore()
        machine = AnswerMachine(await exchange_of(graft, name), Settings(), store.clock, ByHand(store))

        def feed(data: bytes) -> None:
            if not machine.passes(data) and not isinstance(effects := machine.feed(data), bytes):
                assert list(effects)

        machine.begin(content_type(name))
        work.measure(MODELS[name](what, count), feed)
        assert list(machine.finish())
        return work

    await work(2)  # what is done only once is done
    assert_in_proportion(await work(MANY), await work(2 * MANY))


@pytest.mark.parametrize("name", MODELS)
async def test_of_a_later_round_of_a_loop(graft: Graft, name: str) -> None:
    await graft.tools(WEATHER)

    async def work(count: int) -> Work:
        work, exchange, waits = Work(), await exchange_of(graft, name), list[Wait]()
        machine = AnswerMachine(exchange, Settings(), lambda: 1.0, Runs(MemoryStore()), exchange.request.body)

        def take(effects: bytes | Iterable[Effect]) -> None:
            waits.extend(one for one in effects if isinstance(one, Wait))

        def feed(data: bytes) -> None:
            if not machine.passes(data):
                take(machine.feed(data))

        take(machine.start())
        for what in ("call", "text, call, text"):
            take(machine.begin(content_type(name)))
            work.measure(MODELS[name](what, count), feed)
            take(machine.finish())
            take(machine.take_responses({one.call_id: {"response": {"celsius": 3}} for one in waits[-1].calls}))
        assert len(waits) == 2
        return work

    await work(2)
    assert_in_proportion(await work(MANY), await work(2 * MANY))


def test_of_a_live_connection() -> None:
    output = encode({"serverContent": {"modelTurn": {"parts": [{"text": TEXT}]}}})
    realtime = encode({"realtimeInput": {"text": TEXT}})

    def work(count: int) -> Work:
        work = Work()
        machine = LiveMachine(Toolbox([WEATHER]), {}, strips=True, passthrough=False, new_call_id=lambda: "c1")
        machine.from_client(Frame(encode({"setup": {"model": "models/gemini-live-2.5-flash-preview"}})))
        machine.from_server(Frame(encode({"toolCall": {"functionCalls": [{"id": "x", "name": "get_weather"}]}})))
        work.measure([realtime] * count, lambda data: machine.from_client(Frame(data)))
        assert machine.is_blocked
        work.measure([output] * count, lambda data: machine.from_server(Frame(data)))
        return work

    work(2)
    assert_in_proportion(work(MANY), work(2 * MANY))
