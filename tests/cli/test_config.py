"""`toolgraft config`: every setting with where it is set, and the check of a file."""

import json
from pathlib import Path

import pytest

from addon.options import OPTIONS
from tests.cli.conftest import Cli, Proxy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some.toml"
    path.write_text('[options]\nmax_rounds = 3\ntoken = "secret-of-the-file"\nparallel = 2\n[sessions.work]\n')
    return path


def rows(cli: Cli, *arguments: str) -> dict[str, tuple[str, str]]:
    document = json.loads(cli("config", "--json", *arguments).stdout)
    return {row["name"]: (row["value"], row["source"]) for row in document["settings"]}


def test_every_setting_is_listed_with_its_value_and_where_it_is_set(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("graft_ttl: 100\ngraft_stream: false\nmode: [regular]\n")
    found = rows(cli, "--config", str(file), "--set", "graft_parallel=4", "--confdir", str(tmp_path / "conf"))
    assert list(found) == [option.name for option in OPTIONS if not option.name.startswith("graft_config")]
    assert found["graft_max_rounds"] == ("3", str(file))
    assert found["graft_parallel"] == ("4", "command line")
    assert found["graft_ttl"] == ("100", "config.yaml")
    assert found["graft_stream"] == ("off", "config.yaml")
    assert found["graft_delivery"] == ("auto", "default")
    assert found["graft_state"] == (str(state), "TOOLGRAFT_HOME")
    assert found["graft_token"] == ("***", str(file))
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "secret-of-the-environment")
    assert rows(cli, "--config", str(file))["graft_token"] == ("***", "TOOLGRAFT_TOKEN")


def test_no_secret_is_printed(cli: Cli, file: Path) -> None:
    url = "redis://user:hidden@redis.example"
    for more in ([], ["--json"]):
        printed = cli("config", "--config", str(file), "--set", f"graft_store={url}", *more).output
        assert "secret-of" not in printed
        assert "hidden" not in printed
        assert "redis.example" in printed


def test_the_file_of_the_users_configuration_folder_is_the_default(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    assert "no toolgraft.toml is used" in cli("config").stderr
    assert "there is no " in cli("config", "check", status=1).stderr
    (tmp_path / "configuration" / "toolgraft").mkdir(parents=True)
    file.rename(tmp_path / "configuration" / "toolgraft" / "toolgraft.toml")
    assert rows(cli)["graft_max_rounds"][0] == "3"
    assert "(3 options, 1 session): nothing is wrong" in cli("config", "check").stdout


def test_a_wrong_file_or_value_is_an_error(cli: Cli, file: Path) -> None:
    file.write_text("[options]\n\nmax_round = 3\n")
    message = f"toolgraft: {file}: options.max_round is unknown; did you mean max_rounds?\n"
    assert cli("config", "check", str(file), status=1).stderr == message
    assert cli("config", "--config", str(file), status=1).stderr == message
    assert "graft_max_rounds='0'" in cli("config", "--set", "graft_max_rounds=0", status=1).stderr
    assert "no such option" in cli("config", "--set", "graft_x=0", status=1).stderr


@pytest.mark.parametrize("option", ["tools", "mcp"])
def test_a_file_that_is_not_there_is_an_error(cli: Cli, file: Path, option: str) -> None:
    file.write_text(f'[options]\nmax_rounds = 3\n{option} = ["there", "gone"]\n')
    (file.parent / "there").touch()
    message = f"toolgraft: {file}: options.{option}: there is no file {file.parent / 'gone'}\n"
    assert cli("config", "check", str(file), status=1).stderr == message
    (file.parent / "gone").touch()
    assert "nothing is wrong" in cli("config", "check", str(file)).stdout


def test_the_settings_of_the_running_proxy(cli: Cli, proxy: Proxy) -> None:
    row = {"name": "graft_log", "value": "json", "source": "/x.toml"}
    proxy.app.api.setting_rows = lambda: [row]
    assert json.loads(cli("config", "--running", "--json").stdout) == {"settings": [row]}
    assert cli("config", "--running").stdout.split() == [
        "SETTING",
        "VALUE",
        "SET",
        "BY",
        "graft_log",
        "json",
        "/x.toml",
    ]
