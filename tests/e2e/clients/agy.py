"""A client without a setting for base URLs: it only reads HTTPS_PROXY and the variables of CAs, and asks a model and
another host. Prints for each the issuer of its certificate, and the answer."""

import base64
import http.client
import json
import os
import ssl
import sys
from urllib.parse import urlsplit

MODEL = "generativelanguage.googleapis.com"
PATH = "/v1beta/models/gemini-3-flash-preview:generateContent"


def ask(host: str, port: int, method: str, path: str, body: str | None = None) -> None:
    proxy = urlsplit(os.environ["HTTPS_PROXY"])
    assert proxy.hostname is not None
    connection = http.client.HTTPSConnection(
        proxy.hostname, proxy.port, timeout=60, context=ssl.create_default_context()
    )
    user = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
    connection.set_tunnel(host, port, {"Proxy-Authorization": f"Basic {user}"})
    connection.connect()
    assert isinstance(connection.sock, ssl.SSLSocket)
    certificate = connection.sock.getpeercert()
    assert certificate is not None
    issuer: dict[str, str] = dict(pair for part in certificate["issuer"] for pair in part)  # type: ignore[misc]
    connection.request(method, path, body, {"x-goog-api-key": "a-secret-key", "content-type": "application/json"})
    answer = connection.getresponse()
    print(json.dumps([host, issuer["commonName"], answer.status, answer.read().decode()]), flush=True)
    connection.close()


if __name__ == "__main__":
    ask(MODEL, 443, "POST", PATH, json.dumps({"contents": [{"role": "user", "parts": [{"text": sys.argv[2]}]}]}))
    ask("localhost", int(sys.argv[1]), "GET", "/private")
