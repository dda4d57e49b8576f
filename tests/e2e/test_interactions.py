"""google-genai's interactions client, unmodified: it sees answers under one id, the strict server every round."""

import asyncio
import json
import ssl
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google import genai
from google.genai import types
from google.genai._gaos.lib.compat_errors import APIStatusError as APIError

from tests.e2e import chats
from tests.e2e.proxies import Proxy, Session, looping_proxy, new_session, weather
from tests.e2e.upstreams import END, Canned, Gemini, answer, chunked

Json = dict[str, Any]

MODEL = "gemini-3-flash-preview"
KEY = "a-secret-key"
NOTE: Any = {"type": "function", "name": "note", "parameters": {"type": "object", "properties": {}}}
BOTH = 'call get_weather {"city": "Oslo"} and call get_time {}'
KINDS = pytest.mark.parametrize("kind", ["sync", "stream", "async", "async-stream"])
FORMS = pytest.mark.parametrize("kind", ["sync", "stream"])


class Interactions:
    """A conversation as programs hold it: the last id is all that they have."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self.kind = kind
        self.url = url
        self.options = options
        self.id: str | None = None
        self.events: list[Any] = []
        self.answer: Any = None

    def say(self, given: Any, **options: Any) -> str:
        """The text of the answer. Its id is what the next request goes on from."""
        request = {"model": MODEL, "input": given, **self.options, **options}
        if self.id is not None:
            request["previous_interaction_id"] = self.id
        self.answer = asyncio.run(self._ask_async(request)) if self.kind.startswith("async") else self._ask(request)
        self.id = self.answer["id"]
        return text_of(self.answer)

    @property
    def calls(self) -> list[Json]:
        return [step for step in self.answer["steps"] if step["type"] == "function_call"]

    def results(self, result: Any) -> list[Json]:
        """What a client answers to its calls."""
        return [
            {"type": "function_result", "call_id": call["id"], "name": call["name"], "result": result}
            for call in self.calls
        ]

    def _client(self) -> Any:
        return client_of(self.url)

    def _ask(self, request: Json) -> Json:
        with self._client() as client:
            if self.kind == "sync":
                return dict(client.interactions.create(**request).model_dump())
            self.events = list(client.interactions.create(stream=True, **request))
            return joined(self.events)

    async def _ask_async(self, request: Json) -> Json:
        async with self._client().aio as client:
            if self.kind == "async":
                return dict((await client.interactions.create(**request)).model_dump())
            self.events = [event async for event in await client.interactions.create(stream=True, **request)]
            return joined(self.events)


def client_of(url: str) -> Any:
    return genai.Client(api_key=KEY, http_options=types.HttpOptions(base_url=url))


def joined(events: list[Any]) -> Json:
    """The interaction that the events of a stream make: one beginning, steps one after the other, one end."""
    first, *others, last = [event.model_dump() for event in events]
    assert first["event_type"] == "interaction.created"
    assert last["event_type"] == "interaction.completed"
    assert first["interaction"]["id"] == last["interaction"]["id"]
    steps: list[Json] = []
    is_open = False
    for event in others:
        match event["event_type"]:
            case "interaction.status_update":
                assert event["interaction_id"] == first["interaction"]["id"]
            case "step.start":
                assert not is_open
                assert event["index"] == len(steps)
                is_open = True
                steps.append({**event["step"], "text": "", "pieces": ""})
            case "step.delta":
                assert is_open
                assert event["index"] == len(steps) - 1
                steps[-1]["text"] += event["delta"].get("text", "")
                steps[-1]["pieces"] += event["delta"].get("arguments", "")
            case "step.stop":
                assert is_open
                assert event["index"] == len(steps) - 1
                is_open = False
            case kind:
                pytest.fail(f"an event of its own: {kind}")
    assert not is_open
    for step in steps:
        if step["type"] == "model_output":
            step["content"] = [{"type": "text", "text": step["text"]}]
        if step["pieces"]:
            step["arguments"] = json.loads(step["pieces"])
    return {**last["interaction"], "steps": steps}


def text_of(interaction: Json) -> str:
    steps = [step for step in interaction["steps"] if step["type"] == "model_output"]
    return "".join(content["text"] for step in steps for content in step["content"])


def at(proxy: Proxy, session: Session, kind: str, **options: Any) -> Interactions:
    return Interactions(kind, f"{proxy.url}/@{session.name}", **options)


def inputs(gemini: Gemini) -> list[Any]:
    return [request["body"]["input"] for request in gemini.requests]


@KINDS
def test_a_loop_is_one_interaction_from_which_the_client_goes_on(
    looper: Proxy, bare: Session, gemini: Gemini, kind: str
) -> None:
    chat = at(looper, bare, kind)
    answer = chat.say(
        'say Wait. and call weather {"city": "Paris"} and call hour {} then call weather {"city": "Rome"}'
    )
    assert answer.startswith("Wait.")
    assert '"celsius": 5' in answer
    assert '"hour": 12' in answer
    assert chat.answer["status"] == "completed"
    assert chat.calls == []
    assert len(gemini.requests) == 3
    assert [[step["name"] for step in given] for given in inputs(gemini)[1:]] == [["weather", "hour"], ["weather"]]
    rounds, usage = bare.turns()[-1]["usage"], chat.answer["usage"]
    assert usage["total_input_tokens"] == rounds[-1]["total_input_tokens"]
    assert usage["total_output_tokens"] == sum(one["total_output_tokens"] for one in rounds)
    assert usage["total_tokens"] == usage["total_input_tokens"] + usage["total_output_tokens"]
    assert len(rounds) == 3
    assert '"celsius": 4' in chat.say("repeat the results")
    assert '"hour": 12' in chat.say("repeat the results")
    assert chat.say('call weather {"city": "Lima"}').count("celsius") == 1
    assert gemini.errors == []


@KINDS
def test_a_long_answer_in_pieces_is_one_interaction(kind: str, looper: Proxy, bare: Session, gemini: Gemini) -> None:
    chat = Interactions(kind, f"{looper.url}/@{bare.name}", model="gemini-4-argon")
    answer = chat.say('say one two three call weather {"city": "Oslo"} in 4 pieces')
    assert answer.startswith("one two three")
    assert 'weather returned {"city": "Oslo", "celsius": 4}.' in answer
    assert chat.answer["status"] == "completed"
    assert "Oslo" in chat.say("repeat the results")
    assert gemini.errors == []
    assert any("continuation_token" in request["body"] for request in gemini.requests)


def test_ten_turns_with_tools_in_each(looper: Proxy, bare: Session, gemini: Gemini) -> None:
    """Whatever form an answer came in, the next goes on from it."""
    interaction = None
    for turn, kind in enumerate(["sync", "stream", "stream", "sync", "async", "async-stream"] * 2):
        chat = at(looper, bare, kind)
        chat.id = interaction
        answer = chat.say(f'call weather {{"city": "{"x" * turn}"}} and call hour {{}} then call hour {{}}')
        assert f'"celsius": {turn}' in answer
        interaction = chat.id
    chat = at(looper, bare, "sync")
    chat.id = interaction
    assert chat.say("repeat the results").count("returned") == 36
    assert gemini.errors == []
    assert all(len(given) in (1, 2) for given in inputs(gemini) if isinstance(given, list))


@pytest.mark.parametrize("kind", ["async", "stream"])
def test_the_javascript_client_goes_on_from_a_loop(
    looper: Proxy, bare: Session, gemini: Gemini, tmp_path: Path, kind: str
) -> None:
    program: list[str | Path] = ["node", chats.CLIENTS / "interactions.mjs"]
    options = {"kind": kind, "key": KEY, "model": MODEL, "base_url": f"{looper.url}/@{bare.name}"}
    with chats.Chat(program, tmp_path, {"GENAI_JS": str(chats.installed())}, **options) as chat:
        answer = chat.say('say Wait. and call weather {"city": "Paris"} and call hour {}')
        assert answer.startswith("Wait.")
        assert '"celsius": 5' in answer
        assert '"hour": 12' in chat.say("repeat the results")
    assert gemini.errors == []


@pytest.mark.parametrize("shape", ["bytes=1", "each, bytes=7", "pieces=1", "each, pieces=20"])
def test_a_loop_over_streams_that_are_cut_anyhow(looper: Proxy, bare: Session, gemini: Gemini, shape: str) -> None:
    chat = at(looper, bare, "stream")
    asked = f'[demo: {shape}] say Wait. and call weather {{"city": "Paris"}} and call hour {{}}'
    assert '"celsius": 5' in chat.say(asked)
    assert '"celsius": 5' in chat.say("repeat the results")
    assert gemini.errors == []


def test_a_call_keeps_the_name_that_it_was_made_under(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    """A tool that is renamed beside one of the client's own, which the next request does not have."""
    session.policy(client_tools="keep")
    chat = at(proxy, session, "sync")
    placeholder = chat.say('call get_weather_g2 {"city": "Oslo"}', tools=[{**NOTE, "name": "get_weather"}])
    assert placeholder.startswith("Tool call completed: get_weather [")
    session.answer(get_weather=weather)
    assert '"celsius": 4' in chat.say("repeat the results")
    assert gemini.last["body"]["input"][0]["name"] == "get_weather_g2"
    assert gemini.errors == []


def test_an_invented_call_is_an_error_for_the_model_alone(looper: Proxy, bare: Session, gemini: Gemini) -> None:
    chat = at(looper, bare, "stream")
    assert "unknown tool: nobody" in chat.say("call nobody {}")
    assert chat.calls == []
    assert gemini.errors == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "url",
    [
        "https://generativelanguage.googleapis.com/v1beta/interactions",
        "https://us-central1-aiplatform.googleapis.com/v1beta1/projects/p/locations/us-central1/interactions",
    ],
    ids=["developer", "vertex"],
)
def test_through_connect(looper: Proxy, bare: Session, gemini: Gemini, url: str, stream: bool) -> None:
    trusts = ssl.create_default_context(cafile=str(looper.ca))
    with httpx2.Client(proxy=looper.user(bare.name), verify=trusts, timeout=30) as client:
        asked = {"model": MODEL, "input": "call hour {}", "stream": stream}
        got = client.post(url, json=asked, headers={"x-goog-api-key": KEY})
    assert got.headers["content-type"] == ("text/event-stream" if stream else "application/json")
    assert "returned" in got.text
    assert "function_call" not in got.text
    assert got.text.endswith("event: done\ndata: [DONE]\n\n") is stream
    assert len(gemini.requests) == 2


@FORMS
def test_a_placeholder_is_answered_through_the_control_api(
    proxy: Proxy, session: Session, gemini: Gemini, kind: str
) -> None:
    chat = at(proxy, session, kind)
    answer = chat.say(f"say One moment. and {BOTH}")
    assert answer.startswith("One moment.\n\nTool call completed: get_weather, get_time [turn_")
    assert chat.answer["status"] == "completed"
    assert chat.calls == []
    session.answer(get_weather=weather, get_time="noon")
    answer = chat.say("repeat the results")
    assert '"celsius": 4' in answer
    assert '"result": "noon"' in answer
    assert [step["type"] for step in gemini.last["body"]["input"]] == [
        "function_result",
        "function_result",
        "user_input",
    ]
    assert chat.say("repeat the results") == answer
    assert gemini.last["body"]["input"] == "repeat the results"
    assert gemini.errors == []


@FORMS
def test_a_step_without_results_is_answered_all_the_same(
    proxy: Proxy, session: Session, gemini: Gemini, kind: str
) -> None:
    chat = at(proxy, session, kind)
    chat.say(BOTH)
    assert chat.say("repeat the results").count('"no result"') == 2
    assert [step["is_error"] for step in gemini.last["body"]["input"][:2]] == [True, True]
    assert gemini.errors == []


def test_a_request_waits_for_results_where_the_session_says_so(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    session.policy(on_pending="wait", pending_timeout=20)
    chat = at(proxy, session, "sync")
    chat.say(BOTH)
    later = threading.Timer(0.3, lambda: session.answer(get_weather=weather, get_time="noon"))
    later.start()
    assert '"celsius": 4' in chat.say("repeat the results")
    later.join()
    assert gemini.errors == []


@FORMS
def test_a_pending_step_is_answered_here_where_the_session_blocks(
    proxy: Proxy, session: Session, gemini: Gemini, kind: str
) -> None:
    session.policy(on_pending="block")
    chat = at(proxy, session, kind)
    placeholder, pending = chat.say(BOTH), chat.id
    assert chat.say("and now?") == placeholder
    assert chat.id == pending
    assert len(gemini.requests) == 1
    session.answer(get_weather=weather, get_time="noon")
    assert '"celsius": 4' in chat.say("repeat the results")
    assert gemini.errors == []


@FORMS
def test_calls_of_the_client_beside_grafted_ones_are_all_that_it_sees(
    looper: Proxy, bare: Session, gemini: Gemini, kind: str
) -> None:
    bare.policy(client_tools="keep")
    chat = at(looper, bare, kind, tools=[NOTE])
    chat.say('call weather {"city": "Paris"} and call note {} and call hour {}')
    assert [call["name"] for call in chat.calls] == ["note"]
    assert chat.answer["status"] == "requires_action"
    chat.say(chat.results({"noted": True}))
    results = gemini.last["body"]["input"]
    assert [step["name"] for step in results] == ["weather", "note", "hour"]
    assert [step["result"] for step in results] == [{"city": "Paris", "celsius": 5}, {"noted": True}, {"hour": 12}]
    assert gemini.errors == []


@FORMS
def test_calls_of_the_client_alone_are_its_own_as_they_came(
    looper: Proxy, bare: Session, gemini: Gemini, kind: str
) -> None:
    bare.policy(client_tools="keep")
    chat = at(looper, bare, kind, tools=[NOTE, {"type": "google_search"}], generation_config={"temperature": 0.5})
    chat.say("call note {}")
    assert [call["arguments"] for call in chat.calls] == [{}]
    assert "noted" in chat.say(chat.results([{"type": "text", "text": "noted"}]))
    sent = gemini.last["body"]
    assert sent["tools"][:2] == [NOTE, {"type": "google_search"}]
    assert sent["generation_config"] == {"temperature": 0.5}
    assert gemini.errors == []


@FORMS
def test_calls_that_are_passed_through_are_answered_by_the_client(
    proxy: Proxy, session: Session, gemini: Gemini, kind: str
) -> None:
    session.policy(delivery="passthrough")
    chat = at(proxy, session, kind)
    chat.say(BOTH)
    assert [call["name"] for call in chat.calls] == ["get_weather", "get_time"]
    assert chat.answer["status"] == "requires_action"
    assert '"sky": "blue"' in chat.say(chat.results({"sky": "blue"}))
    assert [call["result"] for call in session.calls()] == [{"sky": "blue"}] * 2
    assert gemini.errors == []


def test_the_clients_tools_and_choice_are_stripped(proxy: Proxy, session: Session, gemini: Gemini) -> None:
    chat = at(proxy, session, "sync", tools=[NOTE], generation_config={"tool_choice": "any", "temperature": 0.5})
    chat.say("say hello")
    sent = gemini.last["body"]
    assert [tool["name"] for tool in sent["tools"]] == ["get_weather", "get_time"]
    assert sent["tools"][0]["parameters"]["properties"] == {"city": {"type": "string"}}
    assert sent["generation_config"] == {"temperature": 0.5}
    assert gemini.errors == []


@pytest.mark.parametrize("client_tools", ["strip", "keep"])
def test_a_side_request_for_json_gets_no_tools_and_goes_on_from_the_last_round(
    looper: Proxy, bare: Session, gemini: Gemini, client_tools: str
) -> None:
    bare.policy(client_tools=client_tools)
    chat = at(looper, bare, "stream")
    chat.say('call weather {"city": "Paris"}')
    form = {"type": "text", "mime_type": "application/json", "schema": {"type": "object", "properties": {}}}
    at(looper, bare, "sync").say("say hello", previous_interaction_id=chat.id, response_format=form)
    assert "tools" not in gemini.last["body"]
    bare.tools()
    bare.policy(on_pending="block")
    chat.say(BOTH)
    at(looper, bare, "sync").say("say hello", previous_interaction_id=chat.id, response_format=form)
    assert [step["type"] for step in gemini.last["body"]["input"]] == [
        "function_result",
        "function_result",
        "user_input",
    ]
    assert gemini.errors == []


@FORMS
def test_a_history_that_the_client_keeps_is_told_as_it_was(
    looper: Proxy, bare: Session, gemini: Gemini, kind: str
) -> None:
    chat = at(looper, bare, kind, store=False)
    history: list[Json] = []

    def say(text: str) -> str:
        history.append({"type": "user_input", "content": [{"type": "text", "text": text}]})
        chat.id = None
        answer = chat.say(history)
        kept = ("type", "content", "signature", "arguments")
        history.extend({key: step[key] for key in kept if step.get(key)} for step in chat.answer["steps"])
        return answer

    answer = say('say Wait. and call weather {"city": "Paris"} and call hour {} then call weather {"city": "Rome"}')
    assert '"celsius": 4' in answer
    assert '"hour": 12' in say("repeat the results")
    assert [step["type"] for step in gemini.last["body"]["input"]].count("function_call") == 3
    assert '"celsius": 5' in say("repeat the results")
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0


SENT = ("type", "id", "name", "arguments", "content", "signature")


@pytest.mark.parametrize(
    ("policy", "asked", "names"),
    [
        ({"delivery": "placeholder"}, BOTH, ["get_weather", "get_time"]),
        ({"delivery": "passthrough"}, BOTH, ["get_weather", "get_time"]),
        ({"client_tools": "keep"}, "call note {} and call hour {}", ["note", "hour"]),
    ],
    ids=["placeholder", "passthrough", "mixed"],
)
def test_a_step_in_a_history_that_the_client_keeps(
    looper: Proxy, bare: Session, gemini: Gemini, policy: Json, asked: str, names: list[str]
) -> None:
    bare.policy(**policy)
    if "delivery" in policy:
        bare.tools()
    chat = at(looper, bare, "sync", store=False, **({} if "delivery" in policy else {"tools": [NOTE]}))
    history: list[Json] = [{"type": "user_input", "content": [{"type": "text", "text": asked}]}]
    chat.say(history)
    chat.id = None
    history += [{key: step[key] for key in SENT if step.get(key) is not None} for step in chat.answer["steps"]]
    if chat.calls:
        history += chat.results({"own": True})
    else:
        bare.answer(get_weather=weather, get_time="noon")
        history.append({"type": "user_input", "content": [{"type": "text", "text": "repeat the results"}]})
    answer = chat.say(history)
    assert all(f"{name} returned" in answer for name in names)
    for kind in ("function_call", "function_result"):
        assert [step["name"] for step in gemini.last["body"]["input"] if step["type"] == kind] == names
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0


def test_a_stream_is_kept_alive_while_tools_take_their_time(tmp_path: Path, gemini: Gemini) -> None:
    proxy = looping_proxy(tmp_path, gemini.url, keepalive="0.1")
    try:
        chat = at(proxy, new_session(proxy, tools=False), "stream")
        assert '"label": "x"' in chat.say('call pause {"seconds": 0.5, "label": "x"}')
        assert [event.event_type for event in chat.events].count("interaction.status_update") >= 3
        assert gemini.errors == []
    finally:
        proxy.stop()


def test_a_restart_between_turns_changes_nothing(tmp_path: Path, gemini: Gemini) -> None:
    proxy = looping_proxy(tmp_path, gemini.url)
    try:
        session = new_session(proxy, tools=False)
        chat = at(proxy, session, "stream")
        chat.say('call weather {"city": "Paris"} and call hour {}')
        proxy.restart()
        assert '"celsius": 5' in chat.say("repeat the results")
        session = proxy.control.session(session.name)
        session.tools()
        chat.say(BOTH)
        proxy.restart()
        proxy.control.session(session.name).answer(get_weather=weather, get_time="noon")
        assert '"celsius": 4' in chat.say("repeat the results")
        assert gemini.errors == []
    finally:
        proxy.stop()


def test_errors_are_the_clients_own_exceptions(proxy: Proxy, session: Session) -> None:
    chat = at(proxy, session, "sync")
    with pytest.raises(APIError, match="not found") as unknown:
        chat.say("hi", previous_interaction_id="v1_nobody")
    assert unknown.value.status_code == 404
    with pytest.raises(APIError, match="Unknown parameter") as bad:
        chat.say("hi", generation_config={"tool_choice": "auto"}, extra_body={"nothing": 1})
    assert bad.value.status_code == 400


CALL = {"id": "c1", "type": "function_call", "name": "hour", "arguments": {}}
STEP = {"id": "v1_a", "status": "requires_action", "steps": [CALL], "object": "interaction", "model": MODEL}
REFUSAL = b'{"error":{"message":"Too much.","code":"invalid_request"}}'


def frame(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({**members, 'event_type': kind})}\n\n".encode()


def test_an_error_in_a_later_round_is_the_clients(looper: Proxy, bare: Session, canned: Canned) -> None:
    canned.first = [[answer(json.dumps(STEP).encode(), kind="application/json")]]
    canned.says = [answer(REFUSAL, "400 Bad Request", "application/json")]
    chat = Interactions("sync", f"{looper.urls[1]}/@{bare.name}")
    with pytest.raises(APIError, match="Too much") as refused:
        chat.say("call hour")
    assert refused.value.status_code == 400
    assert len(canned.heard) == 2


def test_an_error_in_a_later_round_of_a_stream_is_its_last_event(looper: Proxy, bare: Session, canned: Canned) -> None:
    head = {"id": "v1_a", "object": "interaction", "model": MODEL}
    canned.first = [
        [
            *chunked(
                [
                    frame("interaction.created", interaction={**head, "status": "in_progress"}),
                    frame("step.start", index=0, step=CALL),
                    frame("step.stop", index=0),
                    frame("interaction.completed", interaction={**head, "status": "requires_action"}),
                    b"event: done\ndata: [DONE]\n\n",
                ]
            ),
            END,
        ]
    ]
    canned.says = [answer(REFUSAL, "400 Bad Request", "application/json")]
    with client_of(f"{looper.urls[1]}/@{bare.name}") as client:
        events = list(client.interactions.create(model=MODEL, input="call hour", stream=True))
    assert [event.event_type for event in events] == ["interaction.created", "error"]
    assert events[-1].error.message == "Too much."
    got = httpx2.post(
        f"{looper.urls[1]}/@{bare.name}/v1beta/interactions",
        json={"model": MODEL, "input": "call hour", "stream": True},
        headers={"x-goog-api-key": KEY},
    )
    assert got.content == REFUSAL
