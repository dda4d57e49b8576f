"""Chat completions by the published `openai` client, unmodified: it sees answers, the strict server the true turns."""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.proxies import DECLARATIONS, Proxy, Session, new_session
from tests.e2e.upstreams import END, Canned, Gemini, chunked

MODEL = "gemini-3-flash-preview"
KEY = "a-secret-key"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOTE: Any = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}

Json = dict[str, Any]


def by_reverse(proxy: Proxy, session: Session) -> Json:
    return {"base_url": f"{proxy.url}/@{session.name}/v1beta/openai"}


def by_connect(proxy: Proxy, session: Session) -> Json:
    trust = ssl.create_default_context(cafile=str(proxy.ca))
    return {
        "base_url": "https://generativelanguage.googleapis.com/v1beta/openai",
        "proxy": proxy.user(session.name),
        "trust": trust,
    }


WAYS = pytest.mark.parametrize("way", [by_reverse, by_connect])
KINDS = pytest.mark.parametrize("kind", ["sync", "stream", "async", "async-stream"])


class Chat:
    """A chat as programs write it: the messages are theirs, and the answers go into them as they are."""

    def __init__(self, kind: str, way: Json, **options: Any) -> None:
        self.kind = kind
        self.way = way
        self.options = options
        self.messages: list[Any] = []
        self.chunks: list[Any] = []

    def say(self, text: str) -> str:
        self.messages.append({"role": "user", "content": text})
        return self.ask()

    def ask(self) -> str:
        message = asyncio.run(self._ask_async()) if self.kind.startswith("async") else self._ask()
        self.messages.append(message)
        return str(message.get("content") or "")

    def answer(self, **results: Any) -> str:
        """Answer the calls of the last message as its client would."""
        for call in self.messages[-1]["tool_calls"]:
            result = results[call["function"]["name"]]
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
        return self.ask()

    @property
    def _request(self) -> Any:
        return {"model": MODEL, "messages": self.messages, **self.options}

    def _ask(self) -> Json:
        way = dict(self.way)
        trust, proxy = way.pop("trust", True), way.pop("proxy", None)
        with (
            httpx2.Client(verify=trust, proxy=proxy, trust_env=False) as http,
            openai.OpenAI(api_key=KEY, max_retries=0, http_client=http, **way) as client,
        ):
            if self.kind == "sync":
                return _dumped(client.chat.completions.create(**self._request))
            self.chunks = list(client.chat.completions.create(stream=True, **self._request))
            return _joined(self.chunks)

    async def _ask_async(self) -> Json:
        way = dict(self.way)
        trust, proxy = way.pop("trust", True), way.pop("proxy", None)
        async with (
            httpx2.AsyncClient(verify=trust, proxy=proxy, trust_env=False) as http,
            openai.AsyncOpenAI(api_key=KEY, max_retries=0, http_client=http, **way) as client,
        ):
            if self.kind == "async":
                return _dumped(await client.chat.completions.create(**self._request))
            self.chunks = [chunk async for chunk in await client.chat.completions.create(stream=True, **self._request)]
            return _joined(self.chunks)


def _dumped(completion: Any) -> Json:
    (choice,) = completion.choices
    message: Json = choice.message.model_dump()
    assert choice.finish_reason == ("tool_calls" if message.get("tool_calls") else "stop")
    assert completion.id
    return message


def _joined(chunks: Iterable[Any]) -> Json:
    """The message that the chunks of a stream make."""
    message: Json = {"role": "assistant", "content": ""}
    ends: list[str] = []
    ids = set()
    for chunk in chunks:
        assert chunk.object == "chat.completion.chunk"
        ids.add((chunk.id, chunk.created))
        for choice in chunk.choices:
            assert not ends, "an answer ends once"
            delta = choice.delta.model_dump(exclude_none=True)
            message["content"] += delta.get("content", "")
            for call in delta.get("tool_calls", []):
                call.pop("index", None)
                message.setdefault("tool_calls", []).append(call)
            if "extra_content" in delta:
                message["extra_content"] = delta["extra_content"]
            ends += [choice.finish_reason] if choice.finish_reason else []
    assert len(ends) == len(ids) == 1
    return message


def accepted(gemini: Gemini) -> bool:
    return gemini.errors == [] and gemini.dummy_signatures == 0


def summary_of(gemini: Gemini) -> list[tuple[str, Any]]:
    """The messages of the last request: what is said, the names called, what was answered."""
    messages = gemini.last["body"]["messages"]
    return [
        ("calls", [call["function"]["name"] for call in message["tool_calls"]])
        if message.get("tool_calls")
        else (message["role"], message.get("content"))
        for message in messages
    ]


@WAYS
@KINDS
def test_a_chat_whose_tools_the_proxy_runs(looper: Proxy, gemini: Gemini, kind: str, way: Callable[..., Json]) -> None:
    chat = Chat(kind, way(looper, new_session(looper, tools=False)))
    assert chat.say('call weather {"city": "Oslo"}') == 'weather returned {"city": "Oslo", "celsius": 4}.'
    both = 'call weather {"city": "Rome"} and call local_add {"a": 1, "b": 2} [demo: each]'
    assert chat.say(both) == 'weather returned {"city": "Rome", "celsius": 4}. local_add returned {"sum": 3}.'
    steps = 'say One moment. call weather {"city": "Bern"} then call hour {} then call weather {"city": "Lima"}'
    expected = 'weather returned {"city": "Bern", "celsius": 4}. hour returned {"hour": 12}. '
    expected += 'weather returned {"city": "Lima", "celsius": 4}.'
    assert chat.say(steps) == f"One moment.{expected}"
    assert len(gemini.requests) == 2 + 2 + 4
    before = summary_of(gemini)
    assert "repeat" not in str(before)
    answer = chat.say("repeat the results")
    assert "Oslo" in answer
    assert "Lima" in answer
    assert summary_of(gemini)[: len(before)] == before, "the next turn tells the true turns of the ones before"
    assert accepted(gemini)
    assert not any(message.get("tool_calls") for message in chat.messages if isinstance(message, dict))


@KINDS
def test_a_placeholder_is_answered_through_the_control_api_and_the_next_turn_tells_what_happened(
    proxy: Proxy, session: Session, gemini: Gemini, kind: str
) -> None:
    chat = Chat(kind, by_reverse(proxy, session))
    placeholder = chat.say('say Let me look. call get_weather {"city": "Oslo"} and call get_time {"zone": "CET"}')
    assert placeholder.startswith("Let me look.\n\nTool call completed: get_weather, get_time [turn_")
    assert "tool_calls" not in chat.messages[-1] or chat.messages[-1]["tool_calls"] is None
    session.answer(get_weather={"celsius": 3}, get_time="noon")
    assert "celsius" in chat.say("repeat the results")
    assert summary_of(gemini)[1:4] == [
        ("calls", ["get_weather", "get_time"]),
        ("tool", '{"celsius":3}'),
        ("tool", '{"result":"noon"}'),
    ]
    _, asked, *answers, _ = gemini.last["body"]["messages"]
    assert asked["content"] == "Let me look."
    assert [one["tool_call_id"] for one in answers] == [call["id"] for call in asked["tool_calls"]]
    assert all(call["id"].startswith("function-call-") for call in asked["tool_calls"])
    assert accepted(gemini)


@KINDS
def test_a_restart_between_two_turns_changes_nothing(start: Callable[..., Proxy], gemini: Gemini, kind: str) -> None:
    proxy = start(gemini.url)
    session = new_session(proxy)
    chat = Chat(kind, by_reverse(proxy, session))
    chat.say('call get_weather {"city": "Oslo"}')
    proxy.restart()
    session = proxy.control.session(session.name)
    session.answer(get_weather={"celsius": 3})
    proxy.restart()
    assert '"celsius": 3' in chat.say("repeat the results")
    assert summary_of(gemini)[1:3] == [("calls", ["get_weather"]), ("tool", '{"celsius":3}')]
    assert accepted(gemini)


@KINDS
def test_the_client_s_own_tools_are_kept_and_answered_by_it(
    looper: Proxy, bare: Session, gemini: Gemini, kind: str
) -> None:
    bare.policy(client_tools="keep")
    chat = Chat(kind, by_reverse(looper, bare), tools=[NOTE, WEATHER], tool_choice="auto", parallel_tool_calls=True)
    chat.say('call weather {"city": "Oslo"}')
    (call,) = chat.messages[-1]["tool_calls"]
    assert call["function"]["name"] == "weather", "its own, the proxy's goes under another name"
    sent = gemini.last["body"]
    assert sent["tools"][:2] == [NOTE, WEATHER]
    assert "weather_g2" in [tool["function"]["name"] for tool in sent["tools"]]
    assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("auto", True)
    assert chat.answer(weather={"celsius": 1}) == 'weather returned {"celsius": 1}.'
    assert chat.say('call weather_g2 {"city": "Rome"}') == 'weather_g2 returned {"city": "Rome", "celsius": 4}.'
    assert accepted(gemini)


@KINDS
def test_a_step_of_both_sides_is_restored_whole(looper: Proxy, bare: Session, gemini: Gemini, kind: str) -> None:
    bare.policy(client_tools="keep")
    chat = Chat(kind, by_reverse(looper, bare), tools=[NOTE])
    chat.say('say Both. call weather {"city": "Oslo"} and call note {} and call hour {}')
    (call,) = chat.messages[-1]["tool_calls"]
    assert (call["function"]["name"], chat.messages[-1]["content"]) == ("note", "Both.")
    expected = (
        'weather returned {"city": "Oslo", "celsius": 4}. note returned {"ok": true}. hour returned {"hour": 12}.'
    )
    assert chat.answer(note={"ok": True}) == expected
    assert summary_of(gemini)[1:] == [
        ("calls", ["weather", "note", "hour"]),
        ("tool", '{"city":"Oslo","celsius":4}'),
        ("tool", '{"ok": true}'),
        ("tool", '{"hour":12}'),
    ]
    assert accepted(gemini)


@pytest.mark.parametrize("shape", ["", " [demo: each]"], ids=["in one event", "an event each"])
def test_the_client_s_helper_for_streams_puts_its_own_calls_together(
    looper: Proxy, bare: Session, gemini: Gemini, shape: str
) -> None:
    bare.policy(client_tools="keep")
    words: Any = [
        {"role": "user", "content": f'call hour {{}} and call note {{}} and call weather {{"city": "Oslo"}}{shape}'}
    ]
    with openai.OpenAI(api_key=KEY, max_retries=0, **by_reverse(looper, bare)) as client:
        both: Any = client.chat.completions.stream(model=MODEL, messages=words, tools=[NOTE, WEATHER])
        with both as stream:
            made = stream.get_final_completion()
    called = made.choices[0].message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in called] == [
        ("note", {}),
        ("weather", {"city": "Oslo"}),
    ]
    assert accepted(gemini)


@KINDS
def test_calls_that_are_passed_through_are_the_client_s_to_answer(
    proxy: Proxy, session: Session, gemini: Gemini, kind: str
) -> None:
    session.policy(delivery="passthrough")
    chat = Chat(kind, by_reverse(proxy, session))
    chat.say('call get_weather {"city": "Oslo"} and call get_time {} [demo: each]')
    assert [call["function"]["name"] for call in chat.messages[-1]["tool_calls"]] == ["get_weather", "get_time"]
    assert chat.answer(get_weather={"celsius": 3}, get_time={"hour": 5}) == (
        'get_weather returned {"celsius": 3}. get_time returned {"hour": 5}.'
    )
    assert [(call["status"], call["result"]) for call in session.calls()] == [
        ("done", {"celsius": 3}),
        ("done", {"hour": 5}),
    ]
    assert accepted(gemini)


@KINDS
def test_pending_calls_block_at_no_cost(proxy: Proxy, session: Session, gemini: Gemini, kind: str) -> None:
    session.policy(on_pending="block")
    chat = Chat(kind, by_reverse(proxy, session))
    placeholder = chat.say('call get_weather {"city": "Oslo"}')
    assert chat.say("and now?") == placeholder
    assert len(gemini.requests) == 1
    session.answer(get_weather={"celsius": 3})
    assert "celsius" in chat.say("repeat the results")
    assert [role for role, _ in summary_of(gemini)] == ["user", "calls", "tool", "user", "user"]
    assert accepted(gemini)


def test_pending_calls_are_waited_for(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    session.policy(on_pending="wait")
    chat = Chat("stream", by_reverse(proxy, session))
    chat.say('call get_weather {"city": "Oslo"}')
    with ThreadPoolExecutor() as threads:
        answered = threads.submit(chat.say, "repeat the results")
        session.answer(get_weather={"celsius": 3})
        assert "celsius" in answered.result(30)
    assert accepted(gemini)


def test_stripped_tools_are_neither_sent_nor_named(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    tools = [NOTE, WEATHER]
    chat = Chat("sync", by_reverse(proxy, session), tools=tools, tool_choice="required", parallel_tool_calls=False)
    chat.say("What is 2+2?")
    sent = gemini.last["body"]
    assert [tool["function"]["name"] for tool in sent["tools"]] == [one["name"] for one in DECLARATIONS]
    assert sent["tools"][0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    }
    assert "tool_choice" not in sent
    session.tools([])
    chat.say("What is 2+3?")
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & gemini.last["body"].keys()
    assert accepted(gemini)


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"functionCallingConfig": {"mode": "ANY"}}, "required"),
        ({"functionCallingConfig": {"mode": "NONE"}}, "none"),
        (
            {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["get_time"]}},
            {"type": "function", "function": {"name": "get_time"}},
        ),
    ],
)
def test_the_toolset_s_choice_goes_with_its_tools(
    proxy: Proxy, session: Session, gemini: Gemini, config: Json, choice: Any
) -> None:
    session.tools(tool_config=config)
    chat = Chat("sync", by_reverse(proxy, session))
    chat.say("hello")
    assert gemini.last["body"]["tool_choice"] == choice
    assert accepted(gemini)


def test_a_loop_that_is_forced_to_call_is_so_once(looper: Proxy, bare: Session, gemini: Gemini) -> None:
    bare.policy(client_tools="keep", max_rounds=3)
    chat = Chat("stream", by_reverse(looper, bare), tools=[NOTE], tool_choice="required")
    assert chat.say('call weather {"city": "Oslo"}') == 'weather returned {"city": "Oslo", "celsius": 4}.'
    assert [request["body"]["tool_choice"] for request in gemini.requests] == ["required", "auto"]
    assert "12" in chat.say("call hour {} forever")
    assert [request["body"].get("tool_choice") for request in gemini.requests][2:] == ["required", "auto", "none"]
    assert accepted(gemini)


@pytest.mark.parametrize(
    "options",
    [
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}},
    ],
)
def test_a_request_that_cannot_use_functions_gets_none(
    looper: Proxy, bare: Session, gemini: Gemini, options: Json
) -> None:
    chat = Chat("sync", by_reverse(looper, bare), **options)
    json.loads(chat.say("a title for this"))
    assert "tools" not in gemini.last["body"]
    assert accepted(gemini)


def test_several_choices_each_have_a_placeholder_of_their_own(looper: Proxy, bare: Session, gemini: Gemini) -> None:
    base = by_reverse(looper, bare)
    with openai.OpenAI(api_key=KEY, max_retries=0, **base) as client:
        words: Any = [{"role": "user", "content": 'call weather {"city": "Oslo"}'}]
        made = client.chat.completions.create(model=MODEL, messages=words, n=2)
    first, second = (choice.message.content for choice in made.choices)
    assert first is not None
    assert first.startswith("Tool call completed: weather [turn_")
    assert first != second
    assert len(gemini.requests) == 1
    assert accepted(gemini)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("options", "key", "error", "words"),
    [
        ({"model": "gemini-9-none"}, KEY, openai.NotFoundError, "is not found"),
        ({"temperature": 5}, KEY, openai.BadRequestError, "temperature must be in the range"),
        ({"extra_body": {"google": {}}}, KEY, openai.BadRequestError, 'Unknown name "google"'),
        ({}, "invalid", openai.BadRequestError, "API key not valid"),
    ],
)
def test_a_refusal_of_the_service_is_raised_as_the_client_s_own_error(
    looper: Proxy, bare: Session, options: Json, key: str, error: type[openai.APIStatusError], words: str, stream: bool
) -> None:
    with openai.OpenAI(api_key=key, max_retries=0, **by_reverse(looper, bare)) as client:
        request: Any = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **options}
        with pytest.raises(error) as caught:
            client.chat.completions.create(stream=stream, **request)
    body: Any = caught.value.body
    assert words in body[0]["error"]["message"], "as the endpoint gives it, in a list"


def test_a_tool_that_fails_is_told_and_the_chat_goes_on(looper: Proxy, bare: Session, gemini: Gemini) -> None:
    chat = Chat("stream", by_reverse(looper, bare))
    assert "no good" in chat.say('call broken {"message": "no good"}')
    assert accepted(gemini)


def test_system_messages_stay_where_they_are(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    chat = Chat("sync", by_reverse(proxy, session))
    system = {"role": "system", "content": "Be brief."}
    chat.messages.append(system)
    chat.say('call get_weather {"city": "Oslo"}')
    session.answer(get_weather={"celsius": 3})
    chat.messages.append({"role": "developer", "content": "Be briefer."})
    chat.say("repeat the results")
    assert [role for role, _ in summary_of(gemini)] == ["system", "user", "calls", "tool", "developer", "user"]
    assert gemini.last["body"]["messages"][0] == system
    assert accepted(gemini)


def test_a_session_without_tools_and_other_paths_are_not_touched(looper: Proxy, gemini: Gemini) -> None:
    base = by_reverse(looper, new_session(looper, tools=False))["base_url"]
    got = httpx2.get(f"{base}/models", headers={"authorization": f"Bearer {KEY}"})
    assert got.status_code == 404, "the strict server has no such page, and was asked"
    assert gemini.last["path"] == "/v1beta/openai/models"


def test_vertex_speaks_it_too(looper: Proxy, bare: Session, gemini: Gemini) -> None:
    base = f"{looper.url}/@{bare.name}/v1/projects/p/locations/us-central1/endpoints/openapi"
    with openai.OpenAI(api_key=KEY, base_url=base, max_retries=0) as client:
        words: Any = [{"role": "user", "content": 'call weather {"city": "Oslo"}'}]
        made = client.chat.completions.create(model=f"google/{MODEL}", messages=words)
    assert made.choices[0].message.content == 'weather returned {"city": "Oslo", "celsius": 4}.'
    assert [call["surface"] for call in bare.calls()] == ["chat"]
    assert accepted(gemini)


def streamed(*events: Json | str, ends: bool = True) -> list[bytes]:
    """An answer of the upstream, event by event."""
    data = (f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode() for event in events)
    return [*chunked(data, "text/event-stream", "Connection: close"), *([END] if ends else [])]


def chunk(delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": MODEL, "choices": [choice]}


def piece(index: int, arguments: str, **more: Any) -> Json:
    name = more.pop("name", None)
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return {"tool_calls": [{"index": index, "function": function, **more}]}


PIECES = [
    chunk({"role": "assistant", "content": ""}),
    chunk(piece(0, "", id="x", type="function", name="weather")),
    chunk(piece(0, '{"city":')),
    chunk(piece(0, ' "Oslo"}')),
    chunk(piece(1, "", id="y", type="function", name="hour")),
    chunk(piece(1, "{}")),
    chunk({}, "tool_calls"),
]
WORDS = [chunk({"role": "assistant", "content": "It is "}), chunk({"content": "noon."}), chunk({}, "stop")]


def by_canned(looper: Proxy, session: Session) -> Json:
    return {"base_url": f"{looper.urls[1]}/@{session.name}/v1beta/openai"}


@pytest.mark.parametrize("kind", ["stream", "async-stream"])
def test_calls_that_come_piece_by_piece_are_run(looper: Proxy, bare: Session, canned: Canned, kind: str) -> None:
    canned.first = [streamed(*PIECES, "[DONE]"), streamed(*WORDS, "[DONE]")]
    chat = Chat(kind, by_canned(looper, bare))
    assert chat.say("What time is it in Oslo?") == "It is noon."
    second = json.loads(canned.heard[1].partition(b"\r\n\r\n")[2])
    assert second["messages"][1:] == [
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}},
                {"id": "y", "type": "function", "function": {"name": "hour", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "x", "content": '{"city":"Oslo","celsius":4}'},
        {"role": "tool", "tool_call_id": "y", "content": '{"hour":12}'},
    ]


def test_the_client_s_own_calls_reach_it_piece_by_piece(looper: Proxy, bare: Session, canned: Canned) -> None:
    bare.policy(client_tools="keep")
    tools = [{"type": "function", "function": {"name": name}} for name in ("weather", "hour")]
    canned.says = streamed(*PIECES, "[DONE]")
    url = f"{by_canned(looper, bare)['base_url']}/chat/completions"
    words = [{"role": "user", "content": "hi"}]
    asked = {"model": MODEL, "stream": True, "messages": words, "tools": tools}
    got = httpx2.post(url, json=asked, timeout=20)
    assert got.text == "".join(f"data: {json.dumps(event)}\n\n" for event in PIECES) + "data: [DONE]\n\n"


def test_a_stream_that_tells_of_an_error_ends_with_it(looper: Proxy, bare: Session, canned: Canned) -> None:
    error = {"error": {"code": 503, "message": "It is overloaded.", "status": "UNAVAILABLE"}}
    canned.first = [streamed(*PIECES, "[DONE]"), streamed(WORDS[0], error, "[DONE]")]
    with pytest.raises(openai.APIError, match="It is overloaded"):
        Chat("stream", by_canned(looper, bare)).say("What time is it?")
    canned.says = streamed(WORDS[0], error, "[DONE]")
    with pytest.raises(openai.APIError, match="It is overloaded"):
        Chat("stream", by_canned(looper, bare)).say("What time is it?")


def test_a_model_that_is_gone_in_the_middle_of_a_loop_is_an_error(looper: Proxy, bare: Session, canned: Canned) -> None:
    canned.first = [streamed(*PIECES, "[DONE]"), streamed(WORDS[0], ends=False)]
    with pytest.raises(openai.APIError, match="the connection to the model broke"):
        Chat("stream", by_canned(looper, bare)).say("What time is it?")
