"""Repeated requests to a front door: by clients whose proxy died, that hung up, or that had their answer."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.processes import ROOT, until
from tests.e2e.proxies import TOOLS, Proxy, new_session
from tests.e2e.test_retries import ANSWER, WENT, gate, jots
from tests.e2e.upstreams import Gemini, Relay

Json = dict[str, Any]

MODEL = "gemini-3-flash"
PATHS = ["/v1/gemini", "/v1/responses"]
ENDS = {"/v1/gemini": '"finishReason":"STOP"', "/v1/responses": "event: response.completed"}


@pytest.fixture(scope="module")
def mortal(strict: Gemini, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """One that dies when a response is kept and it is told to."""
    folder = tmp_path_factory.mktemp("mortal")
    environ = {"GEMINI_API_KEY": "key-of-the-proxy", "KILLS": str(folder / "kill")}
    script = ROOT / "tests" / "e2e" / "scripts" / "kills.py"
    proxy = Proxy(folder, strict.url, tools=str(TOOLS), early=script, environ=environ)
    yield proxy
    proxy.stop()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """Where tools note that they ran."""
    return tmp_path / "marks"


def asked(text: str, *, stream: bool = False, **more: Any) -> Json:
    return {"model": MODEL, "input": text, "stream": stream, **more}


def headers(proxy: Proxy, session: str) -> dict[str, str]:
    return {"authorization": f"Bearer {proxy.control.token}", "x-graft-session": session}


def post(proxy: Proxy, session: str, path: str, document: Json, *, url: str = "") -> httpx2.Response:
    url = url or proxy.control.url
    return httpx2.post(f"{url}{path}", json=document, headers=headers(proxy, session), timeout=30)


def words(answer: httpx2.Response) -> str:
    """All that an answer, or its stream, says."""
    assert answer.status_code == 200, answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        found = answer.json()
        content = found["output"][0]["content"] if "output" in found else found["candidates"][0]["content"]["parts"]
        return "".join(part["text"] for part in content)
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    if "candidates" in events[-1]:
        return "".join(part["text"] for event in events for part in event["candidates"][0]["content"]["parts"])
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


@pytest.mark.parametrize(
    ("path", "stream", "more"),
    [
        ("/v1/gemini", False, {}),
        ("/v1/gemini", True, {"conversation": "chat"}),
        ("/v1/responses", False, {"conversation": "chat"}),
        ("/v1/responses", True, {}),
        ("/v1/responses", False, {"conversation": "chat", "store": False}),
    ],
)
def test_a_proxy_that_is_killed_between_keeping_an_answer_and_handing_it_over_gives_it_to_the_retry(
    path: str, stream: bool, more: Json, mortal: Proxy, gemini: Gemini, marks: Path
) -> None:
    session, document = new_session(mortal, tools=False).name, asked(jots(marks), stream=stream, **more)
    (mortal.folder / "kill").touch()
    with pytest.raises(httpx2.TransportError):
        post(mortal, session, path, document).read()
    assert mortal.process.wait() < 0
    mortal.start()
    assert words(post(mortal, session, path, document)) == ANSWER
    assert marks.read_text().split() == ["first", "second"]
    assert len(gemini.requests) == 3, "the model is not asked again"
    assert words(post(mortal, session, path, document)).endswith(ANSWER)
    assert marks.read_text().split() == ["first", "second"] * 2, "this one has nothing to go on with"
    texts = [part.get("text") for content in gemini.requests[-1]["body"]["contents"] for part in content["parts"]]
    assert texts.count(jots(marks)) == (2 if more else 1), "a conversation has the turn once"
    assert gemini.errors == []


def test_openai_s_client_gets_the_kept_answer_when_its_proxy_is_there_again(
    mortal: Proxy, gemini: Gemini, marks: Path
) -> None:
    more: Json = {"default_headers": {"x-graft-session": new_session(mortal, tools=False).name}, "max_retries": 0}
    given: Json = {"model": MODEL, "input": jots(marks), "conversation": "chat"}
    (mortal.folder / "kill").touch()
    with openai.OpenAI(base_url=f"{mortal.control.url}/v1", api_key=mortal.control.token, **more) as client:
        with pytest.raises(openai.APIConnectionError):
            client.responses.create(**given)
    assert mortal.process.wait() < 0
    mortal.start()
    with openai.OpenAI(base_url=f"{mortal.control.url}/v1", api_key=mortal.control.token, **more) as client:
        response = client.responses.create(**given)
        assert response.output_text == ANSWER
        assert client.responses.retrieve(response.id).output_text == ANSWER
    assert marks.read_text().split() == ["first", "second"]
    assert gemini.errors == []


@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_reads_no_further_than_the_end_of_its_answer_has_it(
    path: str, mortal: Proxy, gemini: Gemini, marks: Path
) -> None:
    """It asks the same again, and is not given the answer that it has."""
    session, document = new_session(mortal, tools=False).name, asked(jots(marks), stream=True)
    for count in (1, 2, 3):
        with httpx2.stream(
            "POST", f"{mortal.control.url}{path}", json=document, headers=headers(mortal, session), timeout=30
        ) as answer:
            assert any(ENDS[path] in line for line in answer.iter_lines())
        assert marks.read_text().split() == ["first", "second"] * count
    assert gemini.errors == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_client_that_hung_up_while_a_tool_ran_gets_the_rest_when_it_asks_again(
    path: str, stream: bool, mortal: Proxy, gemini: Gemini, marks: Path
) -> None:
    session = new_session(mortal, tools=False).name
    document = asked(gate(marks), stream=stream, conversation="chat")
    with Relay(mortal.control.url) as relay, ThreadPoolExecutor(1) as pool:
        lost = pool.submit(post, mortal, session, path, document, url=relay.url)
        until(marks.exists, "the tool has begun")
        relay.cut()
        assert isinstance(lost.exception(20), httpx2.TransportError)
    Path(f"{marks}.open").touch()
    answers: list[httpx2.Response] = []

    def is_answered() -> bool:
        answers.append(post(mortal, session, path, document))
        return answers[-1].status_code != 409  # until it is known that the first client has gone

    until(is_answered, "the conversation is free")
    assert words(answers[-1]) == WENT
    assert marks.read_text().split() == ["begun", "ended"]
    assert gemini.errors == []
