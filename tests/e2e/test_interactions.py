"""google-genai's interactions client, unmodified: it sees answers under one id, the strict server every round."""

import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e import chats
from tests.e2e.interactions import BOTH, FORMS, KEY, MODEL, NOTE, Interactions, at
from tests.e2e.proxies import Proxy, Session, weather
from tests.e2e.upstreams import Gemini

KINDS = pytest.mark.parametrize("kind", ["sync", "stream", "async", "async-stream"])


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


@pytest.mark.parametrize("kind", ["sync", "async-stream"])
def test_a_long_answer_in_pieces_is_one_interaction(kind: str, looper: Proxy, bare: Session, gemini: Gemini) -> None:
    chat = Interactions(kind, f"{looper.url}/@{bare.name}", model="gemini-4-argon")
    answer = chat.say('say one two three call weather {"city": "Oslo"} in 4 pieces')
    assert answer.startswith("one two three")
    assert 'weather returned {"city": "Oslo", "celsius": 4}.' in answer
    assert chat.answer["status"] == "completed"
    assert "Oslo" in chat.say("repeat the results")
    assert gemini.errors == []
    assert any("continuation_token" in request["body"] for request in gemini.requests)


@pytest.mark.smoke
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


@pytest.mark.parametrize("kind", ["async", pytest.param("stream", marks=pytest.mark.smoke)])
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


@pytest.mark.parametrize(
    ("url", "stream"),
    [
        ("https://generativelanguage.googleapis.com/v1beta/interactions", True),
        ("https://us-central1-aiplatform.googleapis.com/v1beta1/projects/p/locations/us-central1/interactions", False),
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
