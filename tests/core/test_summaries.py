"""The line about a request: what it says, and that nothing in it can pass for something else."""

import json
from typing import Any

import pytest

from addon.core.summaries import (
    LONGEST_ARGUMENTS,
    CallSummary,
    Summary,
    arguments,
    ascii_only,
    fields_of,
    line_of,
    shortened,
)

MINUS = "\N{MINUS SIGN}"
OSLO = {"city": "Oslo"}


def summary(**fields: Any) -> Summary:
    usual: dict[str, Any] = {"session": "default", "model": "gemini-3-flash", "added": 2, "status": 200}
    return Summary(**usual | {"seconds": 1.9} | fields)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {
                "removed": 1,
                "calls": [CallSummary("get_weather", OSLO, "done", 0.5)],
                "rounds": 2,
                "is_streamed": True,
                "prompt": 1234,
                "output": 310,
            },
            f"default  gemini-3-flash  +2 tools {MINUS}1 client tool → get_weather(Oslo) 0.5 s, 2 rounds, streamed, "
            "1.2k→310 tokens  200  1.9 s",
        ),
        ({}, "default  gemini-3-flash  +2 tools  200  1.9 s"),
        ({"added": 1, "seconds": 0.0042}, "default  gemini-3-flash  +1 tool  200  4 ms"),
        ({"added": None, "is_streamed": True}, "default  gemini-3-flash  no tools added, streamed  200  1.9 s"),
        ({"added": 0, "removed": 3}, f"default  gemini-3-flash  {MINUS}3 client tools  200  1.9 s"),
        ({"model": "", "added": 0, "status": 400}, "default  no tools added  400  1.9 s"),
        ({"operation": "countTokens", "seconds": 61.2}, "default  gemini-3-flash  countTokens  +2 tools  200  61 s"),
        ({"operation": "streamGenerateContent"}, "default  gemini-3-flash  +2 tools  200  1.9 s"),
        ({"prompt": 9_999, "output": 1_250_000}, "default  gemini-3-flash  +2 tools, 10k→1.2M tokens  200  1.9 s"),
        (
            {"status": 0, "end": "the client hung up", "calls": [CallSummary("wait", {})]},
            "default  gemini-3-flash  +2 tools → wait()  the client hung up  1.9 s",
        ),
        (
            {
                "calls": [
                    CallSummary("a", {}, "failed", 0.1),
                    CallSummary("b", {}, "waiting"),
                    CallSummary("c", {}, "client"),
                ]
            },
            "default  gemini-3-flash  +2 tools → a() failed 0.1 s, b() waits, c() for the client  200  1.9 s",
        ),
        (
            {"calls": [CallSummary(f"f{n}", {}, "done", 1) for n in range(6)]},
            "default  gemini-3-flash  +2 tools → f0() 1.0 s, f1() 1.0 s, f2() 1.0 s, f3() 1.0 s, 2 more calls  "
            "200  1.9 s",
        ),
    ],
)
def test_the_line_of(fields: dict[str, Any], line: str) -> None:
    assert line_of(summary(**fields)) == line


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({}, ""),
        ({"city": "Oslo", "days": 3, "metric": True, "at": None}, "Oslo, 3, true, null"),
        ({"where": {"a": 1}, "list": [1], "no": [], "none": {}}, "{…}, […], [], {}"),
        ({"city": "New York"}, "New York"),
        ({"city": ""}, '""'),
        ({"city": "Oslo) 0.5 s  200"}, '"Oslo) 0.5 s  200"'),
        ({"city": "two  spaces"}, '"two  spaces"'),
        ({"city": "a\nb\x1b[31m"}, r'"a\nb\u001b[31m"'),
        ({"city": "\u202eolsO\u2066"}, r'"\u202eolsO\u2066"'),
        ({"city": "\ud800"}, r'"\ud800"'),
        ({"city": "Ålesund", "emoji": "☂"}, 'Ålesund, "☂"'),
        ({"api_key": "hunter2", "password": "x", "city": "Oslo"}, "***, ***, Oslo"),
        ({"x" * 1_000_000: "a name that would take long to search"}, "***"),
        ({"text": "x" * 1_000_000}, "x" * (LONGEST_ARGUMENTS - 1) + "…"),
        ({"a": "x" * 50, "b": "y" * 50}, "x" * 50 + ", " + "y" * 27 + "…"),
        ({f"n{n}": n for n in range(100_000)}, ", ".join(map(str, range(30)))[: LONGEST_ARGUMENTS - 1] + "…"),
        ({"big": 10**500}, "1" + "0" * (LONGEST_ARGUMENTS - 2) + "…"),
    ],
)
def test_arguments(args: dict[str, Any], text: str) -> None:
    assert arguments(args) == text
    assert len(text) <= LONGEST_ARGUMENTS


HOSTILE = [
    "\x1b[2J\x9b31m",
    "\u202egnp.exe\u2069",
    "line\nfeed\r\v\f\x85\u2028\u2029end",
    "<script onload=alert(1)>",
    "  200  1.9 s",
    "\ud83d",
    "x" * 1_000_000,
    "\x00" * 1_000_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_words_stay_words_of_one_short_line(text: str) -> None:
    calls = [CallSummary(text, {text: text}, "failed", 1)] * 9
    given = summary(model=text, end=text, calls=calls)
    line = line_of(given)
    assert line.isprintable()
    assert len(line) < 1200
    assert len(line.split("  ")) <= 6 + 2 * 4 * line.count('"'), "two spaces separate the parts, unless they are quoted"
    record = json.dumps(fields_of(given))
    assert record.isascii()
    assert record.isprintable()
    assert len(record) < 5000


def test_a_terminal_without_these_characters_gets_others() -> None:
    line = line_of(summary(removed=1, calls=[CallSummary("f", {"a": [1]}, "done", 1)]))
    assert ascii_only(line) == "default  gemini-3-flash  +2 tools -1 client tool -> f([...]) 1.0 s  200  1.9 s"


def test_a_long_name_is_cut() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abcde…"
    assert shortened("a\nb\nc\nd", 6) == "a\\nb\\…"


@pytest.mark.parametrize(
    ("answer", "counts"),
    [
        (b'{"candidates": [], "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 2}}', (7, 2)),
        (b'data: {"usageMetadata":{"promptTokenCount":7,"candidatesTokenCount":2,"totalTokenCount":12}}\n\n', (7, 5)),
        (b'{"text": "\\"usageMetadata\\": {\\"promptTokenCount\\": 7}"}', (0, 0)),
        (b'{"usageMetadata": {"promptTokenCount": 7}}' + b" " * 10_000, (0, 0)),
        (b'{"usageMetadata": {"promptTokenCount": 99999999999999999999}}', (0, 0)),
        (b"", (0, 0)),
    ],
)
def test_the_usage_of_an_answer_that_was_not_parsed(answer: bytes, counts: tuple[int, int]) -> None:
    given = summary()
    given.count([{}])
    given.keep_end(answer)
    given.count_end()
    given.count_end()
    assert (given.prompt, given.output) == counts


def test_the_tokens_of_all_rounds_are_added() -> None:
    given = summary()
    given.count(
        [{"promptTokenCount": 10, "candidatesTokenCount": 1}, {"promptTokenCount": 20, "candidatesTokenCount": 2}]
    )
    assert (given.prompt, given.output) == (30, 3)
