"""scripts/bounded.py ends a command that hangs."""

import signal
import subprocess
import sys

import pytest

from tests.scripts.conftest import BOUND, ROOT

pytestmark = pytest.mark.e2e


def bounded(seconds: float, *command: str, starter: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    script = [*starter, sys.executable, "-I", str(ROOT / "scripts" / "bounded.py"), str(seconds), *command]
    return subprocess.run(script, capture_output=True, text=True, timeout=BOUND, check=False)


@pytest.mark.parametrize(("word", "status"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137)])
def test_a_command_that_is_over_in_time_has_its_own_status(word: str, status: int) -> None:
    done = bounded(BOUND, "sh", "-c", f"echo done; {word}")
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", status)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_command_ends_with_its_bound(sign: signal.Signals) -> None:
    waits = ["sh", "-c", "trap 'echo interrupted; exit' INT; echo begun; while :; do sleep 0.1; done"]
    script = [sys.executable, "-I", str(ROOT / "scripts" / "bounded.py"), "60", *waits]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(sign)
        assert process.communicate(timeout=BOUND)[0] == "interrupted\n"
    assert process.returncode == 130


@pytest.mark.parametrize("starter", [(), ("sh", "-c", '"$0" "$@" & wait $!')], ids=["", "in the background"])
def test_a_command_that_hangs_says_where_and_is_ended_with_what_it_started(starter: tuple[str, ...]) -> None:
    hangs = """
import subprocess
try:
    subprocess.run(["sh", "-c", "sleep 1000 & sleep 1000"])  # what is left behind would keep the pipes open
finally:
    print("here")
"""
    done = bounded(3, sys.executable, "-c", hangs, starter=starter)
    assert (done.stdout, done.returncode) == ("here\n", 124)
    assert "not over after 3 s: " in done.stderr
    assert "KeyboardInterrupt" in done.stderr
