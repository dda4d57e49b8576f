"""What repeats the secrets that it is given: a model and an endpoint, an MCP server (`python leaky.py`), and, in
TOOLS, Python functions."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Json = dict[str, Any]

TOOLS = """
import os
async def shows() -> str:
    \"\"\"Show it.\"\"\"
    return "python " + os.environ["GEMINI_API_KEY"]
async def raises() -> str:
    \"\"\"Raise it.\"\"\"
    raise ValueError("python raised " + os.environ["GEMINI_API_KEY"])
"""
CALLS = ("shows", "raises", "mcp_shows", "mcp_raises", "endpoint_shows", "endpoint_raises")


class Leaky:
    """`heard` are the requests of the model: path and headers in one, and body."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.url = ""

    @contextmanager
    def serving(self) -> Iterator["Leaky"]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
                status, kind, data = owner.answer(self.path, str(self.headers), body)
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.send_header("location", f"/elsewhere?$key={self.headers.get('x-goog-api-key', '')}")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(10)

    def answer(self, path: str, headers: str, body: str) -> tuple[int, str, bytes]:
        echo = f"{path} {headers}"
        if path == "/tool":
            raises = "raises" in json.loads(body)["name"]
            return 500 if raises else 200, "application/json", json.dumps({"echo": echo}).encode()
        self.heard.append((echo, body))
        if "please fail" in body:
            error = {"code": 400, "message": echo, "status": "INVALID_ARGUMENT", "details": [{"echo": echo}]}
            return 400, "application/json", json.dumps({"error": error}).encode()
        if "please break" in body:
            return 500, "text/html", f"<pre>{echo}</pre>".encode()
        asked = json.loads(body)
        declared = [one["name"] for tool in asked.get("tools", ()) for one in tool.get("functionDeclarations", ())]
        parts: list[Json] = [{"text": f"said {echo}"}]
        if "functionResponse" not in body:
            args = {"echo": echo} if "captured" in declared else {}
            parts += [{"functionCall": {"name": name, "args": args}} for name in declared]
        document = {"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, "finishReason": "STOP"}]}
        data = json.dumps(document).encode()
        if "alt=sse" in path:
            return 200, "text/event-stream", b"data: " + data + b"\r\n\r\n"
        return 200, "application/json", data


def _mcp(request: Json) -> Json:
    secret = os.environ["SOME_TOKEN"]
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            about = {"name": "leaky", "version": "1"}
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}}
        case "tools/list":
            schema = {"type": "object"}
            names = CALLS[2:4]
            return {
                "result": {"tools": [{"name": name, "description": "It.", "inputSchema": schema} for name in names]}
            }
        case "tools/call":
            raised = request["params"]["name"] == "mcp_raises"
            return {"result": {"content": [{"type": "text", "text": f"mcp {secret}"}], "isError": raised}}
        case "ping":
            return {"result": {}}
    return {"error": {"code": -32601, "message": f"no {request['method']} with {secret}"}}


if __name__ == "__main__":
    print("on stderr:", os.environ["SOME_TOKEN"], "\x1b[2J", file=sys.stderr, flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **_mcp(message)}), flush=True)
