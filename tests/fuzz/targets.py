"""Feeds one exchange's graft with upstream answers and clients' requests of every surface. A try depends only on its
seed."""

import random
from typing import Protocol

from addon.core.framing.documents import Document, as_list, encode
from addon.graft.exchange import Forward, Reply
from addon.graft.grafter import Grafter
from addon.graft.machine_shell import Capture, concerns, note_answer
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.surfaces.incoming import Framing, Incoming
from store.base import Store
from store.factory import open_url
from store.models import Policy, Toolset
from tests.fuzz.mutations import altered, misplaced, mutated, pieces
from tests.fuzz.shapes import CONTENTS, HIDDEN, KINDS, SHAPES, Failure, Shape, answer_of, body_of, check_hidden
from tests.graft.captures import Stream

_PLACEHOLDER = "Done. [{turn_id}]"


class Target(Protocol):
    """`forget`: drop the tries' records, so that memory and look-ups do not grow."""

    async def open(self) -> None: ...

    async def run(self, rng: random.Random) -> bytes:
        """Run one try. Returns the bytes that were fed. Raises Failure."""
        ...

    async def forget(self) -> None: ...

    async def close(self) -> None: ...


def wrong_answer(shape: Shape, rng: random.Random, *, calls: bool = True, text: str = "a ") -> bytes:
    """An answer with something wrong in its documents, in its bytes, or in both."""
    return made_wrong(answer_of(shape, rng, calls=calls, text=text), shape, rng)


def made_wrong(documents: list[Document | bytes], shape: Shape, rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.4:
        documents = misplaced(documents, rng)
    if 0.3 < kind < 0.5:
        documents = as_list(altered(documents, rng))
    data = body_of(shape, documents or [{}])
    return data if kind < 0.4 and rng.random() < 0.7 else mutated(data, rng)


class Answers:
    """Upstream answers, in sessions in which the client must not see a call."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = store or open_url("memory://", ttl=1e6)
        self.grafter = Grafter(self.store, Settings(placeholder=_PLACEHOLDER), Metrics())

    async def open(self) -> None:
        await self.store.open()
        await self._declare()

    async def _declare(self) -> None:
        for delivery in ("placeholder", "auto"):
            tools = [{"name": HIDDEN, "description": "d"}]
            await self.store.put_policy(delivery, Policy(delivery=delivery))
            await self.store.put_toolset(delivery, Toolset(declarations=tools))

    async def forget(self) -> None:
        for session in ("placeholder", "auto"):
            await self.store.delete_session(session)
        await self._declare()

    async def close(self) -> None:
        await self.store.close()

    async def run(self, rng: random.Random) -> bytes:
        shape = rng.choice(SHAPES)
        data = wrong_answer(shape, rng)
        config = await self.grafter.session_config(rng.choice(("placeholder", "auto")))
        assert config is not None
        outcome = await self.grafter.request(
            Incoming(shape.target, config.session, encode(shape.body), asker="key:k", url=shape.path), config
        )
        assert isinstance(outcome, Forward)
        assert outcome.exchange is not None
        ends_with_connection = len(data) % 3 == 0  # not from `rng`, which would change all other tries
        kind = KINDS[shape.framing]
        if shape.framing is Framing.JSON:
            if not ends_with_connection and not concerns(outcome.exchange, data):
                await note_answer(self.grafter, outcome.exchange, kind, data)
                output: bytes | Reply = data
            else:
                capture = Capture(self.grafter, outcome.exchange, kind, ends_with_connection=ends_with_connection)
                output = await capture.whole(data)
                await capture.settle(True)
            out = output.body if isinstance(output, Reply) else output
        else:
            stream = Stream(self.grafter, outcome.exchange, kind, ends_with_connection=ends_with_connection)
            out = b"".join([await stream.feed(piece) for piece in pieces(data, rng)]) + await stream.finish()
            await stream.runner.settle_handover()
        check_hidden(out, shape.kind)
        return data


class Requests(Answers):
    """Clients' requests, in a session whose ledger has turns."""

    async def run(self, rng: random.Random) -> bytes:
        shape = rng.choice(SHAPES)
        body: Document = dict(shape.body)
        if shape.kind in ("gemini", "wrapped") and rng.random() < 0.8:
            request = body["request"] = dict(body["request"]) if shape.kind == "wrapped" else body
            if shape.kind == "gemini":
                del body["request"]
            request["tools"] = [{"functionDeclarations": [{"name": "own", "parameters": {"type": "OBJECT"}}]}]
            request["toolConfig"] = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["own"]}}
            made = {"functionCall": {"name": "own", "args": {"a": [1]}, "id": "1"}, "thoughtSignature": "c2ln"}
            answered = {"functionResponse": {"name": "own", "id": "1", "response": {"b": "c"}}}
            answered_step = [{"role": "model", "parts": [made]}, {"role": "user", "parts": [answered]}]
            request["contents"] = [*CONTENTS, *answered_step]
        data = encode(misplaced(altered(body, rng), rng)) if rng.random() < 0.4 else mutated(encode(body), rng)
        config = await self.grafter.session_config(rng.choice(("placeholder", "auto")))
        assert config is not None
        outcome = await self.grafter.request(
            Incoming(shape.target, config.session, data, asker="key:k", url=shape.path), config
        )
        if isinstance(outcome, Reply) and outcome.status >= 500:
            raise Failure(f"a request was answered {outcome.status}: {outcome.body!r}")
        return data
