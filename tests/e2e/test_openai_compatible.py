"""Chat completions by the published `openai` client, unmodified: it sees answers, the strict server the true turns."""

import json
import ssl
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.e2e.completions import KEY, MODEL, NOTE, WEATHER, Chat, Json, accepted, by_reverse, summary_of
from tests.e2e.proxies import Proxy, Session, new_session
from tests.e2e.upstreams import Gemini


def by_connect(proxy: Proxy, session: Session) -> Json:
    trust = ssl.create_default_context(cafile=str(proxy.ca))
    return {
        "base_url": "https://generativelanguage.googleapis.com/v1beta/openai",
        "proxy": proxy.user(session.name),
        "trust": trust,
    }


KINDS = pytest.mark.parametrize("kind", ["sync", "async-stream"])
OTHERS = pytest.mark.parametrize("kind", ["stream", "async"])


@pytest.mark.parametrize(
    ("kind", "way"),
    [("sync", by_reverse), ("stream", by_connect), ("async", by_connect), ("async-stream", by_reverse)],
)
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


def test_a_restart_between_two_turns_changes_nothing(start: Callable[..., Proxy], gemini: Gemini) -> None:
    proxy = start(gemini.url)
    session = new_session(proxy)
    chat = Chat("stream", by_reverse(proxy, session))
    chat.say('call get_weather {"city": "Oslo"}')
    proxy.restart()
    session = proxy.control.session(session.name)
    session.answer(get_weather={"celsius": 3})
    proxy.restart()
    assert '"celsius": 3' in chat.say("repeat the results")
    assert summary_of(gemini)[1:3] == [("calls", ["get_weather"]), ("tool", '{"celsius":3}')]
    assert accepted(gemini)


@OTHERS
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


@pytest.mark.parametrize(
    "shape", ["", pytest.param(" [demo: each]", marks=pytest.mark.smoke)], ids=["in one event", "an event each"]
)
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


@OTHERS
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
