import json
import os
import subprocess
import sys
from typing import get_args

import pytest

from addon.cli import calls
from store.models import Status
from tests.cli.conftest import Cli, Proxy


def test_the_statuses_are_those_of_the_store() -> None:
    assert get_args(calls.Status) == tuple(Status)


def test_calls_of_all_sessions_are_listed_newest_last(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1", city="Oslo")
    proxy.capture("call_2", name="add", session="other", a=1)
    rows = [line.split() for line in cli("calls").stdout.splitlines()]
    assert [row[:2] + row[3:5] for row in rows] == [
        ["CALL", "STATUS", "SESSION", "NAME"],
        ["call_1", "pending", "default", "get_weather"],
        ["call_2", "pending", "other", "add"],
    ]
    assert rows[1][5:] == ['{"city":', '"Oslo"}']


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--session", "other"], ["call_3"]),
        (["--name", "add"], ["call_2"]),
        (["--status", "done"], ["call_1"]),
        (["--status", "pending", "--session", "default"], ["call_2"]),
    ],
)
def test_calls_are_narrowed_by(cli: Cli, proxy: Proxy, options: list[str], expected: list[str]) -> None:
    proxy.capture("call_1")
    proxy.capture("call_2", name="add")
    proxy.capture("call_3", session="other")
    cli("result", "call_1", "1")
    assert [call["call_id"] for call in json.loads(cli("calls", "--json", *options).stdout)] == expected


def test_all_pages_of_a_list_are_shown(cli: Cli, proxy: Proxy) -> None:
    for n in range(1005):
        proxy.capture(f"call_{n}")
    assert len(json.loads(cli("calls", "--json").stdout)) == 1005


def test_in_a_pipe_a_call_is_one_line_that_is_not_cut(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1", text="word " * 200)
    assert "word " * 200 in cli("calls").stdout.splitlines()[1]


def test_a_model_s_text_cannot_control_the_terminal(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1", name="a\x1b[2Jb", text="\x9b31m [red]x[/red]")
    output = cli("calls").stdout
    assert "\x1b" not in output
    assert "\x9b" not in output
    assert "[red]x[/red]" in output


@pytest.mark.parametrize(
    ("given", "result"),
    [('{"celsius": -3}', {"celsius": -3}), ('"sunny"', "sunny"), ("null", None), ("-", [1, "é"])],
)
def test_a_result_is_any_json(cli: Cli, proxy: Proxy, given: str, result: object) -> None:
    proxy.capture("call_1")
    assert cli("result", "call_1", given, stdin='[1, "é"]').stdout == "call_1 get_weather: done\n"
    assert proxy.run(proxy.store.call("default", "call_1")).result == result
    assert json.loads(cli("result", "call_1", given, "--json", stdin='[1, "é"]').stdout)["status"] == "done"


def test_an_error_is_a_result_as_well(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    assert cli("result", "call_1", "--error", "no such city").stdout == "call_1 get_weather: failed\n"
    assert proxy.run(proxy.store.call("default", "call_1")).error == "no such city"


def test_a_result_that_begins_with_a_minus_is_written_after_two(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    cli("result", "call_1", "--", "-3")
    assert proxy.run(proxy.store.call("default", "call_1")).result == -3


def test_refusals_are_one_line_each(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    cli("result", "call_1", "1")
    assert cli("result", "call_1", "2", status=1).stderr.startswith("toolgraft: the call is already done")
    assert cli("result", "call_9", "2", status=1).stderr == "toolgraft: there is no such call\n"
    assert cli("result", "../sessions", "2", status=1).stderr.startswith("toolgraft: unknown path")


def test_a_call_of_another_session_is_not_answered(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1", session="other")
    assert "no such call in session mine" in cli("result", "call_1", "1", "--session", "mine", status=1).stderr
    assert proxy.run(proxy.store.call("other", "call_1")).status == Status.PENDING
    cli("result", "call_1", "1", "--session", "other")


@pytest.mark.parametrize("arguments", [["call_1"], ["call_1", "1", "--error", "x"]], ids=["neither", "both"])
def test_a_result_and_an_error_exclude_each_other(cli: Cli, arguments: list[str]) -> None:
    assert "either JSON or --error" in cli("result", *arguments, status=2).stderr


def test_text_that_is_not_json_is_refused_with_a_hint(cli: Cli) -> None:
    stderr = cli("result", "call_1", "sunny", status=1).stderr
    assert "the result, line 1, column 1: not JSON" in stderr
    assert "'\"in quotes\"'" in stderr


@pytest.mark.e2e
@pytest.mark.parametrize("as_json", [True, False])
def test_watch_shows_what_is_there_then_what_comes_and_ends_with_the_proxy(proxy: Proxy, as_json: bool) -> None:
    proxy.capture("call_1")
    command = [sys.executable, "-m", "addon", "calls", "--watch", "--name", "get_weather", *["--json"] * as_json]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        lines = [watch.stdout.readline()]
        proxy.capture("call_2", name="add")
        proxy.capture("call_3")
        lines.append(watch.stdout.readline())
        proxy.run(proxy.store.answer("default", "call_1", result=1))
        lines.append(watch.stdout.readline())
        proxy.stop()
        assert watch.stdout.read() == ""
        assert watch.wait(10) == 1
        assert "the proxy was stopped" in watch.stderr.read()
    if as_json:
        found = [(call["call_id"], call["status"]) for call in map(json.loads, lines)]
    else:
        found = [(line.split()[0], line.split()[1]) for line in lines]
    assert found == [("call_1", "pending"), ("call_3", "pending"), ("call_1", "done")]


@pytest.mark.e2e
def test_a_reader_that_goes_away_is_no_error_worth_a_traceback(proxy: Proxy) -> None:
    for n in range(2000):
        proxy.capture(f"call_{n}")
    command = f"'{sys.executable}' -m addon calls --json | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("[\n", "")
