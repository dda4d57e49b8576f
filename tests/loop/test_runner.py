"""Whole loops against the strict Gemini: the requests upstream and the client's answer, in every framing."""

import asyncio
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, encode
from addon.fake_gemini.server import StrictGemini
from addon.loop.runner import Head
from addon.surfaces.incoming import Framing
from store.models import Executor, Status, ToolRules
from tests.contents import user
from tests.loop.conftest import Proxy, Scripted, call, says, streamed


async def weather(place: str = "nowhere") -> Document:
    return {"place": place, "celsius": 21}


FORMS = [
    pytest.param(Framing.JSON, "developer", id="json"),
    pytest.param(Framing.SSE, "developer", id="sse"),
    pytest.param(Framing.ARRAY, "developer", id="array"),
    pytest.param(Framing.JSON, "codeassist", id="codeassist-json"),
    pytest.param(Framing.SSE, "codeassist", id="codeassist-sse"),
]
QUESTIONS = [
    pytest.param('call weather {"place": "Oslo"}', 2, ["Oslo"], id="one call"),
    pytest.param(
        'call weather {"place": "A"} and call weather {"place": "B"} and call weather {"place": "C"}',
        2,
        ["A", "B", "C"],
        id="three parallel calls",
    ),
    pytest.param(
        " then ".join(f'call weather {{"place": "p{n}"}}' for n in range(5)),
        6,
        [f"p{n}" for n in range(5)],
        id="five steps in a row",
    ),
    pytest.param(
        'call weather {"place": "A"} and call weather {"place": "B"} [demo: each, trailing=1, bare_finish, usage]',
        2,
        ["A", "B"],
        id="calls in chunks of their own",
    ),
    pytest.param('say I will look it up call weather {"place": "Oslo"}', 2, ["Oslo"], id="text before calls"),
    pytest.param("call weather {}", 2, ["nowhere"], id="a call without arguments"),
    pytest.param('call weather {"place": "A"} [demo: no_finish]', 2, ["A"], id="no finishReason at all"),
    pytest.param('call weather {"place": "A"} [demo: bytes=5, usage]', 2, ["A"], id="cut anywhere"),
    pytest.param("what is 1 + 1 [demo: pieces=5]", 1, [], id="no call"),
]


PAIRS = [
    pytest.param(*question.values, *form.values, id=f"{question.id}, {form.id}")
    for number, question in enumerate(QUESTIONS)
    for other, form in enumerate(FORMS)
    if number == 0 or (number + other) % 2
]
"""The first question in every form, each other one in every second."""


@pytest.mark.parametrize(("question", "rounds", "places", "framing", "surface"), PAIRS)
async def test_a_client_gets_one_ordinary_answer_and_the_next_request_carries_the_true_turns_with_their_signatures(
    proxy: Proxy,
    gemini: StrictGemini,
    question: str,
    rounds: int,
    places: list[str],
    framing: Framing,
    surface: str,
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    first = await proxy.ask(question, framing=framing, surface=surface)
    assert len(gemini.requests) == rounds
    if "no_finish" in question and framing is not Framing.JSON:
        assert first.finishes == []
    elif rounds > 1:
        first.check()
    for place in places:
        assert f'"{place}"' in first.text
    assert [one.args.get("place", "nowhere") for one in await proxy.calls()] == places
    assert all(one.status is Status.DONE for one in await proxy.calls())
    assert all(exchange.error is None for exchange in proxy.watcher.exchanges)

    chat = [user(question), {"role": "model", "parts": first.parts}, user("repeat the results")]
    second = await proxy.ask(*chat, framing=framing, surface=surface)
    assert gemini.refused == []
    assert gemini.dummy_signatures == 0
    for place in places:
        assert f'"{place}"' in second.text
    body = gemini.requests[-1]["body"]
    contents = body["request"]["contents"] if surface == "codeassist" else body["contents"]
    steps = [c for c in contents if any("functionCall" in part for part in c["parts"])]
    assert len(steps) == rounds - 1
    assert all("thoughtSignature" in step["parts"][-len(places) if rounds == 2 else -1] for step in steps)


@pytest.mark.parametrize(("framing", "surface"), FORMS)
async def test_a_client_sees_the_last_prompt_and_all_output_and_the_usage_of_each_round_is_kept(
    proxy: Proxy, gemini: StrictGemini, framing: Framing, surface: str
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    played = await proxy.ask("call weather {} then call weather {} [demo: usage]", framing=framing, surface=surface)
    (turn,) = await proxy.turns()
    assert len(turn.usage) == 3
    prompt, output = turn.usage[-1]["promptTokenCount"], sum(one["candidatesTokenCount"] for one in turn.usage)
    received = [document["usageMetadata"] for document in played.documents if "usageMetadata" in document][-1]
    assert (received["promptTokenCount"], received["candidatesTokenCount"]) == (prompt, output)
    assert received["totalTokenCount"] == prompt + output
    assert turn.delivered
    assert turn.delivery == "loop"


@pytest.mark.parametrize(("framing", "surface"), FORMS)
async def test_calls_that_others_answer_become_a_placeholder_and_nothing_runs(
    proxy: Proxy, gemini: StrictGemini, framing: Framing, surface: str
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    await proxy.policy(delivery="placeholder")
    played = await proxy.ask('call weather {"place": "Oslo"}', framing=framing, surface=surface)
    played.check()
    assert "Tool call completed: weather" in played.text
    assert [call.status for call in await proxy.calls()] == [Status.PENDING]
    assert len(gemini.requests) == 1


@pytest.mark.parametrize(("framing", "surface"), FORMS)
async def test_a_client_that_answers_the_calls_itself_is_given_them(
    proxy: Proxy, gemini: StrictGemini, framing: Framing, surface: str
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    await proxy.policy(delivery="passthrough")
    played = await proxy.ask('call weather {"place": "Oslo"}', framing=framing, surface=surface)
    (call,) = [part["functionCall"] for part in played.parts if "functionCall" in part]
    assert (call["name"], call["args"]) == ("weather", {"place": "Oslo"})
    answer = {"functionResponse": {"id": call["id"], "name": "weather", "response": {"celsius": 3}}}
    spoken = {"role": "model", "parts": [part for part in played.parts if "functionCall" in part]}
    chat = [user('call weather {"place": "Oslo"}'), spoken, {"role": "user", "parts": [answer]}]
    second = await proxy.ask(*chat, framing=framing, surface=surface)
    assert '"celsius": 3' in second.text
    (kept,) = await proxy.calls()
    assert (kept.status, kept.result) == (Status.DONE, {"celsius": 3})
    assert gemini.refused == []


async def test_the_calls_of_a_step_run_at_once(proxy: Proxy, gemini: StrictGemini) -> None:
    together = asyncio.Barrier(3)

    async def meet() -> str:
        await together.wait()  # comes back only when three are here
        return "met"

    proxy.tools.add("meet", meet)
    await proxy.open()
    played = await proxy.ask("call meet {} and call meet {} and call meet {}", framing=Framing.SSE)
    assert played.text.count("met") == 3


async def test_no_more_calls_run_at_once_than_the_limit_allows(proxy: Proxy, gemini: StrictGemini) -> None:
    at_once: list[int] = []
    now = 0

    async def count() -> int:
        nonlocal now
        now += 1
        at_once.append(now)
        for _ in range(20):
            await asyncio.sleep(0)
        now -= 1
        return now

    proxy.tools.add("count", count)
    await proxy.open()
    await proxy.policy(parallel=2)
    await proxy.ask(" and ".join(["call count {}"] * 6))
    assert max(at_once) == 2
    assert len(at_once) == 6


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_model_that_calls_for_ever_is_stopped_with_an_answer(
    proxy: Proxy, gemini: StrictGemini, framing: Framing
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    await proxy.policy(max_rounds=4)
    played = await proxy.ask("call weather {} forever", framing=framing)
    played.check()
    assert "weather returned" in played.text
    modes = [r["body"].get("toolConfig", {}).get("functionCallingConfig", {}).get("mode") for r in gemini.requests]
    assert modes == [None, None, None, "NONE"]


@pytest.mark.parametrize(
    "config",
    [
        {"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}}},
        {"tool_config": {"function_calling_config": {"mode": "any", "allowed_function_names": ["weather"]}}},
    ],
    ids=["camelCase", "snake_case"],
)
async def test_a_mode_that_forces_calls_is_relaxed_after_the_first_step(
    proxy: Proxy, gemini: StrictGemini, config: Document
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    await proxy.policy(client_tools="keep")
    own = [{"functionDeclarations": [{"name": "own", "description": "d"}]}]
    played = await proxy.ask("Hello", tools=own, **config)
    assert "weather returned" in played.text
    assert gemini.refused == []
    second = gemini.requests[1]["body"]
    calling: Any = second.get("toolConfig", second.get("tool_config"))
    assert calling == {"functionCallingConfig": {"mode": "AUTO"}}


async def test_a_tool_that_was_renamed_for_a_clash_keeps_its_name_in_the_loop(
    proxy: Proxy, gemini: StrictGemini
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    await proxy.policy(client_tools="keep")
    own = [{"functionDeclarations": [{"name": "weather", "description": "the client's own"}]}]
    target, _ = proxy.target(Framing.JSON, "developer", "gemini-3-flash-preview")
    forward = await proxy.forwarded({"contents": [user("x")], "tools": own}, target)
    assert forward.exchange is not None
    used = forward.exchange.plan.names["weather"]
    assert used != "weather"
    question = f'call {used} {{"place": "Oslo"}}'
    played = await proxy.ask(question, tools=own)
    assert "Oslo" in played.text
    assert [one.name for one in await proxy.calls()] == ["weather"]
    chat = [user(question), {"role": "model", "parts": played.parts}, user("repeat the results")]
    assert "Oslo" in (await proxy.ask(*chat, tools=own)).text
    assert gemini.refused == []
    assert gemini.dummy_signatures == 0


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("count", [2, 2.0, "2"])
async def test_several_candidates_get_no_loop_but_a_turn_each(
    proxy: Proxy, gemini: StrictGemini, framing: Framing, count: Any
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    played = await proxy.ask("call weather {}", framing=framing, generationConfig={"candidateCount": count})
    assert len(gemini.requests) == 1
    assert played.text.count("Tool call completed") == 2
    turns = await proxy.turns()
    assert len({turn.turn_id for turn in turns}) == 2
    assert all(turn.turn_id in played.text for turn in turns)
    assert proxy.tools.begun == [], "the client may go on with any of them"
    assert [one.status for one in await proxy.calls()] == [Status.PENDING] * 2


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("number", [1, 2])
async def test_several_candidates_that_nobody_asked_for_end_the_loop(
    proxy: Proxy, framing: Framing, number: int
) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    (first,), (second,) = says(call("weather"), finish="STOP")["candidates"], says(call("weather"))["candidates"]
    both = {"candidates": [first, {**second, "index": 1, "finishReason": "STOP"}]}
    proxy.upstream(Scripted(*[[says(call("weather"), finish="STOP")]] * (number - 1), [both]))
    played = await proxy.ask("x", framing=framing)
    assert played.text.count("Tool call completed") == 2
    assert proxy.tools.begun == ["weather"] * (number - 1)
    assert [one.status for one in await proxy.calls()] == [Status.DONE] * (number - 1) + [Status.PENDING] * 2


@pytest.mark.parametrize("framing", list(Framing))
async def test_some_of_too_many_calls_run_and_the_model_is_told_of_the_others(framing: Framing) -> None:
    proxy = Proxy(max_calls=3)
    proxy.tools.add("weather", weather)
    await proxy.open()
    calls = [says(call("weather", f"i{n}")) for n in range(20)]
    together = says(*[call("weather", f"i{n}") for n in range(20)], finish="STOP")
    step = [together] if framing is Framing.JSON else [*calls, says(finish="STOP")]
    upstream = proxy.upstream(Scripted(step, [says("done", finish="STOP")]))
    played = await proxy.ask("x", framing=framing)
    assert played.text == "done"
    assert proxy.tools.ended == ["weather"] * 3
    model, answers = upstream.bodies[1]["contents"][1:]
    assert [part["functionCall"]["id"] for part in model["parts"]] == ["i0", "i1", "i2", "i3"]
    responses = [part["functionResponse"]["response"] for part in answers["parts"]]
    assert "more than 3 calls in one step" in responses[3]["error"]
    assert not any("error" in one for one in responses[:3])
    assert [one.status for one in await proxy.calls()] == [Status.DONE] * 3 + [Status.FAILED]
    await proxy.close()


@pytest.mark.parametrize("framing", list(Framing))
async def test_arguments_beyond_the_limit_are_an_error_for_the_model(framing: Framing) -> None:
    proxy = Proxy(max_args=1024)
    proxy.tools.add("weather", weather)
    await proxy.open()
    step = says(call("weather", "i1", place="x" * 2000), call("weather", "i2", place="Oslo"), finish="STOP")
    upstream = proxy.upstream(Scripted([step], [says("done", finish="STOP")]))
    assert (await proxy.ask("x", framing=framing)).text == "done"
    first, second = upstream.bodies[1]["contents"][2]["parts"]
    assert "more than 1024 bytes of arguments" in first["functionResponse"]["response"]["error"]
    assert second["functionResponse"]["response"]["place"] == "Oslo"
    assert len(str(upstream.bodies[1])) < 2000
    assert proxy.tools.ended == ["weather"]
    await proxy.close()


@pytest.mark.parametrize("framing", list(Framing))
async def test_loops_and_what_became_of_their_calls_are_counted(proxy: Proxy, framing: Framing) -> None:
    async def fails() -> None:
        raise ValueError("no")

    proxy.tools.add("weather", weather)
    proxy.tools.add("fails", fails)
    await proxy.open()
    used = {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12}
    step = says(call("weather"), call("fails"), call("nonsense"), finish="STOP", usageMetadata=used)
    proxy.upstream(Scripted([step], [says("done", finish="STOP", usageMetadata=used)]))
    await proxy.ask("x", framing=framing)
    proxy.upstream(Scripted([says("hello", finish="STOP")]))
    await proxy.ask("x", framing=framing)
    proxy.upstream(Scripted(httpx2.Response(429, content=b"{}")))
    await proxy.ask("x", framing=framing)
    proxy.upstream(Scripted(httpx2.ConnectError("refused")))
    with pytest.raises(httpx2.ConnectError):
        await proxy.ask("x", framing=framing)
    page = proxy.metrics.render().decode()
    for line in (
        'toolgraft_loops_total{outcome="answered"} 2.0',
        'toolgraft_loops_total{outcome="refused"} 1.0',
        'toolgraft_loops_total{outcome="unreachable"} 1.0',
        "toolgraft_loop_rounds_total 5.0",
        'toolgraft_loop_tokens_total{kind="prompt"} 20.0',
        'toolgraft_loop_tokens_total{kind="output"} 4.0',
        'toolgraft_calls_total{outcome="captured"} 3.0',
        'toolgraft_calls_total{outcome="done"} 1.0',
        'toolgraft_calls_total{outcome="failed"} 2.0',
    ):
        assert line in page


@pytest.mark.parametrize("count", [10**400, "x"], ids=["huge", "text"])
@pytest.mark.usefixtures("gemini")
async def test_a_count_of_candidates_that_is_none_is_gemini_s_to_refuse(proxy: Proxy, count: Any) -> None:
    proxy.tools.add("weather", weather)
    await proxy.open()
    played = await proxy.ask("Hi", generationConfig={"candidateCount": count})
    assert played.status == 400


async def test_the_calls_of_several_candidates_are_no_worker_s_either(proxy: Proxy, gemini: StrictGemini) -> None:
    await proxy.open()
    await proxy.declare({"name": "weather"}, weather=ToolRules(executor=Executor(type="worker")))
    await proxy.ask("call weather {}", generationConfig={"candidateCount": 2})
    assert [(one.status, one.owner, one.released) for one in await proxy.calls()] == [
        (Status.PENDING, "hand", False)
    ] * 2
    assert await proxy.store.claim("default", ["weather"], lease=30, worker="w") is None


async def test_headers_that_are_about_one_connection_are_not_the_client_s(proxy: Proxy) -> None:
    proxy.tools.add("look", weather)
    await proxy.open()
    hops = {"connection": "keep-alive", "keep-alive": "timeout=5", "transfer-encoding": "chunked", "upgrade": "h2c"}
    own = {"content-type": "application/json", "x-own": "1"}
    body = encode(says("done", finish="STOP"))
    proxy.upstream(
        Scripted(httpx2.Response(200, headers={**own, **hops, "Content-Length": "7"}, content=streamed(body)))
    )
    runner, _ = await proxy.prepare([user("x")])
    head, *_ = [out async for out in runner.output()]
    assert isinstance(head, Head)
    assert {name.decode().lower(): value.decode() for name, value in head.headers} == own
