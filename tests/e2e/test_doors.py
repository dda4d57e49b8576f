"""The front doors of a real mitmdump, used by the published openai client, unmodified."""

import asyncio
import json
import re
import shlex
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel

from tests.e2e.processes import until
from tests.e2e.proxies import TOOLS, Proxy, new_session
from tests.e2e.test_recording import replay
from tests.e2e.upstreams import END, Canned, Gemini, answer, chunk, chunked
from tests.flows.recordings import flows_of
from tests.ports import free_port

Json = dict[str, Any]

MODEL = "gemini-3-flash"
KEY = {"GEMINI_API_KEY": "key-of-the-proxy"}
GOOGLE = "https://generativelanguage.googleapis.com/v1beta/models"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CLOCK: Any = {"type": "function", "name": "get_time", "parameters": {"type": "object", "properties": {}}}
TWO = 'call get_weather {"city": "Oslo"} and call get_time {}'


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory, strict: Gemini) -> Iterator[Proxy]:
    """With tools of its own, and a key in its environment. The Gemini API's host is redirected to the strict server."""
    proxy = Proxy(tmp_path_factory.mktemp("doors"), strict.url, tools=str(TOOLS), environ=KEY)
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def canned_doors(tmp_path_factory: pytest.TempPathFactory, raw: Canned) -> Iterator[Proxy]:
    """Before a server of raw bytes."""
    proxy = Proxy(tmp_path_factory.mktemp("canned"), environ=KEY, upstream=raw.url)
    yield proxy
    proxy.stop()


def client_of(proxy: Proxy, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{proxy.control.url}/v1", api_key=proxy.control.token, max_retries=0, **more)


@pytest.fixture
def client(doors: Proxy, gemini: Gemini) -> Iterator[openai.OpenAI]:
    """In a session of its own."""
    with client_of(doors, default_headers={"x-graft-session": new_session(doors, tools=False).name}) as client:
        yield client
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)


@pytest.fixture
async def asynchronous(client: openai.OpenAI) -> AsyncIterator[openai.AsyncOpenAI]:
    headers = {"x-graft-session": str(client.default_headers["x-graft-session"])}
    async with openai.AsyncOpenAI(
        base_url=client.base_url, api_key=client.api_key, max_retries=0, default_headers=headers
    ) as one:
        yield one


def calls(response: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in response.output if isinstance(item, ResponseFunctionToolCall)]


def output(call: ResponseFunctionToolCall, **result: Any) -> Any:
    return {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps(result)}


# --- curl ---------------------------------------------------------------------------------------------------------

COMMANDS = """
curl -s http://localhost:8741/v1/responses -H "Content-Type: application/json" -d '{"model":"gemini-3-flash","input":"What is the weather in Tokyo?","tools":[{"type":"function","function":{"name":"get_weather","description":"Get weather","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}}],"tool_choice":"auto","conversation":"tool-test","stream":false}'
curl -s http://localhost:8741/v1/responses -H "Content-Type: application/json" -d '{"model":"gemini-3-flash","input":[{"type":"function_call_output","call_id":"call_xxx","output":"{\\"temp\\":72,\\"unit\\":\\"F\\"}"}],"conversation":"tool-test","stream":false}'
curl -s http://localhost:8741/v1/gemini -H "Content-Type: application/json" -d '{"model":"gemini-3-flash","input":"What is the weather in Tokyo?","tools":[{"functionDeclarations":[{"name":"get_weather","description":"Get weather","parameters":{"type":"OBJECT","properties":{"city":{"type":"STRING"}},"required":["city"]}}]}],"conversation":"gemini-tool-test","stream":false}'
curl -s http://localhost:8741/v1/responses -H "Content-Type: application/json" -d '{"model":"gemini-3-flash","input":"What is 2+2?","stream":false}'
""".strip().splitlines()  # noqa: E501 - word for word


def test_plain_curl_gets_calls_gives_results_and_asks(strict: Gemini, start: Callable[..., Proxy]) -> None:
    strict.forget()
    port = free_port()
    start(environ=KEY, upstream=strict.url, token="off", control=f"127.0.0.1:{port}")

    def run(command: str) -> Json:
        words = shlex.split(command.replace("localhost:8741", f"localhost:{port}"))
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        found: Json = json.loads(done.stdout)
        return found

    asked, results, gemini, plain = COMMANDS
    (call,) = run(asked)["output"]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "get_weather", '{"city":"Tokyo"}')
    assert "call_xxx" in run(results)["error"]["message"]
    answered = run(results.replace("call_xxx", call["call_id"]))
    assert '"temp": 72' in answered["output"][0]["content"][0]["text"]
    part = run(gemini)["candidates"][0]["content"]["parts"][0]
    assert (part["functionCall"]["name"], part["functionCall"]["args"]) == ("get_weather", {"city": "Tokyo"})
    assert run(plain)["output"][0]["content"][0]["text"] == "2 + 2 = 4."
    assert (strict.errors, strict.dummy_signatures) == ([], 0)
    assert {request["headers"]["x-goog-api-key"] for request in strict.requests} == {"key-of-the-proxy"}


# --- the openai client --------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_a_chat_by_ids_then_by_conversation(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input=TWO, tools=[WEATHER, CLOCK])
    weather, clock = calls(first)
    assert json.loads(weather.arguments) == {"city": "Oslo"}
    second = client.responses.create(
        model=MODEL, input=[output(clock, hour=9), output(weather, celsius=3)], previous_response_id=first.id
    )
    assert second.output_text == 'get_weather returned {"celsius": 3}. get_time returned {"hour": 9}.'
    third = client.responses.create(model=MODEL, input=TWO, tools=[WEATHER, CLOCK], conversation="talk")
    weather, clock = calls(third)
    given = [output(weather, celsius=4), output(clock, hour=1)]
    fourth = client.responses.create(model=MODEL, input=given, conversation="talk")
    assert '"celsius": 4' in fourth.output_text
    assert [tool.name for tool in fourth.tools if tool.type == "function"] == ["get_weather", "get_time"]
    assert client.responses.retrieve(fourth.id).output_text == fourth.output_text
    client.responses.delete(fourth.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(fourth.id)


def test_a_background_response_is_polled_followed_and_cancelled(
    client: openai.OpenAI, canned_doors: Proxy, canned: Canned
) -> None:
    response = client.responses.create(model=MODEL, input="What is 2+2?", background=True)
    assert response.background
    until(lambda: client.responses.retrieve(response.id).status != "in_progress", "the end of the response")
    response = client.responses.retrieve(response.id)
    assert (response.status, response.output_text) == ("completed", "2 + 2 = 4.")
    assert client.responses.cancel(response.id).status == "completed"
    with client.responses.create(model=MODEL, input="What is 2+3?", background=True, stream=True) as stream:
        first = next(iter(stream))
    assert first.type == "response.created"
    with client.responses.retrieve(first.response.id, stream=True, starting_after=0) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "2 + 3 = 5."
    canned.says = [*chunked([EVENT]), threading.Event()]
    with client_of(canned_doors) as other:
        response = other.responses.create(model=MODEL, input="Wait", background=True)
        assert other.responses.cancel(response.id).status == "cancelled"
        assert other.responses.retrieve(response.id).status == "cancelled"


def _streamed(client: openai.OpenAI, asked: Json) -> Response:
    with client.responses.stream(**asked) as stream:
        return stream.get_final_response()


@pytest.mark.parametrize("by", ["previous_response_id", "conversation", pytest.param("items", marks=pytest.mark.smoke)])
def test_calls_one_by_one(client: openai.OpenAI, gemini: Gemini, by: str) -> None:
    """As an agent does it, with JSON and streams in turn."""
    items: list[Any] = [{"role": "user", "content": TWO}]
    given, names, text = items, [], ""
    last: Response | None = None
    for turn in range(3):
        more: Json = {"store": False} if by == "items" else {"conversation": f"single {by}"}
        if by == "previous_response_id":
            more = {by: last.id} if last else {}
        asked: Json = {"model": MODEL, "input": given, "tools": [WEATHER, CLOCK], "parallel_tool_calls": False, **more}
        last = _streamed(client, asked) if turn == 1 else client.responses.create(**asked)
        assert last is not None
        text = last.output_text
        assert last.parallel_tool_calls is False
        new = [output(call, n=turn) for call in calls(last)]
        names += [call.name for call in calls(last)]
        items = [*items, *(item.to_dict() for item in last.output), *new]
        given = items if by == "items" else new
    assert names == ["get_weather", "get_time"]
    assert text == 'get_weather returned {"n": 0}. get_time returned {"n": 1}.'


def test_the_input_of_a_response_is_listed_in_pages(client: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": f"say {n}"} for n in range(5)]
    response = client.responses.create(model=MODEL, input=items)
    pages = client.responses.input_items.list(
        response.id, limit=2, order="asc", include=["reasoning.encrypted_content"]
    )
    assert [item.to_dict()["content"] for item in pages] == [
        [{"type": "input_text", "text": f"say {n}"}] for n in range(5)
    ]
    newest = client.responses.input_items.list(response.id, limit=1)
    assert (len(newest.data), newest.has_more) == (1, True)
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_none")


@pytest.mark.smoke
async def test_asynchronously_as_well(asynchronous: openai.AsyncOpenAI) -> None:
    first = await asynchronous.responses.create(model=MODEL, input=TWO, tools=[WEATHER, CLOCK])
    given = [output(call, n=n) for n, call in enumerate(calls(first))]
    second = await asynchronous.responses.create(model=MODEL, input=given, previous_response_id=first.id)
    assert second.output_text == 'get_weather returned {"n": 0}. get_time returned {"n": 1}.'
    async with asynchronous.responses.stream(model=MODEL, input="What is 2+2?") as stream:
        assert (await stream.get_final_response()).output_text == "2 + 2 = 4."


@pytest.mark.smoke
def test_a_stream_is_told_as_openai_s(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=f"say Wait. {TWO}", tools=[WEATHER, CLOCK]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds.count("response.created") == kinds.count("response.completed") == 1
    assert kinds.count("response.function_call_arguments.done") == 2
    assert (final.output_text, len(calls(final))) == ("Wait.", 2)
    given = [output(call, a=1) for call in calls(final)]
    events = client.responses.create(model=MODEL, input=given, previous_response_id=final.id, stream=True)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == 'get_weather returned {"a": 1}. get_time returned {"a": 1}.'


class City(BaseModel):
    name: str
    population: int


class Tree(BaseModel):
    cities: list[City]
    child: "Tree | None"


def test_structured_output_comes_parsed(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input="Tell me of a city.", text_format=City).output_parsed
    assert isinstance(parsed, City)
    with client.responses.stream(model=MODEL, input="Tell me of cities.", text_format=Tree) as stream:
        tree = stream.get_final_response().output_parsed
    assert isinstance(tree, Tree)
    assert isinstance(tree.child, Tree)


@pytest.mark.parametrize("stream", [False, True])
def test_ten_turns_with_functions_and_a_restart_between_any_two(
    gemini: Gemini, start: Callable[..., Proxy], stream: bool
) -> None:
    proxy = start(gemini.url, environ=KEY, tools=str(TOOLS), control=f"127.0.0.1:{free_port()}")

    def ask(given: Any, **more: Any) -> Response:
        with client_of(proxy) as client:
            if not stream:
                found: Response = client.responses.create(model=MODEL, input=given, conversation="long", **more)
                return found
            with client.responses.stream(model=MODEL, input=given, conversation="long", **more) as events:
                last: Response = events.get_final_response()
                return last

    for n in range(10):
        words = f'{TWO} then call weather {{"city": "Rome"}} and call get_time {{}}'
        first = ask(words, **({"tools": [WEATHER, CLOCK]} if n == 0 else {}))
        if n < 3:
            proxy.restart()
        weather, clock = calls(first)
        second = ask([output(clock, hour=n), output(weather, celsius=n)])
        if n < 3:
            proxy.restart()
        (second_call,) = calls(second)
        text = ask([output(second_call, hour=n)]).output_text
        assert f'get_weather returned {{"celsius": {n}}}' in text
        assert 'weather returned {"city": "Rome", "celsius": 4}' in text, "run by the proxy"
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)
    assert len(gemini.requests) == 30


@pytest.mark.smoke
def test_the_session_s_tools_are_run_beside_the_client_s_own(client: openai.OpenAI) -> None:
    words = 'call hour {} then call get_time {} and call weather {"city": "Oslo"}'
    first = client.responses.create(model=MODEL, input=words, tools=[CLOCK], conversation="mixed")
    assert [call.name for call in calls(first)] == ["get_time"]
    last = client.responses.create(model=MODEL, input=[output(calls(first)[0], now=3)], conversation="mixed")
    assert last.output_text == (
        'hour returned {"hour": 12}. get_time returned {"now": 3}. weather returned {"city": "Oslo", "celsius": 4}.'
    )


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.smoke
def test_refusals_are_raised_as_openai_s_own(doors: Proxy, client: openai.OpenAI) -> None:
    ask = client.responses.create
    with pytest.raises(openai.BadRequestError) as refused:
        ask(model=MODEL, input="x", background=True, store=False)
    assert (refused.value.param, refused.value.type) == ("background", "invalid_request_error")
    with pytest.raises(openai.BadRequestError, match="call_none") as refused:
        ask(model=MODEL, input=[{"type": "function_call_output", "call_id": "call_none", "output": "1"}])
    with pytest.raises(openai.BadRequestError) as refused:
        ask(model=MODEL, input="x", previous_response_id="resp_none")
    assert refused.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve("resp_none")
    with pytest.raises(openai.AuthenticationError, match="bearer token"):
        client.with_options(api_key="wrong").responses.create(model=MODEL, input="x")
    with pytest.raises(openai.NotFoundError, match="unknown path"):
        client.post("/responses/resp_none/no_such_path", cast_to=Response)
    with pytest.raises(openai.NotFoundError, match="resp_none"):
        client.responses.cancel("resp_none")
    with pytest.raises(openai.BadRequestError, match="x-graft-session"):
        ask(model=MODEL, input="x", extra_headers={"x-graft-session": "a b"})


def test_gemini_s_errors_are_raised_as_openai_s_own(canned_doors: Proxy, canned: Canned) -> None:
    client = client_of(canned_doors)

    def says(status: str, message: str, **more: Any) -> None:
        code = int(status.partition(" ")[0])
        canned.says = [answer(json.dumps({"error": {"code": code, "message": message, **more}}).encode(), status)]

    for status, kind in [
        ("400 Bad Request", openai.BadRequestError),
        ("403 Forbidden", openai.PermissionDeniedError),
        ("404 Not Found", openai.NotFoundError),
        ("429 Too Many Requests", openai.RateLimitError),
        ("500 Internal Server Error", openai.InternalServerError),
        ("503 Service Unavailable", openai.InternalServerError),
    ]:
        says(status, f"of Gemini's {status}")
        with pytest.raises(kind, match=f"of Gemini's {status}"):
            client.responses.create(model=MODEL, input="x")
        *_, last = client.responses.create(model=MODEL, input="x", stream=True)
        assert last.type == "response.failed"
        assert last.response.error is not None
        assert last.response.error.message == f"of Gemini's {status}"
    says("400 Bad Request", "API key not valid", details=[{"reason": "API_KEY_INVALID"}])
    with pytest.raises(openai.AuthenticationError, match="API key not valid"):
        client.responses.create(model=MODEL, input="x")
    client.close()


def test_without_a_key_the_caller_is_told_what_to_set(start: Callable[..., Proxy]) -> None:
    proxy = start()
    with client_of(proxy) as client, pytest.raises(openai.AuthenticationError, match="GEMINI_API_KEY"):
        client.responses.create(model=MODEL, input="x")


EVENT = b'data: {"candidates": [{"content": {"role": "model", "parts": [{"text": "Wait"}]}, "index": 0}]}\r\n\r\n'
LAST = EVENT.replace(b'"index"', b'"finishReason": "STOP", "index"')


def test_a_second_request_of_a_conversation_is_refused_while_one_runs(canned_doors: Proxy, canned: Canned) -> None:
    released = threading.Event()
    canned.says = [*chunked([EVENT]), released, chunk(LAST), END]
    with client_of(canned_doors) as client:
        stream = client.responses.create(model=MODEL, input="one", conversation="busy", stream=True)
        assert next(event for event in stream if event.type == "response.output_text.delta").delta == "Wait"
        with pytest.raises(openai.ConflictError) as refused:
            client.responses.create(model=MODEL, input="two", conversation="busy")
        assert refused.value.code == "conversation_locked"
        released.set()
        assert [event.type for event in stream][-1] == "response.completed"
        canned.says = [answer(LAST.removeprefix(b"data: ").strip())]
        client.responses.create(model=MODEL, input="two", conversation="busy")
    body = json.loads(canned.heard[-1].partition(b"\r\n\r\n")[2])
    assert [content["parts"][0]["text"] for content in body["contents"]] == ["one", "WaitWait", "two"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/gemini"])
def test_a_client_that_hangs_up_ends_the_request_and_nothing_is_kept(
    canned_doors: Proxy, canned: Canned, path: str
) -> None:
    canned.says = [*chunked([EVENT]), threading.Event()]
    asked = {"model": MODEL, "input": "one", "conversation": path, "stream": True}
    with canned_doors.control.http.stream("POST", path, json=asked) as got:
        assert "Wait" in next(text for text in got.iter_text() if "Wait" in text)
    assert canned.broken.wait(10), "the upstream was hung up on"
    canned.says = [answer(LAST.removeprefix(b"data: ").strip())]
    asked["stream"] = False

    def answered() -> bool:
        return canned_doors.control.http.post(path, json=asked).status_code == 200

    until(answered, "the conversation to be free")
    assert len(json.loads(canned.heard[-1].partition(b"\r\n\r\n")[2])["contents"]) == 1


# --- what mitmproxy sees ------------------------------------------------------------------------------------------


def test_requests_are_flows_under_their_true_url_and_recorded_without_keys(
    gemini: Gemini, start: Callable[..., Proxy], tmp_path: Path
) -> None:
    written, recorded = tmp_path / "written", tmp_path / "recorded"
    arguments = ("-w", str(written), "--set", "flow_detail=2")
    proxy = start(gemini.url, environ=KEY, record=str(recorded), arguments=arguments)
    with client_of(proxy) as client:
        client.responses.create(model=MODEL, input="What is 2+2?", extra_headers={"x-goog-api-key": "key-of-a-caller"})
    assert gemini.last["headers"]["x-goog-api-key"] == "key-of-a-caller"
    assert "authorization" not in gemini.last["headers"], "the bearer token is for the proxy alone"
    token = proxy.control.token
    assert proxy.stop() == 0
    for path in (written, recorded):
        (flow,) = flows_of(path)
        assert flow.request.pretty_url == f"{GOOGLE}/{MODEL}:generateContent"
        assert flow.response is not None
        assert b"2 + 2 = 4" in (flow.response.content or b"")
    assert b"key-of-a-caller" not in recorded.read_bytes()
    assert not re.search(rf"key-of-a-caller|key-of-the-proxy|{token}", proxy.log)


def test_a_replay_keeps_the_caller_s_tools_as_the_door_did(
    gemini: Gemini, start: Callable[..., Proxy], tmp_path: Path
) -> None:
    """Its session strips; one file is graft_record's, the other is mitmproxy's own."""
    written, recorded = tmp_path / "written", tmp_path / "recorded"
    proxy = start(gemini.url, environ=KEY, record=str(recorded), tools=str(TOOLS), arguments=("-w", str(written)))
    with client_of(proxy, default_headers={"x-graft-session": "s"}) as client:
        asked = 'call weather {"city": "Paris"} then call get_time {}'
        (call,) = calls(client.responses.create(model=MODEL, input=asked, tools=[CLOCK], conversation="c"))
        client.responses.create(model=MODEL, input=[output(call, hour=9)], conversation="c")
    sent = [request["body"]["tools"] for request in gemini.requests]
    assert len(sent) == 3, "the proxy ran one call in a loop"
    assert proxy.stop() == 0
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(sent[0][-1:]))
    for path in (written, recorded):
        found = replay(proxy, path, "--json", "--tools", tools)
        assert found.returncode == 0, found.stderr
        replayed = json.loads(found.stdout)
        assert [(one["session"], one["changed"]) for one in replayed] == [("s", False)] * 3, path


def test_many_at_once(doors: Proxy, gemini: Gemini) -> None:
    async def one(client: httpx2.AsyncClient, n: int) -> str:
        asked = {"model": MODEL, "input": f"What is {n}+{n}?", "conversation": f"c{n}"}
        got = await client.post("/v1/gemini", json=asked, timeout=30)
        text: str = got.json()["candidates"][0]["content"]["parts"][0]["text"]
        return text

    async def all_of_them() -> list[str]:
        headers = {"authorization": f"Bearer {doors.control.token}"}
        async with httpx2.AsyncClient(base_url=doors.control.url, headers=headers) as client:
            return await asyncio.gather(*(one(client, n) for n in range(20)))

    assert asyncio.run(all_of_them()) == [f"{n} + {n} = {n + n}." for n in range(20)]
    assert not gemini.errors
