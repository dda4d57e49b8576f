"""`graft_delivery=hold`: a request waits for results that are given by hand, and its client gets the model's answer."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.e2e.processes import until
from tests.e2e.proxies import MODEL_PATH, Proxy, Session, ask, new_session, responses, user, weather
from tests.e2e.upstreams import Gemini

Json = dict[str, Any]

OSLO = 'call get_weather {"city": "Oslo"}'
ANSWER = 'get_weather returned {"city": "Oslo", "celsius": 4}.'


@pytest.fixture
def holding(proxy: Proxy) -> Session:
    session = new_session(proxy)
    session.policy(delivery="hold")
    return session


@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.smoke)], ids=["JSON", "stream"])
def test_the_client_gets_the_answer_that_follows_from_the_result(
    proxy: Proxy, holding: Session, gemini: Gemini, stream: bool
) -> None:
    mark = proxy.process.mark()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, proxy, holding, OSLO, stream=stream)
        (call,) = holding.answer(get_weather=weather)
        assert asked.result(60) == ANSWER
    assert call["owner"] == "hand"
    assert gemini.errors == []
    assert responses(gemini.last) == [weather("Oslo")]
    assert [call["status"] for call in holding.calls()] == ["done"]
    assert [turn["delivery"] for turn in holding.turns()] == ["loop"]
    proxy.process.wait_for(f"toolgraft answer {call['call_id']}", after=mark)


@pytest.mark.smoke
def test_several_calls_and_rounds_of_one_request_are_answered_one_by_one(
    proxy: Proxy, holding: Session, gemini: Gemini
) -> None:
    text = f'{OSLO} and call get_time {{"zone": "UTC"}} then call get_weather {{"city": "Bern"}}'
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, proxy, holding, text)
        until(lambda: len(holding.calls(status="pending")) == 2, "both calls of the first step wait")
        for _ in range(2):
            holding.answer(get_weather=weather, get_time="noon")
        answer = asked.result(60)
    assert "Bern" in answer
    assert gemini.errors == []
    assert len(gemini.requests) == 3


def test_the_next_request_of_the_chat_tells_the_model_what_happened(
    proxy: Proxy, holding: Session, gemini: Gemini
) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, proxy, holding, OSLO)
        holding.answer(get_weather=weather)
        asked.result(60)
    contents = [user(OSLO), {"role": "model", "parts": [{"text": ANSWER}]}, user("say thanks")]
    url = f"{proxy.url}/@{holding.name}{MODEL_PATH}:generateContent"
    httpx2.post(url, json={"contents": contents}, headers={"x-goog-api-key": "a-secret-key"}, timeout=30)
    sent = gemini.last["body"]["contents"]
    assert sent[1]["parts"][0]["functionCall"]["name"] == "get_weather"
    assert sent[2]["parts"][0]["functionResponse"]["response"] == weather("Oslo")


def test_after_its_time_the_model_is_told_that_nobody_answered(proxy: Proxy, holding: Session, gemini: Gemini) -> None:
    holding.policy(answer_timeout=0.2)
    assert "nobody answered get_weather within 0.2 s" in ask(proxy, holding, OSLO)
    assert [call["status"] for call in holding.calls()] == ["failed"]


def test_a_call_that_needs_an_approval_waits_for_it_and_then_for_its_result(
    proxy: Proxy, holding: Session, gemini: Gemini
) -> None:
    holding.tools([{"name": "get_weather", "description": "The weather.", "approval": True}])
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, proxy, holding, "call get_weather {}")
        (call,) = holding.calls(status="pending", wait=30)
        assert call["approval"] == "waiting"
        proxy.control.ask("POST", f"/v1/calls/{call['call_id']}/approve", json={})
        holding.answer(get_weather="sunny")
        assert "sunny" in asked.result(60)


def test_a_call_expires_with_the_client_that_waited(proxy: Proxy, holding: Session, gemini: Gemini) -> None:
    url = f"{proxy.url}/@{holding.name}{MODEL_PATH}:generateContent"
    with httpx2.Client(timeout=httpx2.Timeout(30, read=1)) as client, pytest.raises(httpx2.ReadTimeout):
        client.post(url, json={"contents": [user(OSLO)]}, headers={"x-goog-api-key": "a-secret-key"})
    until(lambda: [call["status"] for call in holding.calls()] == ["expired"], "the call expires")


def test_a_silent_stream_is_kept_alive(start: Callable[..., Proxy], gemini: Gemini) -> None:
    proxy = start(gemini.url, delivery="hold", answer_timeout="60", keepalive="0.1")
    session = new_session(proxy)
    url = f"{proxy.url}/@{session.name}{MODEL_PATH}:streamGenerateContent?alt=sse"
    enough, lines = threading.Event(), []
    body, headers = {"contents": [user(OSLO)]}, {"x-goog-api-key": "a-secret-key"}

    def read() -> None:
        with httpx2.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if len(lines) > 3:
                    enough.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert enough.wait(60), "nothing came while the call waited"
    session.answer(get_weather=weather)
    thread.join(60)
    assert ANSWER.split()[-1] in "".join(lines)


@pytest.mark.parametrize("policy", [{}, {"on_pending": "block"}], ids=["pass", "block"])
def test_a_placeholder_with_a_status_is_recognised_whatever_the_status_is_now(
    start: Callable[..., Proxy], gemini: Gemini, policy: Json
) -> None:
    proxy = start(gemini.url, placeholder="Tool call {status}: {names} [{turn_id}]")
    session = new_session(proxy)
    session.policy(**policy)
    text = ask(proxy, session, OSLO)
    (call,) = session.calls()
    assert text == f"Tool call requested: get_weather [{call['turn_id']}]"
    url = f"{proxy.url}/@{session.name}{MODEL_PATH}:generateContent"
    headers = {"x-goog-api-key": "a-secret-key"}
    if policy:
        contents = [user(OSLO), {"role": "model", "parts": [{"text": text}]}, user("and?")]
        blocked = httpx2.post(url, json={"contents": contents}, headers=headers, timeout=30)
        assert text in blocked.text
    session.answer(get_weather=weather)
    contents = [user(OSLO), {"role": "model", "parts": [{"text": text}]}, user("say thanks")]
    httpx2.post(url, json={"contents": contents}, headers=headers, timeout=30)
    assert gemini.last["body"]["contents"][2]["parts"][0]["functionResponse"]["response"] == weather("Oslo")
