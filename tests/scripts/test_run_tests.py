"""What run_tests.sh runs."""

import re

import pytest

from tests.scripts.conftest import Checkout

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


def steps_of(output: str) -> list[str]:
    """What was run, each with its time behind it."""
    lines = [line.removeprefix("toolgraft: ") for line in output.splitlines() if "installing" not in line]
    assert all(re.fullmatch(r"\d+ s", line) for line in lines[1::2]), lines
    return lines[::2]


def test_every_check_runs_and_pytest_has_the_last_word(made: Checkout) -> None:
    out, err = made.run(script="run_tests.sh")
    assert steps_of(err) == [
        "ruff check --quiet .",
        "ruff format --quiet --check .",
        "mypy",
        "lint-imports --no-logo",
        "bounded 1200 python -m pytest --numprocesses auto --dist worksteal -m not e2e --ignore tests/e2e",
        "bounded 2700 python -m pytest --numprocesses auto --dist worksteal -m e2e and not long",
    ]
    assert out[-2].endswith("python -m pytest --numprocesses auto --dist worksteal -m not e2e --ignore tests/e2e")
    assert out[-1].endswith("python -m pytest --numprocesses auto --dist worksteal -m e2e and not long")


def test_the_checks_run_without_the_tests(made: Checkout) -> None:
    _, err = made.run("--checks", script="run_tests.sh")
    steps = ["ruff check --quiet .", "ruff format --quiet --check .", "mypy", "lint-imports --no-logo"]
    assert steps_of(err) == steps


def test_long_tests_run_if_they_are_asked_for(made: Checkout) -> None:
    _, err = made.run("--long", script="run_tests.sh")
    steps = [step.split() for step in steps_of(err)]
    modules = ["tests.simulation", "tests.fuzz", *["pytest"] * 4, "tests.soak", *["tests.crash"] * 3]
    assert [step[4] for step in steps] == modules
    assert all(step[0] == "bounded" and int(step[1]) <= 2000 for step in steps), "a hang fails before CI gives up"


@pytest.mark.parametrize("check", ["ruff", "mypy", "lint-imports"])
def test_the_first_check_that_fails_is_named_and_ends_it(made: Checkout, check: str) -> None:
    made.extra["FAKE_CHECK_FAILS"] = check
    out, err = made.run(script="run_tests.sh", status=1)
    assert err.splitlines()[-1].startswith(f"toolgraft: failed: {check}")
    assert "-m pytest" not in out


def test_arguments_go_to_pytest_and_nothing_else_runs(made: Checkout) -> None:
    out, _ = made.run("tests/core", "-k", "sse", script="run_tests.sh")
    assert out == ["-m pytest tests/core -k sse"]
