"""Live sessions of the published clients with grafted tools, against the strict server, which closes a connection for
the same mistakes as the service."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import lives
from tests.e2e.lives import LiveChat
from tests.e2e.processes import ROOT, until
from tests.e2e.proxies import Proxy, Session, ask, new_session
from tests.e2e.upstreams import Gemini

Json = dict[str, Any]
Connect = Callable[..., LiveChat]

OWN = [{"functionDeclarations": [{"name": "own", "description": "The client's.", "parameters": {"type": "OBJECT"}}]}]


@pytest.fixture(scope="module")
def shared_live(tmp_path_factory: pytest.TempPathFactory, strict: Gemini) -> Iterator[Proxy]:
    tools = ROOT / "tests" / "e2e" / "tools" / "live.py"
    proxy = Proxy(tmp_path_factory.mktemp("live"), strict.url, tools=str(tools))
    yield proxy
    proxy.stop()


@pytest.fixture
def living(shared_live: Proxy) -> Iterator[Proxy]:
    mark = shared_live.process.mark()
    yield shared_live
    output = "\n".join(shared_live.process.lines[mark:])
    assert "Traceback" not in output, output
    assert "crashed" not in output, output


@pytest.fixture(params=[lives.python, lives.node], ids=["google-genai", "@google/genai"])
def connect(request: pytest.FixtureRequest) -> Connect:
    found: Connect = request.param
    return found


@pytest.fixture
def session(living: Proxy) -> Session:
    return new_session(living, tools=False)


def sent(gemini: Gemini, kind: str) -> list[Json]:
    """What arrived at the service of one kind of message, whichever its spelling."""
    assert gemini.errors == []
    snake = "".join("_" + letter.lower() if letter.isupper() else letter for letter in kind)
    frames = gemini.last["body"]
    assert all(frame["text"] for frame in frames)
    return [
        frame["message"].get(kind, frame["message"].get(snake))
        for frame in frames
        if {kind, snake} & set(frame["message"])
    ]


def statuses(session: Session) -> list[tuple[str, str]]:
    return [(call["name"], call["status"]) for call in session.calls()]


def test_two_turns_one_tool_that_is_waited_for_one_that_is_not_and_one_that_is_cancelled(
    connect: Connect, living: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    ready, noted = tmp_path / "ready", tmp_path / "noted"
    with connect(living, session, tmp_path) as chat:
        assert chat.say('call weather {"city": "Oslo"}') == 'weather returned {"city": "Oslo", "celsius": 4}.'
        assert chat.say(f'call research {{"topic": "tides", "file": "{ready}"}}') == ""
        chat.speak("heard ", "in ", "the meantime")
        chat.send(silence=True)
        assert "heard in the meantime" in chat.turn()
        ready.touch()
        assert chat.turn() == 'research returned {"found": "tides"}.'
        chat.send(say=f'call hang {{"file": "{noted}"}}')
        until(lambda: noted.exists() and noted.read_text() == "started", "the tool runs")
        assert 'You said: "never mind"' in chat.say("never mind")
        until(lambda: noted.read_text() == "cancelled", "the tool is cancelled")
        assert not any("toolCall" in message or "toolCallCancellation" in message for message in chat.got)
    assert statuses(session) == [("weather", "done"), ("research", "done"), ("hang", "expired")]
    (response, later) = sent(gemini, "toolResponse")
    assert response["functionResponses"][0]["response"] == {"city": "Oslo", "celsius": 4}
    assert later["functionResponses"][0]["scheduling"] == "WHEN_IDLE"
    (setup,) = sent(gemini, "setup")
    assert {"research": "NON_BLOCKING"} == {
        one["name"]: one["behavior"] for one in setup["tools"][0]["functionDeclarations"] if "behavior" in one
    }
    turns = session.turns()
    assert [turn["surface"] for turn in turns] == ["live"] * 3
    assert {turn["model"] for turn in turns} == {lives.MODEL}


def test_one_step_may_hold_calls_of_all_kinds(living: Proxy, session: Session, gemini: Gemini, tmp_path: Path) -> None:
    ready, noted = tmp_path / "ready", tmp_path / "noted"
    with lives.node(living, session, tmp_path) as chat:
        chat.send(
            say=f'call weather {{"city": "Oslo"}} and call research {{"topic": "tides", "file": "{ready}"}} '
            f'and call hang {{"file": "{noted}"}}'
        )
        until(lambda: noted.exists() and noted.read_text() == "started", "the tool runs")
        until(lambda: statuses(session)[0] == ("weather", "done"), "the quick one is done")
        assert "never mind" in chat.say("never mind")
        until(lambda: statuses(session)[2] == ("hang", "expired"), "the tool is cancelled")
        ready.touch()
        assert 'research returned {"found": "tides"}.' in chat.turn()
    assert statuses(session) == [("weather", "done"), ("research", "done"), ("hang", "expired")]
    (response,) = sent(gemini, "toolResponse")
    assert [one["name"] for one in response["functionResponses"]] == ["research"]
    assert len(session.turns()) == 1


def test_a_call_that_is_answered_by_hand_holds_the_audio_back_until_then(
    connect: Connect, living: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    session.tools()
    with connect(living, session, tmp_path) as chat:
        chat.send(say="What is the weather in Paris?")
        (call,) = until(lambda: session.calls(status="pending"), "a call waits")
        assert (call["name"], call["args"], call["surface"]) == ("get_weather", {"city": "Paris"}, "live")
        chat.speak("and now ", "one ", "more thing")
        chat.send(silence=True)
        chat.send(say="the last words")
        living.control.ask("POST", f"/v1/calls/{call['call_id']}/result", json={"result": {"celsius": 20}})
        assert chat.turn() == 'get_weather returned {"celsius": 20}.'
        assert "and now one more thing" in chat.turn()
        assert "the last words" in chat.turn()
    assert statuses(session) == [("get_weather", "done")]
    frames = [next(iter(frame["message"])) for frame in gemini.last["body"]]
    assert [name.replace("_c", "C").replace("_i", "I").replace("_r", "R") for name in frames] == [
        *("setup", "clientContent", "toolResponse"),
        *["realtimeInput"] * 4,
        "clientContent",
    ]


def test_the_newest_model_is_given_audio_while_a_tool_runs(
    living: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    """A tool that says nothing of itself is not waited for, and one that is declared BLOCKING is taken back."""
    session.tools([{"name": "slow"}, {"name": "asked", "behavior": "BLOCKING"}])
    with lives.python(living, session, tmp_path, model="gemini-3.8-live") as chat:
        assert chat.say("call slow {}") == ""
        (call,) = until(lambda: session.calls(status="pending"), "a call waits")
        chat.speak("heard ", "in ", "the meantime")
        chat.send(silence=True)
        assert "heard in the meantime" in chat.turn()
        living.control.ask("POST", f"/v1/calls/{call['call_id']}/result", json={"result": {"a": 1}})
        assert chat.turn() == 'slow returned {"a": 1}.'
        chat.send(say="call asked {}")
        until(lambda: session.calls(status="pending"), "a call waits")
        chat.speak("never mind")
        until(lambda: not session.calls(status="pending"), "the call is cancelled")
        chat.send(silence=True)
        assert "never mind" in chat.turn()
    assert statuses(session) == [("slow", "done"), ("asked", "expired")]
    (response,) = sent(gemini, "toolResponse")
    assert [one["name"] for one in response["functionResponses"]] == ["slow"]


def test_a_client_that_keeps_its_tools_answers_its_own_calls_and_sees_no_others(
    connect: Connect, living: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    session.policy(client_tools="keep")
    with connect(living, session, tmp_path, config={"tools": OWN}) as chat:
        chat.send(say='call own {} and call weather {"city": "Rome"}')
        (call,) = chat.wait("toolCall")["toolCall"]["functionCalls"]
        assert call["name"] == "own"
        chat.send(answer={"id": call["id"], "name": "own", "response": {"mine": True}})
        assert {'own returned {"mine": true}.', 'weather returned {"city": "Rome", "celsius": 4}.'} == {
            f"{one.strip('.')}." for one in chat.turn().replace(". ", ".\n").splitlines()
        }
    assert statuses(session) == [("weather", "done")]
    (turn,) = session.turns()
    assert [part["functionCall"]["name"] for part in turn["visible"]] == ["own"]
    assert [part["functionCall"]["name"] for part in turn["true"][0]["content"]["parts"]] == ["own", "weather"]


def test_a_context_update_keeps_the_toolset(living: Proxy, session: Session, gemini: Gemini, tmp_path: Path) -> None:
    with lives.python(living, session, tmp_path, config={"tools": OWN}) as chat:
        chat.send(tools=[])
        assert "Lima" in chat.say('call weather {"city": "Lima"}')
    (update,) = sent(gemini, "contextUpdate")
    names = [one["name"] for one in update["tools"]["tools"][0]["functionDeclarations"]]
    assert "weather" in names
    assert "own" not in names


@pytest.mark.smoke
def test_long_results_that_are_not_ascii_arrive_whole(
    living: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    with lives.python(living, session, tmp_path) as chat:
        assert "語" * 30_001 in chat.say('call story {"letters": 30001}')
    (response,) = sent(gemini, "toolResponse")
    assert response["functionResponses"][0]["response"] == {"result": "語" * 30_001}


def test_other_messages_of_the_service_reach_the_client(
    living: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    with lives.node(living, session, tmp_path, config={"sessionResumption": {}}) as chat:
        chat.say("go away")
        assert chat.wait("sessionResumptionUpdate")["sessionResumptionUpdate"]["resumable"] is True
        assert any("goAway" in message for message in chat.got)
        assert any("usageMetadata" in message for message in chat.got)
    assert sent(gemini, "setup")[0]["sessionResumption"] == {}


def test_a_client_that_leaves_ends_what_runs(living: Proxy, session: Session, gemini: Gemini, tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    with lives.node(living, session, tmp_path) as chat:
        chat.send(say=f'call hang {{"file": "{noted}"}}')
        until(lambda: noted.exists() and noted.read_text() == "started", "the tool runs")
    until(lambda: noted.read_text() == "cancelled", "the tool is cancelled")
    until(lambda: statuses(session) == [("hang", "expired")], "the call has expired")
    assert sent(gemini, "toolResponse") == []


def test_a_connection_is_listed_while_it_is_open(
    living: Proxy, session: Session, gemini: Gemini, tmp_path: Path
) -> None:
    def listed(state: str) -> list[Json]:
        query = {"session": session.name, "state": state}
        found: list[Json] = living.control.ask("GET", "/v1/requests", params=query)["items"]
        return found

    with lives.python(living, session, tmp_path) as chat:
        chat.say("hello")
        (running,) = listed("running")
        assert (running["operation"], running["status"]) == ("BidiGenerateContent", None)
    (done,) = until(lambda: listed("done"), "the connection has ended")
    assert (done["request_id"], done["status"]) == (running["request_id"], 101)


def test_settings_for_live_reach_no_other_surface(living: Proxy, session: Session, gemini: Gemini) -> None:
    session.tools([{"name": "own", "behavior": "NON_BLOCKING", "scheduling": "SILENT"}])
    assert "own" in ask(living, session, "call own {}")
    assert gemini.errors == []
    (tool,) = gemini.last["body"]["tools"]
    assert {"own", "research"} <= {one["name"] for one in tool["functionDeclarations"]}
    assert "NON_BLOCKING" not in str(tool)


@pytest.mark.smoke
def test_vertex_speaks_live_as_well(living: Proxy, session: Session, gemini: Gemini, tmp_path: Path) -> None:
    with lives.python(living, session, tmp_path, vertex=True) as chat:
        assert "celsius" in chat.say('call weather {"city": "Oslo"}')
    assert "LlmBidiService" in gemini.last["path"]
    assert statuses(session) == [("weather", "done")]


def test_the_key_of_a_handshake_is_in_no_log(living: Proxy, session: Session, tmp_path: Path) -> None:
    with lives.python(living, session, tmp_path) as chat, lives.node(living, session, tmp_path) as other:
        chat.say("hello")
        other.say("hello")
    assert lives.KEY not in living.log


def test_a_proxy_that_is_started_anew_leaves_no_call_waiting(
    start: Callable[..., Proxy], strict: Gemini, tmp_path: Path
) -> None:
    proxy = start(strict.url)
    session = new_session(proxy)
    client = lives.python(proxy, session, tmp_path)
    client.send(say="What is the weather in Paris?")
    until(lambda: session.calls(status="pending"), "a call waits")
    os.kill(proxy.process.pid, signal.SIGKILL)
    proxy.stop()
    client.process.stop()
    proxy.start()
    restarted = proxy.control.session(session.name)
    until(lambda: statuses(restarted) == [("get_weather", "expired")], "the call has expired")
