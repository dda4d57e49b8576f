"""The set-up: when it is made, and when it is made again."""

import os
import re
import select
import subprocess
import sys

import pytest

from tests.scripts.conftest import BOUND, ROOT, Checkout

pytestmark = pytest.mark.e2e

UV = """#!/bin/sh
printf '%s\\n' "uv $*" >>"$FAKE_LOG"
case "$*" in
    *"--python "*) python=${*#*--python }; python=${python%% *} ;;
esac
case "$1" in
    venv) for folder do :; done; "$python" -m venv "$folder" ;;
    pip) printf 'wants %s\\n' $(cat) >>"$FAKE_LOG" ;;
esac
"""


def test_the_first_start_installs_the_runtime_dependencies_and_the_second_nothing(checkout: Checkout) -> None:
    checkout.run()
    assert "wants mitmproxy" in checkout.log
    assert "wants pytest" not in checkout.log
    assert f"-c {checkout.root}/constraints.txt" in checkout.log
    before = checkout.log
    out, err = checkout.run()
    assert out == ["-P -m addon serve"]
    assert err == ""
    added = checkout.log.removeprefix(before).splitlines()
    assert len(added) == 2  # one look at the interpreter's version, and the start


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", ".python-version"])
def test_a_change_of_what_it_was_made_from_makes_it_anew(made: Checkout, name: str) -> None:
    with (made.root / name).open("a") as file:
        file.write("\n# changed\n")
    made.run()
    assert made.set_ups() == 2


def test_a_checkout_that_was_moved_is_set_up_again(made: Checkout) -> None:
    made.root = made.root.rename(made.root.with_name("moved"))
    made.run()
    assert made.set_ups() == 2


def test_a_venv_whose_interpreter_is_gone_is_made_anew(made: Checkout) -> None:
    (made.root / ".venv/bin/python").unlink()
    made.run()
    assert made.set_ups() == 2


def test_a_half_made_venv_is_made_anew(checkout: Checkout) -> None:
    left = checkout.root / ".venv/lib/left"
    left.parent.mkdir(parents=True)
    left.touch()
    checkout.run()
    assert not left.exists()
    assert checkout.set_ups() == 1


@pytest.mark.parametrize("script", ["run_proxy.sh", "run_tests.sh"])
def test_a_set_up_that_was_killed_never_counts_and_leaves_no_lock(made: Checkout, script: str) -> None:
    (made.root / ".python-version").write_text("3.13.4\n" if script == "run_proxy.sh" else "3.13\n")
    made.extra["FAKE_PIP_IS_KILLED"] = "yes"
    made.run(script=script, status=-9)
    made.extra.clear()
    before = made.set_ups()
    _, err = made.run()
    assert made.set_ups() == before + 1
    assert "waiting" not in err


@pytest.mark.parametrize(
    ("what", "says"),
    [("FAKE_PIP_FAILS", "No matching distribution"), ("FAKE_VENV_FAILS", "ensurepip is not available")],
)
def test_a_failed_set_up_is_shown_and_tried_again_by_the_next_start(checkout: Checkout, what: str, says: str) -> None:
    checkout.extra[what] = "yes"
    out, err = checkout.run(status=1)
    assert out == []
    assert says in err
    assert "the set-up failed" in err
    checkout.extra.clear()
    checkout.run()


def test_dev_dependencies_that_cannot_be_had_leave_the_proxy_s_as_they_are(made: Checkout) -> None:
    made.extra["FAKE_PIP_FAILS"] = "yes"
    _, err = made.run(script="run_tests.sh", status=1)
    assert "No matching distribution" in err
    _, err = made.run()
    assert err == ""
    assert made.set_ups() == 1


def test_two_starts_at_once_make_one_set_up(checkout: Checkout) -> None:
    gate = checkout.home / "gate"
    for end in ("in", "out"):
        os.mkfifo(f"{gate}.{end}")
    checkout.extra["FAKE_PIP_WAITS"] = str(gate)
    entered, closed = (os.open(f"{gate}.{end}", os.O_RDWR) for end in ("in", "out"))
    starts = [checkout.start()]
    try:
        assert select.select([entered], [], [], BOUND)[0], "the first start never came to pip"
        starts.append(checkout.start())
        waits = starts[1].stderr
        assert waits is not None
        assert select.select([waits], [], [], BOUND)[0]
        assert "waiting for another set-up" in waits.readline()
        os.close(closed)  # the gate is open: pip goes on
        for start in starts:
            start.communicate(timeout=BOUND)
    finally:
        os.close(entered)
        for start in starts:
            start.kill()
    assert [start.returncode for start in starts] == [0, 0]
    assert checkout.set_ups() == 1


def test_every_requirement_is_pinned_by_name_and_version_alone() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {re.fullmatch(r"([A-Za-z0-9._-]+)==[A-Za-z0-9.+!]+", line) for line in lines}
    names = {pin[1].lower().replace("_", "-") for pin in pins if pin}
    assert len(names) == len(lines)
    command = [sys.executable, str(ROOT / "scripts/requirements.py"), "runtime", "dev"]
    wanted = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {re.split(r"[<>=!~\[]", line)[0].lower() for line in wanted} <= names


def test_uv_is_used_where_it_is_there(checkout: Checkout) -> None:
    checkout.script(checkout.bin / "uv", UV)
    checkout.run()
    assert "uv venv" in checkout.log
    assert "uv pip install" in checkout.log
    assert "wants mitmproxy" in checkout.log
    assert "-m pip" not in checkout.log


def test_the_venv_has_the_command_and_finds_the_packages(made: Checkout) -> None:
    assert (made.root / ".venv/site/toolgraft.pth").read_text() == f"{made.root}\n"
    command = made.root / ".venv/bin/toolgraft"
    done = subprocess.run([command, "token", "a b"], capture_output=True, text=True, env=made.environment, check=True)
    assert done.stdout == "-P -m addon token a b\n"
