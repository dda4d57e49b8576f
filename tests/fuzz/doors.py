"""The front doors: wrong requests of callers, and wrong upstream answers in any round. The next turn must contain each
answer with status 200."""

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import pytest

from addon.core.framing.documents import Document, decode, encode, objects, parts_of
from addon.loop import upstream
from store.models import Status
from tests.fuzz.mutations import altered, misplaced, mutated, pieces
from tests.fuzz.shapes import HIDDEN, KINDS, SHAPES, Failure, Shape, answer_of, body_of, check_hidden
from tests.fuzz.targets import made_wrong
from tests.gateway.conftest import MODEL, House
from tests.loop.conftest import Wire

_WHOLE, _STREAMED = SHAPES[:2]
_ROUNDS = 3
_BESIDES: Document = {
    "groundingMetadata": {
        "webSearchQueries": ["words"],
        "groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
        "groundingSupports": [{"segment": {"startIndex": 0, "endIndex": 5}, "groundingChunkIndices": [0]}],
    },
    "logprobsResult": {
        "chosenCandidates": [{"token": "Words", "logProbability": -0.1}],
        "topCandidates": [{"candidates": [{"token": "Words", "logProbability": -0.1}]}],
    },
}
_FORESEEN = (b"the connection to the model", b'"message":"m"')
"""Texts of expected refusals of 500 or more: a broken connection, and the model's error (`mutations`)."""
_OWN: Document = {"name": "own", "description": "d", "parameters": {"type": "object", "properties": {}}}


async def _tool(**args: object) -> Document:
    return {"ok": 1}


class _Model:
    """A model with some wrong answers, followed by good ones. `says`: how often it calls."""

    def __init__(self, rng: random.Random) -> None:
        self.bodies: list[bytes] = []
        self.is_good = False
        self._seed = rng.random()
        self._calls_end = rng.choice((1, 1, 2, 3, 9))

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.bodies.append(request.content)
        number, rng = len(self.bodies), random.Random(f"{self._seed} {len(self.bodies)}")
        shape: Shape = _STREAMED if b"alt=sse" in request.url.query else _WHOLE
        text = rng.choice(("Done. ", f"Words {rng.random()} nobody else ever says in answer {number}. "))
        calls = number < self._calls_end and not self.is_good
        if number <= _ROUNDS + 1 and not self.is_good and rng.random() < 0.4:
            data = made_wrong(_answer(shape, rng, calls=calls, text=text), shape, rng)
        else:
            data = body_of(shape, _answer(shape, rng, calls=calls, text=text))

        async def body() -> AsyncIterator[bytes]:
            for piece in pieces(data, rng):
                yield piece

        return httpx2.Response(200, headers={"content-type": KINDS[shape.framing]}, content=body())


def _answer(shape: Shape, rng: random.Random, *, calls: bool, text: str) -> list[Document | bytes]:
    """A good answer, sometimes with other members of a response than text and calls."""
    documents = answer_of(shape, rng, calls=calls, text=text)
    if rng.random() < 0.3:
        *_, last = (one for one in documents if isinstance(one, dict))
        besides = altered(_BESIDES, rng)
        last["candidates"][0] |= besides if isinstance(besides, dict) else {"besides": besides}
    return documents


class Doors:
    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self.house = House(state=Path(self._folder.name), max_rounds=_ROUNDS)
        self.house.proxy.tools.add(HIDDEN, _tool)
        self._session = ""
        self._patch = pytest.MonkeyPatch()

    async def open(self) -> None:
        self._patch.setattr(upstream, "_FIRST_PAUSE", 0.0001)
        await self.house.open()

    async def forget(self) -> None:
        """Clear the recorded requests. Each try deletes its own session."""
        outside = self.house.outside
        for noted in (outside.watcher.exchanges, outside.sent, outside.callers):
            noted.clear()

    async def close(self) -> None:
        await self.house.close()
        self._folder.cleanup()
        self._patch.undo()

    async def run(self, rng: random.Random) -> bytes:
        path, marker = rng.choice(("/v1/gemini", "/v1/responses")), f"marker-{rng.randrange(1 << 40)}"
        model, self._session = _Model(rng), f"s{rng.randrange(1 << 40)}"
        data = _request(path, marker, rng)
        async with Wire(model) as self.house.proxy.transport:
            answer = await self._post(path, data, model)
            last = _last(answer.content, path)
            asked = decode(model.bodies[0])["contents"] if answer.status_code == 200 and model.bodies else None
            if last is not None and marker in str(asked):
                model.is_good = True
                for _ in range(2):
                    last = await self._check_next(path, last, marker, model)
        await self.house.store.delete_session(self._session)
        return data + b"".join(model.bodies)

    async def _post(self, path: str, data: bytes, model: _Model) -> httpx2.Response:
        headers = {"content-type": "application/json", "x-graft-session": self._session}
        answer = await self.house.http.post(path, content=data, headers=headers)
        if model.bodies and HIDDEN.encode() in model.bodies[0]:  # some requests can have no tools
            check_hidden(answer.content, "gemini" if path == "/v1/gemini" else "responses")
        if (
            answer.status_code >= 500
            and answer.status_code != 502
            and not any(words in answer.content for words in _FORESEEN)
        ):
            raise Failure(f"{path} {data[:300]!r} was answered {answer.status_code}: {answer.content[-400:]!r}")
        return answer

    async def _check_next(self, path: str, last: Document, marker: str, model: _Model) -> Document:
        """Continue as the caller, and check that the question and its calls go upstream again. Returns the answer."""
        calls = (await self.house.store.calls(session=self._session)).items
        before = len(model.bodies)
        data = encode(_continued(path, last))
        answer = await self._post(path, data, model)
        following = _last(answer.content, path)
        if answer.status_code != 200 or len(model.bodies) == before or following is None:
            raise Failure(f"{path}: after {last} a good turn was answered {answer.status_code}: {answer.content!r}")
        sent = model.bodies[before]
        results = sent.count(b'"functionResponse"') + sent.count(b" returned {")
        if marker.encode() not in sent or results < sum(call.status in (Status.DONE, Status.FAILED) for call in calls):
            raise Failure(f"{path}: after {last} the next turn lacks something of {len(calls)} calls: {sent!r}")
        return following


def _request(path: str, marker: str, rng: random.Random) -> bytes:
    """A request, half of them with something wrong."""
    body: Document = {"model": MODEL, "input": f"what is {marker}?", "stream": rng.random() < 0.5}
    if path == "/v1/gemini":
        if rng.random() < 0.3:
            body["input"] = [{"role": "user", "parts": [{"text": body["input"]}]}]
        more: Document = {
            "tools": [{"functionDeclarations": [_OWN]}],
            "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
            "systemInstruction": "be short",
            "generationConfig": {"temperature": 0.5, "maxOutputTokens": 100},
            "conversation": "trip",
        }
    else:
        if rng.random() < 0.3:
            body["input"] = [{"role": "user", "content": [{"type": "input_text", "text": body["input"]}]}]
        more = {
            "tools": [{"type": "function", **_OWN}],
            "tool_choice": "auto",
            "instructions": "be short",
            "temperature": 0.5,
            "max_output_tokens": 100,
            "conversation": "trip",
            "metadata": {"a": "b"},
            "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
            "reasoning": {"effort": "low"},
            "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
            "top_logprobs": 2,
            "stop": ["END"],
            "truncation": "auto",
            "max_tool_calls": 2,
            "service_tier": "flex",
        }
        if rng.random() < 0.2:
            more["tools"] = [{"type": "web_search"}, {"type": "function", **_OWN}]
        if rng.random() < 0.1:
            image = {"type": "input_image", "image_url": "https://a.example/cat.png", "detail": "low"}
            words = {"type": "input_text", "text": f"what is {marker}?"}
            body["input"] = [{"role": "user", "content": [words, image]}]
    body |= {name: value for name, value in more.items() if rng.random() < 0.4}
    kind = rng.random()
    if kind < 0.25:
        body = altered(body, rng)
    elif kind < 0.35:
        body = misplaced(body, rng)
    data = encode(body)
    return mutated(data, rng) if kind > 0.9 else data


def _last(data: bytes, path: str) -> Document | None:
    """The answer that the caller can continue: all of it (Gemini's documents as one), or None."""
    events = [line.removeprefix(b"data: ") for line in data.splitlines() if line.startswith(b"data: {")]
    try:
        documents: list[Any] = [json.loads(one) for one in events or [data]]
    except ValueError:
        return None
    documents = [one for one in documents if isinstance(one, dict)]
    if path == "/v1/responses":
        found = [one.get("response", one) for one in documents if one.get("type") in (None, "response.completed")]
        done = [one for one in found if one.get("status") == "completed" and one.get("store") is not False]
        return done[-1] if done else None
    candidates = [one for document in documents for one in objects(document.get("candidates"))]
    candidates = [one for one in candidates if not one.get("index")]
    if not any(one.get("finishReason") for one in candidates) or any("error" in one for one in documents):
        return None
    contents = [one["content"] for one in candidates if isinstance(one.get("content"), dict)]
    parts = [part for content in contents for part in parts_of(content)]
    if any(not isinstance(call, dict) or "name" not in call for call in _calls(parts)):
        return None
    # A filtered answer without parts for a history is not stored.
    is_empty = all(part in ({}, {"text": ""}) or part.get("thought") for part in parts)
    if is_empty and not {"STOP", "MAX_TOKENS"} & {str(one.get("finishReason")) for one in candidates}:
        return None
    return {"id": documents[-1].get("responseId"), "parts": parts}


def _calls(parts: list[Document]) -> list[Any]:
    return [part[key] for part in parts for key in ("functionCall", "function_call") if part.get(key) is not None]


def _continued(path: str, last: Document) -> Document:
    if path == "/v1/responses":
        calls = [item for item in last["output"] if item["type"] == "function_call"]
        outputs = [{"type": "function_call_output", "call_id": one["call_id"], "output": "{}"} for one in calls]
        more: list[Document] = [*outputs, {"role": "user", "content": "more"}]
        return {"model": MODEL, "input": more, "previous_response_id": last["id"]}
    answers = [
        {"functionResponse": {**{key: call[key] for key in ("id", "name") if key in call}, "response": {}}}
        for call in _calls(last["parts"])
    ]
    return {"model": MODEL, "input": [*answers, {"text": "more"}], "previousResponseId": last["id"]}
