"""The audit of the pinned packages."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import pytest
from packaging.utils import canonicalize_name

from tests.scripts.conftest import ROOT, Checkout

pytestmark = pytest.mark.e2e


class Vulnerabilities:
    """A service of the Open Source Vulnerabilities' kind that knows one vulnerable package."""

    def __init__(self, package: str) -> None:
        asked = self.asked = set[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                query = json.loads(self.rfile.read(int(self.headers["content-length"])))
                asked.add(query["package"]["name"])
                known = {"id": "X-1", "summary": "Bad.", "modified": "2026-01-01T00:00:00Z", "affected": []}
                found = json.dumps({"vulns": [known]} if query["package"]["name"] == package else {}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1/query"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def audit(made: Checkout, url: str, status: int) -> str:
    cache = str(made.home / "cache")
    more = ("--vulnerability-service", "osv", "--osv-url", url, "--cache-dir", cache)
    out, err = made.run(*more, script="scripts/audit.sh", status=status)
    return "\n".join([*out, err])


def test_the_audit_asks_for_each_pinned_package_and_names_what_is_vulnerable(made: Checkout) -> None:
    with Vulnerabilities("none") as service:
        assert "No known vulnerabilities found" in audit(made, service.url, status=0)
        pins = re.findall(r"^([\w.-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        assert {canonicalize_name(name) for name in pins} == service.asked
    with Vulnerabilities("httpx2") as service:
        assert re.search(r"httpx2\s+\S+\s+X-1", audit(made, service.url, status=1))


def test_an_audit_that_could_not_ask_has_failed(made: Checkout) -> None:
    with Vulnerabilities("none") as service:
        url = service.url
    assert "the service knows nothing of it or cannot be reached" in audit(made, url, status=1)
