"""One step of calls in every delivery, and the responses that the model finally receives."""

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from addon.core.framing.documents import Document, decode, encode
from addon.core.live import Frame
from addon.graft.exchange import Forward
from addon.graft.machine_shell import Capture
from addon.loop.live import LiveSession
from addon.surfaces.incoming import Framing, Operation, Target
from store.models import Policy
from tests.contents import user
from tests.loop.conftest import Proxy, Scripted, call, says, until

type Deliver = Callable[[Proxy, Sequence[Document], Mapping[str, Any]], Awaitable[list[Document]]]
"""A proxy, the calls of a step, and the session's policy."""

OWN: Document = {"functionDeclarations": [{"name": "own", "description": "The client's own."}]}


def _responses(body: Document, names: Sequence[str]) -> list[Document]:
    parts = [
        part["functionResponse"] for one in body["contents"] for part in one["parts"] if "functionResponse" in part
    ]
    return [part["response"] for part in parts if part["name"] in names]


async def in_a_loop(proxy: Proxy, calls: Sequence[Document], policy: Mapping[str, Any]) -> list[Document]:
    await _hold(proxy, **policy)
    upstream = proxy.upstream(Scripted([says(*calls, finish="STOP")], [says("done", finish="STOP")]))
    assert (await proxy.ask("x", framing=Framing.SSE)).text == "done"
    return _responses(upstream.bodies[-1], _names(calls))


async def beside_the_client_s_own(proxy: Proxy, calls: Sequence[Document], policy: Mapping[str, Any]) -> list[Document]:
    """A mixed step: the client's next request waits for the calls."""
    await _hold(proxy, client_tools="keep", **policy)
    step = says(call("own", secrets.token_hex(4)), *calls, finish="STOP")
    upstream = proxy.upstream(Scripted([step], [says("done", finish="STOP")]))
    played = await proxy.ask("x", framing=Framing.SSE, tools=[OWN])
    (own,) = [part for part in played.parts if "functionCall" in part]
    response = {"id": own["functionCall"]["id"], "name": "own", "response": {"ok": 1}}
    answered = user({"functionResponse": response})
    await proxy.ask("x", {"role": "model", "parts": [own]}, answered, framing=Framing.SSE, tools=[OWN])
    return _responses(upstream.bodies[-1], _names(calls))


async def in_a_live_connection(proxy: Proxy, calls: Sequence[Document], policy: Mapping[str, Any]) -> list[Document]:
    await _hold(proxy, **policy)
    config = await proxy.grafter.session_config("default")
    assert config is not None
    sent: list[Frame] = []
    target = Target("live", Operation.LIVE, Framing.JSON, "", (), ())
    session = LiveSession(proxy.grafter, proxy.executors, config, target, sent.append)
    session.from_client(Frame(json.dumps({"setup": {"model": "models/m"}}).encode()))
    named = [{**one["functionCall"], "id": f"f{number}"} for number, one in enumerate(calls)]
    session.from_server(Frame(encode({"toolCall": {"functionCalls": named}})))

    def responses_by_id() -> dict[str, Document]:
        documents = [json.loads(frame.data) for frame in sent]
        frames = [one["toolResponse"]["functionResponses"] for one in documents if "toolResponse" in one]
        return {one["id"]: one["response"] for frame in frames for one in frame}

    try:
        await until(lambda: len(responses_by_id()) == len(calls))
    finally:
        session.close()
        await session.wait_closed()
    return [responses_by_id()[one["id"]] for one in named]


async def behind_a_placeholder(proxy: Proxy, calls: Sequence[Document], policy: Mapping[str, Any]) -> list[Document]:
    """For calls of workers: no other executor runs calls in this delivery."""
    await _hold(proxy, **{"delivery": "placeholder", "on_pending": "wait", **policy})
    target, _ = proxy.target(Framing.JSON, "developer", "gemini-3-flash-preview")
    forward = await proxy.forwarded({"contents": [user("x")]}, target)
    assert forward.exchange is not None
    answer = await Capture(proxy.grafter, forward.exchange, "application/json").whole(
        encode(says(*calls, finish="STOP"))
    )
    assert isinstance(answer, bytes)
    content = decode(answer)["candidates"][0]["content"]
    async with asyncio.timeout(30):
        outcome = await proxy.forwarded({"contents": [user("x"), content, user("go on")]}, target)
    assert isinstance(outcome, Forward)
    return _responses(decode(outcome.body), _names(calls))


async def _hold(proxy: Proxy, **policy: Any) -> None:
    """Set the session's policy, unless it is set: a change drops the session's caches."""
    session = await proxy.store.session("default")
    if session is None or session.policy != Policy(**policy):
        await proxy.policy(**policy)


def _names(calls: Sequence[Document]) -> list[str]:
    return [one["functionCall"]["name"] for one in calls]


DELIVERIES: dict[str, Deliver] = {
    "loop": in_a_loop,
    "mixed": beside_the_client_s_own,
    "live": in_a_live_connection,
    "placeholder": behind_a_placeholder,
}
