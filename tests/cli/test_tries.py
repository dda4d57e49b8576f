import json
from typing import Any

import pytest

from addon.cli import calls
from addon.core.framing.documents import Document
from tests.cli.conftest import Cli, Proxy


@pytest.fixture
def tried(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is tried. Its call is `call_1`, which a test has captured."""
    monkeypatch.setattr(calls, "_FIRST", 0)
    tried: list[Any] = []

    async def try_tool(session: str, name: str, args: Document, check: Any) -> Any:
        tried.append((session, name, args))
        return await proxy.store.find_call("call_1")

    proxy.app.api.try_tool = try_tool
    return tried


def test_the_result_is_printed(cli: Cli, proxy: Proxy, tried: list[Any]) -> None:
    proxy.capture("call_1")
    proxy.run(proxy.store.answer("default", "call_1", result={"celsius": 3, "sky": "\x1b"}))
    printed = cli("try", "get_weather", '{"city": "Oslo"}', "--session", "one")
    assert json.loads(printed.stdout) == {"celsius": 3, "sky": "\x1b"}
    assert "\x1b" not in printed.stdout
    assert printed.stderr == ""
    assert json.loads(cli("try", "get_weather", "-", "--json", stdin='{"city": "Bergen"}').stdout)["status"] == "done"
    cli("try", "get_time")
    assert tried == [
        ("one", "get_weather", {"city": "Oslo"}),
        ("default", "get_weather", {"city": "Bergen"}),
        ("default", "get_time", {}),
    ]


def test_a_failure_is_one_line_and_a_status(cli: Cli, proxy: Proxy, tried: list[Any]) -> None:
    proxy.capture("call_1")
    proxy.run(proxy.store.answer("default", "call_1", error="no such\ncity"))
    failed = cli("try", "get_weather", status=1)
    assert (failed.stdout, failed.stderr) == ("", "toolgraft: get_weather: failed: no such\\ncity\n")
    assert json.loads(cli("try", "get_weather", "--json", status=1).stdout)["status"] == "failed"


@pytest.mark.parametrize(
    ("needs_approval", "words"), [(True, "waits for an approval: toolgraft approve call_1"), (False, "for a worker")]
)
def test_what_it_waits_for_is_named(
    cli: Cli, proxy: Proxy, tried: list[Any], monkeypatch: pytest.MonkeyPatch, needs_approval: bool, words: str
) -> None:
    def answered_meanwhile(seconds: float) -> None:
        proxy.run(proxy.store.answer("default", "call_1", result=3))

    proxy.capture("call_1", needs_approval=needs_approval)
    monkeypatch.setattr("addon.cli.calls.time.sleep", answered_meanwhile)
    printed = cli("try", "get_weather")
    assert printed.stdout == "3\n"
    assert words in printed.stderr


@pytest.mark.parametrize("args", ["{", "NaN", "[1]"])
def test_arguments_that_are_no_json_object_are_refused(cli: Cli, proxy: Proxy, tried: list[Any], args: str) -> None:
    assert cli("try", "get_weather", args, status=1).stderr.startswith("toolgraft: ")
    assert tried == []


def test_a_refusal_is_one_line(cli: Cli, proxy: Proxy) -> None:
    assert cli("try", "get_weather", status=1).stderr == "toolgraft: no tools run here\n"
