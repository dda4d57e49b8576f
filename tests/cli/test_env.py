import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from addon.cli.env import Shell, assignment, variables
from tests.cli.conftest import Cli, Proxy

AWKWARD = "a b'c\"d$e\\f"


def write_addresses(state: Path, document: object) -> None:
    state.mkdir(parents=True, exist_ok=True)
    (state / "proxy.json").write_text(json.dumps(document))


def test_base_urls_are_the_default_ports_where_no_proxy_left_others(cli: Cli) -> None:
    found = json.loads(cli("env", "--json").stdout)
    assert found == dict.fromkeys(
        ("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL", "CODE_ASSIST_ENDPOINT"), "http://127.0.0.1:8081"
    )


def test_base_urls_are_the_running_proxy_s_with_the_session_in_the_path(cli: Cli, state: Path) -> None:
    write_addresses(state, {"reverse": ["http://127.0.0.1:9001", "http://127.0.0.1:9002"], "regular": []})
    found = json.loads(cli("env", "--json", "--session", "mine").stdout)
    assert set(found.values()) == {"http://127.0.0.1:9001/@mine"}


def test_a_proxy_without_a_port_of_the_kind_is_told(cli: Cli, state: Path) -> None:
    write_addresses(state, {"reverse": ["http://127.0.0.1:9001"], "regular": []})
    assert "no regular port" in cli("env", "--proxy", status=1).stderr


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_an_address_file_that_cannot_be_read_is_as_none(state: Path, text: str) -> None:
    state.mkdir(parents=True)
    (state / "proxy.json").write_text(text)
    assert variables(session="default", proxy=False)["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:8081"


def test_through_the_proxy_a_session_is_the_user_name_and_the_ca_is_mitmproxy_s(cli: Cli, state: Path) -> None:
    write_addresses(state, {"reverse": [], "regular": ["http://127.0.0.1:9003"]})
    ca = str(Path(os.environ["HOME"]) / ".mitmproxy" / "mitmproxy-ca-cert.pem")
    result = cli("env", "--proxy", "--json", "--session", "mine")
    address = "http://mine~models:x@127.0.0.1:9003"
    assert json.loads(result.stdout) == {
        "HTTPS_PROXY": address,
        "https_proxy": address,
        "NODE_EXTRA_CA_CERTS": ca,
        "NODE_USE_ENV_PROXY": "1",
        "SSL_CERT_FILE": ca,
        "REQUESTS_CA_BUNDLE": ca,
        "CURL_CA_BUNDLE": ca,
    }
    assert f"{ca} does not exist yet" in result.stderr
    assert variables(session="default", proxy=True)["HTTPS_PROXY"] == "http://~models:x@127.0.0.1:9003"


def test_a_client_of_the_proxy_trusts_what_it_trusted_before_as_well(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, companys = tmp_path / "ca.pem", tmp_path / "company.pem"
    ca.write_text("OURS")
    companys.write_text("COMPANY")
    write_addresses(state, {"regular": ["http://127.0.0.1:9003"], "ca": str(ca)})
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SSL_CERT_FILE", str(companys))
    found = variables(session="default", proxy=True)
    bundle = Path(found["SSL_CERT_FILE"])
    assert bundle.read_text().split() == ["OURS", "COMPANY"]
    assert found["REQUESTS_CA_BUNDLE"] == found["CURL_CA_BUNDLE"] == str(bundle)
    assert found["NODE_EXTRA_CA_CERTS"] == str(ca)
    # in a shell that has these variables already
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    variables(session="default", proxy=True)
    assert bundle.read_text().startswith("OURS")
    assert "BEGIN CERTIFICATE" in bundle.read_text()


def test_a_client_of_the_proxy_does_not_go_past_it(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_addresses(state, {"regular": ["http://127.0.0.1:9003"]})
    monkeypatch.setenv("NO_PROXY", "localhost,.googleapis.com, *,10.0.0.0/8,googleapis.com:443")
    assert variables(session="default", proxy=True)["NO_PROXY"] == "localhost,10.0.0.0/8"


@pytest.mark.parametrize(
    ("url", "ca"),
    [
        (None, "/conf/mitmproxy-ca-cert.pem"),
        ("http://127.0.0.1:8741", "/conf/mitmproxy-ca-cert.pem"),
        ("http://proxy.example:8741", None),
    ],
)
def test_the_ca_is_where_the_proxy_of_this_machine_says_it_keeps_it(
    state: Path, url: str | None, ca: str | None
) -> None:
    write_addresses(state, {"regular": ["http://127.0.0.1:9001"], "ca": "/conf/mitmproxy-ca-cert.pem"})
    usual = str(Path.home() / ".mitmproxy" / "mitmproxy-ca-cert.pem")
    assert variables(session="default", proxy=True, url=url)["NODE_EXTRA_CA_CERTS"] == (ca or usual)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8741", "http://127.0.0.1:9001"),
        ("http://proxy.example:8741", "http://proxy.example:8081"),
        ("http://[2001:db8::1]:8741", "http://[2001:db8::1]:8081"),
    ],
)
def test_the_address_file_is_for_the_proxy_of_this_machine(state: Path, url: str, base: str) -> None:
    write_addresses(state, {"reverse": ["http://127.0.0.1:9001"]})
    assert variables(session="default", proxy=False, url=url)["GOOGLE_GEMINI_BASE_URL"] == base


def openai(cli: Cli, *arguments: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(cli("env", "--openai", "--json", *arguments).stdout)
    return found


def listed(cli: Cli) -> list[tuple[list[str], str]]:
    return [(one["scopes"], one["session"]) for one in json.loads(cli("token", "list", "--json").stdout)["items"]]


def test_openai_s_clients_are_pointed_at_the_front_door_with_a_token_that_may_ask_and_nothing_else(
    cli: Cli, proxy: Proxy
) -> None:
    found = openai(cli)
    assert found.keys() == {"OPENAI_BASE_URL", "OPENAI_API_KEY"}
    assert found["OPENAI_BASE_URL"] == f"{proxy.url}/v1"
    assert found["OPENAI_API_KEY"] != cli("token").stdout.strip()
    assert listed(cli) == [(["ask"], "default")]
    assert openai(cli, "-s", "mine")["OPENAI_CUSTOM_HEADERS"] == "x-graft-session: mine"
    assert listed(cli) == [(["ask"], "default"), (["ask"], "mine")]
    assert "choose one" in cli("env", "--openai", "--proxy", status=1).stderr


def test_each_shell_is_given_the_same_token_until_it_is_revoked(cli: Cli, proxy: Proxy, state: Path) -> None:
    first = openai(cli)["OPENAI_API_KEY"]
    assert openai(cli)["OPENAI_API_KEY"] == first
    assert len(listed(cli)) == 1
    cli("token", "revoke", first.split("_")[1])
    second = openai(cli)["OPENAI_API_KEY"]
    assert second != first
    (state / "ask-tokens.json").write_text("{")
    assert openai(cli)["OPENAI_API_KEY"] not in (first, second)
    assert (state / "ask-tokens.json").stat().st_mode & 0o077 == 0


def test_a_token_that_cannot_make_tokens_is_handed_out_itself(
    cli: Cli, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = cli("token", "new", "--scope", "ask").stdout.strip()
    monkeypatch.setenv("TOOLGRAFT_TOKEN", own)
    assert openai(cli)["OPENAI_API_KEY"] == own
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "wrong")
    assert "does not know this token" in cli("env", "--openai", status=1).stderr


def test_without_a_proxy_that_runs_there_is_no_token_for_openai_s_clients(cli: Cli) -> None:
    assert "nothing answers" in cli("env", "--openai", "--url", "http://127.0.0.1:1", status=1).stderr


def test_this_machine_s_token_is_not_for_openai_s_clients_of_another(cli: Cli) -> None:
    assert openai(cli, "--url", "https://proxy.example:8741/") == {
        "OPENAI_BASE_URL": "https://proxy.example:8741/v1",
        "OPENAI_API_KEY": "off",
    }


@pytest.mark.e2e
def test_run_keeps_the_user_s_own_token_from_openai_s_client(cli: Cli, proxy: Proxy) -> None:
    token = cli("token").stdout.strip()
    done = subprocess.run(
        [sys.executable, "-m", "addon", "run", "--openai", "sh", "-c", "env"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env=os.environ | {"TOOLGRAFT_TOKEN": token},
    )
    assert "OPENAI_API_KEY=tg_" in done.stdout
    assert token not in done.stdout


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", f"export X={shlex.quote(AWKWARD)}"),
        ("zsh", f"export X={shlex.quote(AWKWARD)}"),
        ("fish", "set -gx X 'a b\\'c\"d$e\\\\f'"),
        ("powershell", "$env:X = 'a b''c\"d$e\\f'"),
        ("cmd", f'set "X={AWKWARD}"'),
    ],
)
def test_each_shell_has_its_own_way_of_setting_a_variable(shell: Shell, line: str) -> None:
    assert assignment(shell, "X", AWKWARD) == line


@pytest.mark.parametrize(("shell", "begins"), [("/usr/bin/fish", "set -gx"), ("/bin/zsh", "export"), ("", "export")])
def test_the_user_s_shell_is_known_from_the_environment(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, shell: str, begins: str
) -> None:
    monkeypatch.setenv("SHELL", shell)
    lines = cli("env").stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(begins) for line in lines)


def test_sh_takes_what_env_prints() -> None:
    value = subprocess.run(
        ["sh", "-c", f'{assignment("bash", "X", AWKWARD)}; printf %s "$X"'], capture_output=True, text=True, check=True
    )
    assert value.stdout == AWKWARD


def run_toolgraft(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "addon", *arguments], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.fixture
def listening(state: Path) -> Iterator[str]:
    """The address of a proxy that listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        write_addresses(state, {"reverse": [url], "regular": [url]})
        yield url


def test_env_and_run_say_that_no_proxy_is_up(cli: Cli, state: Path) -> None:
    write_addresses(state, {"reverse": ["http://127.0.0.1:1"], "regular": ["http://127.0.0.1:1"]})
    for options in ([], ["--proxy", "--session", "mine"]):
        found = cli("env", *options)
        assert found.stderr.splitlines()[-1] == (
            "toolgraft: no proxy listens at http://127.0.0.1:1: start it with ./run_proxy.sh"
        )
        assert "127.0.0.1:1" in found.stdout
        assert "sh was not started: no proxy listens" in cli("run", *options, "--", "sh", status=1).stderr


def test_env_says_nothing_of_a_proxy_that_listens(cli: Cli, listening: str) -> None:
    assert cli("env").stderr == ""


@pytest.mark.e2e
@pytest.mark.parametrize("dashes", [["--"], []], ids=["--", "without --"])
def test_run_starts_the_client_with_the_variables_and_passes_its_options_and_status_on(
    listening: str, dashes: list[str]
) -> None:
    done = run_toolgraft(
        "run", "--session", "s", *dashes, "sh", "-c", 'echo "$GOOGLE_GEMINI_BASE_URL $1"; exit 7', "-", "--json"
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{listening}/@s --json\n", "")


@pytest.mark.e2e
def test_a_client_that_cannot_be_started_has_the_shell_s_statuses(tmp_path: Path, listening: str) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    missing, refused = run_toolgraft("run", "--", "no-such-client"), run_toolgraft("run", "--", str(plain))
    assert (missing.returncode, missing.stderr) == (127, "toolgraft: no-such-client: No such file or directory\n")
    assert (refused.returncode, refused.stderr) == (126, f"toolgraft: {plain}: Permission denied\n")
