"""google-genai's interactions client: its own calls beside grafted ones, and histories that it keeps."""

import pytest

from tests.e2e.interactions import BOTH, FORMS, NOTE, Json, at
from tests.e2e.proxies import Proxy, Session, weather
from tests.e2e.upstreams import Gemini


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
