import json
import os
import shutil
import socket
import sqlite3
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.certs import CertStore

from addon.cli import doctor_machine, doctor_proxy
from addon.cli.doctor import Finding
from store.models import Toolset
from tests.cli.conftest import Cli, Proxy

HERE = ["http://127.0.0.1:8081"], ["http://127.0.0.1:8080"]


@pytest.fixture
def reachable() -> Iterator[str]:
    """Stands for the model's host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().endswith(("_PROXY", "_API_KEY", "_BASE_URL", "_CA_CERTS", "_CA_BUNDLE", "_CERT_FILE")):
            monkeypatch.delenv(name)


def doctor(cli: Cli, upstream: str, *arguments: str, status: int = 0) -> dict[str, list[Any]]:
    """The findings by their check, as state and message."""
    printed = json.loads(cli("doctor", "--json", "--upstream", upstream, *arguments, status=status).stdout)
    assert printed["ok"] == (status == 0)
    found: dict[str, list[Any]] = {}
    for one in printed["findings"]:
        assert one["fix"] or one["state"] != "wrong"
        found.setdefault(one["check"], []).append((one["state"], one["message"]))
    return found


def test_a_proxy_that_works_has_nothing_wrong(cli: Cli, proxy: Proxy, reachable: str) -> None:
    proxy.run(proxy.store.put_toolset("one", Toolset(declarations=[{"name": "get_weather", "description": "x"}])))
    found = doctor(cli, reachable)
    assert found["python"][0][0] == "ok"
    assert found["ports"] == [("ok", f"the proxy listens at the ports {proxy.url.rpartition(':')[2]}")]
    assert found["proxy"][0][0] == found["store"][0][0] == found["upstream"][0][0] == "ok"
    assert found["tools"] == [("ok", "1 tool was checked against Gemini's rules")]
    proxy.run(proxy.store.put_toolset("two", Toolset(declarations=[{"name": "get_weather", "description": "x"}])))
    assert doctor(cli, reachable)["tools"] == found["tools"], "a tool that two sessions have is one tool"
    text = cli("doctor", "--upstream", reachable).stdout
    assert text.splitlines()[-1] == "nothing is wrong"


def test_the_problems_of_a_proxy_are_named_with_what_helps(cli: Cli, proxy: Proxy, reachable: str) -> None:
    bad = {"name": "a\x1b[2Jb", "description": "x", "parameters": {"type": "OBJECT", "propertis": {}}}
    proxy.run(proxy.store.put_toolset("one", Toolset(declarations=[bad])))
    found = doctor(cli, reachable, status=1)
    ((_, message),) = [one for one in found["tools"] if one[0] == "wrong"]
    assert message.startswith("session one: Gemini would refuse its tools: ")
    output = cli("doctor", "--upstream", reachable, status=1).stdout
    assert "fix: toolgraft tools show --session one" in output
    assert output.splitlines()[-1] == "1 problem"
    assert "\x1b" not in output
    proxy.fail_ping()
    assert doctor(cli, reachable, status=1)["store"] == [("wrong", "the store does not answer")]


def test_a_wrong_token_is_a_problem(cli: Cli, proxy: Proxy, reachable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "not-the-token")
    assert doctor(cli, reachable, status=1)["token"][0][0] == "wrong"
    assert "not-the-token" not in cli("doctor", "--upstream", reachable, status=1).output


def test_without_a_proxy_nothing_is_wrong_and_nothing_is_made(cli: Cli, state: Path, reachable: str) -> None:
    found = doctor(cli, reachable, status=1 if _usual_ports_taken() else 0)
    assert found["proxy"] == [("note", "no proxy runs for this user")]
    assert found["store"][0][0] == "ok"
    assert found["ca"][0][0] == "note"
    assert not state.exists()
    assert doctor(cli, reachable, "--url", "http://127.0.0.1:1", status=1)["proxy"][0][0] == "wrong"


def _usual_ports_taken() -> bool:
    return any(finding.state == "wrong" for finding in doctor_machine.ports([]))


def test_a_damaged_store_and_an_unsafe_folder_are_problems(cli: Cli, state: Path, reachable: str) -> None:
    state.mkdir(parents=True, mode=0o700)
    with sqlite3.connect(state / "toolgraft.db") as db:
        db.execute("CREATE TABLE other (x)")
    db.close()
    assert doctor(cli, reachable, status=1)["store"][-1][0] == "wrong"
    shutil.rmtree(state)
    state.mkdir(parents=True)
    state.chmod(0o777)
    assert doctor(cli, reachable, status=1)["state"][0][0] == "wrong"


def test_a_taken_port_names_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(doctor_machine, "_PORTS", {port: "choose another"})
        (finding,) = doctor_machine.ports([])
    assert finding.state == "wrong"
    assert f"(process {os.getpid()})" in finding.message
    assert finding.fix == "stop that program, or choose another"
    (finding,) = doctor_machine.ports([])
    assert finding == Finding("ports", "ok", f"port {port} is free")


@pytest.mark.parametrize(
    ("url", "state", "words"),
    [
        ("https://127.0.0.1:1", "wrong", "127.0.0.1:1 cannot be reached"),
        ("https://no-such-host.invalid", "unknown", "there is no network, or no DNS"),
    ],
)
def test_a_model_s_host_that_cannot_be_reached(url: str, state: str, words: str) -> None:
    (finding,) = doctor_machine.upstream(url)
    assert finding.state == state
    assert words in finding.message
    assert finding.fix


@pytest.mark.parametrize(
    ("environ", "states"),
    [
        ({}, []),
        ({"GOOGLE_GEMINI_BASE_URL": "http://localhost:8081/@mine"}, ["ok"]),
        ({"CODE_ASSIST_ENDPOINT": "http://127.0.0.1:9999"}, ["wrong"]),
        ({"GOOGLE_VERTEX_BASE_URL": "http://["}, ["wrong"]),
        ({"HTTPS_PROXY": "http://mine:x@127.0.0.1:8080"}, ["ok"]),
        ({"HTTPS_PROXY": "http://proxy.example:3128"}, ["note"]),
        ({"HTTP_PROXY": "http://proxy.example:3128"}, ["wrong"]),
        ({"HTTP_PROXY": "http://proxy.example:3128", "no_proxy": "127.0.0.1"}, ["note"]),
        ({"https_proxy": "127.0.0.1:8080", "NO_PROXY": "localhost, .googleapis.com"}, ["ok", "wrong"]),
        ({"https_proxy": "127.0.0.1:8080", "NO_PROXY": "*"}, ["ok", "wrong"]),
        ({"https_proxy": "127.0.0.1:8080", "NO_PROXY": "example.com"}, ["ok"]),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "true"}, ["note"]),
        ({"TOOLGRAFT_URL": "http://proxy.example:8741"}, ["note"]),
    ],
)
def test_variables_that_point_clients_elsewhere(environ: dict[str, str], states: list[str]) -> None:
    assert [finding.state for finding in doctor_machine.variables(environ, *HERE)] == states


def test_no_secret_of_a_variable_is_printed() -> None:
    environ = {name: "http://user:secret@proxy.example:1" for name in ("HTTPS_PROXY", "CODE_ASSIST_ENDPOINT")}
    assert "secret" not in str(list(doctor_machine.variables(environ, *HERE)))


@pytest.mark.parametrize(
    ("environ", "state"),
    [
        ({}, "note"),
        ({"GEMINI_API_KEY": "secret"}, "ok"),
        ({"GEMINI_API_KEY": "secret", "GOOGLE_API_KEY": "secret"}, "ok"),
        ({"GEMINI_API_KEY": "secret", "GOOGLE_API_KEY": "another"}, "wrong"),
        ({"GEMINI_API_KEY": "secret "}, "wrong"),
        ({"GEMINI_API_KEY": "“secret”"}, "wrong"),
    ],
)
def test_keys_are_looked_at_and_never_printed(environ: dict[str, str], state: str) -> None:
    (finding,) = doctor_machine.keys(environ)
    assert finding.state == state
    assert "secret" not in str(finding)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mitmproxy's CA, as its first start makes it."""
    folder = tmp_path_factory.mktemp("ca")
    CertStore.from_store(folder, "mitmproxy", 2048)
    return folder / "mitmproxy-ca-cert.pem"


def test_who_trusts_the_ca(authority: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    other = ssl.get_default_verify_paths().cafile
    both.write_text((Path(other).read_text() if other else "") + authority.read_text())
    environ = {"SSL_CERT_FILE": str(both), "NODE_EXTRA_CA_CERTS": str(authority)}
    found = {finding.message: finding.state for finding in doctor_machine.ca(authority, environ)}
    assert found["trusted by Node (NODE_EXTRA_CA_CERTS)"] == "ok"
    assert found["trusted by Python (httpx, google-genai), Go, Ruby (SSL_CERT_FILE)"] == "ok"
    assert found["REQUESTS_CA_BUNDLE is not set: Python's requests would not trust it"] == "note"


def test_variables_that_name_a_wrong_ca_are_problems(authority: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    old = tmp_path / "old"
    old.mkdir()
    CertStore.from_store(old, "mitmproxy", 2048)
    environ = {
        "SSL_CERT_FILE": str(empty),
        "REQUESTS_CA_BUNDLE": str(tmp_path / "missing.pem"),
        "NODE_EXTRA_CA_CERTS": str(old / "mitmproxy-ca-cert.pem"),
    }
    wrong = [finding for finding in doctor_machine.ca(authority, environ) if finding.state == "wrong"]
    assert [finding.message.split()[0] for finding in wrong] == list(environ)
    assert "another mitmproxy's CA" in wrong[2].message


@pytest.mark.parametrize(
    ("tool", "refused"),
    [
        ({"name": "get_weather", "description": "x", "timeout": 5, "executor": {"type": "worker"}}, False),
        ({"name": "get weather", "description": "x"}, True),
        ({"name": "a", "description": "x", "parameters": {"type": "ARRAY"}}, True),
    ],
)
def test_tools_are_checked_by_the_rules_of_the_strict_gemini(tool: dict[str, Any], refused: bool) -> None:
    assert bool(doctor_proxy.refusal_of([{"functionDeclarations": [tool]}])) == refused


def test_the_configuration_file_of_a_start_is_checked(
    cli: Cli, reachable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "configuration"))
    own, local = tmp_path / "configuration" / "toolgraft" / "toolgraft.toml", tmp_path / "work" / "toolgraft.toml"
    for file in (own, local):
        file.parent.mkdir(parents=True)
    monkeypatch.chdir(local.parent)
    assert list(doctor_proxy.config()) == []
    own.write_text("[options]\nmax_rounds = 3\n")
    assert list(doctor_proxy.config()) == [Finding("config", "ok", f"{own} fits")]
    own.write_text("[options]\n\nmax_rounds = 0\n")
    found = doctor(cli, reachable, status=1)["config"]
    assert found == [("wrong", f"{own}: options.max_rounds='0': must be a number from 1 to 100")]
    local.touch()
    states = [one.state for one in doctor_proxy.config()]
    assert states == ["note", "wrong"]
