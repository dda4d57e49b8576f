"""A conversation of three user turns with two placeholder steps, by every published client. The strict server checks
the next requests."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import chats
from tests.e2e.chats import Chat
from tests.e2e.proxies import DECLARATIONS, Proxy, Session, weather
from tests.e2e.upstreams import Gemini

MODEL = "gemini-3-flash-preview"
KEY = "a-secret-key"
OWN = "delete_everything"
FIRST = "What is the weather in Paris and Tokyo?"
SECOND = 'say One moment. call get_time {"zone": "CET"}'
THIRD = "repeat the results"

Json = dict[str, Any]
Between = Callable[[], object]


def converse(chat: Chat, session: Session, gemini: Gemini, *, shape: str = "", between: Between = lambda: None) -> None:
    """The three turns, the results given after each step; `between` happens before each further turn."""
    asked = FIRST + shape
    answer = chat.say(asked)
    (first,) = session.turns()
    assert answer == f"Tool call completed: get_weather, get_weather [{first['turn_id']}]"
    calls = session.answer(get_weather=weather)
    assert [call["args"] for call in calls] == [{"city": "Paris"}, {"city": "Tokyo"}]

    between()
    answer = chat.say(SECOND + shape)
    second = session.turns()[-1]
    assert '{"city": "Paris", "celsius": 5}' in answer
    assert '{"city": "Tokyo", "celsius": 5}' in answer
    assert answer.endswith(f"One moment.\n\nTool call completed: get_time [{second['turn_id']}]")
    session.answer(get_time={"hour": 12})

    between()
    answer = chat.say(THIRD)
    for city in ("Paris", "Tokyo"):
        assert f'get_weather returned {{"city": "{city}", "celsius": 5}}.' in answer
    assert 'get_time returned {"hour": 12}.' in answer

    assert gemini.errors == []
    assert gemini.dummy_signatures == 0
    assert len(gemini.requests) == 3
    for request in gemini.requests:
        (tool,) = request["body"]["tools"]
        assert [one["name"] for one in tool["functionDeclarations"]] == ["get_weather", "get_time"]
    check_history(gemini.last["body"]["contents"], [first, second], calls, asked)
    check_kept(chat.history)


def check_history(contents: list[Json], turns: list[Json], calls: list[Json], asked: str) -> None:
    """Nothing is lost of what the client had, and each step stands in the place of its placeholder."""
    sides: list[tuple[str, list[Json]]] = []
    for content in contents:
        if sides and sides[-1][0] == content["role"]:
            sides[-1][1].extend(content["parts"])
        else:
            sides.append((content["role"], list(content["parts"])))
    assert [side for side, _ in sides] == ["user", "model", "user", "model", "user"]
    begins, step, results, later, ends = (parts for _, parts in sides)
    assert begins == [{"text": asked}]
    assert "Tool call completed" not in str(contents)

    assert step == turns[0]["true"][0]["content"]["parts"]
    assert [part["functionCall"]["args"]["city"] for part in step] == ["Paris", "Tokyo"]
    assert "thoughtSignature" in step[0]
    assert "thoughtSignature" not in step[1]
    assert [part["functionCall"]["id"] for part in step] == [call["gemini_id"] for call in calls]
    responses = [
        {"functionResponse": {"id": call["gemini_id"], "name": "get_weather", "response": weather(**call["args"])}}
        for call in calls
    ]
    assert [_unordered(part) for part in results[:2]] == [_unordered(part) for part in responses]
    assert [part["text"].startswith(SECOND) for part in results[2:]] == [True]

    assert "".join(part.get("text", "") for part in later).endswith("One moment.")
    (called,) = (part for part in later if "functionCall" in part)
    assert called["functionCall"]["name"] == "get_time"
    assert called["thoughtSignature"]
    assert ends[0]["functionResponse"]["id"] == called["functionCall"]["id"]
    assert ends[0]["functionResponse"]["response"] == {"hour": 12}
    assert ends[1:] == [{"text": THIRD}]


def _unordered(part: Json) -> Json:
    return {"functionResponse": dict(sorted(part["functionResponse"].items()))}


def check_kept(history: list[Json]) -> None:
    """The client's own memory: the placeholders are turns like others, and no call was leaked to it."""
    roles: list[str] = []
    for content in history:
        if not roles or roles[-1] != content["role"]:
            roles.append(content["role"])
    assert roles == ["user", "model"] * 3
    assert not any(key in part for content in history for part in content["parts"] for key in CALLS)


CALLS = ("functionCall", "function_call", "functionResponse", "function_response")


@pytest.mark.parametrize("kind", [pytest.param("sync", marks=pytest.mark.smoke), "async-stream"])
def test_a_google_genai_chat_gets_its_results_in_reverse_mode(
    kind: str, proxy: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    base = f"{proxy.url}/@{session.name}"
    with chats.python(tmp_path, kind, model=MODEL, key=KEY, base_url=base, tools=[OWN]) as chat:
        converse(chat, session, gemini)


@pytest.mark.parametrize("kind", [pytest.param("stream", marks=pytest.mark.smoke), "async"])
def test_a_google_genai_chat_gets_its_results_through_connect(
    kind: str, proxy: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    env = {"HTTPS_PROXY": proxy.user(session.name), "SSL_CERT_FILE": str(proxy.ca)}
    with chats.python(tmp_path, kind, env, model=MODEL, key=KEY) as chat:
        converse(chat, session, gemini)


@pytest.mark.parametrize("kind", [pytest.param("async", marks=pytest.mark.smoke), "stream"])
def test_a_chat_of_genai_for_javascript_gets_its_results_in_reverse_mode(
    kind: str, proxy: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    base = f"{proxy.url}/@{session.name}"
    with chats.node(tmp_path, kind, model=MODEL, key=KEY, base_url=base, tools=[OWN]) as chat:
        converse(chat, session, gemini)


@pytest.mark.parametrize("client", ["python", "node"])
@pytest.mark.parametrize("shape", ["[demo: each]", "[demo: each, bare_finish]", "[demo: bytes=7]", "[demo: no_finish]"])
def test_streams_that_are_cut_otherwise_are_the_same_to_a_chat(
    client: str, shape: str, proxy: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    make = chats.python if client == "python" else chats.node
    with make(tmp_path, "stream", model=MODEL, key=KEY, base_url=f"{proxy.url}/@{session.name}") as chat:
        converse(chat, session, gemini, shape=f" {shape}")


@pytest.mark.parametrize("client", [pytest.param("python", marks=pytest.mark.smoke), "node"])
def test_a_restart_of_the_proxy_between_turns_loses_nothing(
    client: str, start: Callable[..., Proxy], gemini: Gemini, tmp_path: Path
) -> None:
    proxy = start(gemini.url)
    session = proxy.control.session("default")
    session.tools()

    def restart() -> None:
        proxy.restart()
        session.control = proxy.control

    make, kind = (chats.python, "sync") if client == "python" else (chats.node, "stream")
    with make(tmp_path, kind, model=MODEL, key=KEY, base_url=proxy.url) as chat:
        converse(chat, session, gemini, between=restart)


@pytest.mark.smoke
def test_a_vertex_chat_without_ids_gets_its_results(
    proxy: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    base = f"{proxy.url}/@{session.name}"
    with chats.python(tmp_path, "stream", model=MODEL, key=KEY, base_url=base, vertex=True) as chat:
        chat.say(FIRST)
        session.answer(get_weather=weather)
        answer = chat.say("repeat the results")
    assert all(f'"city": "{city}"' in answer for city in ("Paris", "Tokyo"))
    assert "publishers/google/models" in gemini.last["path"]
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0


@pytest.mark.parametrize("kind", [pytest.param("sync", marks=pytest.mark.smoke), "async-stream"])
def test_a_client_that_runs_tools_itself_gets_the_calls_in_passthrough(
    kind: str, proxy: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    """Its answers are the results, and what it was not asked to answer comes from the store."""
    session.policy(delivery="passthrough")
    base = f"{proxy.url}/@{session.name}"
    with chats.python(tmp_path, kind, model=MODEL, key=KEY, base_url=base, tools=["get_weather"]) as chat:
        answer = chat.say(FIRST)
        for city in ("Paris", "Tokyo"):
            assert f'get_weather returned {{"result": {{"city": "{city}", "said_by": "the client"}}}}.' in answer
        assert [call["result"] for call in session.calls(status="done")] == [
            {"result": {"city": "Paris", "said_by": "the client"}},
            {"result": {"city": "Tokyo", "said_by": "the client"}},
        ]
        assert "the client" in chat.say(THIRD)
    assert len(gemini.requests) == 3
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0
    for request in gemini.requests:
        (tool,) = request["body"]["tools"]
        assert [one["name"] for one in tool["functionDeclarations"]] == ["get_weather", "get_time"]


@pytest.mark.parametrize(("kind", "waits"), [("sync", True), ("stream", False)], ids=["wait", "pass"])
def test_a_step_of_both_sides_calls_is_told_whole(
    kind: str, waits: bool, proxy: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    """The client sees and answers its own call only, the proxy holds the other; upstream gets both in order."""
    session.tools([DECLARATIONS[1]])
    session.policy(client_tools="keep", on_pending="wait" if waits else "pass")
    base = f"{proxy.url}/@{session.name}"
    with (
        ThreadPoolExecutor(1) as pool,
        chats.python(tmp_path, kind, model=MODEL, key=KEY, base_url=base, tools=["get_weather"]) as chat,
    ):
        answered = pool.submit(session.answer, get_time={"hour": 12}) if waits else None
        answer = chat.say('call get_weather {"city": "Oslo"} and call get_time {"zone": "CET"}')
        if answered is None:
            assert 'get_time returned {"error": "no result"}' in answer
            session.answer(get_time={"hour": 12})
        else:
            answered.result(10)
        assert 'get_weather returned {"result": {"city": "Oslo", "said_by": "the client"}}' in answer
        answer = chat.say(THIRD)
        assert 'get_time returned {"hour": 12}' in answer
        assert "the client" in answer
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0
    (call,) = session.calls()
    assert call["name"] == "get_time"
    contents = gemini.last["body"]["contents"]
    names = [p["functionResponse"]["name"] for c in contents for p in c["parts"] if "functionResponse" in p]
    assert names == ["get_weather", "get_time"]
    declared = [d["name"] for tool in gemini.last["body"]["tools"] for d in tool["functionDeclarations"]]
    assert declared == ["get_weather", "get_time"]
    assert "get_time" not in str(chat.history[1])


@pytest.mark.parametrize("model", ["gemini-2.5-flash", "gemini-3.5-flash"])
@pytest.mark.parametrize("kind", ["sync", "stream"])
def test_models_without_ids_and_models_that_check_every_turn_are_served_too(
    kind: str, model: str, proxy: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    base = f"{proxy.url}/@{session.name}"
    with chats.python(tmp_path, kind, model=model, key=KEY, base_url=base) as chat:
        for city in ("Paris", "Rome"):
            chat.say(f"weather in {city}")
            session.answer(get_weather=weather)
            assert city in chat.say("repeat the results")
        answer = chat.say("repeat the results")
    assert "Paris" in answer
    assert "Rome" in answer
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0
