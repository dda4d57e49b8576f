"""google-genai's interactions client: long waits, restarts and errors."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.interactions import BOTH, KEY, MODEL, Interactions, at, client_of
from tests.e2e.proxies import Proxy, Session, looping_proxy, new_session, weather
from tests.e2e.upstreams import END, Canned, Gemini, answer, chunked


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
    from google.genai._gaos.lib.compat_errors import APIStatusError

    chat = at(proxy, session, "sync")
    with pytest.raises(APIStatusError, match="not found") as unknown:
        chat.say("hi", previous_interaction_id="v1_nobody")
    assert unknown.value.status_code == 404
    with pytest.raises(APIStatusError, match="Unknown parameter") as bad:
        chat.say("hi", generation_config={"tool_choice": "auto"}, extra_body={"nothing": 1})
    assert bad.value.status_code == 400


CALL = {"id": "c1", "type": "function_call", "name": "hour", "arguments": {}}

STEP = {"id": "v1_a", "status": "requires_action", "steps": [CALL], "object": "interaction", "model": MODEL}

REFUSAL = b'{"error":{"message":"Too much.","code":"invalid_request"}}'


def frame(kind: str, **members: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({**members, 'event_type': kind})}\n\n".encode()


def test_an_error_in_a_later_round_is_the_clients(looper: Proxy, bare: Session, canned: Canned) -> None:
    from google.genai._gaos.lib.compat_errors import APIStatusError

    canned.first = [[answer(json.dumps(STEP).encode(), kind="application/json")]]
    canned.says = [answer(REFUSAL, "400 Bad Request", "application/json")]
    chat = Interactions("sync", f"{looper.urls[1]}/@{bare.name}")
    with pytest.raises(APIStatusError, match="Too much") as refused:
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
