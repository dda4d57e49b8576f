"""Steps with calls of both sides, in chats with the same words, of clients with all oddities, at the strict Gemini."""

import base64
import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from addon.core.framing.documents import Document, decode, encode
from addon.core.history.own_signatures import own_signature, without_own_signatures
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.fake_gemini.routes import find_route
from addon.fake_gemini.service import Service
from addon.graft.exchange import Forward
from addon.surfaces.registry import match_path
from tests.contents import call, model, response, user
from tests.graft.conftest import WEATHER, Graft, target

OWN: Document = {"functionDeclarations": [{"name": "own"}, {"name": "other"}]}
THINKING: Document = {"thinkingConfig": {"includeThoughts": True}}
STEPS = (
    'One moment. call get_weather {} and call own {"n": 5, "unit": null, "deep": {"a": 1, "b": null}} '
    'and call other {"list": [1, 2]} then call own {} and call get_weather {"again": true}'
)


def each_part(change: Callable[[Document], Document | None]) -> Callable[[Document], list[Document]]:
    def changed(content: Document) -> list[Document]:
        return [{**content, "parts": [new for part in content["parts"] if (new := change(part)) is not None]}]

    return changed


def each_call(change: Callable[[Document], Document]) -> Callable[[Document], list[Document]]:
    """Changes each functionCall and functionResponse."""

    def of_part(part: Document) -> Document:
        kind = next((kind for kind in ("functionCall", "functionResponse") if kind in part), None)
        return part if kind is None else {**part, kind: change(part[kind])}

    return each_part(of_part)


def without(*keys: str) -> Callable[[Document], Document]:
    return lambda document: {key: value for key, value in document.items() if key not in keys}


def args(change: Callable[[Document], Document]) -> Callable[[Document], list[Document]]:
    return each_call(lambda call: {**call, "args": change(call["args"])} if "args" in call else call)


def no_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: no_nulls(item) for key, item in value.items() if item is not None}
    return value


def snake(value: Any) -> Any:
    if isinstance(value, list):
        return [snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        re.sub("[A-Z]", lambda one: "_" + one[0].lower(), key): item if key in ("args", "response") else snake(item)
        for key, item in value.items()
    }


def floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [floats(item) for item in value]
    return float(value) if type(value) is int else value


def url_safe(part: Document) -> Document:
    if (given := part.get("thoughtSignature")) is None:
        return part
    return {**part, "thoughtSignature": base64.urlsafe_b64encode(base64.b64decode(given)).decode()}


def reordered(content: Document) -> list[Document]:
    paired = [part for part in content["parts"] if "text" not in part]
    return [{**content, "parts": [*(part for part in content["parts"] if "text" in part), *reversed(paired)]}]


def split(content: Document) -> list[Document]:
    return [{**content, "parts": [part]} for part in content["parts"]]


def single_parts(content: Document) -> list[Document]:
    return [{**content, "parts": content["parts"][0] if len(content["parts"]) == 1 else content["parts"]}]


def signature_apart(content: Document) -> list[Document]:
    parts: list[Document] = []
    for part in content["parts"]:
        if "thoughtSignature" in part and "functionCall" in part:
            parts += [{"text": "", "thoughtSignature": part["thoughtSignature"]}, without("thoughtSignature")(part)]
        else:
            parts.append(part)
    return [{**content, "parts": parts}]


def trimmed(part: Document) -> Document:
    return {**part, "text": part["text"].strip() + "\n"} if "text" in part else part


def nulls_added(part: Document) -> Document:
    return {"thought": None, "inlineData": None, "text": None, **part}


def text_behind(content: Document) -> list[Document]:
    is_answer = any("functionResponse" in part for part in content["parts"])
    return [{**content, "parts": [*content["parts"], *([{"text": "Go on."}] if is_answer else [])]}]


@dataclass(frozen=True)
class Oddity:
    """`change`: what becomes of a Content of the client's history."""

    name: str
    change: Callable[[Document], list[Document]]
    keeps_ids: bool = True
    keeps_signatures: bool = True


def identity(content: Document) -> list[Document]:
    return [content]


ODDITIES = [
    Oddity("keeps everything", identity),
    Oddity("drops ids", each_call(without("id")), keeps_ids=False),
    Oddity(
        "replaces ids",
        each_call(lambda call: {**call, "id": f"mine-{call['name']}"} if "id" in call else call),
        keeps_ids=False,
    ),
    Oddity("drops signatures", each_part(without("thoughtSignature")), keeps_signatures=False),
    Oddity(
        "drops ids and signatures",
        lambda content: each_part(without("thoughtSignature"))(each_call(without("id"))(content)[0]),
        keeps_ids=False,
        keeps_signatures=False,
    ),
    Oddity("writes signatures for URLs", each_part(url_safe)),
    Oddity("puts signatures into a part of their own", signature_apart),
    Oddity("writes snake_case", lambda content: [snake(content)]),
    Oddity("drops nulls", args(no_nulls)),
    Oddity("fills in defaults", args(lambda given: {"limit": 10, "verbose": False, **given})),
    Oddity("drops empty arguments", each_call(lambda call: call if call.get("args") else without("args")(call))),
    Oddity("sorts arguments", args(lambda given: dict(sorted(given.items(), reverse=True)))),
    Oddity("writes numbers as floats", args(floats)),
    Oddity("changes arguments", args(lambda given: {key: str(value) for key, value in given.items()})),
    Oddity("reorders calls", reordered),
    Oddity("splits turns", split),
    Oddity("writes a single part without a list", single_parts),
    Oddity("changes white space", each_part(trimmed)),
    Oddity("adds nulls", each_part(nulls_added)),
    Oddity("drops thoughts", each_part(lambda part: None if part.get("thought") else part)),
    Oddity("writes text behind responses", text_behind),
]


class Chat:
    """A client's chat. `results`: the hidden results that its requests must hold."""

    def __init__(self, graft: Graft, service: Service, path: str, oddity: Oddity, name: str) -> None:
        self.graft, self.service, self.oddity, self.name = graft, service, oddity, name
        self.path = path
        self.contents: list[Document] = []
        self.results: list[str] = []
        self.lost: list[str] = []

    async def send(self) -> Document:
        sent = [new for content in copy.deepcopy(self.contents) for new in self.oddity.change(content)]
        target, route = match_path("POST", self.path), find_route(self.path.partition("?")[0])
        assert target is not None
        assert route is not None
        outcome = await self.graft.request({"contents": sent, "tools": [OWN], "generationConfig": THINKING}, target)
        assert isinstance(outcome, Forward)
        assert outcome.exchange is not None
        body = outcome.body
        assert b"toolgraft0" not in body
        reply, _ = self.service.generate(decode(body), route, stream=False)
        self.lost += [
            result
            for result in self.results
            if b'"result":"%b"' % result.encode() not in body and result not in self.lost
        ]
        visible = decode(await self.graft.captured(outcome.exchange, encode(reply.unary())))
        content = visible["candidates"][0]["content"]
        self.contents.append(content)
        for one in await self.graft.calls():
            if not one.status.final:
                self.results.append(f"{self.name}-{len(self.results)}")
                await self.graft.store.answer(one.session, one.call_id, result=self.results[-1])
        return content  # type: ignore[no-any-return]

    async def turn(self, number: int) -> None:
        self.contents.append(user(f"{number}. {STEPS}"))
        while calls := [part["functionCall"] for part in (await self.send())["parts"] if "functionCall" in part]:
            self.contents.append(
                user(
                    *(
                        response(call["name"], {"r": n}, **({"id": call["id"]} if "id" in call else {}))
                        for n, call in enumerate(calls)
                    )
                )
            )


DEVELOPER = "/v1beta/models/{model}:generateContent"
VERTEX = "/v1/projects/p/locations/l/publishers/google/models/{model}:generateContent"


@pytest.mark.parametrize("oddity", ODDITIES, ids=lambda oddity: oddity.name)
@pytest.mark.parametrize("path", [DEVELOPER, VERTEX], ids=["developer", "vertex v1"])
@pytest.mark.parametrize("name_of_model", ["gemini-2.5-flash", "gemini-3-flash", "gemini-3.8-flash"])
async def test_no_step_is_refused_and_no_result_lost(
    graft: Graft, oddity: Oddity, path: str, name_of_model: str
) -> None:
    await graft.tools(WEATHER, client_tools="keep", delivery="placeholder")
    service = Service()
    first, second = (Chat(graft, service, path.format(model=name_of_model), oddity, name) for name in ("1st", "2nd"))
    for number in range(2):
        await first.turn(number)
    assert not service.dummy_signatures
    for number in range(2):
        await second.turn(number)
    assert len(second.results) >= 2
    assert first.lost == []
    keeps_ids = oddity.keeps_ids and path == DEVELOPER
    if not name_of_model.startswith("gemini-2") and (oddity.keeps_signatures or keeps_ids):
        assert (second.lost, service.dummy_signatures) == ([], 0)


def signed(graft: Graft, turn_id: str) -> str:
    return own_signature(graft.store.secret, turn_id)


async def test_only_signatures_of_this_store_become_the_dummy(graft: Graft) -> None:
    own, foreign = signed(graft, "turn_1"), own_signature(b"another secret", "turn_1")
    assert base64.b64encode(base64.b64decode(own, validate=True)).decode() == own
    sent = encode({"contents": [{"parts": [{"thoughtSignature": own}, {"thoughtSignature": foreign}, {"text": own}]}]})
    dummy = f'"{DUMMY_SIGNATURE}"'.encode()
    assert without_own_signatures(sent, graft.store.secret) == sent.replace(f'"{own}"'.encode(), dummy)
    for body in (b"", encode({"text": foreign}), encode({"text": f"{own}..."}), encode({"text": encode(own).decode()})):
        assert without_own_signatures(body, graft.store.secret) == body


@pytest.mark.parametrize("client_tools", ["keep", "strip"])
async def test_a_signature_never_reaches_gemini_where_nothing_is_known_of_the_turn(
    graft: Graft, client_tools: str
) -> None:
    await graft.tools(WEATHER, client_tools=client_tools)
    contents = [user("a"), model(call("own", signature=signed(graft, "turn_1"))), user(response("own"))]
    sent = await graft.sent({"contents": contents, "tools": [OWN]}, target(model="gemini-3-flash"))
    assert encode(sent).count(DUMMY_SIGNATURE.encode()) == (client_tools == "keep")
    assert b"toolgraft0" not in encode(sent)
