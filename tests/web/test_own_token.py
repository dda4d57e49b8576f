import stat
from pathlib import Path

import pytest

from addon.setting_types import Address
from addon.settings import Settings
from addon.state_folder import clear_address, read_address, write_address
from addon.web.own_token import load_token


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("option", "variable", "token"),
    [
        ("from-option", "", "from-option"),
        ("from-option", "from-variable", "from-option"),
        ("", "from-variable", "from-variable"),
        ("off", "from-variable", None),
        ("", "off", None),
    ],
)
def test_the_option_goes_before_the_variable(tmp_path: Path, option: str, variable: str, token: str | None) -> None:
    state = tmp_path / "state"
    assert load_token(Settings(token=option, state=state), {"TOOLGRAFT_TOKEN": variable}) == token
    assert not state.exists()


def test_a_token_is_made_once_and_kept_for_the_owner_alone(tmp_path: Path) -> None:
    settings = Settings(state=tmp_path / "deep" / "state")
    made = load_token(settings, {})
    assert made is not None
    assert len(made) >= 32
    assert load_token(settings, {}) == made
    assert mode(settings.state) == 0o700
    assert mode(settings.state / "token") == 0o600
    assert load_token(Settings(state=tmp_path / "other"), {}) != made


def test_a_token_file_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("kept\n")
    (tmp_path / "token").chmod(0o644)
    assert load_token(Settings(state=tmp_path), {}) == "kept"
    assert mode(tmp_path / "token") == 0o600


@pytest.mark.parametrize("content", ["", "\n", "two words", "é"])
def test_a_damaged_token_file_is_named_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(OSError, match="delete it") as caught:
        load_token(Settings(state=tmp_path), {})
    assert str(path) in str(caught.value)
    assert path.read_text() == content


def test_a_state_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state = tmp_path / "file" / "state"
    with pytest.raises(OSError, match="state folder cannot be made") as caught:
        load_token(Settings(state=state), {})
    assert str(state) in str(caught.value)


def test_a_token_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "token").mkdir()
    with pytest.raises(OSError, match="cannot be read") as caught:
        load_token(Settings(state=tmp_path), {})
    assert str(tmp_path / "token") in str(caught.value)


@pytest.mark.parametrize("variable", ["two words", "é", "line\n"])
def test_a_variable_that_no_header_can_carry_is_refused_without_showing_it(tmp_path: Path, variable: str) -> None:
    with pytest.raises(ValueError, match="TOOLGRAFT_TOKEN") as caught:
        load_token(Settings(state=tmp_path), {"TOOLGRAFT_TOKEN": variable})
    assert variable not in str(caught.value)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::"])
def test_no_door_to_the_network_is_open(host: str, tmp_path: Path) -> None:
    settings = Settings(state=tmp_path, control=Address(host, 8741))
    with pytest.raises(ValueError, match="loopback"):
        load_token(settings, {"TOOLGRAFT_TOKEN": "off"})
    with pytest.raises(ValueError, match="loopback"):
        load_token(Settings(state=tmp_path, control=Address(host, 8741), token="off"), {})


def test_the_address_is_left_for_the_command_line_and_taken_away(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert read_address(state) is None
    write_address(state, "http://127.0.0.1:8741")
    assert read_address(state) == "http://127.0.0.1:8741"
    assert (mode(state), mode(state / "control.url")) == (0o700, 0o600)
    clear_address(state, "http://127.0.0.1:8741")
    assert read_address(state) is None
    clear_address(state, "http://127.0.0.1:8741")


def test_the_address_of_another_proxy_is_left_alone(tmp_path: Path) -> None:
    write_address(tmp_path, "http://127.0.0.1:8741")
    write_address(tmp_path, "http://127.0.0.1:9000")
    clear_address(tmp_path, "http://127.0.0.1:8741")
    assert read_address(tmp_path) == "http://127.0.0.1:9000"
    assert [path.name for path in tmp_path.iterdir()] == ["control.url"]
