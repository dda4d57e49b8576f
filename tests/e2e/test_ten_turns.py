"""Ten turns with tools through each door, by the rules of Gemini 3: every signature is the service's own.

In each turn the model calls a tool of the proxy's, then a function of the client's.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e import chats
from tests.e2e.proxies import Proxy, new_session
from tests.e2e.test_doors import CLOCK, MODEL, calls, client, doors, output
from tests.e2e.upstreams import Gemini

__all__ = ["client", "doors"]

type Door = Callable[[str, Callable[[], int]], str]
"""Asks in these words, answers the client's function with an hour, and returns the text of the answer."""

TURNS = 10
WORDS = ('call weather {"city": "Rome"} then call get_time {}', 'call weather {"city": "Rome"} and call get_time {}')
"""Steps of the proxy and of the client, and steps of both, of which the client does not get the signed call."""

CLOCK_OF_CHAT: Any = {"type": "function", "function": {name: CLOCK[name] for name in ("name", "parameters")}}
CLOCK_OF_GEMINI: Any = {"functionDeclarations": [{"name": "get_time", "description": "The hour."}]}


def check(turn: Door, gemini: Gemini) -> None:
    for hour in range(TURNS):
        text = turn(WORDS[hour % 2], lambda hour=hour: hour)  # type: ignore[misc]
        assert f'"hour": {hour}' in text
        assert 'weather returned {"city": "Rome", "celsius": 4}' in text, "run by the proxy"
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)


class Responses:
    """`by`: how a request names what came before."""

    def __init__(self, client: openai.OpenAI, by: str, *, stream: bool) -> None:
        self.client, self.by, self.stream = client, by, stream
        self.items: list[Any] = []
        self.previous: str | None = None

    def turn(self, words: str, hour: Callable[[], int]) -> str:
        first = self.ask([{"role": "user", "content": words}])
        (call,) = calls(first)
        text: str = self.ask([output(call, hour=hour())]).output_text
        return text

    def ask(self, given: list[Any]) -> Any:
        more: dict[str, Any] = {"tools": [CLOCK], "model": MODEL}
        if self.by == "previous" and self.previous is not None:
            more |= {"previous_response_id": self.previous}
        elif self.by == "conversation":
            more |= {"conversation": "ten"}
        elif self.by == "stateless":
            more |= {"store": False, "include": ["reasoning.encrypted_content"]}
        self.items += given
        whole = self.by in ("references", "stateless")
        found = self._answer(input=list(self.items) if whole else given, **more)
        self.previous = found.id
        for item in found.output:
            if self.by == "references":
                self.items.append({"type": "item_reference", "id": item.id})
            else:
                self.items.append(item.model_dump(exclude_none=True, exclude={"parsed_arguments"}))
        return found

    def _answer(self, **request: Any) -> Any:
        if not self.stream:
            return self.client.responses.create(**request)
        with self.client.responses.stream(**request) as events:
            for _ in events:
                pass
            return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["previous", "conversation", "references", "stateless"])
def test_at_responses(client: openai.OpenAI, gemini: Gemini, by: str, stream: bool) -> None:
    check(Responses(client, by, stream=stream).turn, gemini)


@pytest.mark.parametrize("stream", [False, True])
def test_at_chat_completions(client: openai.OpenAI, gemini: Gemini, stream: bool) -> None:
    messages: list[Any] = []

    def ask(*given: Any) -> Any:
        messages.extend(given)
        request: Any = {"model": MODEL, "messages": messages, "tools": [CLOCK_OF_CHAT]}
        if stream:
            with client.chat.completions.stream(**request) as events:
                for _ in events:
                    pass
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(**request).choices[0].message
        # the service names the role in each chunk, and the client's helper joins the names
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}) | {"role": "assistant"})
        return message

    def turn(words: str, hour: Callable[[], int]) -> str:
        (call,) = ask({"role": "user", "content": words}).tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"hour": hour()})}
        return str(ask(result).content)

    check(turn, gemini)


@contextmanager
def gemini_door(doors: Proxy) -> Iterator[Callable[[Any, bool], list[Any]]]:
    """Asks `/v1/gemini`, and returns the parts of the answer."""
    headers = {
        "authorization": f"Bearer {doors.control.token}",
        "x-graft-session": new_session(doors, tools=False).name,
    }
    with httpx2.Client(base_url=doors.control.url, headers=headers, timeout=60) as http:

        def ask(given: Any, stream: bool) -> list[Any]:
            body = {"model": MODEL, "conversation": "ten", "input": given, "tools": [CLOCK_OF_GEMINI], "stream": stream}
            answer = http.post("/v1/gemini", json=body)
            assert answer.status_code == 200, answer.text
            events = [line[5:] for line in answer.text.splitlines() if line.startswith("data:")]
            documents = [json.loads(one) for one in (events if stream else [answer.text])]
            return [part for one in documents for part in one["candidates"][0].get("content", {}).get("parts", [])]

        yield ask


@pytest.mark.parametrize("stream", [False, True])
def test_at_gemini_s_own_door(doors: Proxy, gemini: Gemini, stream: bool) -> None:
    with gemini_door(doors) as ask:

        def turn(words: str, hour: Callable[[], int]) -> str:
            (call,) = [part["functionCall"] for part in ask(words, stream) if "functionCall" in part]
            response = {"name": call["name"], "response": {"hour": hour()}}
            response |= {"id": call["id"]} if "id" in call else {}
            parts = ask([{"functionResponse": response}], stream)
            return "".join(part.get("text", "") for part in parts)

        check(turn, gemini)


@pytest.mark.parametrize("stream", [False, True])
def test_at_the_reverse_proxy(doors: Proxy, gemini: Gemini, stream: bool) -> None:
    from google import genai
    from google.genai import types

    session = new_session(doors, tools=False)
    session.policy(client_tools="keep", delivery="loop")
    options = types.HttpOptions(base_url=f"{doors.url}/@{session.name}")
    tools: Any = [CLOCK_OF_GEMINI]
    config = types.GenerateContentConfig(tools=tools)
    with genai.Client(api_key="a-key", http_options=options) as google:
        chat = google.chats.create(model=MODEL, config=config)

        def ask(given: Any) -> list[Any]:
            if not stream:
                answers = [chat.send_message(given)]
            else:
                answers = list(chat.send_message_stream(given))
            contents = [one.candidates[0].content for one in answers if one.candidates]
            return [part for content in contents if content for part in content.parts or ()]

        def turn(words: str, hour: Callable[[], int]) -> str:
            (call,) = [part.function_call for part in ask(words) if part.function_call]
            part = types.Part(
                function_response=types.FunctionResponse(name=call.name, id=call.id, response={"hour": hour()})
            )
            return "".join(part.text or "" for part in ask(part))

        check(turn, gemini)


@pytest.mark.parametrize("vertex", [False, True], ids=["developer", "vertex"])
@pytest.mark.parametrize("kind", ["sync", "async-stream"])
def test_of_a_client_that_runs_its_own_functions_and_says_everything_twice(
    doors: Proxy, gemini: Gemini, tmp_path: Path, kind: str, vertex: bool
) -> None:
    session = new_session(doors, tools=False)
    session.policy(client_tools="keep", delivery="loop")
    base = f"{doors.url}/@{session.name}"
    options: Any = {"model": MODEL, "key": "a-key", "base_url": base, "tools": ["get_weather"], "vertex": vertex}
    for _ in range(2):
        with chats.python(tmp_path, kind, **options) as chat:
            for _ in range(5):
                text = chat.say('call weather {"city": "Rome"} and call get_weather {"city": "Oslo"}')
                assert 'weather returned {"city": "Rome", "celsius": 4}' in text
                assert '"said_by": "the client"' in text
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)
