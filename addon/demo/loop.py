"""The demo of the loop: one streamed question, for which tools of a Python file and an MCP server run.

Like `story`, `play` yields beats: the events as they happen, and then the checks of the answer.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import addon
from addon.demo.stage import DemoFailed, Json, Plan, Stage
from addon.demo.story import (
    STREAM,
    Beat,
    Chart,
    Chat,
    Control,
    Moment,
    Rewritten,
    Scene,
    Span,
    check_that,
    parts,
    parts_with,
    results,
    text,
    tool_names,
)
from addon.fake_gemini.reply import Shape

_ADDON = Path(addon.__path__[0])
ROOT = next((folder for folder in (_ADDON.parent, _ADDON) if (folder / "examples").is_dir()), _ADDON.parent)
"""The folder with the examples: a checkout, or the installed package."""
FILES = ("examples/weather.py", "examples/mcp.json")

QUESTION = (
    "say I look up the places and the flights. "
    'call travel_find_flights {"origin": "Oslo", "destination": "Cairo"} '
    'and call get_coordinates {"place": "Oslo"} and call get_coordinates {"place": "Cairo"} '
    "then say Now the weather at both. "
    'call get_weather {"latitude": 59.91, "longitude": 10.75} '
    'and call get_weather {"latitude": 30.04, "longitude": 31.24}'
)
NEXT = "./run_proxy.sh --set graft_tools=examples/weather.py, and examples/README.md."
TOOLS = ["get_coordinates", "get_weather", "travel_find_flights", "travel_get_sights"]
_LATE = 5.0  # seconds for the last event
_SETTLED = 0.05  # seconds after which no earlier event can still arrive


def plan() -> Plan:
    """The plan for the stage. Raises DemoFailed if the examples are not in the project's folder."""
    if missing := [name for name in FILES if not (ROOT / name).is_file()]:
        raise DemoFailed(f"{missing[0]} is not in {ROOT}: the examples are missing from this installation")
    python_file, mcp_file = FILES
    return Plan(
        shape=Shape(each=True, pieces=2, delay=0.1),
        options=(f"graft_tools={python_file}", f"graft_mcp={mcp_file}"),
        environment={"TOOLGRAFT_PYTHON": sys.executable},
        cwd=ROOT,
    )


async def play(stage: Stage) -> AsyncGenerator[Beat]:
    """Yield the whole story. Raises DemoFailed."""
    chat = Chat(stage)

    yield Scene("Tools that run", "The proxy was started with two options, and runs these tools itself.")
    yield Control(f"graft_tools={FILES[0]}", "get_coordinates, get_weather")
    yield Control(f"graft_mcp={FILES[1]}", "travel_find_flights, travel_get_sights; over stdio")

    yield Scene(
        "One question, one stream",
        "The client asks once. The local Gemini calls what the question names: three tools at once, then two. "
        "On the left: seconds since the client asked.",
    )
    question = StreamedQuestion(stage)
    async with contextlib.aclosing(question.moments(chat.request(QUESTION))) as moments:
        async for moment in moments:
            yield moment
    chat.keep(question.saw)

    yield Scene("In parallel", "The requests to Gemini and the tools' runs.")
    yield Chart([*question.rounds, *question.spans])
    for sentence, holds in checks(question):
        yield check_that(sentence, holds)

    yield Scene("The chat goes on", "The client has seen only text. Gemini gets the real calls and results instead.")
    second = await chat.say("Please repeat the results.", stream=True)
    yield Rewritten(second.client_sent, second.gemini_got)
    yield check_that(
        "Gemini got its own five calls back, with signatures and ids",
        parts_with("functionCall", second.gemini_got) == parts_with("functionCall", *question.answered),
    )
    yield check_that("Gemini got the five results after the calls", len(results(second.gemini_got)) == 5)
    gemini = stage.gemini
    yield check_that(
        "the local Gemini, as strict as the real one, refused nothing and saw no dummy signature",
        not gemini.refused and not gemini.dummy_signatures,
    )


def checks(question: "StreamedQuestion") -> list[tuple[str, bool]]:
    """The checks of the streamed answer: each sentence, and whether it is true."""
    spans, rounds, saw = question.spans, question.rounds, question.saw
    if len(spans) != 5 or len(rounds) != 3:
        return [(f"5 calls and 3 requests to Gemini (there were {len(spans)} and {len(rounds)})", False)]
    first = spans[:3]
    took = max(span.end for span in first) - min(span.start for span in first)
    one_by_one = sum(span.end - span.start for span in first)
    call_names = [part["functionCall"]["name"] for part in parts_with("functionCall", *question.answered)]
    response_names = [
        part["functionResponse"]["name"] for part in parts_with("functionResponse", question.requests[-1])
    ]
    finishes = [c["finishReason"] for event in saw for c in event.get("candidates", []) if "finishReason" in c]
    return [
        ("Gemini got the tools of both sources, but not open_page", sorted(tool_names(question.requests[0])) == TOOLS),
        ("the client saw no call", not any("functionCall" in part for part in parts(*saw))),
        ("the client saw one answer: one responseId, one STOP", len(ids(saw)) == 1 and finishes == ["STOP"]),
        ("the client read the first text before any tool ended", question.first_text < min(span.end for span in spans)),
        ("the first tool ran while Gemini was still calling the others", first[0].start < rounds[0].end),
        (
            f"the first three ran side by side: {took:.2f} s, not {one_by_one:.2f} s",
            max(span.start for span in first) < min(span.end for span in first),
        ),
        ("Gemini got the results in the order of its calls", response_names == call_names),
        ("the answer uses the results", "-3" in text(saw) and "31" in text(saw)),
    ]


class StreamedQuestion:
    """One streamed question, observed at the client, at Gemini, and in the control API's events.

    Afterwards, `saw` has the client's events, `answered` Gemini's events, `requests` the requests to Gemini, `rounds` a
    span for each request, and `spans` the tools' runs in call order.
    """

    def __init__(self, stage: Stage) -> None:
        self.saw: list[Json] = []
        self.answered: list[Json] = []
        self.requests: list[Json] = []
        self.rounds: list[Span] = []
        self.first_text = float("inf")
        self._stage = stage
        self._runs: dict[str, dict[str, Any]] = {}
        self._queue: asyncio.PriorityQueue[tuple[float, int, Moment | None]] = asyncio.PriorityQueue()
        self._count = 0
        self._began = 0.0
        self._listening = asyncio.Event()

    @property
    def spans(self) -> list[Span]:
        return [Span(run["name"], run["start"], run["end"]) for run in self._runs.values() if "end" in run]

    async def moments(self, request: Json) -> AsyncGenerator[Moment]:
        """Send the request, and yield events as they happen. Raises DemoFailed."""
        asking = asyncio.ensure_future(self._ask(request))
        try:
            while (entry := await self._queue.get())[2] is not None:
                if (delay := entry[0] + _SETTLED - self._now()) > 0:
                    self._queue.put_nowait(entry)
                    await asyncio.sleep(delay)
                else:
                    yield entry[2]
            await asking
        finally:
            asking.cancel()
            await asyncio.wait({asking})

    async def _ask(self, request: Json) -> None:
        following = asyncio.ensure_future(self._follow())
        try:
            await asyncio.wait(
                {following, asyncio.ensure_future(self._listening.wait())}, return_when="FIRST_COMPLETED"
            )
            self._stage.listen(self._on_gemini)
            self._began = time.time()
            self._add("client", "asks, and streams")
            async for line in self._stage.stream(STREAM, request):
                if line.startswith("data: "):
                    self._on_client_event(json.loads(line.removeprefix("data: ")))
            self._add("client", "has the whole answer")
            async with asyncio.timeout(_LATE):
                await following
        except TimeoutError:
            raise DemoFailed(f"the control API's events were not complete after {_LATE:g} seconds") from None
        finally:
            self._stage.listen(None)
            following.cancel()
            self._queue.put_nowait((float("inf"), 0, None))

    def _add(self, who: str, what: str, at: float | None = None) -> None:
        at = self._now() if at is None else at
        self._count += 1
        self._queue.put_nowait((at, self._count, Moment(round(at, 3), who, what)))

    def _now(self) -> float:
        return time.time() - self._began

    # --- the client ---------------------------------------------------------------------------------------------------

    def _on_client_event(self, event: Json) -> None:
        self.saw.append(event)
        if words := text([event]):
            self.first_text = min(self.first_text, self._now())
            self._add("client", f"sees: {words}")

    # --- Gemini -------------------------------------------------------------------------------------------------------

    def _on_gemini(self, piece: bytes | None) -> None:
        if piece is None:
            self._add("Gemini", f"gets request {len(self.rounds) + 1}")
            self.rounds.append(Span(f"Gemini, request {len(self.rounds) + 1}", self._now(), self._now()))
            return
        current = self.rounds[-1]
        self.rounds[-1] = Span(current.name, current.start, self._now())
        document = json.loads(piece.decode().removeprefix("data: "))
        if len(self.requests) < len(self.rounds):
            self.requests.append(self._stage.upstream)
        self.answered.append(document)
        for part in parts_with("functionCall", document):
            self._add("Gemini", f"calls {short_call(part['functionCall'])}")

    # --- the tools ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Follow the events until the turn is delivered: all events of its calls come before."""
        kind = ""
        async for line in self._stage.follow():
            self._listening.set()
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                record = json.loads(value)
                if kind.startswith("call."):
                    self._on_call(record)
                elif kind == "turn.updated" and record["delivered"]:
                    return
        raise DemoFailed("the events of the control API ended")

    def _on_call(self, call: Json) -> None:
        run = self._runs.setdefault(call["call_id"], {"name": short_call(call)})
        at = max(0.0, call["updated_at"] - self._began)
        if call["status"] == "running":
            run["start"] = at
            self._add("tool", f"{run['name']} starts", at)
        elif call["status"] != "pending":
            run["end"] = at
            run.setdefault("start", at)
            outcome = call["error"] if call["error"] is not None else json.dumps(call["result"], ensure_ascii=False)
            self._add("tool", f"{run['name']} ends: {outcome}", at)


def short_call(call: Json) -> str:
    """A short form of a call: `get_weather(59.91, 10.75)`."""
    return f"{call['name']}({', '.join(map(str, call['args'].values()))})"


def ids(events: list[Json]) -> set[str]:
    return {event["responseId"] for event in events}
