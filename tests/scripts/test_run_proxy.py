"""What run_proxy.sh starts."""

import pytest
from typer.main import get_command

from addon.cli.app import app
from tests.scripts.conftest import Checkout

pytestmark = pytest.mark.e2e


def test_without_a_command_the_proxy_is_served_with_all_arguments(made: Checkout) -> None:
    assert made.run()[0] == ["-P -m addon serve"]
    assert made.run("--set", "graft_store=memory://", "~u demo")[0] == [
        "-P -m addon serve --set graft_store=memory:// ~u demo"
    ]


def test_the_checkout_goes_before_the_user_s_pythonpath(made: Checkout) -> None:
    made.extra["PYTHONPATH"] = "/mine"
    made.extra["FAKE_SHOWS"] = "yes"
    assert made.run()[0][1:] == [f"{made.root}:/mine", str(made.home)]  # the user's folder stays the current one


@pytest.mark.parametrize("command", [*sorted(getattr(get_command(app), "commands", {})), "aprove", "Calls"])
def test_a_word_that_comes_first_is_a_command_also_where_it_is_misspelt(made: Checkout, command: str) -> None:
    assert made.run(command, "--json") == ([f"-P -m addon {command} --json"], "")


@pytest.mark.parametrize("closed", ["", "1", "2", "12"])
def test_a_stdout_or_stderr_that_is_closed_is_opened_again(made: Checkout, closed: str) -> None:
    """Python has none where there is none, and mitmproxy does not start then."""
    made.extra["FAKE_OPEN"] = str(made.home / "open")
    closing = " ".join(f"{number}>&-" for number in closed)
    made.script(made.root / "start.sh", f'#!/bin/sh\nexec "{made.root}/run_proxy.sh" {closing}\n')
    made.run(script="start.sh")
    assert (made.home / "open").exists()
