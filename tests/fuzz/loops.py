"""Tool loops with possibly wrong answers in each round. The calls of a whole answer must be in the next request."""

import asyncio
import json
import random
from collections.abc import AsyncIterator

import httpx2
import pytest

from addon.core.framing.documents import Document, decode, encode, replace_invalid_text
from addon.graft.exchange import Forward
from addon.loop import upstream
from addon.loop.runner import Head, Runner
from addon.loop.upstream import Address, Upstream
from addon.surfaces.incoming import Framing, Incoming
from store.models import Status
from tests.fuzz.mutations import pieces
from tests.fuzz.shapes import CONTENTS, HIDDEN, KINDS, SHAPES, Failure, Shape, answer_of, body_of, check_hidden
from tests.fuzz.targets import wrong_answer
from tests.loop.conftest import Proxy, Watcher, Wire

_ROUNDS = 3
_URL = "http://gemini.test"
_NAMED = ("interaction.created", "interaction.completed")
"""The events that name an interaction."""
_HEADERS = [(b"content-type", b"application/json")]


async def _tool(**args: object) -> Document:
    return {"ok": 1}


class Rounds:
    """An upstream of one shape. Each request has its own seed; late ones get good answers, so that each try ends."""

    def __init__(self, shape: Shape, rng: random.Random) -> None:
        self.shape = shape
        self.bodies: list[bytes] = []
        self.answers: list[bytes] = []  # with good characters only
        self._seed = rng.random()
        self._calls_end = rng.choice((1, 2, 2, 3, 9))

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(request.content)
        rng, number = random.Random(f"{self._seed} {len(self.bodies)}"), len(self.bodies)
        calls = number < self._calls_end
        if number <= _ROUNDS + 1 and rng.random() < 0.5:
            data = wrong_answer(self.shape, rng, calls=calls)
        else:
            data = body_of(self.shape, answer_of(self.shape, rng, calls=calls))

        self.answers.append(replace_invalid_text(data))

        async def body() -> AsyncIterator[bytes]:
            for piece in pieces(data, rng):
                yield piece

        return httpx2.Response(200, headers={"content-type": KINDS[self.shape.framing]}, content=body())


class Loops:
    def __init__(self) -> None:
        self.proxy = Proxy(max_rounds=_ROUNDS)
        self.proxy.tools.add(HIDDEN, _tool)
        self._session = ""
        self._patch = pytest.MonkeyPatch()

    async def open(self) -> None:
        self._patch.setattr(upstream, "_FIRST_PAUSE", 0.0001)
        await self.proxy.open()

    async def forget(self) -> None:
        pass  # each try has its own session, and deletes it

    async def close(self) -> None:
        await self.proxy.close()
        self._patch.undo()

    async def run(self, rng: random.Random) -> bytes:
        shape = rng.choice(SHAPES)
        upstream, self._session = Rounds(shape, rng), f"s{rng.randrange(1 << 40)}"
        body = _asked(shape, f"question {rng.random()}")
        async with Wire(upstream) as transport, asyncio.timeout(10):
            forward = await self._forward(shape, body)
            assert forward.exchange is not None
            address = Address("POST", f"{_URL}{shape.path}", _HEADERS)
            runner = Runner(
                self.proxy.grafter,
                self.proxy.executors,
                Upstream(lambda _: transport, Watcher()),
                forward.exchange,
                address,
                forward.body,
            )
            status, out = 0, b""
            try:
                async for one in runner.output():
                    if isinstance(one, Head):
                        status = one.status
                    else:
                        out += one
            except httpx2.RequestError:
                pass
            await runner.settle_handover()
        check_hidden(out, shape.kind)
        if status not in (200, 502, 503):
            raise Failure(f"a loop was answered {status}: {out[-400:]!r}")
        if status == 200 and shape.kind == "interaction":
            await self._check_next_interaction(shape, body, out, upstream)
        elif status == 200:
            await self._check_next(shape, body, out)
        await self.proxy.store.delete_session(self._session)
        return b"".join(upstream.bodies)

    async def _forward(self, shape: Shape, body: Document) -> Forward:
        config = await self.proxy.grafter.session_config(self._session)
        assert config is not None
        url = f"{_URL}{shape.path}"
        outcome = await self.proxy.grafter.request(
            Incoming(shape.target, config.session, encode(body), asker="key:k", url=url), config
        )
        if not isinstance(outcome, Forward):
            raise Failure(f"a good request was answered: {outcome}")
        return outcome

    async def _check_next(self, shape: Shape, body: Document, out: bytes) -> None:
        """Continue with the answer as the client has read it, and check that its calls and results go upstream."""
        content, turns = _content(shape, out), (await self.proxy.store.turns(self._session)).items
        if content is None or len(turns) != 1:
            return
        calls = (await self.proxy.store.calls(session=self._session)).items
        forward = await self._forward(shape, _continued(shape, body, content))
        # Calls of tools that the request does not declare become text.
        sent = sum(map(forward.body.count, (b'"functionResponse"', b'"tool_call_id"', b" returned {")))
        if sent < sum(call.status in (Status.DONE, Status.FAILED) for call in calls):
            raise Failure(f"of {len(calls)} calls the next request has {sent}: {out!r} then {forward.body!r}")

    async def _check_next_interaction(self, shape: Shape, body: Document, out: bytes, upstream: Rounds) -> None:
        """Continue the interaction by its name, and check that the service gets the results that it does not have."""
        if (read := _interaction(shape, out)) is None or len((await self.proxy.store.turns(self._session)).items) != 1:
            return
        names, own = read
        calls = (await self.proxy.store.calls(session=self._session)).items
        for name in names:
            words = {"type": "user_input", "content": [{"type": "text", "text": "more"}]}
            more = {**body, "previous_interaction_id": name, "input": [*own, words]}
            forward = await self._forward(shape, more)
            sent = _results_known(forward.body, upstream)
            if sent < sum(call.status in (Status.DONE, Status.FAILED) for call in calls) + len(own):
                raise Failure(f"of {len(calls)} calls the service knows {sent} results: {out!r} then {forward.body!r}")


def _asked(shape: Shape, text: str) -> Document:
    contents = [*CONTENTS[:-1], {"role": "user", "parts": [{"text": text}]}]
    match shape.kind:
        case "gemini":
            return {**shape.body, "contents": contents}
        case "wrapped":
            return {**shape.body, "request": {"contents": contents}}
        case "chat":
            return {**shape.body, "messages": [{"role": "user", "content": text}]}
    return {**shape.body, "input": text}


def _continued(shape: Shape, body: Document, content: Document) -> Document:
    if shape.kind == "chat":
        answer = {"role": "assistant", "content": _text(content["parts"])}
        return {**body, "messages": [*body["messages"], answer, {"role": "user", "content": "more"}]}
    request = body["request"] if shape.kind == "wrapped" else body
    contents = [*request["contents"], content, {"role": "user", "parts": [{"text": "more"}]}]
    return {**body, "request": {"contents": contents}} if shape.kind == "wrapped" else {**body, "contents": contents}


def _content(shape: Shape, out: bytes) -> Document | None:
    """The answer's Content, as assembled by a client; None if it cannot, or the answer has no end."""
    events = [line.removeprefix(b"data:") for line in out.splitlines() if line.startswith(b"data: {")]
    parts, ended = list[Document](), False
    try:
        documents = [json.loads(one) for one in (events if shape.framing is Framing.SSE else [out])]
        for document in documents[0] if shape.framing is Framing.ARRAY else documents:
            if shape.kind == "chat":
                (choice,) = document["choices"]
                ended = ended or choice.get("finish_reason") is not None
                parts.append({"text": choice.get("message", choice.get("delta")).get("content") or ""})
            else:
                (candidate,) = (document["response"] if shape.kind == "wrapped" else document)["candidates"]
                ended = ended or "finishReason" in candidate
                parts += candidate["content"]["parts"]
        return {"role": "model", "parts": parts} if ended and _text(parts) else None
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _interaction(shape: Shape, out: bytes) -> tuple[set[str], list[Document]] | None:
    """The names of an interaction that the client can continue, and its results for the visible calls. None if the
    answer has no end."""
    events = [line.removeprefix(b"data:") for line in out.splitlines() if line.startswith(b"data: {")]
    try:
        documents = [json.loads(one) for one in (events if shape.framing is Framing.SSE else [out])]
        if shape.framing is Framing.SSE:
            found = [one["interaction"] for one in documents if one["event_type"] in _NAMED]
            steps = [one["step"] for one in documents if one["event_type"] == "step.start"]
            if documents[-1]["event_type"] != "interaction.completed":
                return None
        else:
            found, steps = documents, documents[0]["steps"]
        calls = [one for one in steps if one["type"] == "function_call"]
        if found[-1]["status"] not in ("completed", "requires_action"):
            return None
        names = {name for one in found if isinstance(name := one["id"], str) and name}
        return names, [{"type": "function_result", "call_id": one["id"], "result": {}} for one in calls]
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


def _results_known(body: bytes, upstream: Rounds) -> int:
    """The number of results in a request and the interactions before it."""
    results, rounds = 0, list(zip(upstream.bodies, upstream.answers, strict=True))
    while True:
        results, name = results + body.count(b'"function_result"'), decode(body).get("previous_interaction_id")
        while name and rounds and encode(name) not in rounds[-1][1]:
            rounds.pop()
        if not name or not rounds:
            return results
        body, _ = rounds.pop()


def _text(parts: list[Document]) -> str | None:
    """The text of the parts; None if they are not text."""
    texts = [part.get("text", "") for part in parts if not part.get("thought")]
    return "".join(texts) if all(isinstance(text, str) for text in texts) else None
