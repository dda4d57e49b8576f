"""Streams of a loop event by event: which events pass unchanged or are held back, and when calls begin."""

import asyncio
import dataclasses

import httpx2
import pytest

from addon.core.answer import AnswerRewriter
from addon.core.framing.documents import Document, decode, encode
from addon.core.framing.streams import sse_event
from addon.graft.turn_records import keys_of
from addon.loop.runner import Head
from addon.surfaces.incoming import Framing
from store.models import Status
from tests.contents import model, user
from tests.loop.conftest import Played, Proxy, Scripted, call, google_error, says, until

USED = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}
THEN = {"promptTokenCount": 6, "candidatesTokenCount": 1, "totalTokenCount": 7}
ANSWER = [says("done", finish="STOP", responseId="r2", usageMetadata=THEN)]


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
async def test_events_before_the_first_call_pass_byte_for_byte(ready: Proxy, framing: Framing) -> None:
    first, odd = says("Let me "), b'{ "candidates": [ {"content": {"parts":[{"text": "see. "}], "role":"model"}} ] }'
    raw = sse_event(odd) if framing is Framing.SSE else b"\n,\r\n" + odd
    ready.upstream(Scripted([first, raw, says(call("lookup"), finish="STOP")], ANSWER))
    played = await ready.ask("x", framing=framing)
    start = sse_event(encode(first)) if framing is Framing.SSE else b"[" + encode(first)
    assert played.body.startswith(start + raw)
    assert played.text == "Let me see. done"


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
async def test_an_answer_without_calls_is_what_upstream_sent(ready: Proxy, framing: Framing) -> None:
    events = [says("Hello "), says("you", finish="STOP"), {"usageMetadata": {"totalTokenCount": 3}}]
    ready.upstream(Scripted(events))
    played = await ready.ask("x", framing=framing)
    assert played.raw == events
    if framing is Framing.SSE:
        assert played.body == b"".join(sse_event(encode(event)) for event in events)


async def test_an_answer_in_json_without_calls_is_the_bytes_that_upstream_sent(ready: Proxy) -> None:
    body = b'{ "candidates" : [{"content":{"parts":[{"text":"hi"}]}, "finishReason":"STOP"}] }\n'
    ready.upstream(Scripted([body]))
    assert (await ready.ask("x")).body == body


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("body", [b"<html>", b'{"error": {"code": 400}}', b'"text"'])
async def test_a_response_that_is_no_answer_passes_unchanged(ready: Proxy, framing: Framing, body: bytes) -> None:
    raw = {Framing.JSON: body, Framing.SSE: b"data: " + body + b"\r\n\r\n", Framing.ARRAY: b"[" + body}[framing]
    ready.upstream(Scripted([raw]))
    played = await ready.ask("x", framing=framing)
    assert body in played.body or (framing is Framing.ARRAY and not body.startswith(b"{"))


async def test_an_event_in_other_bytes_than_clients_read_is_made_readable(ready: Proxy) -> None:
    ready.upstream(Scripted([b'data: {"candidates":\ndata: []}\n\n', b'data:{"candidates": []}']))
    played = await ready.ask("x", framing=Framing.SSE)
    assert played.body.endswith(b'data: {"candidates": []}\r\n\r\n')


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
@pytest.mark.parametrize(
    "tail",
    [
        [says(call("lookup"), finish="STOP"), {"usageMetadata": USED}],
        [says(call("lookup")), {"usageMetadata": USED}, says(finish="STOP")],
        [says(call("lookup")), {"candidates": [{"finishReason": "STOP"}], "usageMetadata": USED}],
        [says(call("lookup"), usageMetadata=USED)],
    ],
    ids=["usage last", "usage before the end", "bare end", "no end"],
)
@pytest.mark.parametrize(
    "answer",
    [
        [says("done", finish="STOP", responseId="r2", usageMetadata=THEN)],
        [says("do", responseId="r2"), says("ne"), says(finish="STOP", usageMetadata=THEN)],
        [says("done"), says(finish="STOP"), {"usageMetadata": THEN}],
    ],
    ids=["whole", "bare end", "usage last"],
)
async def test_no_event_is_empty_and_the_answer_ends_once(
    ready: Proxy, framing: Framing, tail: list[Document], answer: list[Document]
) -> None:
    ready.upstream(Scripted([says("Wait. ", responseId="r1"), *tail], answer))
    played = await ready.ask("x", framing=framing)
    played.check()
    assert played.text == "Wait. done"
    assert played.documents[-1]["usageMetadata"] == {**THEN, "candidatesTokenCount": 3, "totalTokenCount": 9}
    assert {d["responseId"] for d in played.documents if "responseId" in d} == {"r1"}


async def test_parts_of_the_rounds_before_stand_first_in_json(ready: Proxy) -> None:
    spoken: list[Document] = [
        {"text": "hm", "thought": True},
        {"text": "Wait."},
        {"inlineData": {"mimeType": "a/b", "data": "eA=="}},
    ]
    ready.upstream(Scripted([says(*spoken, call("lookup"), finish="STOP")], ANSWER))
    played = await ready.ask("x")
    assert played.parts == [*spoken, {"text": "done"}]


async def test_a_call_begins_while_the_stream_goes_on(ready: Proxy) -> None:
    hold = asyncio.Event()
    upstream = ready.upstream(Scripted([says("Wait.", call("lookup")), hold, says(finish="STOP")], ANSWER))
    asking = asyncio.ensure_future(ready.ask("x", framing=Framing.SSE))
    await until(lambda: ready.tools.ended == ["lookup"])
    assert not asking.done()
    assert len(upstream.bodies) == 1
    hold.set()
    assert (await asking).text == "Wait.done"


async def test_text_reaches_the_client_while_the_stream_goes_on(ready: Proxy) -> None:
    hold = asyncio.Event()
    ready.upstream(Scripted([says("Wait.", call("lookup")), hold, says(finish="STOP")], ANSWER))
    runner, played = await ready.prepare([user("x")], Framing.SSE)
    output = runner.output()
    played.take(await anext(output))
    played.take(await anext(output))
    assert played.text == "Wait."
    hold.set()
    async for out in output:
        played.take(out)
    assert played.text == "Wait.done"


@pytest.mark.parametrize("framing", list(Framing))
async def test_the_client_gets_no_usage_if_the_upstream_sends_none(ready: Proxy, framing: Framing) -> None:
    ready.upstream(Scripted([says("Wait. ", call("lookup"), finish="STOP")], [says("done", finish="STOP")]))
    played = await ready.ask("x", framing=framing)
    assert played.text == "Wait. done"
    assert not any("usageMetadata" in document for document in played.documents)


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
@pytest.mark.parametrize("surface", ["developer", "codeassist"])
async def test_a_long_silence_is_filled_with_an_event_that_every_client_ignores(framing: Framing, surface: str) -> None:
    proxy = Proxy(keepalive=0.01)
    free = asyncio.Event()

    async def slow() -> str:
        await free.wait()
        return "found"

    proxy.tools.add("slow", slow)
    await proxy.open()
    first, last = says(call("slow"), finish="STOP", responseId="r1"), ANSWER[0]
    wrapped = [{"response": first}, {"response": last}] if surface == "codeassist" else [first, last]
    proxy.upstream(Scripted([wrapped[0]], [wrapped[1]]))
    runner, played = await proxy.prepare([user("x")], framing, surface=surface)
    count = 0
    async with asyncio.timeout(5):
        async for out in runner.output():
            played.take(out)
            count += not isinstance(out, Head)
            if count == 3:
                free.set()
    played.check()
    assert played.parts[:3] == [{"text": "", "thought": True}] * 3
    assert played.text == "done"
    await proxy.close()


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"])
async def test_a_call_that_the_model_got_wrong_is_asked_for_once_more(
    ready: Proxy, framing: Framing, finish: str
) -> None:
    wrong: Document = {"candidates": [{"finishReason": finish, "finishMessage": "Malformed", "index": 0}]}
    upstream = ready.upstream(Scripted([says("Hm. "), wrong] if framing is not Framing.JSON else [wrong], ANSWER))
    played = await ready.ask("x", framing=framing)
    assert played.finishes == ["STOP"]
    assert played.text.endswith("done")
    assert upstream.bodies[0] == upstream.bodies[1]


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_model_that_gets_it_wrong_twice_is_reported_as_that(ready: Proxy, framing: Framing) -> None:
    wrong: Document = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]}
    upstream = ready.upstream(Scripted([wrong], [wrong]))
    played = await ready.ask("x", framing=framing)
    assert played.finishes == ["MALFORMED_FUNCTION_CALL"]
    assert not played.text
    assert len(upstream.bodies) == 2


SECRET = "hidden.lookup(x=1)"


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("surface", ["developer", "codeassist"])
@pytest.mark.parametrize("delivery", ["loop", "placeholder", "passthrough"])
@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", 10])
async def test_the_message_about_a_wrong_call_is_for_clients_that_see_calls(
    ready: Proxy, framing: Framing, surface: str, delivery: str, finish: str | int
) -> None:
    await ready.policy(delivery=delivery)
    candidate: Document = {"finishReason": finish, "finishMessage": SECRET, "index": 0}
    wrong: Document = {"candidates": [candidate]}
    events = [says("Hm. "), wrong] if framing is not Framing.JSON else [wrong]
    if surface == "codeassist":
        events = [{"response": event} for event in events]
    ready.upstream(Scripted(events, events))
    played = await ready.ask("x", framing=framing, surface=surface)
    ends = [one for document in played.documents for one in document["candidates"] if "finishReason" in one]
    if delivery == "passthrough":
        assert ends == [candidate]
    else:
        assert ends == [{"finishReason": finish, "index": 0}], "without a part, as the service sends it"
        assert SECRET.encode() not in played.body


@pytest.mark.parametrize("framing", list(Framing))
async def test_the_message_about_another_end_passes(ready: Proxy, framing: Framing) -> None:
    body = encode({"candidates": [{"finishReason": "SAFETY", "finishMessage": "Unsafe.", "index": 0}]})
    ready.upstream(Scripted([body if framing is Framing.JSON else decode(body)]))
    assert body in (await ready.ask("x", framing=framing)).body


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_call_in_a_member_that_is_there_twice_is_not_shown(ready: Proxy, framing: Framing) -> None:
    twice = b'{"candidates":[{"content":{"parts":[%b]},"content":{"parts":[{"text":"hi"}]},"finishReason":"STOP"}]}'
    body = twice % encode(call("lookup", x="SECRET"))
    raw = {Framing.JSON: body, Framing.SSE: sse_event(body), Framing.ARRAY: b"[" + body}[framing]
    ready.upstream(Scripted([raw]))
    played = await ready.ask("x", framing=framing)
    assert b"SECRET" not in played.body
    assert b"cannot be read" in played.body


async def test_the_turn_is_found_by_all_that_the_client_saw_of_it(ready: Proxy) -> None:
    wrong: Document = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]}
    rounds = [[says("One. "), wrong], [says("Two. ", call("lookup"), finish="STOP")], ANSWER]
    ready.upstream(Scripted(*rounds))
    played = await ready.ask("x", framing=Framing.SSE)
    (turn,) = await ready.turns()
    assert played.text == "One. Two. done"
    found = await ready.store.look_up("default", keys=keys_of(ready.runner.exchange, [{"text": played.text}]))
    assert list(found.turns) == [turn.turn_id]


async def test_calls_in_spite_of_the_last_request_are_delivered_and_run(ready: Proxy) -> None:
    await ready.policy(max_rounds=2)
    upstream = ready.upstream(Scripted(*[[says(call("lookup"), finish="STOP")]] * 2))
    played = await ready.ask("x", framing=Framing.SSE)
    played.check()
    assert "Tool call completed: lookup" in played.text
    assert upstream.rounds == []
    await until(lambda: not ready.executors._tasks)
    assert [one.status for one in await ready.calls()] == [Status.DONE] * 2


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_tool_that_nobody_knows_is_an_error_for_the_model(ready: Proxy, framing: Framing) -> None:
    upstream = ready.upstream(Scripted([says(call("nonsense", "i1"), call("lookup", "i2"), finish="STOP")], ANSWER))
    assert (await ready.ask("x", framing=framing)).text == "done"
    assert upstream.bodies[1]["contents"][2]["parts"] == [
        {"functionResponse": {"id": "i1", "name": "nonsense", "response": {"error": "unknown tool: nonsense"}}},
        {"functionResponse": {"id": "i2", "name": "lookup", "response": {"result": "found"}}},
    ]


OWN = [{"functionDeclarations": [{"name": "own", "description": "d"}]}]


@pytest.mark.parametrize("framing", list(Framing))
async def test_in_a_mixed_step_the_client_sees_its_own_calls_and_the_others_run(proxy: Proxy, framing: Framing) -> None:
    free = asyncio.Event()

    async def slow() -> str:
        await free.wait()
        return "found"

    proxy.tools.add("slow", slow)
    await proxy.open()
    await proxy.policy(client_tools="keep")
    step = says(call("slow", "i1"), call("own", "i2"), finish="STOP")
    upstream = proxy.upstream(Scripted([step], ANSWER))
    played = await proxy.ask("x", framing=framing, tools=OWN)
    assert [part["functionCall"]["name"] for part in played.parts if "functionCall" in part] == ["own"]
    assert played.finishes == ["STOP"]
    await until(lambda: proxy.tools.begun == ["slow"])
    assert [one.status for one in await proxy.calls()] == [Status.RUNNING]

    mine = {"functionResponse": {"id": "i2", "name": "own", "response": {"result": 1}}}
    chat = [user("x"), model(*played.parts), user(mine)]
    asking = asyncio.ensure_future(proxy.ask(*chat, framing=framing, tools=OWN))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(upstream.bodies) == 1, "what runs is waited for, although on_pending is `pass`"
    free.set()
    assert (await asking).text == "done"
    contents = upstream.bodies[1]["contents"]
    assert contents[1] == step["candidates"][0]["content"]
    assert contents[2]["parts"] == [
        {"functionResponse": {"id": "i1", "name": "slow", "response": {"result": "found"}}},
        mine,
    ]


async def test_a_step_with_a_call_that_only_a_human_can_answer_is_delivered_and_the_rest_of_it_runs(
    ready: Proxy,
) -> None:
    await ready.declare({"name": "manual", "description": "d"})
    ready.upstream(Scripted([says(call("lookup"), call("manual"), finish="STOP")], ANSWER))
    played = await ready.ask("x", framing=Framing.SSE)
    played.check()
    assert "Tool call completed: lookup, manual" in played.text
    await until(lambda: not ready.executors._tasks)
    assert {one.name: one.status for one in await ready.calls()} == {"lookup": Status.DONE, "manual": Status.PENDING}


async def test_an_error_in_the_middle_of_a_stream_ends_the_loop(ready: Proxy) -> None:
    upstream = ready.upstream(Scripted([says("Wait.", call("lookup")), google_error(500)], ANSWER))
    played = await ready.ask("x", framing=Framing.SSE)
    assert played.documents[-1] == google_error(500)
    assert len(upstream.bodies) == 1


ODD: list[Document] = [
    {"candidates": [{"finishReason": ["x"]}]},
    {"candidates": [{"content": "text", "finishReason": {"a": 1}}]},
    {"candidates": "none", "usageMetadata": {"promptTokensDetails": [{"modality": ["TEXT"]}]}},
]


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("document", ODD)
async def test_an_odd_answer_passes_as_it_came(ready: Proxy, framing: Framing, document: Document) -> None:
    ready.upstream(Scripted([document]))
    played = await ready.ask("x", framing=framing)
    assert played.status == 200
    assert played.documents == [document]


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
@pytest.mark.parametrize("document", ODD)
async def test_an_odd_event_of_a_later_round_does_not_end_the_answer(
    ready: Proxy, framing: Framing, document: Document
) -> None:
    usage = {"usageMetadata": {"promptTokensDetails": [{"modality": ["TEXT"]}]}}
    ready.upstream(Scripted([says("one ", call("lookup"), finish="STOP", **usage)], [document, says("two")]))
    played = await ready.ask("x", framing=framing)
    assert not any("error" in one for one in played.documents)


@pytest.mark.parametrize("framing", list(Framing))
async def test_an_answer_that_cannot_be_taken_in_passes_as_it_came(
    ready: Proxy, framing: Framing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TypeError("odd")

    monkeypatch.setattr(AnswerRewriter, "feed", fails)
    odd = [says("done", finish="STOP", continuationToken="makes it looked at")]
    ready.upstream(Scripted(odd))
    assert (await ready.ask("x", framing=framing)).documents == odd
    assert "passed on unchanged: TypeError" in caplog.text


@pytest.mark.parametrize("framing", list(Framing))
async def test_a_call_that_cannot_be_taken_in_is_not_let_out(
    ready: Proxy, framing: Framing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise TypeError("odd")

    monkeypatch.setattr(AnswerRewriter, "feed", fails)
    ready.upstream(Scripted([call("lookup")]))
    played = await ready.ask("x", framing=framing)
    assert "functionCall" not in str(played.documents)
    assert "error" in played.documents[-1]


# --- answers that end early, or are framed in another way --------------------------------------------------------


def begun(name: str, **fields: str) -> Document:
    """A call whose arguments are still to come."""
    return {"functionCall": {"name": name, "willContinue": True, **fields}}


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
@pytest.mark.parametrize("ends", [[], [says(finish="MAX_TOKENS")]], ids=["end of the stream", "finish"])
async def test_a_call_whose_arguments_never_end_is_run_with_those_that_came(
    ready: Proxy, framing: Framing, ends: list[Document]
) -> None:
    upstream = ready.upstream(Scripted([says("Wait. "), says(begun("lookup")), *ends], ANSWER))
    played = await ready.ask("x", framing=framing)
    played.check()
    assert played.text == "Wait. done"
    assert ready.tools.ended == ["lookup"]
    assert upstream.rounds == []


@pytest.mark.parametrize("surface", ["developer", "codeassist"])
async def test_an_answer_is_read_as_it_comes_framed_whatever_was_asked_for(ready: Proxy, surface: str) -> None:
    wrapped = [[{"response": one} if surface == "codeassist" else one] for one in (says(call("lookup")), *ANSWER)]
    ready.upstream(Scripted(*wrapped))
    runner, _ = await ready.prepare([user("x")], Framing.JSON, surface=surface)
    runner.address = dataclasses.replace(runner.address, url=f"{runner.address.url}?alt=sse")
    played = Played(Framing.SSE, ("response",) if surface == "codeassist" else ())
    async for out in runner.output():
        played.take(out)
    played.check()
    assert played.text == "done"
    assert [one.status for one in await ready.calls()] == [Status.DONE]


@pytest.mark.parametrize("first", list(Framing))
@pytest.mark.parametrize("then", list(Framing))
async def test_rounds_that_come_framed_in_different_ways_are_one_answer(
    ready: Proxy, first: Framing, then: Framing
) -> None:
    def body(framing: Framing, *documents: Document) -> httpx2.Response:
        bodies = [encode(one) for one in documents]
        if framing is Framing.SSE:
            content = b"".join(map(sse_event, bodies))
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)
        content = b"[" + b",".join(bodies) + b"]" if framing is Framing.ARRAY else bodies[-1]
        return httpx2.Response(200, headers={"content-type": "application/json"}, content=content)

    step = says("Wait. ", call("lookup"), finish="STOP", responseId="r1")
    pieces = [says("do"), says("ne", finish="STOP", responseId="r2")] if then is not Framing.JSON else ANSWER
    ready.upstream(Scripted(body(first, step), body(then, *pieces)))
    played = await ready.ask("x", framing=first)
    played.check()
    assert played.text == "Wait. done"
    (turn,) = await ready.turns()
    assert turn.delivered


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
@pytest.mark.parametrize("delivery", ["loop", "placeholder"])
async def test_a_turn_is_stored_before_the_client_is_told_that_it_ends(
    ready: Proxy, framing: Framing, delivery: str
) -> None:
    await ready.policy(delivery=delivery)
    hold = asyncio.Event()
    step = says(call("lookup"), finish="STOP")
    ready.upstream(Scripted([step], [*ANSWER, hold]) if delivery == "loop" else Scripted([step, hold]))
    runner, played = await ready.prepare([user("x")], framing)
    output = runner.output()
    while b"finishReason" not in played.body:
        played.take(await anext(output))
    found = await ready.store.look_up("default", keys=keys_of(runner.exchange, (await ready.turns())[0].visible))
    (turn,) = found.turns.values()
    assert turn.visible == [{"text": "done" if delivery == "loop" else played_text(played)}]
    await output.aclose()
    await runner.settle_handover()
    assert (await ready.turns())[0].delivered, "the client has all of it"
    assert [one.status.final for one in await ready.calls()] == [delivery == "loop"]


def played_text(played: Played) -> str:
    """The text of a stream that has not come to its end."""
    body = played.body if played.framing is Framing.SSE else sse_event(played.body.removeprefix(b"["))
    received = Played(Framing.SSE, ())
    received.body = body
    return received.text


@pytest.mark.parametrize("content", ["text", [1], 7, {"parts": ["text"]}], ids=repr)
@pytest.mark.parametrize("framing", list(Framing))
async def test_a_later_round_s_content_of_another_kind_is_no_error_of_the_proxy_s(
    ready: Proxy, framing: Framing, content: object, caplog: pytest.LogCaptureFixture
) -> None:
    odd: Document = {"candidates": [{"content": content, "finishReason": "STOP", "index": 0}]}
    ready.upstream(Scripted([says("Wait. ", call("lookup"), finish="STOP")], *[[odd]] * 4))
    played = await ready.ask("x", framing=framing)
    assert played.status in (200, 502)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.ARRAY])
async def test_an_error_that_a_later_round_gives_as_one_document_reaches_the_client(
    ready: Proxy, framing: Framing
) -> None:
    error = encode(google_error(500, "INTERNAL"))
    refused = httpx2.Response(200, headers={"content-type": "application/json"}, content=error)
    ready.upstream(Scripted([says(call("lookup"), finish="STOP")], refused))
    played = await ready.ask("x", framing=framing)
    assert error in played.body


@pytest.mark.parametrize("framing", list(Framing))
@pytest.mark.parametrize("delivery", ["loop", "placeholder"])
async def test_a_whole_answer_with_an_error_beside_it_is_in_the_next_request(
    ready: Proxy, framing: Framing, delivery: str
) -> None:
    await ready.policy(delivery=delivery)
    odd, step = {"error": [{"code": 500}]}, says("Wait. ", call("lookup"), finish="STOP")
    ready.upstream(Scripted([step], [{**ANSWER[0], **odd}]) if delivery == "loop" else Scripted([{**step, **odd}]))
    played = await ready.ask("x", framing=framing)
    assert played.finishes == ["STOP"]
    chat: Document = {"contents": [user("x"), model(played.text), user("more")]}
    (made,) = await ready.calls()
    if not made.status.final:
        await ready.store.answer("default", made.call_id, result={"found": 1})
    assert b"functionResponse" in (await ready.forwarded(chat, *ready.target(framing, "developer", "m"))).body


async def test_bytes_behind_a_round_s_last_event_do_not_hide_the_next_round_s_first(ready: Proxy) -> None:
    ready.upstream(Scripted([says("One. ", call("lookup"), finish="STOP"), b"\x1a"], [says("two", finish="STOP")]))
    played = await ready.ask("x", framing=Framing.SSE)
    (line,) = (line for line in played.body.split(b"\r\n") if b'"two"' in line)
    assert line.startswith(b"data: ")


async def test_a_later_round_s_other_candidate_does_not_take_the_turn_of_the_first(ready: Proxy) -> None:
    other = says("another")
    other["candidates"][0]["index"] = 2
    ready.upstream(Scripted([says(call("lookup"), finish="STOP")], [other, says(call("lookup"), finish="STOP")]))
    played = await ready.ask("x", framing=Framing.SSE)
    text = "".join(part["text"] for part in played.parts if part["text"] != "another")
    chat: Document = {"contents": [user("x"), model(text), user("more")]}
    body = (await ready.forwarded(chat, *ready.target(Framing.SSE, "developer", "m"))).body
    assert b'"functionResponse":{"name":"lookup","response":{"result":"found"}}' in body
