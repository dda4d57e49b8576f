"""Completion in bash, and of what the running proxy knows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from store.models import Policy
from tests.cli.conftest import Proxy


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command `toolgraft`, as an installation makes it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "toolgraft"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m addon "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    script = """
        eval "$(toolgraft --show-completion)"
        COMP_WORDS=(toolgraft "$@") COMP_CWORD=$#
        $(complete -p toolgraft | sed "s/.*-F \\([^ ]*\\).*/\\1/") toolgraft
        printf "%s\\n" "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", *words], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.e2e
@pytest.mark.usefixtures("on_path")
def test_bash_completes_commands_options_and_what_the_proxy_has(proxy: Proxy) -> None:
    proxy.capture("call_1", needs_approval=True)
    proxy.capture("call_2", name='a\\" ) ; touch /')
    proxy.run(proxy.store.put_policy("mine", Policy(max_rounds=3)))
    assert completed("ap") == ["approve"]
    assert completed("tools", "s") == ["set", "show"]
    assert completed("calls", "--st") == ["--status"]
    assert completed("calls", "--status", "d") == ["done", "denied"]
    assert completed("approve", "") == ["call_1"]
    assert completed("answer", "c") == ["call_2"]
    assert completed("tools", "show", "--session", "m") == ["mine"]


@pytest.mark.e2e
@pytest.mark.usefixtures("on_path")
def test_without_a_proxy_there_is_no_error_in_the_middle_of_a_command_line() -> None:
    assert completed("approve", "") == []


@pytest.mark.e2e
@pytest.mark.usefixtures("on_path")
def test_words_of_a_model_are_not_among_what_a_shell_evaluates(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.capture("call_1", name='a\\" ) ; touch /')
    monkeypatch.setenv("_TOOLGRAFT_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "toolgraft answer ")
    done = subprocess.run(["toolgraft"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == """_arguments '*: :(("call_1"))'"""
