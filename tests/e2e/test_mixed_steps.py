"""Steps with a call of the proxy's and one of the client's, by the rules of Gemini 3, asked twice with other results.

The client does not get the signed call. Its own first call then has a signature of the proxy's.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e import chats
from tests.e2e.processes import environment
from tests.e2e.proxies import TOOLS, Proxy, Session, new_session, parts_of, sse, text_of, user
from tests.e2e.test_gemini_cli import MODEL, command, home
from tests.e2e.upstreams import Gemini

__all__ = ["home"]

type Say = Callable[[str], str]

STEP = 'call ticket {} and call note {"n": 1}'
TURNS = 5


@pytest.fixture(scope="module")
def tickets(tmp_path_factory: pytest.TempPathFactory, strict: Gemini) -> Iterator[Proxy]:
    """Its tool has another result for each call."""
    proxy = Proxy(tmp_path_factory.mktemp("tickets"), strict.url, tools=str(TOOLS.with_name("tickets.py")))
    yield proxy
    proxy.stop()


@pytest.fixture
def session(tickets: Proxy) -> Session:
    session = new_session(tickets, tools=False)
    session.policy(client_tools="keep", delivery="loop")
    return session


def numbers(text: str) -> list[str]:
    return re.findall(r'"(no-\d+)"', text)


def results(gemini: Gemini, name: str) -> list[Any]:
    """Of a tool, in the last request."""
    body = gemini.last["body"]
    parts = [part for content in body.get("request", body)["contents"] for part in content["parts"]]
    found = [part["functionResponse"] for part in parts if "functionResponse" in part]
    return [one["response"] for one in found if one["name"] == name]


def check(say: Say, gemini: Gemini) -> list[str]:
    """Have a chat; returns the proxy's results."""
    given = []
    for _ in range(TURNS):
        text = say(STEP)
        assert '"said_by": "the client"' in text
        (number,) = numbers(text)
        given.append(number)
    assert [one["number"] for one in results(gemini, "ticket")] == given
    assert results(gemini, "note") == [{"said_by": "the client"}] * TURNS
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)
    return given


@pytest.mark.parametrize("vertex", [False, True], ids=["developer", "vertex"])
@pytest.mark.parametrize("kind", ["async", "stream"])
def test_google_genai_of_javascript(
    tickets: Proxy, session: Session, gemini: Gemini, tmp_path: Path, kind: str, vertex: bool
) -> None:
    base = f"{tickets.url}/@{session.name}"
    options: Any = {"model": MODEL, "key": "a-key", "base_url": base, "tools": ["note"], "runs": True, "vertex": vertex}
    given = []
    for _ in range(2):
        with chats.node(tmp_path, kind, **options) as chat:
            given += check(chat.say, gemini)
    assert len(set(given)) == 2 * TURNS
    assert all(("/publishers/" in request["path"]) == vertex for request in gemini.requests)


@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_code_assist(tickets: Proxy, session: Session, gemini: Gemini, stream: bool) -> None:
    method = "streamGenerateContent?alt=sse" if stream else "generateContent"
    url = f"{tickets.url}/@{session.name}/v1internal:{method}"
    tools = [{"functionDeclarations": [{"name": "note", "description": "Notes."}]}]

    def chat() -> Say:
        contents: list[Any] = []

        def ask(content: Any) -> Any:
            contents.append(content)
            body = {"model": MODEL, "project": "p", "request": {"contents": contents, "tools": tools}}
            answer = httpx2.post(url, json=body, headers={"authorization": "Bearer a-token"}, timeout=30)
            assert answer.status_code == 200, answer.text
            found = sse(answer.text) if stream else answer.json()
            contents.append({"role": "model", "parts": parts_of(found)})
            return found

        def say(words: str) -> str:
            (call,) = [part["functionCall"] for part in parts_of(ask(user(words))) if "functionCall" in part]
            response = {name: call[name] for name in ("id", "name") if name in call}
            response["response"] = {"said_by": "the client"}
            return text_of(ask({"role": "user", "parts": [{"functionResponse": response}]}))

        return say

    given = check(chat(), gemini) + check(chat(), gemini)
    assert len(set(given)) == 2 * TURNS


def test_gemini_cli(tickets: Proxy, session: Session, gemini: Gemini, home: Path) -> None:
    """Steps of one turn, in two chats. With `--resume` the client says each response twice, so nobody can answer it."""
    folders = [f"folder-{number}" for number in range(TURNS)]  # the client stops a model that repeats a call
    for folder in folders:
        (home / "work" / folder / f"in-{folder}").mkdir(parents=True)
    question = " then ".join(f'call ticket {{}} and call list_directory {{"dir_path": "{name}"}}' for name in folders)
    base = f"{tickets.url}/@{session.name}"
    environ = environment(home, GEMINI_API_KEY="a-key", GOOGLE_GEMINI_BASE_URL=base, NO_BROWSER="1")
    given: list[str] = []
    for _ in range(2):
        line = command("--output-format", "json", "--prompt", question)
        ran = subprocess.run(
            line, cwd=home / "work", env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        new = numbers(json.loads(ran.stdout)["response"])
        assert [one["number"] for one in results(gemini, "ticket")] == new
        given += new
        listed = [json.dumps(one) for one in results(gemini, "list_directory")]
        assert len(listed) == TURNS
        assert all(f"in-{folders[place]}" in one for place, one in enumerate(listed))
    assert (gemini.errors, gemini.dummy_signatures) == ([], 0)
    assert len(set(given)) == 2 * TURNS
