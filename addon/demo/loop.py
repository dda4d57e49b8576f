"""The demo of the loop: one streamed question, for which tools of a Python file and an MCP server run, and a program
that speaks OpenAI's protocol.

Like `story`, `play` yields beats: what happened during the question, and then the checks of the answer.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import addon
from addon.demo.stage import DemoFailed, Json, Plan, Stage
from addon.demo.story import (
    STREAM,
    Beat,
    Chat,
    Control,
    Moment,
    Scene,
    check_that,
    is_strict,
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


def plan() -> Plan:
    """The plan for the stage. Raises DemoFailed if the examples are not in the project's folder."""
    if missing := [name for name in FILES if not (ROOT / name).is_file()]:
        raise DemoFailed(f"{missing[0]} is not in {ROOT}: the examples are missing from this installation")
    options = [f"{option}={name}" for option, name in zip(("graft_tools", "graft_mcp"), FILES, strict=True)]
    return Plan(Shape(each=True, pieces=2, delay=0.1), options, {"TOOLGRAFT_PYTHON": sys.executable}, ROOT)


async def play(stage: Stage) -> AsyncGenerator[Beat]:
    """Yield the whole story. Raises DemoFailed."""
    chat, question = Chat(stage), StreamedQuestion()

    yield Scene("Tools that run", "The proxy was started with two options, and runs these tools itself.")
    yield Control(f"graft_tools={FILES[0]}", "get_coordinates, get_weather")
    yield Control(f"graft_mcp={FILES[1]}", "travel_find_flights, travel_get_sights; over stdio")

    yield Scene(
        "One question, one stream",
        "The client asks once. The local Gemini calls what the question names: three tools at once, then two. "
        "On the left: seconds since the client asked.",
    )
    await question.ask(stage, chat.request(QUESTION))
    for moment in sorted(question.moments):
        yield moment
    for sentence, holds in checks(question):
        yield check_that(sentence, holds)
    chat.keep(question.saw)

    yield Scene("The chat goes on", "The client has seen only text. Gemini gets the real calls and results instead.")
    second = await chat.say("Please repeat the results.", stream=True)
    yield second
    yield check_that(
        "Gemini got its own five calls back, with signatures and ids",
        parts_with("functionCall", second.gemini_got) == parts_with("functionCall", *question.answered),
    )
    yield check_that("Gemini got the five results after the calls", len(results(second.gemini_got)) == 5)

    async for beat in play_program(stage):
        yield beat
    yield is_strict(stage)


class Span(NamedTuple):
    """A period, in seconds after the client's request."""

    start: float
    end: float


class StreamedQuestion:
    """One streamed question: `saw` has the client's events, `answered` Gemini's, `requests` the requests to Gemini,
    `rounds` the period of each request, and `spans` those of the tools' runs, in call order."""

    def __init__(self) -> None:
        self.saw: list[Json] = []
        self.answered: list[Json] = []
        self.requests: list[Json] = []
        self.rounds: list[Span] = []
        self.spans: list[Span] = []
        self.first_text = float("inf")
        self.moments: list[Moment] = []
        self._began = 0.0

    async def ask(self, stage: Stage, request: Json) -> None:
        """Send the request, and collect everything that happened once the answer is complete. Raises DemoFailed."""
        self._began = time.time()
        self._add("client", "asks, and streams")
        async for line in stage.stream(STREAM, request):
            if line.startswith("data: "):
                self.saw.append(json.loads(line.removeprefix("data: ")))
                if words := text(self.saw[-1:]):
                    self._add("client", f"sees: {words}")
                    self.first_text = min(self.first_text, self.moments[-1].at)
        self._add("client", "has the whole answer")
        self.requests = [request["body"] for request in stage.gemini.requests]
        for number, pieces in enumerate(stage.recorder.answers, 1):
            times = [at for at, _ in pieces]
            self.rounds.append(Span(times[0] - self._began, times[-1] - self._began))
            self._add("Gemini", f"gets request {number}", times[0])
            for at, piece in pieces[1:]:
                self.answered.append(json.loads(piece.decode().removeprefix("data: ")))
                for part in parts_with("functionCall", self.answered[-1]):
                    self._add("Gemini", f"calls {short_call(part['functionCall'])}", at)
        await self._add_runs(stage)

    async def _add_runs(self, stage: Stage) -> None:
        """Read the events until the turn is delivered, which comes after all events of its calls."""
        kind = ""
        starts: dict[str, float] = {}
        try:
            async with asyncio.timeout(_LATE):
                async for line in stage.events():
                    name, _, value = line.partition(": ")
                    kind = value if name == "event" else kind
                    if name != "data":
                        continue
                    record = json.loads(value)
                    if kind == "turn.updated" and record["delivered"]:
                        break
                    if kind.startswith("call."):
                        self._add_run(record, starts)
        except TimeoutError:
            raise DemoFailed(f"the control API's events were not complete after {_LATE:g} seconds") from None

    def _add_run(self, call: Json, starts: dict[str, float]) -> None:
        call_id: str = call["call_id"]
        at: float = call["updated_at"]
        if call["status"] == "running":
            starts[call_id] = at
            self._add("tool", f"{short_call(call)} starts", at)
        elif call["status"] != "pending":
            self.spans.append(Span(starts.get(call_id, at) - self._began, at - self._began))
            self.spans.sort()  # they start in the order of the calls
            outcome = call["error"] if call["error"] is not None else json.dumps(call["result"], ensure_ascii=False)
            self._add("tool", f"{short_call(call)} ends: {outcome}", at)

    def _add(self, who: str, what: str, at: float | None = None) -> None:
        self.moments.append(Moment(round((time.time() if at is None else at) - self._began, 3), who, what))


def checks(question: StreamedQuestion) -> list[tuple[str, bool]]:
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
    ids = {event["responseId"] for event in saw}
    return [
        ("Gemini got the tools of both sources, but not open_page", sorted(tool_names(question.requests[0])) == TOOLS),
        ("the client saw no call", not any("functionCall" in part for part in parts(*saw))),
        ("the client saw one answer: one responseId, one STOP", len(ids) == 1 and finishes == ["STOP"]),
        ("the client read the first text before any tool ended", question.first_text < min(span.end for span in spans)),
        ("the first tool ran while Gemini was still calling the others", first[0].start < rounds[0].end),
        (
            f"the first three ran side by side: {took:.2f} s, not {one_by_one:.2f} s",
            max(span.start for span in first) < min(span.end for span in first),
        ),
        ("Gemini got the results in the order of its calls", response_names == call_names),
        ("the answer uses the results", "-3" in text(saw) and "31" in text(saw)),
    ]


def short_call(call: dict[str, Any]) -> str:
    """A short form of a call: `get_weather(59.91, 10.75)`."""
    return f"{call['name']}({', '.join(map(str, call['args'].values()))})"


PROGRAM_QUESTION = (
    'call get_coordinates {"place": "Cairo"} then call get_weather {"latitude": 30.04, "longitude": 31.24} '
    'then call pack {"celsius": 31}'
)
PACK: Json = {
    "type": "function",
    "name": "pack",
    "description": "What to pack for a temperature.",
    "parameters": {"type": "object", "properties": {"celsius": {"type": "number"}}, "required": ["celsius"]},
}
_REQUEST = {"model": "gemini-3-flash", "tools": [PACK]}


async def play_program(stage: Stage) -> AsyncGenerator[Beat]:
    """The scene of a program with OpenAI's Responses API: it gets the calls of its own function, and the proxy runs
    the tools. Raises DemoFailed."""
    yield Scene(
        "The same tools for an OpenAI program",
        "It asks the front door as OpenAI's clients do, and declares its own function, pack.",
    )
    first = await stage.respond({**_REQUEST, "input": PROGRAM_QUESTION})
    calls = list(of_type(first, "function_call"))
    yield Control("POST /v1/responses", ", ".join(f"call {call['name']}({call['arguments']})" for call in calls))
    names = tool_names(stage.upstream)
    yield check_that("Gemini got pack beside the tools that the proxy runs", {"pack", "get_weather"} <= {*names})
    yield check_that("the program saw the call of its own function and no other call", names_of(calls) == ["pack"])

    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": json.dumps({"wear": "a hat"})}
        for call in calls
    ]
    second = await stage.respond({**_REQUEST, "input": outputs, "previous_response_id": first["id"]})
    words = "".join(part["text"] for message in of_type(second, "message") for part in message["content"])
    yield Control("POST /v1/responses, with its result", words)
    yield check_that("the answer knows the weather and what to pack", "31" in words and "a hat" in words)


def of_type(response: Json, kind: str) -> Iterator[Json]:
    return (item for item in response["output"] if item["type"] == kind)


def names_of(calls: list[Json]) -> list[str]:
    return [str(call["name"]) for call in calls]
