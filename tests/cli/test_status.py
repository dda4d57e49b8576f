import json
import re

import pytest

from addon.cli import status
from store.models import Policy, Toolset
from tests.cli.conftest import Cli, Proxy


def test_an_idle_proxy_is_ready(cli: Cli, proxy: Proxy) -> None:
    assert cli("status").stdout == f"toolgraft test at {proxy.url}: ready\n"


def test_sessions_and_what_waits_are_listed_with_the_command_that_helps(cli: Cli, proxy: Proxy) -> None:
    proxy.run(proxy.store.put_toolset("one", Toolset(declarations=[{"name": "get_weather"}])))
    proxy.run(proxy.store.put_policy("two", Policy(delivery="placeholder", max_rounds=3)))
    proxy.capture("call_1", needs_approval=True)
    for number in range(2, 9):
        proxy.capture(f"call_{number}", name="a\x1b[2Jb")
    assert cli("status").stdout.splitlines()[1:] == [
        "  session one: 1 tool",
        "  session two: no toolset; delivery=placeholder, max_rounds=3",
        "  get_weather waits for an approval: toolgraft approve call_1",
        *["  a\\x1b[2Jb waits for a worker"] * 4,
        "  3 more calls wait: toolgraft calls --status pending",
    ]


def test_tools_of_every_session_and_calls_that_failed_of_late_are_named(cli: Cli, proxy: Proxy) -> None:
    proxy.shared = [{"name": "get_time", "description": "The time."}, {"name": "add"}]
    for number in range(5):
        proxy.capture(f"call_{number}", name=f"tool_{number}")
        proxy.run(proxy.store.answer("default", f"call_{number}", error="no\x1b such\ncity"))
    lines = cli("status").stdout.splitlines()[1:]
    assert lines[0] == "  tools of every session: get_time, add"
    assert [re.sub(r"\d\d:\d\d:\d\d", "TIME", line) for line in lines[1:]] == [
        *(f"  tool_{number} failed at TIME: no\\x1b such\\ncity" for number in (2, 3, 4)),
        "  5 calls failed within the last hour: toolgraft calls --status failed",
    ]


def test_it_says_so_where_there_are_too_many_failed_calls_to_read(
    cli: Cli, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_MOST_READ", 2)
    for number in range(2):
        proxy.capture(f"call_{number}")
        proxy.run(proxy.store.answer("default", f"call_{number}", error="x"))
    assert "2 calls or more have failed, not all of them were read" in cli("status").stdout


def test_a_store_that_fails_is_named(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    proxy.fail_ping()
    assert cli("status").stdout == f"toolgraft test at {proxy.url}: the store does not answer\n"


def test_as_json_it_is_one_document(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("call_1")
    found = json.loads(cli("status", "--json").stdout)
    assert set(found) == {"url", "version", "problem", "running", "servers", "sessions", "tools"} | {
        *("held_tools", "waiting", "failed", "all_failed_read")
    }
    assert [call["call_id"] for call in found["waiting"]] == ["call_1"]


def test_without_a_proxy_it_says_how_to_start_one(cli: Cli) -> None:
    assert "is the proxy running?" in cli("status", "--url", "http://127.0.0.1:9", status=1).stderr
