"""The demo as a user runs it: its output, its end, and its cleanup."""

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from addon.demo import run
from addon.demo.stage import DemoFailed, Recorder, Stage
from addon.demo.story import Exchange, Held, check_that, documents, play
from addon.demo.view import View, answer_rows, request_rows
from addon.fake_gemini.server import StrictGemini

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "addon", "demo"]


@pytest.mark.e2e
def test_it_shows_both_sides_of_a_chat_and_ends_with_status_0(environment: dict[str, str]) -> None:
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout, "colours in a pipe"
    assert max(map(len, done.stdout.splitlines())) <= 80
    for expected in (
        "- tool open_page(url)",
        "+ tool get_weather(city)",
        "+ model Tool call completed:",
        '- model call get_weather {"city":',
        "+ user  result of get_weather",
        "POST /v1/calls/",
        "event 4 (no text, signed)",
        "All checks passed.",
    ):
        assert expected in done.stdout


@pytest.mark.e2e
def test_as_json_it_is_one_document_a_line_and_serves_any_session(environment: dict[str, str]) -> None:
    command = [*COMMAND, "--json", "--session", "mine"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    beats = [json.loads(line) for line in done.stdout.splitlines()]
    exchanges = [beat["exchange"] for beat in beats if "exchange" in beat]
    assert len(exchanges) == 4
    assert set(exchanges[0]) == {"client_sent", "gemini_got", "gemini_answered", "client_saw"}
    assert {"control": {"request": "PUT /v1/sessions/mine/tools", "outcome": "get_weather, book_hotel"}} in beats


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Background jobs ignore SIGINT, and so would their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.e2e
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_all_that_it_started(environment: dict[str, str], number: signal.Signals) -> None:
    with subprocess.Popen(COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        assert demo.stdout.readline(), "the proxy is up, and the story begins"
        demo.send_signal(number)
        demo.stdout.read()
        assert demo.stderr.read() == ""
        assert demo.wait(timeout=15) in (130, 143)


@pytest.mark.e2e
def test_a_reader_that_goes_away_ends_it_too(environment: dict[str, str]) -> None:
    with subprocess.Popen(COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline()
        demo.stdout.close()
        assert demo.wait(timeout=15) == 1


def test_without_mitmdump_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("addon.demo.stage.shutil.which", lambda *_, **__: None)
    assert run() == 1
    assert capsys.readouterr().err.startswith("toolgraft: the demo failed: there is no mitmdump beside ")


@pytest.mark.e2e
def test_the_proxy_s_output_is_shown_if_it_does_not_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("addon.demo.stage.shutil.which", lambda *_, **__: "/bin/echo")
    assert run() == 1
    stderr = capsys.readouterr().err
    assert "the demo failed: the proxy did not start\nmitmdump said:\n  -s " in stderr


async def test_without_a_proxy_between_the_story_does_not_hold() -> None:
    """The checks can fail: a client that uses Gemini directly fails the first one."""
    gemini = StrictGemini()
    gemini.app = recorder = Recorder(gemini)
    async with gemini:
        stage = _NoControl(gemini, recorder, proxy=gemini.url, control="", token="", session="default")
        story = play(stage)
        beats = [type(await anext(story)).__name__ for _ in range(4)]
        with pytest.raises(DemoFailed, match=r"a check failed: Gemini got get_weather and book_hotel"):
            await anext(story)
        await stage.close()
    assert beats == ["Scene", "Control", "Scene", "Exchange"]


class _NoControl(Stage):
    async def call_control(self, method: str, path: str, document: Any = None) -> Any:
        return {}


async def test_a_refusal_is_told_with_what_gemini_said() -> None:
    gemini = StrictGemini()
    async with gemini:
        recorder = Recorder(gemini)
        stage = Stage(gemini, recorder, proxy=gemini.url, control="", token="", session="default")
        with pytest.raises(DemoFailed, match=r"(?s)was answered 400: .*contents is not specified"):
            await stage.ask("/v1beta/models/gemini-3-flash:generateContent", {"contents": []})
        await stage.close()


def test_a_sentence_that_does_not_hold_stops_the_story() -> None:
    assert check_that("so it is", True) == Held("so it is")
    with pytest.raises(DemoFailed, match="a check failed: so it is"):
        check_that("so it is", False)


def test_an_answer_that_is_not_json_is_told() -> None:
    assert documents('data: {"a": 1}\r\n\r\ndata: {}\r\n\r\n', True) == [{"a": 1}, {}]
    with pytest.raises(DemoFailed, match="an answer is not JSON"):
        documents("<html>", False)


CALL = {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "s"}
RESPONSE = {"functionResponse": {"name": "f", "response": {"b": 2}}}
EXCHANGE = Exchange(
    client_sent={
        "tools": [{"functionDeclarations": [{"name": "own"}]}],
        "contents": [{"parts": [{"text": "hi"}]}, {"role": "model", "parts": [{"text": "done"}]}],
    },
    gemini_got={
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"properties": {"a": {}}}}]}],
        "contents": [
            {"parts": [{"text": "hi"}]},
            {"role": "model", "parts": [CALL]},
            {"role": "user", "parts": [RESPONSE]},
        ],
    },
    gemini_answered=[{"candidates": [{"content": {"role": "model", "parts": [CALL]}, "finishReason": "STOP"}]}],
    client_saw=[{"candidates": [{"content": {"role": "model", "parts": [{"text": "done"}]}}]}],
)


def test_removed_and_added_parts_are_marked_in_the_panes() -> None:
    sent, got = EXCHANGE.client_sent, EXCHANGE.gemini_got
    assert list(request_rows(sent, got, "-")) == [
        ("-", "tool", "own()"),
        (" ", "user", "hi"),
        ("-", "model", "done"),
    ]
    assert list(request_rows(got, sent, "+")) == [
        ("+", "tool", "f(a)"),
        (" ", "user", "hi"),
        ("+", "model", 'call f {"a": 1}, signed'),
        ("+", "user", 'result of f {"b": 2}'),
    ]
    assert list(answer_rows(EXCHANGE.gemini_answered, EXCHANGE.client_saw, "-")) == [
        ("-", "model", 'call f {"a": 1}, signed'),
        (" ", "", "finishReason STOP"),
    ]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_panes_fit_a_terminal_of_any_width_and_colours_only_repeat_the_marks(width: int) -> None:
    def rendered(**options: Any) -> str:
        console = Console(file=io.StringIO(), width=width, highlight=False, markup=False, **options)
        View(console).show(EXCHANGE)
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    plain = rendered()
    assert max(map(len, plain.splitlines())) == min(width, 120)
    assert "\x1b[32m+" in rendered(force_terminal=True, color_system="standard")
