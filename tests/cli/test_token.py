import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def test_the_first_call_makes_a_token_and_the_next_ones_show_it(cli: Cli, state: Path) -> None:
    token = cli("token").stdout.strip()
    assert len(token) >= 32
    assert (state / "token").read_text().strip() == token
    assert cli("token").stdout.strip() == token
    assert json.loads(cli("token", "--json").stdout) == {"token": token}


def test_the_environment_s_token_goes_first(cli: Cli, monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "mine")
    assert cli("token").stdout == "mine\n"
    assert not state.exists()


def test_a_state_folder_that_cannot_be_made_is_named(cli: Cli, state: Path) -> None:
    state.write_text("a file")
    result = cli("token", status=1)
    assert str(state) in result.stderr
    assert result.stdout == ""


def test_nothing_heavy_is_imported_for_it() -> None:
    code = (
        "import sys; from addon.cli.app import app; app(['token'], standalone_mode=False); "
        "print({'mitmproxy', 'fastapi', 'httpx2.Client', 'rich.table', 'uvicorn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stderr, done.stdout.splitlines()[1:]) == ("", ["set()"])
