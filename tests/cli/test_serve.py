"""`toolgraft serve`: the arguments of mitmproxy, and its programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import addon
from addon.cli.serve import arguments, config_of, interface_of

ROOT = Path(addon.__path__[0]).parent
ENTRY = ["-s", str(ROOT / "addon" / "entry.py")]
LAZY = ["--set", "connection_strategy=lazy"]
HOST = ["--set", "keep_host_header=true"]
LOCAL = ["--set", "listen_host=127.0.0.1"]
MODES = ["--set", "mode=regular", "--set", "mode=reverse:https://generativelanguage.googleapis.com@8081"]


@pytest.mark.parametrize(
    ("given", "defaults"),
    [
        ([], LAZY + HOST + LOCAL + MODES),
        (["--set", "graft_store=memory://", "-w", "a file"], LAZY + HOST + LOCAL + MODES),
        (["--mode", "reverse:http://127.0.0.1:9912@8080"], LAZY + HOST + LOCAL + MODES),
        (["--set", "mode=regular"], LAZY + HOST + LOCAL),
        (["--set=mode=regular"], LAZY + HOST + LOCAL),
        (["--set", "listen_host=0.0.0.0", "-p", "9000"], LAZY + HOST + MODES),
        (["--set=listen_host=0.0.0.0"], LAZY + HOST + MODES),
        (["--set", "connection_strategy=eager"], HOST + LOCAL + MODES),
        (["--set=connection_strategy=eager"], HOST + LOCAL + MODES),
        (["--set", "keep_host_header=false"], LAZY + LOCAL + MODES),
        (["--set", "keep_host_header"], LAZY + LOCAL + MODES),
        (["--set", "graft_filter=~u mode=x"], LAZY + HOST + LOCAL + MODES),
        (["~u demo"], LAZY + HOST + LOCAL + MODES),
    ],
    ids=lambda value: " ".join(value) if value and value[0] != "--set" else None,
)
def test_arguments_follow_the_defaults_that_they_leave_room_for(given: list[str], defaults: list[str]) -> None:
    assert arguments(given) == [*ENTRY, *defaults, *given]


def test_the_page_of_mitmweb_does_not_take_the_port_of_the_reverse_proxy() -> None:
    assert "web_port=8082" in arguments([], "mitmweb")
    assert "web_port=8082" not in arguments(["--set", "web_port=9000"], "mitmweb")
    assert "web_port=8082" not in arguments([], "mitmdump")


def test_the_interface_is_one_of_mitmproxy_s() -> None:
    assert [interface_of(found) for found in ({}, {"TOOLGRAFT_UI": ""}, {"TOOLGRAFT_UI": "mitmweb"})] == [
        "mitmdump",
        "mitmdump",
        "mitmweb",
    ]
    with pytest.raises(ValueError, match="TOOLGRAFT_UI=vim: must be mitmdump, mitmweb or mitmproxy"):
        interface_of({"TOOLGRAFT_UI": "vim"})


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}


@pytest.mark.e2e
@pytest.mark.parametrize("closed", ["", "1>&-", "2>&-", "1>&- 2>&-"])
def test_mitmproxy_takes_the_place_of_the_command(environment: dict[str, str], closed: str) -> None:
    """mitmproxy would not start with a closed stdout or stderr."""
    script = f'exec "$0" -P -m addon serve --version {closed}'
    done = subprocess.run(["sh", "-c", script, sys.executable], env=environment, capture_output=True, text=True)
    assert done.returncode == 0
    assert "1" in closed or done.stdout.startswith("Mitmproxy:")


@pytest.mark.e2e
def test_a_wrong_interface_ends_it_with_a_sentence(environment: dict[str, str]) -> None:
    command = [sys.executable, "-P", "-m", "addon", "serve"]
    done = subprocess.run(command, env=environment | {"TOOLGRAFT_UI": "vim"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "toolgraft: TOOLGRAFT_UI=vim: must be mitmdump, mitmweb or mitmproxy\n",
    )


@pytest.mark.e2e
def test_the_version_is_that_of_the_project(environment: dict[str, str]) -> None:
    command = [sys.executable, "-P", "-m", "addon", "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f'version = "{done.stdout.split()[1]}"' in (ROOT / "pyproject.toml").read_text()


def test_the_configuration_file_is_left_out_of_mitmproxy_s_arguments() -> None:
    assert config_of(["-q"]) == (None, ["-q"])
    assert config_of(["--config", "a.toml", "-q"]) == ("a.toml", ["-q"])
    assert config_of(["-q", "--config=a.toml"]) == ("a.toml", ["-q"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--config"], "--config needs the path"),
        (["--config="], "--config needs the path"),
        (["--config=a", "--config", "b"], "--config is given 2 times"),
        (["--set", "graft_config=a"], "use --config FILE"),
    ],
)
def test_another_use_of_the_configuration_file_is_refused(given: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_of(given)


def test_modes_of_the_file_replace_the_default_and_those_given_replace_both() -> None:
    config, modes = ["graft_config=/etc/toolgraft.toml"], ("regular@9000",)
    own = ["--set", "mode=regular@9000", "--set", "graft_config=/etc/toolgraft.toml"]
    assert arguments([], config=config, modes=modes) == [*ENTRY, *LAZY, *HOST, *LOCAL, *own]
    assert arguments([], config=config)[-2:] == own[-2:]
    assert "mode=regular@9000" not in arguments(["--set", "mode=regular"], config=config, modes=modes)


@pytest.mark.e2e
def test_a_wrong_file_ends_it_with_a_sentence(environment: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / ".config" / "toolgraft"
    folder.mkdir(parents=True)
    (folder / "toolgraft.toml").write_text("[options]\nmax_rounds = 0\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "addon", "serve"], env=environment, capture_output=True, text=True
    )
    expected = f"toolgraft: {folder}/toolgraft.toml: options.max_rounds='0': must be a number from 1 to 100\n"
    assert (done.returncode, done.stderr) == (1, expected)
