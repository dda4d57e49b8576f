import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Proxy


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


def test_tokens_are_made_listed_and_revoked(cli: Cli, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    made = cli("token", "new", "--scope", "read", "--scope", "approve", "-s", "mine", "--name", "ci").stdout.strip()
    assert made.startswith("tg_")
    (listed,) = json.loads(cli("token", "list", "--json").stdout)["items"]
    assert (listed["scopes"], listed["session"], listed["name"]) == (["read", "approve"], "mine", "ci")
    assert made not in cli("token", "list").stdout
    assert listed["id"] in cli("token", "list").stdout
    monkeypatch.setenv("TOOLGRAFT_TOKEN", made)
    assert json.loads(cli("calls", "--json").stdout) == []
    assert "the scopes approve, read" in cli("tools", "clear", status=1).stderr
    assert "only for the session mine" in cli("tools", "show", "-s", "other", status=1).stderr
    monkeypatch.delenv("TOOLGRAFT_TOKEN")
    cli("token", "revoke", listed["id"])
    assert "no such token" in cli("token", "revoke", listed["id"], status=1).stderr
    assert json.loads(cli("token", "list", "--json").stdout) == {"items": []}
    monkeypatch.setenv("TOOLGRAFT_TOKEN", made)
    assert "does not know this token" in cli("calls", status=1).stderr


def test_a_scope_that_there_is_not_is_a_wrong_option(cli: Cli) -> None:
    assert "--scope" in cli("token", "new", "--scope", "write", status=2).stderr
    assert "--scope" in cli("token", "new", status=2).stderr


@pytest.mark.e2e
def test_nothing_heavy_is_imported_for_it() -> None:
    code = (
        "import sys; from addon.cli.app import app; app(['token'], standalone_mode=False); "
        "print({'mitmproxy', 'fastapi', 'httpx2.Client', 'rich.table', 'uvicorn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stderr, done.stdout.splitlines()[1:]) == ("", ["set()"])
