"""What mitmdump prints while requests pass: the exact lines, with times, token counts and ids left open."""

import json
import re
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.e2e.processes import until
from tests.e2e.proxies import Proxy, user
from tests.e2e.upstreams import Gemini
from tests.ports import free_port

Json = dict[str, Any]

SOURCE = '''
import asyncio
from addon.tools import tool

def get_weather(city: str) -> str:
    """The weather of a city."""
    return "sunny"

def broken(city: str) -> str:
    """Fail."""
    raise ValueError("no\\n\\x1b[31mdefault  200")

@tool(timeout=0.2)
async def endless() -> str:
    """Take too long."""
    await asyncio.Event().wait()

@tool(approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return "paid"
'''
MODEL = "gemini-3-flash"
GENERATE, STREAM, COUNT = "generateContent", "streamGenerateContent?alt=sse", "countTokens"
KEY = {"x-goog-api-key": "a-secret-key-of-the-client"}
MINE = [{"functionDeclarations": [{"name": "mine", "description": "The client's own."}]}]
MINUS = "\N{MINUS SIGN}"
OPEN = [
    (re.compile(r"^\[[\d:.]+\](\[\S+\])? "), ""),
    (re.compile(r"\b\d+(\.\d+)? m?s\b"), "TIME"),
    (re.compile(r"[\d.]+[kM]?(→|->)[\d.]+[kM]? tokens"), r"N→N tokens"),
    (re.compile(r"call_[0-9a-f]{24}"), "CALL"),
    (re.compile(r"^127\.0\.0\.1:\d+: "), "CLIENT: "),
    (re.compile(r"http://127\.0\.0\.1:\d+"), "URL"),
]


def plain(line: str) -> str:
    for pattern, instead in OPEN:
        line = pattern.sub(instead, line)
    return line


def ask(url: str, words: str, method: str = GENERATE, session: str = "", **more: Any) -> int:
    path = f"{'/@' + session if session else ''}/v1beta/models/{MODEL}:{method}"
    return httpx2.post(url + path, json={"contents": [user(words)], **more}, headers=KEY, timeout=30).status_code


LOOP = f"default  {MODEL}  +4 tools"

SCENARIOS: list[tuple[str, Json, list[str]]] = [
    (
        'call get_weather {"city": "Oslo"}',
        {"method": STREAM, "tools": MINE},
        [
            "session default: the tools of its clients are left out: graft_client_tools=keep keeps them",
            f"{LOOP} {MINUS}1 client tool → get_weather(Oslo) TIME, 2 rounds, streamed, N→N tokens  200  TIME",
        ],
    ),
    ("hello", {"tools": MINE}, [f"{LOOP} {MINUS}1 client tool, N→N tokens  200  TIME"]),
    ("hello", {"method": STREAM}, [f"{LOOP}, streamed, N→N tokens  200  TIME"]),
    ("hello", {"method": COUNT}, [f"default  {MODEL}  countTokens  +4 tools  200  TIME"]),
    ("hello", {"unknownField": 1}, [f"{LOOP}  400  TIME"]),
    (
        'call broken {"city": "Oslo) 0.5 s  200"}',
        {},
        [
            r"session default: broken failed: ValueError: no\n\x1b[31mdefault 200",
            f'{LOOP} → broken("Oslo) TIME  200") failed TIME, 2 rounds, N→N tokens  200  TIME',
        ],
    ),
    (
        "call endless {}",
        {},
        [
            "session default: endless failed: endless took longer than TIME",
            f"{LOOP} → endless() failed TIME, 2 rounds, N→N tokens  200  TIME",
        ],
    ),
    (
        'call get_weather {"city": "Oslo"} forever',
        {"session": "short"},
        [
            "session short: the rounds of a request have run out, its model may call no more tools: graft_max_rounds=2",
            f"short  {MODEL}  +4 tools → get_weather(Oslo) TIME, 2 rounds, N→N tokens  200  TIME",
        ],
    ),
    (
        'call get_weather {"city": "Oslo"}',
        {"session": "passes"},
        [f"passes  {MODEL}  +4 tools → get_weather(Oslo) for the client, N→N tokens  200  TIME"],
    ),
    (
        'call by_hand {"city": "Oslo"}',
        {"session": "hand"},
        [
            "session hand: by_hand(Oslo) waits for its result: toolgraft answer CALL",
            f"hand  {MODEL}  +5 tools → by_hand(Oslo) waits, N→N tokens  200  TIME",
        ],
    ),
]


FORM = "which must be a name of the form [A-Za-z0-9_.-]{1,64}, and not only dots"
REFUSED: list[tuple[str, dict[str, str], str]] = [
    ("", {"x-graft-session": "a<script>"}, f"x-graft-session names the session 'a<script>', {FORM}"),
    ("/@a%1b[31m", {}, rf"the path names the session 'a%1b[31m', {FORM}"),
    (
        "",
        {"origin": "http://elsewhere.example"},
        "a web page of http://elsewhere.example may not use this proxy: see graft_allow_origins",
    ),
]
"""Requests that the proxy refuses itself: a path before the API's, headers, and why."""


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "own_tools.py"
    path.write_text(SOURCE)
    return str(path)


def lines_of(proxy: Proxy, mark: int, last: str) -> list[str]:
    """The lines after the mark, up to the one with this."""
    proxy.process.wait_for(last, after=mark)
    return [plain(line) for line in proxy.process.lines[mark:] if "own_tools.py:" not in line]


def test_one_line_for_each_request_and_for_each_problem(
    start: Callable[..., Proxy], gemini: Gemini, tools: str
) -> None:
    proxy = start(gemini.url, tools=tools, upstream=gemini.url)
    proxy.control.session("short").policy(max_rounds=2)
    proxy.control.session("passes").policy(delivery="passthrough")
    by_hand = {"name": "by_hand", "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}}
    proxy.control.session("hand").tools([by_hand])
    for words, more, expected in SCENARIOS:
        mark = proxy.process.mark()
        ask(proxy.url, words, **more)
        assert lines_of(proxy, mark, rf"^\w+  {MODEL}  ") == expected, words

    mark = proxy.process.mark()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, proxy.url, 'call pay {"amount": 5}')
        line = proxy.process.wait_for("waits for", after=mark)
        assert plain(line) == "session default: pay(5) waits for an approval: toolgraft approve CALL"
        call_id = line.rpartition(" ")[2]
        proxy.control.ask("POST", f"/v1/calls/{call_id}/approve")
        assert asked.result(30) == 200
    assert lines_of(proxy, mark, "^default  ")[1:] == [f"{LOOP} → pay(5) TIME, 2 rounds, N→N tokens  200  TIME"]

    mark = proxy.process.mark()
    with pytest.raises(httpx2.TimeoutException):
        httpx2.post(
            f"{proxy.url}/v1beta/models/{MODEL}:{GENERATE}",
            json={"contents": [user('call pay {"amount": 6}')]},
            headers=KEY,
            timeout=httpx2.Timeout(10, read=0.5),
        )
    assert lines_of(proxy, mark, "^default  ")[1:] == [f"{LOOP} → pay(6), N→N tokens  the client hung up  TIME"]

    mark = proxy.process.mark()
    body = {"model": MODEL, "input": 'call get_weather {"city": "Oslo"}', "store": False}
    proxy.control.ask("POST", "/v1/responses", json=body, headers=KEY)
    assert lines_of(proxy, mark, "^default  ") == [f"{LOOP} → get_weather(Oslo) TIME, 2 rounds, N→N tokens  200  TIME"]

    mark = proxy.process.mark()
    httpx2.get(f"{proxy.url}/elsewhere", headers=KEY)
    assert next(line.strip() for line in lines_of(proxy, mark, "<< 404")) == "CLIENT: GET URL/elsewhere"

    for number, (path, headers, why) in enumerate(REFUSED):
        mark = proxy.process.mark()
        answer = httpx2.post(f"{proxy.url}{path}/v1beta/models/{MODEL}:{GENERATE}", json={}, headers=KEY | headers)
        refused, line, answered = lines_of(proxy, mark, "<< ")
        assert refused == f"the proxy refused a request: {why}", number
        assert answer.json()["error"]["message"].endswith(why)
        assert (line[:13], f"<< {answer.status_code}" in answered) == ("CLIENT: POST ", True)
    assert "a-secret-key" not in proxy.log
    assert "\x1b" not in proxy.log
    assert "\u202e" not in proxy.log


def test_records_instead_of_lines(start: Callable[..., Proxy], gemini: Gemini) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    proxy = start(dead, gemini.url, log="json", control="127.0.0.1:0")
    proxy.control.session("weather").tools()
    mark = proxy.process.mark()

    def records(*events: str) -> list[Json]:
        found = [json.loads(line) for line in proxy.process.lines[mark:]]
        return [record for record in found if record["event"] in events]

    ask(proxy.urls[1], 'call get_weather {"city": "Oslo"}', session="weather", tools=MINE)
    ask(proxy.urls[1], "hello", session="waether")
    httpx2.get(f"{proxy.urls[1]}/elsewhere?key=a-secret-key", headers=KEY)
    trusting = ssl.create_default_context(cafile=str(proxy.ca))
    with httpx2.Client(proxy=f"http://{proxy.address}", verify=trusting) as client:
        body = {"contents": [user("hello")]}
        url = f"https://generativelanguage.googleapis.com/v1beta/models/{MODEL}:{GENERATE}"
        assert client.post(url, json=body, headers=KEY).status_code == 502
    until(lambda: len(records("request")) == 3, "the records")
    first, second, third = records("request")
    assert {name: first[name] for name in ("session", "model", "added_tools", "removed_client_tools", "status")} == {
        "session": "weather",
        "model": MODEL,
        "added_tools": 2,
        "removed_client_tools": 1,
        "status": 200,
    }
    assert first["calls"] == [{"name": "get_weather", "arguments": "Oslo", "state": "waiting"}]
    assert (second["session"], second["added_tools"], second["end"]) == ("waether", 0, "")
    assert (third["status"], "Connect call failed" in third["end"]) == (502, True)
    (typo,) = until(lambda: records("session_without_tools"), "the typo is mentioned")
    assert (typo["session"], typo["nearest"]) == ("waether", "weather")
    assert typo["message"].endswith(
        "session waether has no tools, and its requests pass unchanged: did the client mean weather?"
    )
    (needed,) = records("result_needed")
    assert needed["command"] == f"toolgraft answer {needed['call']}"
    (other,) = records("other_request")
    assert (other["method"], other["status"]) == ("GET", 404)
    assert "a-secret-key" not in proxy.log


def test_mitmproxy_s_lines_and_a_terminal_without_unicode(
    start: Callable[..., Proxy], gemini: Gemini, tools: str, tmp_path: Path
) -> None:
    words = 'call get_weather {"city": "Oslo"}'
    proxy = start(gemini.url, folder=tmp_path / "one", tools=tools, log="mitmproxy")
    mark = proxy.process.mark()
    ask(proxy.url, words)
    proxy.process.wait_for("client disconnect", after=mark)
    lines = [plain(line).strip() for line in proxy.process.lines[mark:]]
    assert [line.partition(" ")[0] for line in lines].count("CLIENT:") == 3, "the client's request and two rounds"
    assert not any(line.startswith("default  ") for line in lines)

    environ = {"PYTHONIOENCODING": "ascii", "LANG": "C", "PYTHONUTF8": "0"}
    proxy = start(gemini.url, folder=tmp_path / "two", tools=tools, environ=environ)
    mark = proxy.process.mark()
    ask(proxy.url, words, tools=MINE)
    line = proxy.process.wait_for("^default  ", after=mark)
    assert line.startswith(f"{LOOP} -1 client tool -> get_weather(Oslo) ")
    assert line.isascii()
