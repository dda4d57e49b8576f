"""The demo of the loop: one question in one stream, while tools of a Python file and of an MCP server run for it.

`play` tells it as beats, as `story` does: what happens is told as it happens, and then what must hold of it.
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
from addon.demo.reply import Shape
from addon.demo.show.stage import DemoFailed, Json, Plan, Stage
from addon.demo.show.story import (
    STREAM,
    Beat,
    Chart,
    Chat,
    Control,
    Moment,
    Rewritten,
    Scene,
    Span,
    held,
    parts,
    parts_with,
    results,
    text,
    tool_names,
)

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
_LATE = 5.0  # seconds that the last event may take
_SETTLED = 0.05  # seconds after which nothing that happened before is still to be told


def plan() -> Plan:
    """The stage's. Raises DemoFailed where the examples are not beside the program."""
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
    """The whole story. Raises DemoFailed."""
    chat = Chat(stage)

    yield Scene("Tools that run", "The proxy was started with two options, and runs these tools itself.")
    yield Control(f"graft_tools={FILES[0]}", "get_coordinates, get_weather")
    yield Control(f"graft_mcp={FILES[1]}", "travel_find_flights, travel_get_sights; over stdio")

    yield Scene(
        "One question, one stream",
        "The client asks once. The local Gemini calls what the question names: three tools at once, then two. "
        "Left, the seconds since the client asked.",
    )
    asked = Asked(stage)
    async with contextlib.aclosing(asked.moments(chat.request(QUESTION))) as moments:
        async for moment in moments:
            yield moment
    chat.keep(asked.saw)

    yield Scene("Beside one another", "Requests to Gemini, and the tools' runs.")
    yield Chart([*asked.rounds, *asked.spans])
    for sentence, holds in checks(asked):
        yield held(sentence, holds)

    yield Scene("The chat goes on", "The client has only seen text. Gemini gets what really happened in its place.")
    second = await chat.say("Please repeat the results.", stream=True)
    yield Rewritten(second.client_sent, second.gemini_got)
    yield held(
        "Gemini got its own five calls back, signatures and ids included",
        parts_with("functionCall", second.gemini_got) == parts_with("functionCall", *asked.said),
    )
    yield held("their five results are in their places", len(results(second.gemini_got)) == 5)
    gemini = stage.gemini
    yield held(
        "the local Gemini, which checks what the real one checks, refused nothing and saw no stand-in signature",
        not gemini.refused and not gemini.dummy_signatures,
    )


def checks(asked: "Asked") -> list[tuple[str, bool]]:
    """What must hold of the streamed answer, each with whether it does."""
    spans, rounds, saw = asked.spans, asked.rounds, asked.saw
    if len(spans) != 5 or len(rounds) != 3:
        return [(f"5 calls and 3 requests to Gemini (there were {len(spans)} and {len(rounds)})", False)]
    first = spans[:3]
    took = max(span.end for span in first) - min(span.start for span in first)
    one_by_one = sum(span.end - span.start for span in first)
    wanted = [part["functionCall"]["name"] for part in parts_with("functionCall", *asked.said)]
    given = [part["functionResponse"]["name"] for part in parts_with("functionResponse", asked.requests[-1])]
    finishes = [c["finishReason"] for event in saw for c in event.get("candidates", []) if "finishReason" in c]
    return [
        ("Gemini got the tools of both, and open_page went no further", sorted(tool_names(asked.requests[0])) == TOOLS),
        ("the client saw no call", not any("functionCall" in part for part in parts(*saw))),
        ("it saw one answer: one responseId, one STOP", len(ids(saw)) == 1 and finishes == ["STOP"]),
        ("it had read the first text before any tool had ended", asked.first_text < min(span.end for span in spans)),
        ("the first tool ran while Gemini was still calling the others", first[0].start < rounds[0].end),
        (
            f"the first three ran side by side: {took:.2f} s, not {one_by_one:.2f} s",
            max(span.start for span in first) < min(span.end for span in first),
        ),
        ("Gemini got the results in the order of its calls", given == wanted),
        ("the answer rests on the results", "-3" in text(saw) and "31" in text(saw)),
    ]


class Asked:
    """One streamed question, watched from three places: the client, Gemini, and the control API's events.

    Afterwards `saw` holds what the client was given and `said` what Gemini answered, a document an event; `requests`
    what reached Gemini; `rounds` a span for each of them; `spans` the tools' runs, in call order.
    """

    def __init__(self, stage: Stage) -> None:
        self.saw: list[Json] = []
        self.said: list[Json] = []
        self.requests: list[Json] = []
        self.rounds: list[Span] = []
        self.first_text = float("inf")
        self._stage = stage
        self._runs: dict[str, dict[str, Any]] = {}
        self._queue: asyncio.PriorityQueue[tuple[float, int, Moment | None]] = asyncio.PriorityQueue()
        self._told = 0
        self._began = 0.0
        self._listening = asyncio.Event()

    @property
    def spans(self) -> list[Span]:
        return [Span(run["name"], run["start"], run["end"]) for run in self._runs.values() if "end" in run]

    async def moments(self, request: Json) -> AsyncGenerator[Moment]:
        """Send the request, and tell what happens as it happens. Raises DemoFailed."""
        happening = asyncio.ensure_future(self._happen(request))
        try:
            while (told := await self._queue.get())[2] is not None:
                if (left := told[0] + _SETTLED - self._now()) > 0:
                    self._queue.put_nowait(told)
                    await asyncio.sleep(left)
                else:
                    yield told[2]
            await happening
        finally:
            happening.cancel()
            await asyncio.wait({happening})

    async def _happen(self, request: Json) -> None:
        following = asyncio.ensure_future(self._follow())
        try:
            await asyncio.wait(
                {following, asyncio.ensure_future(self._listening.wait())}, return_when="FIRST_COMPLETED"
            )
            self._stage.listen(self._heard)
            self._began = time.time()
            self._tell("client", "asks, and streams")
            async for line in self._stage.stream(STREAM, request):
                if line.startswith("data: "):
                    self._seen(json.loads(line.removeprefix("data: ")))
            self._tell("client", "has the whole answer")
            async with asyncio.timeout(_LATE):
                await following
        except TimeoutError:
            raise DemoFailed(f"the control API's events have not told all after {_LATE:g} seconds") from None
        finally:
            self._stage.listen(None)
            following.cancel()
            self._queue.put_nowait((float("inf"), 0, None))

    def _tell(self, who: str, what: str, at: float | None = None) -> None:
        at = self._now() if at is None else at
        self._told += 1
        self._queue.put_nowait((at, self._told, Moment(round(at, 3), who, what)))

    def _now(self) -> float:
        return time.time() - self._began

    # --- the client ---------------------------------------------------------------------------------------------------

    def _seen(self, event: Json) -> None:
        self.saw.append(event)
        if words := text([event]):
            self.first_text = min(self.first_text, self._now())
            self._tell("client", f"sees: {words}")

    # --- Gemini -------------------------------------------------------------------------------------------------------

    def _heard(self, piece: bytes | None) -> None:
        if piece is None:
            self._tell("Gemini", f"gets request {len(self.rounds) + 1}")
            self.rounds.append(Span(f"Gemini, request {len(self.rounds) + 1}", self._now(), self._now()))
            return
        begun = self.rounds[-1]
        self.rounds[-1] = Span(begun.name, begun.start, self._now())
        document = json.loads(piece.decode().removeprefix("data: "))
        if len(self.requests) < len(self.rounds):
            self.requests.append(self._stage.upstream)
        self.said.append(document)
        for part in parts_with("functionCall", document):
            self._tell("Gemini", f"calls {called(part['functionCall'])}")

    # --- the tools ----------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Until the turn has been delivered to its end: every event of its calls has come before."""
        kind = ""
        async for line in self._stage.follow():
            self._listening.set()
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                record = json.loads(value)
                if kind.startswith("call."):
                    self._changed(record)
                elif kind == "turn.updated" and record["delivered"]:
                    return
        raise DemoFailed("the events of the control API came to an end")

    def _changed(self, call: Json) -> None:
        run = self._runs.setdefault(call["call_id"], {"name": called(call)})
        at = max(0.0, call["updated_at"] - self._began)
        if call["status"] == "running":
            run["start"] = at
            self._tell("tool", f"{run['name']} starts", at)
        elif call["status"] != "pending":
            run["end"] = at
            run.setdefault("start", at)
            outcome = call["error"] if call["error"] is not None else json.dumps(call["result"], ensure_ascii=False)
            self._tell("tool", f"{run['name']} ends: {outcome}", at)


def called(call: Json) -> str:
    """A call in a few words: `get_weather(59.91, 10.75)`."""
    return f"{call['name']}({', '.join(map(str, call['args'].values()))})"


def ids(events: list[Json]) -> set[str]:
    return {event["responseId"] for event in events}
