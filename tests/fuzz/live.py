"""Live connections: frames of both sides, some of them wrong, in any order."""

import asyncio
import json
import random

from addon.core.framing.documents import Document, encode
from addon.core.live import Frame
from addon.graft.grafter import GraftFailed
from addon.loop.live import LiveSession
from addon.surfaces.incoming import Framing, Operation, Target
from store.models import Policy
from tests.fuzz.mutations import altered, misplaced, mutated
from tests.fuzz.shapes import HIDDEN, Failure, check_hidden
from tests.loop.conftest import Proxy

_TARGET = Target("live", Operation.LIVE, Framing.JSON, "", (), ())
_MODELS = ("gemini-live-2.5-flash-preview", "gemini-3.8-flash-live", "x")
_AUDIO: Document = {"realtimeInput": {"audio": {"data": "AAAA", "mimeType": "audio/pcm;rate=16000"}}}
_WORDS: Document = {"clientContent": {"turns": [{"role": "user", "parts": [{"text": "hi"}]}], "turnComplete": True}}
_ANSWERED: Document = {"toolResponse": {"functionResponses": [{"id": "f1", "name": "own", "response": {"a": 1}}]}}
_TOOLS: list[Document] = [{"functionDeclarations": [{"name": "own", "parameters": {"type": "OBJECT"}}]}]
_UPDATE: Document = {"contextUpdate": {"tools": {"tools": _TOOLS}}}
_DECLARED = f'"description":"{HIDDEN}"'.encode()


async def _tool(**args: object) -> Document:
    await asyncio.sleep(0)
    return {"ok": 1}


def _from_client(rng: random.Random) -> Document:
    return rng.choice((_AUDIO, _AUDIO, _WORDS, _ANSWERED, _UPDATE))


def _from_server(rng: random.Random) -> Document:
    names = [rng.choice((HIDDEN, HIDDEN, "own")) for _ in range(rng.randint(1, 3))]
    calls = [{"id": f"f{rng.randint(1, 4)}", "name": name, "args": {"a": 1}} for name in names]
    content: Document = {"modelTurn": {"parts": [{"text": "a"}]}}
    return rng.choice(
        (
            {"toolCall": {"functionCalls": calls}},
            {"toolCall": {"functionCalls": calls}},
            {"toolCallCancellation": {"ids": [f"f{rng.randint(1, 4)}"]}},
            {"serverContent": content},
            {"serverContent": {**content, "turnComplete": True}},
            {"setupComplete": {}},
            {"usageMetadata": {"totalTokenCount": 1}},
        )
    )


def _wrong(document: Document, rng: random.Random, share: float) -> bytes:
    """A frame; with the probability `share`, a wrong one."""
    if rng.random() >= share:
        return encode(document)
    kind = rng.random()
    if kind < 0.4:
        return encode(misplaced(document, rng))
    return encode(altered(document, rng)) if kind < 0.6 else mutated(encode(document), rng)


def _check_response(data: bytes) -> None:
    """Raise Failure for a frame of the proxy that is not a response of the hidden tool."""
    answers = json.loads(data).get("toolResponse", {}).get("functionResponses", [])
    if not answers or any(not isinstance(one.get("response"), dict) or "name" not in one for one in answers):
        raise Failure(f"sent upstream: {data!r}")


class Live:
    def __init__(self) -> None:
        self.proxy = Proxy(max_rounds=3)
        self.proxy.tools.add(HIDDEN, _tool)

    async def open(self) -> None:
        await self.proxy.open()
        await self._declare()

    async def _declare(self) -> None:
        for session in ("strip", "keep"):
            await self.proxy.store.put_policy(session, Policy(client_tools=session))

    async def forget(self) -> None:
        for session in ("strip", "keep"):
            await self.proxy.store.delete_session(session)
        await self._declare()

    async def close(self) -> None:
        await self.proxy.close()

    async def run(self, rng: random.Random) -> bytes:
        config = await self.proxy.grafter.session_config(rng.choice(("strip", "keep")))
        assert config is not None
        upstream: list[Frame] = []
        session = LiveSession(self.proxy.grafter, self.proxy.executors, config, _TARGET, upstream.append)
        setup: Document = {"setup": {"model": f"models/{rng.choice(_MODELS)}", "tools": _TOOLS}}
        fed = [_wrong(setup, rng, 0.2)]
        sent = session.from_client(Frame(fed[0])) or b""
        is_declared = _DECLARED in sent
        confirmed = 0
        try:
            for _ in range(rng.randint(2, 10)):
                if rng.random() < 0.4:
                    fed.append(_wrong(_from_client(rng), rng, 0.3))
                    output = session.from_client(Frame(fed[-1])) or b""
                    if b"ontext" in fed[-1] or b"setup" in fed[-1]:  # otherwise the declared tools are unknown
                        is_declared = is_declared and _DECLARED in output
                else:
                    fed.append(_wrong(_from_server(rng), rng, 0.5))
                    output = session.from_server(Frame(fed[-1])) or b""
                    if is_declared:
                        check_hidden(output, "live")
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
                while confirmed < len(upstream) and rng.random() < 0.8:
                    confirmed += 1
                    session.confirm_sent()
        except GraftFailed:
            pass  # the connection is closed
        finally:
            session.close()
            async with asyncio.timeout(10):
                await session.wait_closed()
        for frame in upstream:
            if frame.data not in fed and b"ontext" not in frame.data:
                _check_response(frame.data)
        return b"".join(fed)
