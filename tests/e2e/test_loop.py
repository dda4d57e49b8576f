"""A chat with tools that the proxy runs, by every published client: the client sees plain answers, the strict server
the true turns."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.e2e import chats
from tests.e2e.chats import Chat
from tests.e2e.processes import environment
from tests.e2e.proxies import TOOLS, Proxy, new_session, sse, text_of, user
from tests.e2e.upstreams import Gemini

MODEL = "gemini-3-flash-preview"
KEY = "a-secret-key"
PATH = f"/v1beta/models/{MODEL}"

Json = dict[str, Any]


class Said(NamedTuple):
    """What the user says, what the whole answer is, and the calls of each step."""

    words: str
    answer: str
    steps: tuple[tuple[str, ...], ...]


def weather_of(*cities: str) -> str:
    return " ".join(f'weather returned {{"city": "{city}", "celsius": {len(city)}}}.' for city in cities)


def call(city: str) -> str:
    return f'call weather {{"city": "{city}"}}'


FIVE = ("Rome", "Oslo", "Bern", "Lima", "Paris")
TURNS = [
    Said(call("Oslo"), weather_of("Oslo"), (("weather",),)),
    Said(
        f'{call("Paris")} and {call("Tokyo")} and call local_add {{"a": 1, "b": 2}}',
        f'{weather_of("Paris", "Tokyo")} local_add returned {{"sum": 3}}.',
        (("weather", "weather", "local_add"),),
    ),
    Said(" then ".join(map(call, FIVE)), weather_of(*FIVE), (("weather",),) * 5),
    Said(f"{call('Rio')} and {call('Cairo')} [demo: each]", weather_of("Rio", "Cairo"), (("weather", "weather"),)),
    Said(f"say One moment. {call('Quito')}", f"One moment.{weather_of('Quito')}", (("weather",),)),
    Said("call hour {}", 'hour returned {"hour": 12}.', (("hour",),)),
]


def converse(chat: "Chat | Curl", gemini: Gemini) -> None:
    """Each turn, and what it leaves for the next one."""
    before: list[Json] = []
    for turn in TURNS:
        gemini.forget()
        assert chat.say(turn.words) == turn.answer
        assert gemini.errors == []
        assert gemini.dummy_signatures == 0
        bodies = [request["body"] for request in gemini.requests]
        assert len(bodies) == 1 + len(turn.steps)
        first, *_, last = bodies
        assert flat(first["contents"])[: len(before)] == before, "the true turns of those before it"
        assert flat(last["contents"])[: len(flat(first["contents"]))] == flat(first["contents"])
        check_steps(last["contents"][len(first["contents"]) :], turn.steps)
        answer = turn.answer.rpartition("One moment.")[2]
        before = [*flat(last["contents"]), {"role": "model", "text": answer}]
    gemini.forget()
    repeated = chat.say("repeat the results")
    assert repeated == " ".join(turn.answer.removeprefix("One moment.") for turn in TURNS)
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0
    hidden = ("functionCall", "function_call", "functionResponse", "function_response")
    assert not any(key in part for content in chat.history for part in content["parts"] for key in hidden)


def check_steps(contents: list[Json], steps: tuple[tuple[str, ...], ...]) -> None:
    """One model Content and one of responses a step; ids in call order, one signature, on the first call."""
    assert [content["role"] for content in contents] == ["model", "user"] * len(steps)
    for called, answered, names in zip(contents[::2], contents[1::2], steps, strict=True):
        calls = [part for part in called["parts"] if "functionCall" in part]
        assert [part["functionCall"]["name"] for part in calls] == list(names)
        assert ["thoughtSignature" in part for part in calls] == [n == 0 for n in range(len(calls))]
        responses = [part["functionResponse"] for part in answered["parts"]]
        assert [(one["id"], one["name"]) for one in responses] == [
            (part["functionCall"]["id"], part["functionCall"]["name"]) for part in calls
        ]


def flat(contents: list[Json]) -> list[Json]:
    """The parts of a history, each with its side; texts joined, and without signatures on them, which are optional."""
    parts: list[Json] = []
    for content in contents:
        for part in content["parts"]:
            if "text" not in part:
                parts.append({"role": content["role"], **part})
            elif parts and "text" in parts[-1] and parts[-1]["role"] == content["role"]:
                parts[-1]["text"] += part["text"]
            elif part["text"]:
                parts.append({"role": content["role"], "text": part["text"]})
    return parts


@pytest.mark.parametrize("kind", ["sync", "stream", "async", pytest.param("async-stream", marks=pytest.mark.smoke)])
def test_a_google_genai_chat_is_answered_by_tools_of_the_proxy(
    kind: str, looper: Proxy, gemini: Gemini, tmp_path: Path
) -> None:
    session = new_session(looper, tools=False)
    with chats.python(tmp_path, kind, model=MODEL, key=KEY, base_url=f"{looper.url}/@{session.name}") as chat:
        converse(chat, gemini)


@pytest.mark.smoke
def test_a_google_genai_chat_is_answered_through_connect(looper: Proxy, gemini: Gemini, tmp_path: Path) -> None:
    session = new_session(looper, tools=False)
    env = {"HTTPS_PROXY": looper.user(session.name), "SSL_CERT_FILE": str(looper.ca)}
    with chats.python(tmp_path, "stream", env, model=MODEL, key=KEY) as chat:
        converse(chat, gemini)


def test_a_chat_of_genai_for_javascript_is_answered_by_tools_of_the_proxy(
    looper: Proxy, gemini: Gemini, tmp_path: Path
) -> None:
    session = new_session(looper, tools=False)
    with chats.node(tmp_path, "stream", model=MODEL, key=KEY, base_url=f"{looper.url}/@{session.name}") as chat:
        converse(chat, gemini)


LONG = f"say one two three {call('Oslo')} in 4 pieces"


@pytest.mark.parametrize(
    ("client", "kind"),
    [(chats.python, "sync"), (chats.python, "stream"), (chats.node, "async"), (chats.node, "stream")],
    ids=["google-genai", "google-genai stream", "@google/genai", "@google/genai stream"],
)
def test_a_long_answer_in_pieces_is_one_answer_to_a_chat(
    client: Callable[..., Chat], kind: str, looper: Proxy, gemini: Gemini, tmp_path: Path
) -> None:
    """With a tool of the proxy between the pieces, and without any."""
    session = new_session(looper, tools=False)
    base = f"{looper.url}/@{session.name}"
    with client(tmp_path, kind, model="gemini-4-argon", key=KEY, base_url=base) as chat:
        assert chat.say(LONG) == f"one two three{weather_of('Oslo')}"
        assert chat.say("say a b c d e f g in 3 pieces") == "a b c d e f g"
        assert chat.say("repeat the results") == weather_of("Oslo")
    assert gemini.errors == []
    assert gemini.dummy_signatures == 0
    tokens = [request["body"].get("continuationToken") for request in gemini.requests]
    assert sum(token is not None for token in tokens) >= 5
    assert [one["name"] for one in session.calls()] == ["weather"]


class Curl:
    """A chat by curl: the history is kept as a script would keep it, whole answers or events as they came."""

    def __init__(self, url: str, home: Path, method: str) -> None:
        self.url = url
        self.home = home
        self.method = method
        self.history: list[Json] = []

    def say(self, text: str) -> str:
        self.history.append(user(text))
        command = ["curl", "-sS", "--fail-with-body", "-H", f"x-goog-api-key: {KEY}", "--data-binary", "@-"]
        ran = subprocess.run(
            [*command, f"{self.url}{PATH}:{self.method}"],
            input=json.dumps({"contents": self.history}).encode(),
            env=environment(self.home),
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        found = sse(ran.stdout.decode()) if "alt=sse" in self.method else json.loads(ran.stdout)
        self.history.append({"role": "model", "parts": [{"text": text_of(found)}]})
        check_answer(found if isinstance(found, list) else [found])
        return text_of(found)


def check_answer(documents: list[Json]) -> None:
    """One answer: one id, one end, a usage that holds for all, and parts in each document."""
    assert len({document["responseId"] for document in documents}) == 1
    candidates = [document["candidates"][0] for document in documents]
    assert all(candidate["content"]["parts"] for candidate in candidates)
    assert [candidate.get("finishReason") for candidate in candidates] == [None] * (len(documents) - 1) + ["STOP"]
    usage = documents[-1]["usageMetadata"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"]


@pytest.mark.parametrize(
    "method",
    [
        "generateContent",
        pytest.param("streamGenerateContent?alt=sse", marks=pytest.mark.smoke),
        "streamGenerateContent",
    ],
)
def test_a_chat_by_curl_is_answered_by_tools_of_the_proxy(
    method: str, looper: Proxy, gemini: Gemini, tmp_path: Path
) -> None:
    session = new_session(looper, tools=False)
    converse(Curl(f"{looper.url}/@{session.name}", tmp_path, method), gemini)


@pytest.fixture
def lively(tmp_path: Path, gemini: Gemini, start: Callable[..., Proxy]) -> Proxy:
    """One whose streams are kept alive while a tool runs."""
    return start(gemini.url, tools=str(TOOLS), keepalive="0.1")


@pytest.mark.parametrize("client", [chats.python, chats.node])
def test_a_stream_that_is_kept_alive_is_an_answer_like_any_other_to_a_chat(
    client: Callable[..., Chat], lively: Proxy, gemini: Gemini, tmp_path: Path
) -> None:
    words = 'call pause {"seconds": 0.8, "label": "slow"}'
    request = {"contents": [user(words)]}
    url = f"{lively.url}{PATH}:streamGenerateContent?alt=sse"
    events = sse(httpx2.post(url, json=request, headers={"x-goog-api-key": KEY}, timeout=30).text)
    fillers = [one for one in events if one["candidates"][0]["content"]["parts"] == [{"text": "", "thought": True}]]
    assert len(fillers) >= 2, "the pause was filled"

    gemini.forget()
    with client(tmp_path, "stream", model=MODEL, key=KEY, base_url=lively.url) as chat:
        assert chat.say(words) == 'pause returned {"label": "slow"}.'
        assert chat.say("repeat the results") == 'pause returned {"label": "slow"}.'
    assert gemini.errors == []
    roles = [content["role"] for content in gemini.last["body"]["contents"]]
    assert roles == ["user", "model", "user", "model", "user"]
