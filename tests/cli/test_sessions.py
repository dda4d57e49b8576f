import json
import threading
from typing import Any

import pytest

from store.models import Policy, Slot, Step, Toolset, Turn
from tests.cli.conftest import Cli, Proxy
from tests.cli.test_calls import watching


def test_sessions_have_a_line_each(cli: Cli, proxy: Proxy) -> None:
    proxy.run(proxy.store.put_toolset("one", Toolset(declarations=[{"name": "get_weather"}])))
    proxy.run(proxy.store.put_policy("two", Policy(delivery="placeholder", max_rounds=3)))
    header, one, two = cli("sessions").stdout.splitlines()
    assert header.split("  ")[0] == "SESSION"
    assert one.split() == ["one", "1", "auto", "strip", "pass", "10"]
    assert two.split() == ["two", "none", "set", "placeholder", "strip", "pass", "3", "delivery,", "max_rounds"]
    assert [one["name"] for one in json.loads(cli("sessions", "--json").stdout)] == ["one", "two"]


def test_turns_have_a_line_each_for_the_proxy_s_own_session_or_another(cli: Cli, proxy: Proxy) -> None:
    proxy.capture("1", name="a\x1b[2Jb")
    proxy.capture("2", session="other")
    _, line = cli("turns").stdout.splitlines()
    assert line.split()[0] == "turn_1"
    assert line.split()[-2:] == ["unfinished", "a\\x1b[2Jb"]
    (turn,) = json.loads(cli("turns", "--session", "other", "--json").stdout)
    assert turn["turn_id"] == "turn_2"


def test_a_call_that_somebody_tried_is_no_turn_of_a_client(cli: Cli, proxy: Proxy) -> None:
    content = {"role": "model", "parts": [{"functionCall": {"name": "send", "args": {}}}]}
    step = Step(content=content, slots=[Slot(name="send", call_id="call_1")])
    now = proxy.store.clock()
    turn = Turn(turn_id="turn_1", session="default", visible=[], steps=[step], surface="try", created_at=now)
    proxy.run(proxy.store.save_turn(turn, []))
    _, line = cli("turns").stdout.splitlines()
    assert line.split()[2:] == ["try", "1", "send"]


@pytest.mark.e2e
def test_new_turns_are_shown_as_they_come_from_this_proxy_and_the_next(proxy: Proxy) -> None:
    proxy.capture("1")
    is_followed, follow = threading.Event(), proxy.store.follow

    async def watched_follow(*arguments: Any, **more: Any) -> Any:
        is_followed.set()
        return await follow(*arguments, **more)

    proxy.store.follow = watched_follow  # type: ignore[method-assign]
    with watching("turns", "--json") as (stdout, stderr):
        assert is_followed.wait(30)
        proxy.capture("2")
        assert json.loads(stdout.readline())["turn_id"] == "turn_2"
        proxy.stop()
        stderr.readline()
        proxy.capture("3")
        proxy.restart()
        assert json.loads(stdout.readline())["turn_id"] == "turn_3"
