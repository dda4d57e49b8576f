"""Requests in the middle of a chat that cannot use functions, before the strict local Gemini: known calls and results
become text."""

from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.fake_gemini.server import StrictGemini
from addon.graft.exchange import Forward
from addon.surfaces.incoming import Incoming, Operation, Target
from addon.surfaces.registry import match
from tests.contents import model, user
from tests.loop.conftest import Proxy
from tests.plain_http import NO_TLS

OWN: Document = {"functionDeclarations": [{"name": "own", "description": "The client's."}]}
JSON: Document = {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT", "properties": {}}}


async def weather(place: str = "Oslo") -> Any:
    return {"place": place, "celsius": 3}


@pytest.fixture
async def tools(proxy: Proxy) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()


async def sent(proxy: Proxy, gemini: StrictGemini, body: Document, target: Target, path: str) -> str:
    """What goes upstream, once it was accepted."""
    return (await exchanged(proxy, gemini, body, target, path))[0]


async def exchanged(
    proxy: Proxy, gemini: StrictGemini, body: Document, target: Target, path: str
) -> tuple[str, Document]:
    config = await proxy.grafter.session_config("default")
    assert config is not None
    outcome = await proxy.grafter.request(Incoming(target, config.session, encode(body)), config)
    assert isinstance(outcome, Forward)
    assert outcome.exchange is None
    async with httpx2.AsyncClient(verify=NO_TLS, trust_env=False) as client:
        headers = {"content-type": "application/json", "x-goog-api-key": "k", "authorization": "Bearer k"}
        answer = await client.post(f"{gemini.url}{path}", content=outcome.body, headers=headers)
    assert answer.status_code == 200, answer.text
    return outcome.body.decode(), answer.json()


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("client_tools", ["strip", "keep"])
@pytest.mark.parametrize("name", ["gemini-2.5-flash", "gemini-3-flash-preview"])
async def test_structured_output_after_loops_and_placeholders(
    proxy: Proxy, gemini: StrictGemini, name: str, client_tools: str
) -> None:
    await proxy.policy(client_tools=client_tools, on_pending="block")
    history: list[Document] = []

    async def say(text: str) -> None:
        history.append(user(text))
        played = await proxy.ask(*history, name=name)
        history.append(model(*played.parts))

    await say('call weather {"place": "Oslo"} then call weather {"place": "Bergen"}')
    await proxy.policy(client_tools=client_tools, on_pending="block", delivery="placeholder")
    await say('say Let me see. call weather {"place": "Tromso"} and call weather {"place": "Narvik"}')
    path = f"/v1beta/models/{name}:generateContent"
    target = match("POST", "generativelanguage.googleapis.com", path)
    assert target is not None
    own: Document = {"tools": [OWN]} if client_tools == "keep" and name.startswith("gemini-3") else {}
    body: Document = {"contents": [*history, user("A title?")], "generationConfig": JSON, **own}
    pending = await sent(proxy, gemini, body, target, path)
    assert pending.count("[weather returned") == 2
    assert "Tool call completed: weather, weather [turn_" in pending
    for call in await proxy.calls():
        if not call.status.final:
            await proxy.store.answer(call.session, call.call_id, result=call.args)
    known = await sent(proxy, gemini, body, target, path)
    plain = known.replace('\\"', '"')
    for place in ("Oslo", "Bergen", "Tromso", "Narvik"):
        assert f'[Called weather with {{"place":"{place}"}}]' in plain
    assert known.count("[weather returned") == 4
    assert "functionCall" not in known
    assert "turn_" not in known
    assert gemini.refused == []


@pytest.mark.usefixtures("tools")
async def test_structured_output_of_chat_completions(proxy: Proxy, gemini: StrictGemini) -> None:
    path = "/v1beta/openai/chat/completions"
    target = match("POST", "generativelanguage.googleapis.com", path)
    assert target is not None
    played = await proxy.ask(asked := 'call weather {"place": "Oslo"}')
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": played.text}]
    messages.append({"role": "user", "content": "A title?"})
    body: Document = {"model": "gemini-3-flash-preview", "messages": messages}
    body["response_format"] = {"type": "json_object"}
    known = await sent(proxy, gemini, body, target, path)
    assert "[weather returned" in known
    assert "tool_calls" not in known
    assert gemini.refused == []


@pytest.mark.usefixtures("tools")
async def test_a_count_of_tokens_tells_it_as_the_request_itself_does(proxy: Proxy, gemini: StrictGemini) -> None:
    played = await proxy.ask(asked := 'call weather {"place": "Oslo"}')
    name = "gemini-2.5-flash"
    contents = [user(asked), model(*played.parts), user("A title?")]
    request: Document = {"model": f"models/{name}", "contents": contents, "generationConfig": JSON}
    path = f"/v1beta/models/{name}:countTokens"
    target = match("POST", "generativelanguage.googleapis.com", path)
    assert target is not None
    assert target.operation is Operation.COUNT
    known = decode((await sent(proxy, gemini, {"generateContentRequest": request}, target, path)).encode())
    assert "tools" not in known["generateContentRequest"]
    assert known["generateContentRequest"]["contents"][2]["parts"][0]["text"].startswith("[weather returned")


@pytest.mark.usefixtures("tools")
@pytest.mark.parametrize("client_tools", ["strip", "keep"])
@pytest.mark.parametrize(
    "path", ["/v1beta/models/gemini-2.5-flash:countTokens", "/v1beta/models/gemini-3-flash-preview:countTokens"]
)
async def test_a_count_of_contents_alone_counts_the_tools(
    proxy: Proxy, gemini: StrictGemini, path: str, client_tools: str
) -> None:
    """And the true turns of the chat, wherever it ends."""
    target = match("POST", "generativelanguage.googleapis.com", path)
    assert target is not None
    await proxy.policy(client_tools=client_tools)
    contents = [user(asked := 'call weather {"place": "Oslo"}')]
    before = (await exchanged(proxy, gemini, {"contents": contents}, target, path))[1]
    assert before.keys() == {"totalTokens", "promptTokensDetails"}
    assert before["totalTokens"] > 40
    played = await proxy.ask(asked, name=target.model)
    for more in ([model(*played.parts)], [user("And?")]):
        contents += more
        known, after = await exchanged(proxy, gemini, {"contents": contents}, target, path)
        assert '"functionResponse"' in known
        assert after["totalTokens"] > before["totalTokens"]
    assert gemini.refused == []
