import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, get_args

import pytest

from addon.cli import calls
from store.models import Status
from tests.cli.conftest import Cli, Proxy


def test_the_statuses_are_those_of_the_store() -> None:
    assert get_args(calls.Status) == tuple(Status)


def test_calls_of_all_sessions_are_listed_newest_last(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1", city="Oslo")
    proxy.capture("call_2", name="add", session="other", a=1)
    rows = [line.split() for line in cli("calls").stdout.splitlines()]  # columns without values are left out
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
    cli("answer", "call_1", "1")
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
    assert cli("answer", "call_1", given, stdin='[1, "é"]').stdout == "call_1 get_weather: done\n"
    assert proxy.run(proxy.store.call("default", "call_1")).result == result
    assert json.loads(cli("answer", "call_1", given, "--json", stdin='[1, "é"]').stdout)["status"] == "done"


def test_a_result_may_have_images_and_files(cli: Cli, proxy: Proxy, tmp_path: Path) -> None:
    shot, report = tmp_path / "shot", tmp_path / "report.csv"
    shot.write_bytes(b"\x89PNG\r\n")
    report.write_bytes(b"a,b")
    proxy.capture("call_1")
    proxy.capture("call_2")
    cli("answer", "call_1", '"see"', "--file", str(shot))
    cli("answer", "call_2", "--file", str(shot), "--file", str(report))
    one, two = (proxy.run(proxy.store.call("default", call_id)) for call_id in ("call_1", "call_2"))
    assert (one.result, [media.mime_type for media in one.media]) == ("see", ["image/png"])
    assert one.parts == [{"inlineData": {"mimeType": "image/png", "data": "iVBORw0K"}}]
    assert two.result == ["[part 1: image/png]", "[part 2: text/csv]"]
    assert [media.size for media in two.media] == [6, 3]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--file", "{folder}/none.png"], "none.png cannot be read: No such file or directory"),
        (["--file", "{folder}/empty.png"], "empty.png is empty"),
        (["--file", "{folder}/unknown"], "unknown has no known type: its name must end in one, such as .png"),
        (["--file", "{folder}"], "cannot be read: Is a directory"),
    ],
)
def test_a_file_that_cannot_be_sent_is_named(
    cli: Cli, proxy: Proxy, tmp_path: Path, given: list[str], words: str
) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "unknown").write_bytes(b"?")
    proxy.capture("call_1")
    refused = cli("answer", "call_1", *(one.format(folder=tmp_path) for one in given), status=1)
    assert refused.stderr.endswith(f"{words}\n")
    assert not proxy.run(proxy.store.call("default", "call_1")).status.final


def test_an_error_has_no_files(cli: Cli, proxy: Proxy) -> None:
    assert "--file belongs to a result" in cli("answer", "call_1", "--error", "x", "--file", "a.png", status=2).stderr


def test_an_error_is_a_result_as_well(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    assert cli("answer", "call_1", "--error", "no such city").stdout == "call_1 get_weather: failed\n"
    assert proxy.run(proxy.store.call("default", "call_1")).error == "no such city"


def test_a_result_that_begins_with_a_minus_is_written_after_two(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    cli("answer", "call_1", "--", "-3")
    assert proxy.run(proxy.store.call("default", "call_1")).result == -3


def test_refusals_are_one_line_each(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    cli("answer", "call_1", "1")
    assert cli("answer", "call_1", "2", status=1).stderr.startswith("toolgraft: the call is already done")
    assert cli("answer", "call_9", "2", status=1).stderr == "toolgraft: there is no such call\n"
    assert cli("answer", "../sessions", "2", status=1).stderr.startswith("toolgraft: unknown path")


def test_a_call_of_another_session_is_not_answered(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1", session="other")
    assert "no such call in session mine" in cli("answer", "call_1", "1", "--session", "mine", status=1).stderr
    assert proxy.run(proxy.store.call("other", "call_1")).status == Status.PENDING
    cli("answer", "call_1", "1", "--session", "other")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["call_1"], "there is no terminal"), (["call_1", "1", "--error", "x"], "not both")],
    ids=["neither", "both"],
)
def test_a_result_and_an_error_exclude_each_other(cli: Cli, arguments: list[str], why: str) -> None:
    stderr = " ".join(cli("answer", *arguments, status=2).stderr.replace("│", " ").split())
    assert "either JSON or --error TEXT" in stderr
    assert why in stderr


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("addon.cli.output.is_interactive", lambda: True)


def test_in_a_terminal_the_result_is_asked_for_until_it_is_json(cli: Cli, proxy: Proxy, terminal: None) -> None:
    proxy.capture("call_1", city="Os\x1blo")
    done = cli("answer", "call_1", stdin='sunny\n{"celsius": -3}\n')
    assert proxy.run(proxy.store.call("default", "call_1")).result == {"celsius": -3}
    assert done.stderr.splitlines()[0] == 'get_weather {"city": "Os\\u001blo"}'
    assert "not JSON" in done.stderr
    assert done.stdout.endswith("call_1 get_weather: done\n")


def test_in_a_terminal_an_empty_result_asks_for_the_error(cli: Cli, proxy: Proxy, terminal: None) -> None:
    proxy.capture("call_1")
    assert cli("answer", "call_1", stdin="\n\nno such city\n").stdout.endswith("get_weather: failed\n")
    assert proxy.run(proxy.store.call("default", "call_1")).error == "no such city"


def test_nothing_is_asked_about_a_call_that_has_its_answer(cli: Cli, proxy: Proxy, terminal: None) -> None:
    proxy.capture("call_1")
    cli("answer", "call_1", "1")
    assert cli("answer", "call_1", status=1, stdin="2\n").stderr == "toolgraft: the call is already done\n"
    assert "there is no such call" in cli("answer", "call_2", status=1).stderr


def test_the_former_name_of_the_command_still_works(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    assert cli("result", "call_1", "1").stdout == "call_1 get_weather: done\n"


def test_approval_duration_and_error_have_columns(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1", needs_approval=True)
    proxy.capture("call_2")
    cli("deny", "call_1", "--reason", "not today")
    assert cli("calls").stdout.splitlines()[0].split() == [
        *("CALL", "STATUS", "APPROVAL", "TIME", "DURATION", "SESSION", "NAME", "ARGUMENTS", "ERROR")
    ]
    denied, pending = (line.split() for line in cli("calls").stdout.splitlines()[1:])
    assert denied[:3] == ["call_1", "denied", "denied"]
    assert denied[5] in ("ms", "s")
    assert denied[-6:] == ["the", "call", "was", "denied:", "not", "today"]
    assert pending[3:] == ["default", "get_weather", "{}"]


def test_text_that_is_not_json_is_refused_with_a_hint(cli: Cli) -> None:
    stderr = cli("answer", "call_1", "sunny", status=1).stderr
    assert "the result, line 1, column 1: not JSON" in stderr
    assert "'\"in quotes\"'" in stderr


@contextmanager
def watching(*arguments: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """stdout and stderr of a command that runs until the end."""
    command = [sys.executable, "-m", "addon", *arguments, "--watch"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as watch:
        assert watch.stdout is not None
        assert watch.stderr is not None
        try:
            yield watch.stdout, watch.stderr
        finally:
            watch.kill()


@pytest.mark.e2e
@pytest.mark.parametrize("as_json", [True, False])
def test_watch_shows_what_is_there_then_what_comes(proxy: Proxy, as_json: bool) -> None:
    proxy.capture("call_1")
    with watching("calls", "--name", "get_weather", *["--json"] * as_json) as (stdout, _):
        lines = [stdout.readline()]
        proxy.capture("call_2", name="add")
        proxy.capture("call_3", needs_approval=True)
        lines.append(stdout.readline())
        proxy.run(proxy.store.decide("default", "call_3", approved=True))
        lines.append(stdout.readline())
        proxy.run(proxy.store.answer("default", "call_1", result=1))
        lines.append(stdout.readline())
    if as_json:
        found = [(call["call_id"], call["status"]) for call in map(json.loads, lines)]
    else:
        found = [(line.split()[0], line.split()[1]) for line in lines]
    assert found == [("call_1", "pending"), ("call_3", "pending"), ("call_3", "pending"), ("call_1", "done")]


@pytest.mark.e2e
@pytest.mark.parametrize("events_before", [True, False])
def test_watch_goes_on_with_the_next_proxy_and_misses_and_doubles_nothing(proxy: Proxy, events_before: bool) -> None:
    proxy.capture("call_1")
    expected = [("call_1", "pending")]
    with watching("calls", "--json") as (stdout, stderr):

        def read(*lines: tuple[str, str]) -> None:
            found = [json.loads(stdout.readline()) for _ in lines]
            assert [(call["call_id"], call["status"]) for call in found] == list(lines)

        read(*expected)
        if events_before:
            proxy.capture("call_2")
            read(("call_2", "pending"))
        for number in (3, 4):
            url = proxy.url
            proxy.stop()
            assert stderr.readline() == f"toolgraft: the connection to {url} is lost: waiting until the proxy is back\n"
            proxy.capture(f"call_{number}")
            proxy.run(proxy.store.answer("default", f"call_{number}", result=1))
            proxy.restart()
            read((f"call_{number}", "pending"), (f"call_{number}", "done"))


@pytest.mark.e2e
def test_watch_lists_what_a_proxy_with_another_store_has(proxy: Proxy) -> None:
    proxy.capture("call_1")
    with watching("calls", "--json") as (stdout, stderr):
        assert json.loads(stdout.readline())["call_id"] == "call_1"
        proxy.stop()
        stderr.readline()
        proxy.replace_store()
        proxy.capture("call_2")
        proxy.restart()
        assert json.loads(stdout.readline())["call_id"] == "call_2"
        proxy.capture("call_3")
        assert json.loads(stdout.readline())["call_id"] == "call_3"


@pytest.mark.e2e
def test_watch_ends_if_the_next_proxy_refuses_the_token(proxy: Proxy) -> None:
    proxy.capture("call_1")
    with watching("calls", "--json") as (stdout, stderr):
        stdout.readline()
        proxy.stop()
        stderr.readline()
        proxy.restart(token="another")
        assert "does not know this token" in stderr.readline()


@pytest.mark.e2e
def test_a_reader_that_goes_away_is_no_error_worth_a_traceback(proxy: Proxy) -> None:
    for n in range(2000):
        proxy.capture(f"call_{n}")
    command = f"'{sys.executable}' -m addon calls --json | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_calls_are_searched(cli: Cli, proxy: Proxy) -> None:
    for number in range(4):
        proxy.capture(str(number), city=("Oslo", "Bergen")[number % 2])

    def found(*arguments: str) -> list[str]:
        return [one["call_id"] for one in json.loads(cli("calls", "--json", *arguments).stdout)]

    ids = [call.call_id for call in proxy.run(proxy.store.calls()).items]
    assert found("--text", "BERGEN") == [ids[1], ids[3]]
    assert found("--newest", "3") == ids[:0:-1]
    assert found("--since", "2020-01-15T08:00:01", "--until", "9000-01-15") == ids
    assert found("--until", "2020-01-15T08:00:01+02:00") == []
    assert "must be a time" in cli("calls", "--since", "soon", status=2).stderr
    assert "cannot be combined" in cli("calls", "--watch", "--text", "x", status=2).stderr
