"""A toolgraft.toml in the working folder does nothing until the user trusts exactly its contents."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from addon.config_file.choice import chosen_file, distrust, trust
from addon.config_file.reading import ConfigError, load_config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the working folder."""
    monkeypatch.setenv("TOOLGRAFT_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / "configuration"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = folder / "toolgraft.toml"
    path.write_text("[options]\nmax_rounds = 3\n")
    return path


def test_a_file_of_the_working_folder_is_used_only_with_the_contents_that_were_trusted(local: Path) -> None:
    first = chosen_file(None)
    assert (first.path, first.notice) == (
        None,
        f"{local} is not used: nobody has trusted it. Read it, and then run `toolgraft trust`",
    )
    trust(local, local.read_bytes())
    assert chosen_file(None) == (local, True, None)
    local.write_text("[options]\nmax_rounds = 4\n")
    changed = chosen_file(None)
    assert changed.path is None
    assert changed.notice is not None
    assert "it has changed since it was trusted" in changed.notice
    trust(local, local.read_bytes())
    assert chosen_file(None).path == local
    assert distrust(local)
    assert not distrust(local)
    assert chosen_file(None).path is None


def test_the_trust_is_in_one_file_not_in_its_copies(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(local, local.read_bytes())
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "toolgraft.toml").write_bytes(local.read_bytes())
    monkeypatch.chdir(copy)
    assert chosen_file(None).path is None


def test_an_untrusted_file_leaves_the_users_own_in_use_and_a_trusted_one_takes_its_place(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "home" / "configuration" / "toolgraft" / "toolgraft.toml"
    own.parent.mkdir(parents=True)
    own.touch()
    assert chosen_file(None)[:2] == (own, False)
    trust(local, local.read_bytes())
    assert chosen_file(None)[:2] == (local, True)
    assert chosen_file("other.toml") == (local.parent / "other.toml", False, None)
    monkeypatch.chdir(own.parent)
    assert chosen_file(None) == (own, False, None)


def test_the_addon_checks_the_contents_that_it_reads(local: Path) -> None:
    """Between the check of `serve` and the start of the addon, the file may be replaced."""
    trust(local, local.read_bytes())
    assert load_config(local, trusted=True).options == {"graft_max_rounds": "3"}
    local.write_text("[mcpServers.evil]\ncommand = 'evil'\n")
    with pytest.raises(ConfigError, match="it has changed since it was trusted"):
        load_config(local, trusted=True)


def test_a_folder_of_hashes_that_others_can_write_to_is_not_believed(local: Path, tmp_path: Path) -> None:
    trust(local, local.read_bytes())
    state = tmp_path / "state"
    state.chmod(0o777)
    with pytest.raises(OSError, match="others can write to it"):
        chosen_file(None)
    state.chmod(0o700)
    (state / "trusted_configs.json").write_text("x")
    with pytest.raises(ValueError, match="cannot be read; delete it"):
        chosen_file(None)


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_not_opened(local: Path, kind: str) -> None:
    local.unlink()
    os.mkfifo(local) if kind == "pipe" else local.mkdir()
    assert chosen_file(None) == (None, False, f"{local} is not a file: it is not used")


@pytest.mark.e2e
def test_a_proxy_that_is_started_beside_such_a_file_does_not_run_it(local: Path, tmp_path: Path) -> None:
    """Not even to find out what is wrong with it. `--version` ends mitmdump before it serves."""
    mark = tmp_path / "mark"
    (local.parent / "evil.py").write_text(f"open({str(mark)!r}, 'w')\n")
    local.write_text("[options]\ntools = ['evil.py']\n\nwrong")
    done = run("serve", "--version")
    assert done.returncode == 0
    assert done.stderr.startswith(f"toolgraft: {local} is not used: nobody has trusted it.")
    assert "not TOML" in run("trust", status=1).stderr
    local.write_text("[options]\ntools = ['evil.py']\nupstream = 'http://127.0.0.1:9'\ntoken = 'hidden'\n")
    assert run("trust").stdout.splitlines() == [
        f"trusted as it is now: {local} (3 options)",
        f"  runs {local.parent}/evil.py",
        "  graft_upstream = http://127.0.0.1:9",
        "  graft_token = ***",
    ]
    assert json.loads(run("config", "--json").stdout)["file"] == str(local)
    assert run("trust", "--revoke").stdout == f"{local}: no longer trusted\n"
    assert json.loads(run("config", "--json").stdout)["file"] is None
    assert not mark.exists()


def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    environ = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-m", "addon", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done
