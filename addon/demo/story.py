"""The demo's story: a chat of four turns on a `Stage`, with checks, and the kinds of beats.

`play` yields the story as a sequence of beats, and raises DemoFailed at the first failed check. `view` prints beats.
"""

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, NamedTuple

from addon.demo.stage import DemoFailed, Json, Stage

UNARY = "/v1beta/models/gemini-3-flash:generateContent"
STREAM = "/v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse"

OWN_TOOLS: list[Json] = [
    {
        "functionDeclarations": [
            {
                "name": "open_page",
                "description": "Open a page in the client's own browser.",
                "parameters": {"type": "OBJECT", "properties": {"url": {"type": "STRING"}}},
            }
        ]
    }
]
NEXT = "./run_proxy.sh, and docs/tour.md for a tour."
CITY: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLSET: Json = {
    "tools": [
        {"name": "get_weather", "description": "The weather of a city, now.", "parameters": CITY},
        {"name": "book_hotel", "description": "Book a room in a city, for tonight.", "parameters": CITY},
    ]
}


class Scene(NamedTuple):
    """The beginning of a part of the story."""

    title: str
    words: str


class Control(NamedTuple):
    """A request to the control API, and its outcome in a few words."""

    request: str
    outcome: str


class Exchange(NamedTuple):
    """One request of the client and its answer, on both sides of the proxy. Answers are lists of one document, or of
    one per event of a stream."""

    client_sent: Json
    gemini_got: Json
    gemini_answered: list[Json]
    client_saw: list[Json]


class Held(NamedTuple):
    """A check that passed."""

    sentence: str


class Moment(NamedTuple):
    """An event at the `client`, at `Gemini` or of a `tool`, `at` seconds after the client asked."""

    at: float
    who: str
    what: str


Beat = Scene | Control | Exchange | Held | Moment


def document_of(beat: Beat) -> Json:
    """A beat as JSON, with its class name in lower case as the key: `{"scene": {…}}`, `{"held": {…}}`."""
    return {type(beat).__name__.lower(): beat._asdict()}


async def play(stage: Stage) -> AsyncGenerator[Beat]:
    """Yield the whole story. Raises DemoFailed."""
    chat = Chat(stage)

    yield Scene("Tools for the session", "They are set once, through the control API. The client does not know them.")
    path = f"/v1/sessions/{stage.session}/tools"
    await stage.call_control("PUT", path, TOOLSET)
    yield Control(f"PUT {path}", "get_weather, book_hotel")

    yield Scene("The client asks", "It declares its own tool. Gemini gets the session's tools instead, and calls one.")
    first = await chat.say("What is the weather in Oslo?")
    yield first
    yield check_that(
        "Gemini got get_weather and book_hotel, but not open_page",
        tool_names(first.gemini_got) == ["get_weather", "book_hotel"],
    )
    yield check_that("the client saw a placeholder instead of the call", is_placeholder(first))

    yield Scene("The call is answered", "It waits in the control API until somebody answers.")
    calls = await pending(stage, ["get_weather"])
    yield Control("GET /v1/calls?status=pending", listed(calls))
    yield await answer(stage, calls[0], {"celsius": -3})

    yield Scene(
        "The client goes on",
        "It sends its history with the placeholder. Gemini gets the real call and result instead.",
    )
    second = await chat.say("Thanks. Do I need a coat?")
    yield second
    yield check_that(
        "Gemini got its own call back, with signature and id",
        parts_with("functionCall", second.gemini_got) == parts_with("functionCall", *first.gemini_answered),
    )
    yield check_that("the result follows the call", results(second.gemini_got) == [{"celsius": -3}])
    yield check_that("the answer uses the result", "-3" in text(second.client_saw))

    yield Scene(
        "A stream, and two calls at once",
        "Now the client streams. It never sees a call, and its stream ends normally.",
    )
    third = await chat.say("And the weather in Rome and Cairo?", stream=True)
    yield third
    yield check_that("no event at the client contained a call", is_placeholder(third))
    calls = await pending(stage, ["get_weather", "get_weather"])
    yield Control("GET /v1/calls?status=pending", listed(calls))
    yield await answer(stage, calls[1], {"celsius": 31})
    yield await answer(stage, calls[0], {"celsius": 19})

    yield Scene("The last turn", "The results arrived in another order. Gemini gets them in the order of its calls.")
    fourth = await chat.say("Which of them is warmer?", stream=True)
    yield fourth
    yield check_that(
        "Gemini got three calls, each with its result",
        results(fourth.gemini_got) == [{"celsius": -3}, {"celsius": 19}, {"celsius": 31}],
    )
    yield check_that("Gemini got no placeholder", "Tool call completed" not in json.dumps(fourth.gemini_got))
    yield check_that("the client got Gemini's text stream unchanged", fourth.client_saw == fourth.gemini_answered)
    yield check_that(
        "the answer uses both results", "19" in text(fourth.client_saw) and "31" in text(fourth.client_saw)
    )
    yield is_strict(stage)


def is_strict(stage: Stage) -> Held:
    return check_that(
        "the local Gemini, as strict as the real one, refused nothing and saw no dummy signature",
        not stage.gemini.refused and not stage.gemini.dummy_signatures,
    )


def check_that(sentence: str, holds: bool) -> Held:
    if not holds:
        raise DemoFailed(f"a check failed: {sentence}")
    return Held(sentence)


class Chat:
    """A chat as clients keep it: answers go into the history, and the next request sends the history."""

    def __init__(self, stage: Stage) -> None:
        self.contents: list[Json] = []
        self._stage = stage

    async def say(self, words: str, *, stream: bool = False) -> Exchange:
        """Raises DemoFailed."""
        sent = self.request(words)
        saw = documents(await self._stage.ask(STREAM if stream else UNARY, sent), stream)
        self.keep(saw)
        return Exchange(sent, self._stage.upstream, documents(self._stage.answered, stream), saw)

    def request(self, words: str) -> Json:
        """The next request, with the user's words."""
        self.contents.append({"role": "user", "parts": [{"text": words}]})
        return {"contents": list(self.contents), "tools": OWN_TOOLS}

    def keep(self, saw: list[Json]) -> None:
        """Add an answer to the history."""
        self.contents.append({"role": "model", "parts": list(parts(*saw))})


def documents(body: str, stream: bool) -> list[Json]:
    """The response documents of a body. Raises DemoFailed."""
    found = (
        [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")] if stream else [body]
    )
    try:
        return [json.loads(document) for document in found]
    except ValueError as error:
        raise DemoFailed(f"an answer is not JSON: {error}: {body[:1000]}") from error


async def pending(stage: Stage, names: list[str]) -> list[Json]:
    """The calls that wait for results. Raises DemoFailed if their names are not `names`."""
    page = await stage.call_control("GET", f"/v1/calls?session={stage.session}&status=pending&wait=5")
    found: list[Json] = page["items"]
    if [call["name"] for call in found] != names:
        raise DemoFailed(f"expected waiting calls {names}, found {listed(found) or 'none'}")
    return found


async def answer(stage: Stage, call: Json, result: Json) -> Control:
    path = f"/v1/calls/{call['call_id']}/result"
    status = (await stage.call_control("POST", path, {"result": result}))["status"]
    return Control(f"POST /v1/calls/{short(call)}/result", f"{json.dumps({'result': result})}: {status}")


def listed(calls: list[Json]) -> str:
    return ", ".join(f"{short(call)} {call['name']} {json.dumps(call['args'])}" for call in calls)


def short(call: Json) -> str:
    return f"{call['call_id'][:10]}..."


def parts(*responses: Json) -> Iterator[Json]:
    for response in responses:
        for candidate in response.get("candidates", []):
            yield from candidate.get("content", {}).get("parts", [])


def text(responses: list[Json]) -> str:
    return "".join(part.get("text", "") for part in parts(*responses))


def is_placeholder(exchange: Exchange) -> bool:
    visible = text(exchange.client_saw)
    hidden = not any("functionCall" in part for part in parts(*exchange.client_saw))
    return hidden and visible.startswith("Tool call completed: get_weather") and "[turn_" in visible


def tool_names(request: Json) -> list[str]:
    return [d["name"] for tool in request.get("tools", []) for d in tool.get("functionDeclarations", [])]


def parts_with(field: str, *sources: Json) -> list[Json]:
    """The parts of a request's history, or of response documents, that have the field."""
    contents = [part for source in sources for content in source.get("contents", []) for part in content["parts"]]
    return [part for part in [*contents, *parts(*sources)] if field in part]


def results(request: Json) -> list[Any]:
    return [part["functionResponse"]["response"] for part in parts_with("functionResponse", request)]
