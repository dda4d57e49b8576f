"""Answers that the service sends in pieces: a loop requests the rest itself, and a client's own continuation works."""

import asyncio
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, decode
from addon.fake_gemini.server import StrictGemini
from addon.loop.runner import Runner
from addon.loop.upstream import Address, Upstream
from addon.surfaces.incoming import Framing, Operation, Target
from store.models import Status
from tests.contents import user
from tests.loop.conftest import Proxy, Scripted, call, says

FRAMINGS = list(Framing)


async def weather(place: str = "nowhere") -> Document:
    return {"place": place}


def piece(*parts: str | Document, token: str, finish: str | None = "CONTINUATION", **fields: Any) -> Document:
    made = says(*parts, finish=finish, responseId="r", **fields)
    made["candidates"][0]["continuationToken"] = token
    return made


def used(prompt: int, output: int) -> Document:
    return {"promptTokenCount": prompt, "candidatesTokenCount": output, "totalTokenCount": prompt + output}


@pytest.fixture(autouse=True)
async def opened(proxy: Proxy) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_an_answer_in_pieces_is_one_answer(proxy: Proxy, framing: Framing) -> None:
    upstream = proxy.upstream(
        Scripted(
            [piece("a ", token="AA==", usageMetadata=used(5, 1))],
            [piece("b ", token="AB==", usageMetadata=used(6, 2))],
            [says("c", finish="STOP", responseId="other", usageMetadata=used(8, 3))],
        )
    )
    played = await proxy.ask("write", framing=framing, generationConfig={"maxOutputTokens": 100_000})
    played.check()
    assert (played.text, played.finishes) == ("a b c", ["STOP"])
    assert "continuationToken" not in played.body.decode()
    assert played.documents[-1]["usageMetadata"] == used(8, 6) | {"totalTokenCount": 14}
    first, second, third = upstream.bodies
    assert "continuationToken" not in first
    assert second == {**first, "continuationToken": "AA=="}
    assert third == {**first, "continuationToken": "AB=="}


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_a_step_may_come_in_pieces_and_its_calls_run_once(proxy: Proxy, framing: Framing) -> None:
    upstream = proxy.upstream(
        Scripted(
            [piece("Let me look. ", call("weather", "1", place="A"), token="AA==")],
            [says(call("weather", "2", place="B"), finish="STOP")],
            [piece("It is ", token="AC==")],
            [says("fine.", finish="STOP")],
        )
    )
    played = await proxy.ask("weather?", framing=framing)
    played.check()
    assert played.text == "Let me look. It is fine."
    assert proxy.tools.begun == ["weather", "weather"]
    assert [one.status for one in await proxy.calls()] == [Status.DONE] * 2
    asked, rest, with_results, end = upstream.bodies
    assert rest == {**asked, "continuationToken": "AA=="}
    assert "continuationToken" not in with_results
    model_turn, answered = with_results["contents"][1:]
    assert [part.get("functionCall", {}).get("id") for part in model_turn["parts"]] == [None, "1", "2"]
    assert [part["functionResponse"]["id"] for part in answered["parts"]] == ["1", "2"]
    assert end == {**with_results, "continuationToken": "AC=="}
    (turn,) = await proxy.turns()
    assert turn.delivered
    assert len(turn.steps) == 2
    assert "".join(part.get("text", "") for part in turn.visible) == "Let me look. It is fine."


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_the_rest_is_asked_for_again_where_the_service_fails(proxy: Proxy, framing: Framing) -> None:
    failure = httpx2.Response(503, json={"error": {"code": 503, "status": "UNAVAILABLE", "message": "m"}})
    upstream = proxy.upstream(
        Scripted(
            [piece("a ", call("weather", "1"), token="AA==")],
            failure,
            [says("b", finish="STOP")],
            [says("c", finish="STOP")],
        )
    )
    played = await proxy.ask("x", framing=framing)
    played.check()
    assert played.text == "a bc"
    assert upstream.bodies[1] == upstream.bodies[2]
    assert proxy.tools.begun == ["weather"]


async def test_pieces_count_as_no_round(proxy: Proxy) -> None:
    await proxy.policy(max_rounds=2)
    pieces = [[piece(f"{n} ", token=f"AA{n}=")] for n in range(5)]
    upstream = proxy.upstream(
        Scripted([says(call("weather", "1"), finish="STOP")], *pieces, [says("e", finish="STOP")])
    )
    played = await proxy.ask("x")
    assert played.text == "0 1 2 3 4 e"
    modes = [body.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode") for body in upstream.bodies]
    assert modes == [None, *["NONE"] * 6]  # the same request for each piece


@pytest.mark.parametrize("tokens", [["AA=="] * 3, [f"A{n:03}" for n in range(100)]], ids=["the same", "without end"])
async def test_a_service_that_never_comes_to_an_end_is_not_asked_for_ever(proxy: Proxy, tokens: list[str]) -> None:
    upstream = proxy.upstream(Scripted(*[[piece("a", token=token)] for token in tokens]))
    played = await proxy.ask("x")
    assert played.finishes == ["CONTINUATION"]
    assert played.documents[0]["candidates"][0]["continuationToken"]
    assert len(upstream.bodies) == (2 if len(tokens) == 3 else 65)


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_an_answer_that_has_used_its_budget_ends_and_goes_on_where_the_client_raises_it(
    proxy: Proxy, framing: Framing
) -> None:
    """Also behind tools: the token is of a request that the client never saw."""
    upstream = proxy.upstream(
        Scripted(
            [says(call("weather", "1", place="A"), finish="STOP")],
            [piece("It is ", token="+/A=", finish="MAX_TOKENS")],
            [says(call("weather", "2", place="B"), finish="STOP")],
            [says("fine.", finish="STOP")],
        )
    )
    played = await proxy.ask("weather?", framing=framing)
    assert (played.text, played.finishes) == ("It is ", ["MAX_TOKENS"])
    assert played.documents[-1]["candidates"][0]["continuationToken"] == "+/A="
    retry = await proxy.ask("weather?", framing=framing, continuationToken="-_A=")  # as google-genai writes it
    retry.check()
    assert retry.text == "fine."
    assert proxy.tools.begun == ["weather", "weather"]
    _, with_results, rest, end = upstream.bodies
    assert rest == {**with_results, "continuationToken": "-_A="}
    assert "continuationToken" not in end
    assert end["contents"][: len(with_results["contents"])] == with_results["contents"]
    assert end["contents"][3]["parts"][0] == {"text": "It is "}
    (turn,) = await proxy.turns()
    assert len(turn.steps) == 3
    (text,) = ["".join(part.get("text", "") for part in turn.visible)]
    assert text == "It is fine."
    visible = {"role": "model", "parts": [{"text": "It is fine."}]}
    proxy.upstream(later := Scripted([says("x", finish="STOP")]))
    await proxy.ask("weather?", visible, user("and now?"))
    assert len(later.bodies[0]["contents"]) == 1 + 5 + 1


async def test_a_token_that_nobody_knows_goes_up_with_the_first_request_alone(proxy: Proxy) -> None:
    upstream = proxy.upstream(Scripted([says(call("weather", "1"), finish="STOP")], [says("a", finish="STOP")]))
    await proxy.ask("x", continuationToken="AA==")
    assert [body.get("continuationToken") for body in upstream.bodies] == ["AA==", None]


async def test_a_checkpoint_in_a_stream_is_the_loops_own(proxy: Proxy) -> None:
    """A client that came back with it would have calls run twice: one that sends its request again finds their
    results."""
    proxy.upstream(Scripted([piece("a ", token="AA==", finish=None), piece("b", token="AB==", finish="STOP")]))
    played = await proxy.ask("x", framing=Framing.SSE)
    assert (played.text, played.finishes) == ("a b", ["STOP"])
    assert "AA==" not in played.body.decode()


# --- a further candidate that nobody asked for ------------------------------------------------------------------


def second(*parts: str | Document, finish: str | None = "STOP") -> Document:
    made = says(*parts, finish=finish, responseId="r")
    made["candidates"][0]["index"] = 1
    return made


CALLED = call("weather", "1", place="A")
FURTHER = second(call("weather", "2", place="B"))
DONE = says("done", finish="STOP")
CANDIDATES: dict[str, tuple[list[Document], int, list[str]]] = {
    "behind a step": ([says(CALLED, finish="STOP"), FURTHER], 2, ["done", "pending"]),
    "behind a token and a step": (
        [piece(CALLED, token="AA==", finish=None), says(finish="STOP"), FURTHER],
        2,
        ["done", "pending"],
    ),
    "a text behind a step": ([says(CALLED, finish="STOP"), second("text")], 2, ["done"]),
    "behind a piece of a step": ([piece(CALLED, token="AA=="), FURTHER], 2, ["done", "pending"]),
    "behind a piece of a text": ([piece("a ", token="AA=="), FURTHER], 2, ["pending"]),
    "a text behind a piece": ([piece("a ", token="AA=="), second("text")], 2, []),
    "before the end of a step": ([says(CALLED), FURTHER, says(finish="STOP")], 1, ["done", "pending"]),
}


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
@pytest.mark.parametrize(("first", "requests", "statuses"), CANDIDATES.values(), ids=CANDIDATES)
async def test_a_candidate_that_nobody_asked_for_is_the_client_s_and_stops_no_answer(
    proxy: Proxy, first: list[Document], requests: int, statuses: list[str], framing: Framing
) -> None:
    upstream = proxy.upstream(Scripted(first, [DONE]))
    played = await proxy.ask("x", framing=framing)
    assert len(upstream.bodies) == requests
    assert sorted(played.finishes) == ["STOP", "STOP"], "each candidate has one end"
    assert not any("functionCall" in part for part in played.parts)
    if requests == 2:
        assert "done" in played.text
    await all_ended(proxy, len(statuses) - 1 if "pending" in statuses else len(statuses))
    assert sorted(str(one.status) for one in await proxy.calls()) == statuses
    assert all(turn.delivered for turn in await proxy.turns())


async def all_ended(proxy: Proxy, count: int) -> None:
    """Wait until so many calls have a result: one whose step was delivered runs on."""
    async with asyncio.timeout(5):
        while len((await proxy.store.calls(status=Status.DONE)).items) < count:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)


# --- Interactions ---------------------------------------------------------------------------------------------

INTERACTIONS = Target("interactions", Operation.GENERATE, Framing.JSON, "", (), ())


async def interact(proxy: Proxy, body: Document) -> bytes:
    """The body of the answer to a request of the Interactions API, which is no error."""
    forward = await proxy.forwarded({"model": "gemini-4-argon", "input": "hi", **body}, INTERACTIONS)
    assert forward.exchange is not None
    headers = [(b"content-type", b"application/json"), (b"x-goog-api-key", b"k")]
    address = Address("POST", f"{proxy.url}/v1beta/interactions", headers)
    upstream = Upstream(lambda _: proxy.transport, proxy.watcher)
    runner = Runner(proxy.grafter, proxy.executors, upstream, forward.exchange, address, forward.body)
    head, *chunks = [out async for out in runner.output()]
    assert not isinstance(head, bytes)
    assert head.status == 200
    await runner.settle_handover()
    return b"".join(one for one in chunks if isinstance(one, bytes))


def interaction(name: str, *steps: Document | str, status: str = "completed", **fields: Any) -> Document:
    written = [
        {"type": "model_output", "content": [{"type": "text", "text": one}]} if isinstance(one, str) else one
        for one in steps
    ]
    return {"id": name, "object": "interaction", "status": status, "steps": written, **fields}


def function_call(call_id: str) -> Document:
    return {"type": "function_call", "id": call_id, "name": "weather", "arguments": {"place": call_id}}


def unfinished(name: str, *steps: Document | str, token: str) -> Document:
    return interaction(name, *steps, status="requires_continuation", continuation_token=token)


def events_of(document: Document, *checkpoints: Document) -> bytes:
    """An interaction as a stream."""
    head = {key: value for key, value in document.items() if key not in ("steps", "continuation_token")}
    events: list[Document] = [
        {"event_type": "interaction.created", "interaction": {**head, "status": "in_progress"}},
        *checkpoints,
    ]
    for number, step in enumerate(document["steps"]):
        events += [
            {"event_type": "step.start", "index": number, "step": step},
            {"event_type": "step.stop", "index": number},
        ]
    update = {"interaction_id": document["id"], "status": document["status"]}
    events.append({"event_type": "interaction.status_update", **update})
    events.append({"event_type": "interaction.completed", "interaction": {**document, "steps": []}})
    lines = [f"event: {one['event_type']}\ndata: ".encode() + httpx2.Response(200, json=one).content for one in events]
    return b"".join(line + b"\n\n" for line in [*lines, b"event: done\ndata: [DONE]"])


ROUNDS = [
    unfinished("v1_a", "Let me look. ", function_call("1"), token="AA=="),
    interaction("v1_b", function_call("2"), status="requires_action"),
    unfinished("v1_c", "It is ", token="AC=="),
    interaction("v1_d", "fine."),
]


@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_an_interaction_in_pieces_is_one_interaction(proxy: Proxy, streamed: bool, stored: bool) -> None:
    def response(document: Document) -> httpx2.Response:
        if not streamed:
            return httpx2.Response(200, json=document)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=events_of(document))

    upstream = proxy.upstream(Scripted(*map(response, ROUNDS)))
    given: Document = ({"stream": True} if streamed else {}) | ({} if stored else {"store": False})
    body = await interact(proxy, given)
    assert b"requires_continuation" not in body
    assert b"continuation_token" not in body
    assert b"function_call" not in body
    if streamed:
        assert body.count(b"interaction.created") == body.count(b"interaction.completed") * 1 == 2  # event: and data:
        assert body.count(b"[DONE]") == 1
    else:
        last = decode(body)
        assert last["status"] == "completed"
        texts = [content["text"] for step in last["steps"] for content in step["content"]]
        assert texts == ["Let me look. ", "It is ", "fine."]
    assert proxy.tools.begun == ["weather"] * 2
    asked, rest, with_results, end = upstream.bodies
    if stored:
        shared = {key: value for key, value in asked.items() if key != "input"}
        assert rest == {**shared, "previous_interaction_id": "v1_a", "continuation_token": "AA=="}
        assert with_results["previous_interaction_id"] == "v1_b"
        assert [step["call_id"] for step in with_results["input"]] == ["1", "2"]
        assert "continuation_token" not in with_results
        assert end == {**shared, "previous_interaction_id": "v1_c", "continuation_token": "AC=="}
    else:
        assert rest == {**asked, "continuation_token": "AA=="}
        kinds = [step["type"] for step in with_results["input"]]
        assert kinds == ["user_input", "model_output", *["function_call"] * 2, *["function_result"] * 2]
        assert end == {**with_results, "continuation_token": "AC=="}


@pytest.mark.parametrize("status", ["budget_exceeded", "queued", "incomplete", "failed", "something_new"])
@pytest.mark.parametrize("streamed", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("before", [0, 1], ids=["at first", "behind a tool"])
async def test_a_status_is_the_clients_as_it_came(proxy: Proxy, status: str, streamed: bool, before: int) -> None:
    rounds = [interaction("v1_a", function_call("1"), status="requires_action")] * before
    rounds.append(interaction("v1_b", "So far.", status=status))

    def response(document: Document) -> httpx2.Response:
        if not streamed:
            return httpx2.Response(200, json=document)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=events_of(document))

    proxy.upstream(Scripted(*map(response, rounds)))
    body = await interact(proxy, {"stream": True} if streamed else {})
    assert b"So far." in body
    if streamed:
        last = next(
            line for line in body.split(b"\n") if line.startswith(b"data: ") and b"interaction.completed" in line
        )
        assert decode(last.removeprefix(b"data: "))["interaction"]["status"] == status
    else:
        assert decode(body)["status"] == status


@pytest.mark.parametrize("client_tools", ["keep", "strip"])
async def test_an_mcp_server_of_the_clients_stays_where_its_tools_are_kept(proxy: Proxy, client_tools: str) -> None:
    server = {
        "type": "mcp_server",
        "name": "docs",
        "url": "https://mcp.example/mcp",
        "allowed_tools": [{"tools": ["a"]}],
    }
    used = [
        {"type": "mcp_server_tool_call", "id": "s1", "name": "a", "server_name": "docs", "arguments": {}},
        {"type": "mcp_server_tool_result", "call_id": "s1", "name": "a", "server_name": "docs", "result": {}},
    ]
    await proxy.policy(client_tools=client_tools)
    rounds = [interaction("v1_a", *used, function_call("1"), status="requires_action"), interaction("v1_b", "Done.")]
    upstream = proxy.upstream(Scripted(*[httpx2.Response(200, json=one) for one in rounds]))
    request = decode(await interact(proxy, {"tools": [server]}))
    for body in upstream.bodies:
        assert (server in body["tools"]) is (client_tools == "keep")
        assert any(tool.get("name") == "weather" for tool in body["tools"])
    if client_tools == "keep":
        assert request["steps"][:2] == used


# --- the strict server, which takes a token for the very same request alone --------------------------------------


@pytest.mark.parametrize("framing", FRAMINGS)
async def test_the_strict_server_takes_what_a_loop_asks_for(
    proxy: Proxy, gemini: StrictGemini, framing: Framing
) -> None:
    words = 'say one two three call weather {"place": "A"} and call weather {"place": "B"} in 4 pieces'
    played = await proxy.ask(words, framing=framing, name="gemini-4-argon")
    played.check()
    assert gemini.refused == []
    assert gemini.dummy_signatures == 0
    assert played.text.startswith("one two three")
    assert 'weather returned {"place": "A"}.' in played.text
    assert 'weather returned {"place": "B"}.' in played.text
    assert proxy.tools.begun == ["weather"] * 2
    assert len(gemini.requests) > 4


async def test_the_strict_server_takes_what_a_client_asks_for_behind_tools(proxy: Proxy, gemini: StrictGemini) -> None:
    words = 'call weather {"place": "A"} in 2 pieces to the limit'
    body: Document = {"generationConfig": {"maxOutputTokens": 10}}
    text = ""
    for _ in range(2):
        played = await proxy.ask(words, name="gemini-4-argon", **body)
        text += played.text
        token = played.documents[0]["candidates"][0].get("continuationToken")
        body = {"generationConfig": {"maxOutputTokens": 20}, "continuationToken": token}
    assert gemini.refused == []
    assert played.finishes == ["STOP"]
    assert text == 'weather returned {"place": "A"}.'
    assert proxy.tools.begun == ["weather"]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_the_strict_server_takes_what_an_interaction_goes_on_with(
    proxy: Proxy, gemini: StrictGemini, stored: bool
) -> None:
    words = 'say one two call weather {"place": "A"} in 3 pieces'
    body = await interact(proxy, {"input": words, **({} if stored else {"store": False})})
    assert gemini.refused == []
    assert b"requires_continuation" not in body
    assert 'weather returned {"place": "A"}.' in "".join(
        content["text"] for step in decode(body)["steps"] for content in step.get("content", [])
    )
    assert proxy.tools.begun == ["weather"]
