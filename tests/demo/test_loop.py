"""The demo of the loop as a user runs it; that its checks can fail; and the order of its events."""

import io
import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from addon.demo import loop, run
from addon.demo.loop import Span, StreamedQuestion, checks, short_call
from addon.demo.story import Moment, document_of
from addon.demo.view import View

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "addon", "demo", "loop"]


@pytest.mark.e2e
def test_it_shows_tools_running_while_the_answer_streams_in_pictures_and_as_json(environment: dict[str, str]) -> None:
    """Two demos at the same time, from any folder."""
    for_people, for_programs = (
        subprocess.Popen(
            [*COMMAND, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
        )
        for words in ((), ("--json", "--session", "mine"))
    )
    pictures, complaints = for_people.communicate(timeout=60)
    assert (for_people.returncode, complaints) == (0, "")
    documents, complaints = for_programs.communicate(timeout=60)
    assert (for_programs.returncode, complaints) == (0, "")
    check_pictures(pictures)
    check_documents([json.loads(line) for line in documents.splitlines()])


def check_pictures(pictures: str) -> None:
    assert "\x1b" not in pictures, "colours in a pipe"
    lines = pictures.splitlines()
    assert max(map(len, lines)) <= 80
    for expected in (
        "graft_mcp=examples/mcp.json",
        "client sees: I look up the",
        "Gemini calls travel_find_flights(Oslo, Cairo)",
        "tool   get_coordinates(Cairo) starts",
        'tool   get_weather(59.91, 10.75) ends: {"sky": "snow", "celsius": -3}',
        "Gemini gets request 3",
        "checked: the first three ran side by side",
        "+ user  result of get_weather",
        "The same tools for an OpenAI program",
        'POST /v1/responses call pack({"celsius":31})',
        "checked: the program saw the call of its own function and no other call",
        "All checks passed.",
        "Next: ./run_proxy.sh --set graft_tools=examples/weather.py",
    ):
        assert any(expected in line for line in lines), expected


def check_documents(beats: list[dict[str, Any]]) -> None:
    moments = [beat["moment"] for beat in beats if "moment" in beat]
    times = [moment["at"] for moment in moments]
    assert times == sorted(times), "moments come in the order of their happening"
    assert {moment["who"] for moment in moments} == {"client", "Gemini", "tool"}


@pytest.mark.e2e
def test_a_signal_ends_it_and_all_that_it_started(environment: dict[str, str]) -> None:
    with subprocess.Popen(COMMAND, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        assert any("One question" in line for line in demo.stdout), "the tools are about to run"
        demo.send_signal(signal.SIGTERM)
        demo.stdout.read()
        assert demo.stderr.read() == ""
        assert demo.wait(timeout=15) == 143


def test_without_the_examples_it_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(loop, "ROOT", tmp_path)
    assert run("loop") == 1
    assert "examples/weather.py is not in" in capsys.readouterr().err


# --- the checks ---------------------------------------------------------------------------------------------------


def event(*parts: dict[str, Any], finish: str | None = None, response: str = "r") -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": list(parts)}} | ({"finishReason": finish} if finish else {})
    return {"responseId": response, "candidates": [candidate]}


NAMES = ["travel_find_flights", "get_coordinates", "get_coordinates", "get_weather", "get_weather"]
CALLS = [{"functionCall": {"name": name, "args": {}}} for name in NAMES]
RESPONSES = [{"functionResponse": {"name": name, "response": {}}} for name in NAMES]
DECLARED = [{"functionDeclarations": [{"name": name} for name in loop.TOOLS]}]


def spans(*times: float) -> list[Span]:
    return [Span(*period) for period in itertools.batched(times, 2, strict=True)]


class Good(StreamedQuestion):
    """The observations of a successful loop."""

    def __init__(self) -> None:
        self.saw = [event({"text": "first"}), event({"text": "-3 and 31"}, finish="STOP")]
        self.answered = [event(*CALLS)]
        self.requests = [{"tools": DECLARED}, {}, {"contents": [{"parts": RESPONSES}]}]
        self.rounds = [Span(0.0, 0.3), Span(0.7, 0.8), Span(1.2, 1.3)]
        self.first_text = 0.1
        self.spans = spans(0.1, 0.6, 0.2, 0.5, 0.3, 0.6, 0.8, 1.0, 0.8, 1.0)


def broken(question: StreamedQuestion) -> list[str]:
    return [sentence for sentence, holds in checks(question) if not holds]


def test_the_checks_pass_for_a_correct_run() -> None:
    assert broken(Good()) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"requests": [{"tools": []}, {}, {"contents": [{"parts": RESPONSES}]}]}, "Gemini got the tools of both"),
        ({"saw": [event(CALLS[0], {"text": "-3 and 31"}, finish="STOP")]}, "the client saw no call"),
        ({"saw": [event({"text": "-3, 31"}, response=r, finish="STOP") for r in "ab"]}, "the client saw one answer"),
        ({"first_text": 0.55}, "the client read the first text"),
        ({"rounds": [Span(0, 0.05), Span(1, 2), Span(2, 3)]}, "the first tool ran while"),
        ({"spans": spans(0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.8, 1.0, 0.8, 1.0)}, "the first three ran side by side"),
        ({"requests": [{"tools": DECLARED}, {}, {"contents": [{"parts": RESPONSES[::-1]}]}]}, "Gemini got the results"),
        ({"saw": [event({"text": "no idea"}, finish="STOP")]}, "the answer uses the results"),
        ({"rounds": []}, "5 calls and 3 requests to Gemini (there were 5 and 0)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_checks_find_a_wrong_run(change: dict[str, Any], sentence: str) -> None:
    question = Good()
    vars(question).update(change)
    found = broken(question)
    assert len(found) == 1
    assert found[0].startswith(sentence)


# --- how it looks -------------------------------------------------------------------------------------------------


def rendered(width: int, *beats: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    view = View(console)
    for beat in beats:
        view.show(beat)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


def test_a_moment_is_one_line_however_long_it_is() -> None:
    moment = Moment(1.5, "client", "sees: one\ntwo")
    assert rendered(80, moment) == [" 1.500 client sees: one two"]
    (line,) = rendered(40, moment._replace(what="x" * 100))
    assert len(line) == 40
    assert line.endswith("x…")
    assert document_of(moment) == {"moment": {"at": 1.5, "who": "client", "what": "sees: one\ntwo"}}


def test_a_call_in_a_few_words() -> None:
    assert (
        short_call({"name": "get_weather", "args": {"latitude": 59.91, "unit": "celsius"}})
        == "get_weather(59.91, celsius)"
    )
