"""`toolgraft run -- agy`: models' hosts go through the proxy, and all others keep their own certificates."""

import http.server
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from mitmproxy.certs import CertStore

from tests.e2e.processes import ROOT
from tests.e2e.proxies import Proxy, new_session
from tests.e2e.upstreams import Gemini

CLIENT = ROOT / "tests" / "e2e" / "clients" / "agy.py"


class Server(http.server.ThreadingHTTPServer):
    """An HTTPS server whose certificate comes from a CA of its own, `ca`."""

    def __init__(self, folder: Path) -> None:
        self.paths: list[str] = []
        paths = self.paths

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                paths.append(self.path)
                self.send_response(200)
                self.send_header("content-length", "4")
                self.end_headers()
                self.wfile.write(b"mine")

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        store = CertStore.from_store(folder, "real", 2048)
        self.ca = folder / "real-ca-cert.pem"
        leaf = store.get_cert("localhost", [x509.DNSName("localhost")])
        pem = folder / "leaf.pem"
        pem.write_bytes(
            leaf.cert.to_pem()
            + leaf.privatekey.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        self.socket = context.wrap_socket(self.socket, server_side=True)


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "private"
    folder.mkdir()
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def agy(tmp_path: Path) -> Path:
    """The folder of a command of this name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    command = folder / "agy"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{CLIENT}" "$@"\n')
    command.chmod(0o755)
    return folder


Ask = Callable[..., list[Any]]


@pytest.fixture
def run(proxy: Proxy, private: Server, agy: Path) -> Ask:
    def runs(*arguments: str, text: str) -> list[Any]:
        """What the client prints, which trusts the private server's CA already."""
        environ = os.environ | {
            "PATH": f"{agy}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TOOLGRAFT_HOME": str(proxy.state),
            "SSL_CERT_FILE": str(private.ca),
            "NO_PROXY": "localhost,.googleapis.com",
        }
        command = [sys.executable, "-m", "addon", "run", *arguments, str(private.server_port), text]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=90, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return runs


def test_only_a_model_s_host_is_decrypted_for_a_client_without_a_base_url(
    proxy: Proxy, gemini: Gemini, private: Server, run: Ask
) -> None:
    session = new_session(proxy)
    mark = proxy.process.mark()
    (model, issuer, status, _), (other, real_issuer, other_status, body) = run(
        "--session", session.name, "--", "agy", text="which tools?"
    )
    assert (model, issuer, status) == ("generativelanguage.googleapis.com", "mitmproxy", 200)
    assert (other, real_issuer, other_status, body) == ("localhost", "real", 200, "mine")
    assert private.paths == ["/private"]
    assert "which tools?" in str(gemini.last["body"]["contents"])
    assert "get_weather" in str(gemini.last["body"]["tools"])
    assert session.name not in str(gemini.last)
    assert "/private" not in "\n".join(proxy.process.lines[mark:])


def test_without_a_session_it_is_the_proxy_s_own(proxy: Proxy, gemini: Gemini, private: Server, run: Ask) -> None:
    model, other = run("--proxy", "--", "agy", text="hello")
    assert [model[1:3], other[1:3]] == [["mitmproxy", 200], ["real", 200]]
    assert "tools" not in gemini.last["body"]


def test_other_clients_of_the_regular_proxy_still_have_all_their_hosts_decrypted(
    proxy: Proxy, private: Server, agy: Path
) -> None:
    trusted = f"{proxy.ca.read_text()}{private.ca.read_text()}"
    bundle = agy / "bundle.pem"
    bundle.write_text(trusted)
    environ = os.environ | {"HTTPS_PROXY": proxy.user("mine"), "SSL_CERT_FILE": str(bundle)}
    command = [sys.executable, str(CLIENT), str(private.server_port), "hello"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=90, check=False)
    _, other = [json.loads(line) for line in done.stdout.splitlines()]
    assert other[:2] == ["localhost", "mitmproxy"]
    assert other[2] == 502  # mitmproxy does not trust the server's CA
