"""Fills a store with captured calls, by passing requests and answers through the addon's code."""

import base64
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from addon.core.history.keys import asker_of_key
from addon.graft.exchange import Forward
from addon.graft.grafter import Grafter
from addon.graft.machine_shell import Capture
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.surfaces.incoming import Incoming
from addon.surfaces.registry import match_path
from bench.load import API_KEY
from bench.measure import PATH
from bench.toolset import TOOL_CONFIG, TOOLS
from store.base import Store
from store.factory import open_url
from store.models import Call, Toolset

_encode = msgspec.json.Encoder().encode
SIGNATURE = base64.b64encode(random.Random(1).randbytes(300)).decode()


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured call, the question before it, and the text that the client received for it."""

    call_id: str
    question: str
    text: str


def answer_with_call(number: int) -> dict[str, Any]:
    """An answer of a model that calls a tool."""
    call = {"id": f"x{number}", "name": "get_weather", "args": {"city": f"City {number}", "unit": "celsius"}}
    part = {"functionCall": call, "thoughtSignature": SIGNATURE}
    return {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 90, "candidatesTokenCount": 20, "totalTokenCount": 110},
        "modelVersion": "gemini-3-flash-preview",
        "responseId": f"r{number}",
    }


RESULT = {"city": "Göteborg", "celsius": 4.5, "wind": {"speed": 7, "from": "NW"}, "note": "Rain later. " * 20}


async def capture(store: Store, session: str, count: int) -> list[Captured]:
    """Store the toolset, and have `count` calls of the clients captured and answered."""
    await store.put_toolset(session, Toolset(declarations=TOOLS, tool_config=TOOL_CONFIG))
    grafter = Grafter(store, Settings(session=session), Metrics())
    target = match_path("POST", PATH)
    config = await grafter.session_config(session)
    assert target is not None
    assert config is not None
    questions = [f"What about city {number} of {session}?" for number in range(count)]
    texts: list[str] = []
    for number, question in enumerate(questions):
        body = _encode({"contents": [{"role": "user", "parts": [{"text": question}]}]})
        outcome = await grafter.request(Incoming(target, config.session, body, asker=asker_of_key(API_KEY)), config)
        assert isinstance(outcome, Forward)
        assert outcome.exchange is not None
        captured = Capture(grafter, outcome.exchange, "application/json")
        answer = await captured.whole(_encode(answer_with_call(number)))
        assert isinstance(answer, bytes)
        texts.append(msgspec.json.decode(answer)["candidates"][0]["content"]["parts"][0]["text"])
    calls: list[Call] = []
    cursor: str | None = None
    while True:
        page = await store.calls(session=session, limit=1000, cursor=cursor)
        calls += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    for call in calls:
        await store.answer(session, call.call_id, result=RESULT)
    turns = zip(calls, questions, texts, strict=True)
    return [Captured(call.call_id, question, text) for call, question, text in turns]


def default_store(home: Path) -> Store:
    """The default store in the proxy's state folder."""
    file = state_file(home)
    file.parent.mkdir(parents=True, exist_ok=True)
    return open_url(f"sqlite:///{file}", ttl=Settings().ttl)


def state_file(home: Path) -> Path:
    """The SQLite file of the proxy's state folder."""
    return home / "state" / "toolgraft.db"
