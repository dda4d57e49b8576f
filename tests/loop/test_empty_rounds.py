"""Streams of every surface whose later round is empty, or ends within a call, or has a call outside its events."""

from collections.abc import Sequence

import httpx2
import pytest

from addon.core.framing.documents import Document, encode
from addon.loop.runner import Head, Runner
from addon.loop.upstream import Address, Upstream
from addon.surfaces.registry import match
from tests.loop.conftest import Proxy, Scripted, call, says

GOOGLE = "generativelanguage.googleapis.com"
MODEL = "gemini-3-flash-preview"
CONTENTS = [{"role": "user", "parts": [{"text": "x"}]}]
CALL: Document = {"type": "function_call", "id": "c1", "name": "lookup"}


def events(*documents: Document | bytes) -> httpx2.Response:
    lines = [one if isinstance(one, bytes) else encode(one) for one in documents]
    body = b"".join(b"data: %b\n\n" % line for line in lines)
    return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)


def chunk(delta: Document, finish: str | None = None) -> Document:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [choice]}


def created() -> Document:
    return {
        "event_type": "interaction.created",
        "interaction": {"id": "v1_x", "status": "in_progress", "model": MODEL},
    }


def completed(status: str) -> Document:
    return {"event_type": "interaction.completed", "interaction": {"id": "v1_x", "status": status, "model": MODEL}}


def step(whole: Document, *deltas: Document) -> list[Document]:
    pieces = [{"event_type": "step.delta", "index": 0, "delta": delta} for delta in deltas]
    started = {"event_type": "step.start", "index": 0, "step": whole}
    return [started, *pieces, {"event_type": "step.stop", "index": 0}]


class Surface:
    """What a surface's client asks, and what the model answers: a call, a text, and answers that say nothing."""

    def __init__(
        self,
        url: str,
        body: Document,
        calls: Sequence[Document | bytes],
        text: Sequence[Document | bytes],
        *nothing: Sequence[Document | bytes],
    ) -> None:
        self.url = url
        self.body = body
        self.calls = calls
        self.text = text
        self.nothing = nothing

    async def ask(self, proxy: Proxy, upstream: Scripted | None = None) -> bytes:
        """The answer. Without an `upstream`, requests go to the proxy's `url`."""
        if upstream is not None:
            proxy.upstream(upstream)
        host, _, path = self.url.partition("/")
        target = match("POST", host, f"/{path}")
        assert target is not None
        forward = await proxy.forwarded(self.body, target)
        assert forward.exchange is not None
        address = Address("POST", f"{proxy.url}/{path}", [(b"content-type", b"application/json")])
        to_model = Upstream(lambda _: proxy.transport, proxy.watcher)
        runner = Runner(proxy.grafter, proxy.executors, to_model, forward.exchange, address, forward.body)
        answer = b""
        async for out in runner.output():
            if isinstance(out, Head):
                assert out.status == 200
            else:
                answer += out
        await runner.settle_handover()
        return answer


EMPTY = {"candidates": [{"content": {"role": "model", "parts": [{"text": "", "thought": True}]}, "index": 0}]}
BARE = {"candidates": [{"index": 0}], "usageMetadata": {"totalTokenCount": 3}}
SURFACES = {
    "Gemini": Surface(
        f"{GOOGLE}/v1beta/models/{MODEL}:streamGenerateContent?alt=sse",
        {"contents": CONTENTS},
        [says(call("lookup"), finish="STOP")],
        [says("done", finish="STOP")],
        [EMPTY],
        [BARE],
        [b"null"],
        [b"{}"],
        [b'{"candi'],
    ),
    "Code Assist": Surface(
        "cloudcode-pa.googleapis.com/v1internal:streamGenerateContent?alt=sse",
        {"model": MODEL, "project": "p", "request": {"contents": CONTENTS}},
        [{"response": says(call("lookup"), finish="STOP")}],
        [{"response": says("done", finish="STOP")}],
        [{"response": EMPTY}],
        [{"response": BARE}],
        [b"null"],
        [b'{"respo'],
    ),
    "chat completions": Surface(
        f"{GOOGLE}/v1beta/openai/chat/completions",
        {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": "x"}]},
        [
            chunk(
                {
                    "role": "assistant",
                    "tool_calls": [
                        {"index": 0, "id": "c1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
                    ],
                },
                "tool_calls",
            ),
            b"[DONE]",
        ],
        [chunk({"role": "assistant", "content": "done"}, "stop"), b"[DONE]"],
        [chunk({"role": "assistant"})],
        [chunk({"role": "assistant"}), b"[DONE]"],
        [b"null", b"[DONE]"],
        [b"{}"],
        [b'{"choi'],
    ),
    "Interactions": Surface(
        f"{GOOGLE}/v1beta/interactions",
        {"model": MODEL, "stream": True, "input": "x"},
        [created(), *step(CALL | {"arguments": {}}), completed("requires_action"), b"[DONE]"],
        [
            created(),
            *step({"type": "model_output"}, {"type": "text", "text": "done"}),
            completed("completed"),
            b"[DONE]",
        ],
        [created()],
        [created(), b"[DONE]"],
        [b"null", b"[DONE]"],
        [b"{}"],
        [b'{"event_'],
    ),
}
CASES = [(name, nothing) for name, surface in SURFACES.items() for nothing in surface.nothing]


@pytest.mark.parametrize(("name", "nothing"), CASES)
async def test_a_later_round_that_says_nothing_is_asked_for_again_and_then_an_error(
    name: str, nothing: Sequence[Document | bytes], ready: Proxy
) -> None:
    surface = SURFACES[name]
    upstream = Scripted(events(*surface.calls), events(*nothing), events(*surface.text))
    answer = await surface.ask(ready, upstream)
    assert upstream.rounds == []
    assert b"done" in answer
    assert b"error" not in answer
    assert b"null\n" not in answer
    upstream = Scripted(events(*surface.calls), *[events(*nothing) for _ in range(3)])
    answer = await surface.ask(ready, upstream)
    assert upstream.rounds == []
    assert b"its answer" in answer
    assert b"error" in answer


async def test_a_call_of_an_interaction_whose_arguments_never_end_is_run_with_those_that_arrived(ready: Proxy) -> None:
    surface = SURFACES["Interactions"]
    started, delta, _ = step(CALL, {"type": "arguments_delta", "arguments": '{"a":'})
    upstream = Scripted(events(created(), started, delta), events(*surface.text))
    answer = await surface.ask(ready, upstream)
    assert ready.tools.begun == ["lookup"]
    assert b"done" in answer
    assert b"interaction.completed" in answer
    assert b"function_call" not in answer
    (made,) = await ready.calls()
    assert made.args == {"arguments": '{"a":'}


STRAY = {"functionCall": {"name": "lookup", "args": {"secret": 1}}, "tool_calls": 1, "type": "function_call"}


@pytest.mark.parametrize("form", ["%b\n%b", "[%b]\n%b", "id: %b\n%b", ": %b\n%b", "\ufeff%b\n%b"], ids=str)
@pytest.mark.parametrize("name", SURFACES)
async def test_a_call_in_a_line_beside_the_data_of_an_event_never_reaches_the_client(
    name: str, form: str, ready: Proxy
) -> None:
    surface = SURFACES[name]
    first, *rest = [b"data: %b\n\n" % (one if isinstance(one, bytes) else encode(one)) for one in surface.text]
    body = form.encode() % (encode(STRAY), first) + b"".join(rest)
    odd = httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=body)
    answer = await surface.ask(ready, Scripted(odd))
    assert b"secret" not in answer
