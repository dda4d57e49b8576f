"""A server that records its requests. As a model it calls `lookup` once in each conversation that asks for it, and
always says `hush`."""

import itertools
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.e2e.upstreams import ThreadedServer

Json = dict[str, Any]

CALL = {"functionCall": {"name": "lookup", "args": {}, "id": "f1"}, "thoughtSignature": "c2lnbmVk"}


class Heard(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Echo(ThreadedServer):
    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.cookies = itertools.count(1)
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                owner.heard.append(Heard(self.path, headers, body))
                kind, answer = owner.answer(self.path, body)
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(answer)))
                self.send_header("set-cookie", f"sticky=of-{next(owner.cookies)}; Path=/")
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        super().__init__(server)

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def answer(self, path: str, body: bytes) -> tuple[str, bytes]:
        if path == "/tool":
            return "application/json", b'{"found": 1}'
        if ":" not in path:
            return "application/json", b'{"echo": "hush"}'
        asked = json.loads(body)
        calls = b"please" in body and bool(asked.get("tools")) and b'"functionResponse"' not in body
        parts = [[{"text": "hush"}], [CALL] if calls else [{"text": " hush."}]]
        if "alt=sse" in path:
            events = [_event(one, last=one is parts[-1]) for one in parts]
            return "text/event-stream", b"".join(b"data: " + event + b"\r\n\r\n" for event in events)
        return "application/json", _event([part for one in parts for part in one], last=True)


def _event(parts: list[Json], *, last: bool) -> bytes:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    if last:
        candidate["finishReason"] = "STOP"
    return json.dumps({"candidates": [candidate], "modelVersion": "m", "responseId": "r"}).encode()
