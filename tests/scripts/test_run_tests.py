"""What run_tests.sh runs."""

import re
from pathlib import Path

import pytest

from tests.e2e.processes import until
from tests.scripts.conftest import BOUND, Checkout

pytestmark = pytest.mark.e2e


def test_the_tests_add_the_dev_dependencies_to_the_same_venv_once(made: Checkout) -> None:
    _, err = made.run(script="run_tests.sh")
    assert "installing the dev dependencies" in err
    assert "wants pytest" in made.log
    assert made.set_ups() == 1
    before = made.log.count("wants")
    made.run(script="run_tests.sh")
    made.run()
    assert made.log.count("wants") == before


CHECKS = ["ruff check --quiet .", "ruff format --quiet --check .", "lint-imports --no-logo"]


def steps_of(output: str) -> list[str]:
    """What was run, each with its time behind it."""
    lines = [line.removeprefix("toolgraft: ") for line in output.splitlines()]
    times = [i for i, line in enumerate(lines) if re.fullmatch(r"\d+ s", line)]
    return [lines[i - 1] for i in times]


@pytest.mark.parametrize(
    ("arguments", "tests", "began", "left"),
    [
        ([], "not e2e or smoke", "five minutes", "./run_tests.sh --all and --long run them"),
        (["--all"], "not long", "minutes", "./run_tests.sh --long"),
    ],
    ids=["quick", "all"],
)
def test_every_check_runs_and_pytest_once(
    made: Checkout, arguments: list[str], tests: str, began: str, left: str
) -> None:
    out, err = made.run(*arguments, script="run_tests.sh")
    *checks, last = steps_of(err)
    assert checks == CHECKS
    assert last.endswith(f"python -m pytest --numprocesses auto --dist worksteal -m {tests}")
    (run,) = [line for line in out if "-m pytest" in line]
    assert run.endswith(f"python -m pytest --numprocesses auto --dist worksteal -m {tests}")
    notes = [line for line in err.splitlines() if "installing" not in line]
    assert began in notes[0]
    assert left in notes[-1]
    assert "toolgraft: mypy, beside the tests" in notes


def test_the_checks_run_without_the_tests(made: Checkout) -> None:
    out, err = made.run("--checks", script="run_tests.sh")
    assert steps_of(err) == [*CHECKS, "types"]
    assert "-m pytest" not in "\n".join(out)


@pytest.mark.parametrize("argument", ["--help", "-h"])
def test_help_installs_and_runs_nothing(bare: Checkout, argument: str) -> None:
    out, err = bare.run(argument, script="run_tests.sh")
    assert {"--all", "--long", "--checks"} <= {line.split()[0] for line in out if line.startswith("  --")}
    assert err == bare.log == ""


def test_long_tests_run_if_they_are_asked_for(made: Checkout) -> None:
    _, err = made.run("--long", script="run_tests.sh")
    steps = [step.split() for step in steps_of(err)]
    modules = ["tests.simulation", "tests.fuzz", *["pytest"] * 4, "tests.soak", *["tests.crash"] * 3]
    assert [step[4] for step in steps] == modules
    assert all(step[0] == "bounded" and int(step[1]) <= 2000 for step in steps), "a hang fails before CI gives up"


@pytest.mark.parametrize("check", ["ruff", "lint-imports"])
def test_the_first_check_that_fails_is_named_and_ends_it(made: Checkout, check: str) -> None:
    made.extra["FAKE_CHECK_FAILS"] = check
    out, err = made.run(script="run_tests.sh", status=1)
    *_, failed, left = err.splitlines()
    assert failed.startswith(f"toolgraft: failed: {check}")
    assert left.startswith("toolgraft: not run: ")
    assert "-m pytest" not in "\n".join(out)


def test_wrong_types_fail_the_run_after_the_tests(made: Checkout) -> None:
    made.extra["FAKE_CHECK_FAILS"] = "mypy"
    out, err = made.run(script="run_tests.sh", status=1)
    *_, failed, left = err.splitlines()
    assert failed == "toolgraft: failed: mypy"
    assert left.startswith("toolgraft: not run: ")
    assert any("-m pytest" in line for line in out)
    assert "--cache-dir" in out, "what mypy printed"


def test_tests_that_fail_are_named_and_their_status_is_the_run_s(made: Checkout) -> None:
    made.extra["FAKE_TESTS_FAIL"] = "3"
    _, err = made.run(script="run_tests.sh", status=3)
    *_, failed, left = err.splitlines()
    assert failed.startswith("toolgraft: failed: bounded 1200 python -m pytest")
    assert left.startswith("toolgraft: not run: ")


def test_a_run_that_is_ended_ends_mypy(made: Checkout) -> None:
    made.extra["FAKE_CHECK_HANGS"] = "mypy"
    mark = made.home / "hangs"
    run = made.start(script="run_tests.sh")
    pid = int(until(lambda: mark.exists() and mark.read_text(), "mypy hangs"))
    run.terminate()
    run.communicate(timeout=BOUND)
    assert run.returncode == 130
    until(lambda: not Path(f"/proc/{pid}").exists(), "mypy is over")


def test_arguments_go_to_pytest_and_nothing_else_runs(made: Checkout) -> None:
    out, _ = made.run("tests/core", "-k", "sse", script="run_tests.sh")
    assert out == ["-m pytest tests/core -k sse"]
