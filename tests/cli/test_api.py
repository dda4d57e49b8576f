import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from addon.state_folder import write_address
from tests.cli.conftest import Cli, Proxy


@pytest.fixture
def stranger() -> Iterator[str]:
    """A web server that is not toolgraft."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def free_url() -> str:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        return f"http://127.0.0.1:{server.server_port}"


def test_without_a_proxy_the_message_says_how_to_start_one(cli: Cli) -> None:
    url = free_url()
    stderr = cli("calls", "--url", url, status=1).stderr
    assert stderr == f"toolgraft: nothing answers at {url}: is the proxy running? Start it with ./run_proxy.sh\n"


def test_a_wrong_token_is_told_with_where_tokens_come_from(
    cli: Cli, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "wrong")
    stderr = cli("calls", status=1).stderr
    for source in ("graft_token", "TOOLGRAFT_TOKEN", "state folder"):
        assert source in stderr
    assert "wrong" not in stderr


def test_another_program_on_the_port_is_told_from_the_proxy(cli: Cli, stranger: str) -> None:
    assert "does another program listen there?" in cli("calls", "--url", stranger, status=1).stderr


def test_an_option_goes_before_the_environment_and_that_before_the_state_folder(
    cli: Cli, proxy: Proxy, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("calls")
    dead, live = free_url(), proxy.url
    monkeypatch.setenv("TOOLGRAFT_URL", dead)
    assert dead in cli("calls", status=1).stderr
    cli("calls", "--url", live)
    monkeypatch.setenv("TOOLGRAFT_URL", live)
    write_address(state, dead)
    cli("calls")


def test_the_environment_s_web_proxy_is_not_used_for_a_local_port(
    cli: Cli, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, free_url())
    cli("calls")


def test_this_machine_s_token_is_not_sent_to_another(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    from addon.cli.api import Api

    assert "authorization" in Api("http://127.0.0.1:1")._client.headers
    assert "authorization" not in Api("http://192.0.2.1:8741")._client.headers
    monkeypatch.setenv("TOOLGRAFT_TOKEN", "given")
    assert Api("http://192.0.2.1:8741")._client.headers["authorization"] == "Bearer given"


@pytest.mark.parametrize("url", ["127.0.0.1:8741", "ftp://x", "http://", "http://x:99999", "http://[::1"])
def test_an_invalid_url_is_a_wrong_option(cli: Cli, url: str) -> None:
    stderr = cli("calls", "--url", url, status=2).stderr
    assert "--url" in stderr


@pytest.mark.parametrize("session", ["a/b", "", "x" * 65, "å"])
@pytest.mark.parametrize("command", [["calls"], ["tools", "show"], ["env"], ["token"]], ids=" ".join)
def test_an_invalid_session_name_is_a_wrong_option(cli: Cli, command: list[str], session: str) -> None:
    assert "--session" in cli(*command, "--session", session, status=2).stderr


@pytest.mark.parametrize(
    "url",
    ["http://me:s3cr3t@127.0.0.1:1", "me:s3cr3t@127.0.0.1:1", "http://127.0.0.1:1/?token=s3cr3t", "http://s3cr3t@h:x"],
)
def test_a_url_with_a_password_is_refused_without_showing_it(cli: Cli, url: str) -> None:
    stderr = cli("calls", "--url", url, status=2).stderr
    assert "***" in stderr
    assert "s3cr3t" not in stderr


@pytest.mark.parametrize(
    ("typed", "nearest"), [(["aprove"], "approve"), (["tools", "sett"], "set"), (["cals", "--watch"], "calls")]
)
def test_an_unknown_command_names_the_nearest(cli: Cli, typed: list[str], nearest: str) -> None:
    assert f"Did you mean '{nearest}'" in cli(*typed, status=2).stderr
