"""Programs that repeat the secrets that they receive: a model in every API, an endpoint, an MCP server
(`python leaky.py`), and, in TOOLS, Python functions."""

import base64
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from wsproto.frame_protocol import FrameProtocol, Opcode

from tests.faults.dialects import dialect_of, is_later_round

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
    """`heard`: the requests to the model, each as path with headers, and body."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.url = ""
        self._declared: list[str] = []
        self._open = 0  # calls without answers, of the Live connection

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

            def do_GET(self) -> None:
                key = (self.headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()
                self.send_response(101)
                self.send_header("upgrade", "websocket")
                self.send_header("connection", "upgrade")
                self.send_header("sec-websocket-accept", base64.b64encode(hashlib.sha1(key).digest()).decode())
                self.end_headers()
                frames, message = FrameProtocol(client=False, extensions=[]), b""
                while data := self.rfile.read1(65536):
                    frames.receive_bytes(data)
                    for frame in frames.received_frames():
                        if frame.opcode is Opcode.CLOSE:
                            return
                        if isinstance(frame.payload, tuple):
                            continue
                        message += frame.payload.encode() if isinstance(frame.payload, str) else frame.payload
                        if not frame.message_finished:
                            continue
                        if b"please break" in message:
                            self.wfile.write(frames.close(1011, f"broken: {self.headers['x-goog-api-key']}"))
                            return
                        for document in owner.live(f"{self.path} {self.headers}", json.loads(message)):
                            self.wfile.write(frames.send_data(json.dumps(document).encode(), fin=True))
                        message = b""

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
        names = [] if is_later_round(body.encode()) else declared(asked)
        calls = [(name, {"echo": echo} if name == "captured" else {}) for name in names]
        dialect = dialect_of(path)
        document = {"chat completions": _completion, "Interactions": _interaction}.get(dialect.name, _content)
        framing = dialect.framing(path, body.encode())
        documents = document(f"answer {echo}", calls, framing == "SSE")
        if framing == "SSE":
            events = b"".join(b"data: " + json.dumps(one).encode() + b"\r\n\r\n" for one in documents)
            return 200, "text/event-stream", events
        return 200, "application/json", json.dumps(documents[0]).encode()

    def live(self, echo: str, message: Json) -> Iterator[Json]:
        """The replies to a message of a Live connection."""
        if "setup" in message:
            self._declared = declared(message["setup"])
            self.heard.append((echo, json.dumps(message)))
            yield {"setupComplete": {}, "echo": echo}
        elif "toolResponse" in message:
            self.heard.append((echo, json.dumps(message)))
            self._open -= len(message["toolResponse"]["functionResponses"])
            if not self._open:
                yield {"serverContent": {"turnComplete": True}}
        elif "clientContent" in message:
            yield {"serverContent": {"modelTurn": {"parts": [{"text": f"answer {echo}"}]}}}
            calls = [
                {"id": f"f{number}", "name": name, "args": {"echo": echo} if name == "captured" else {}}
                for number, name in enumerate(self._declared)
            ]
            self._open = len(calls)
            yield {"toolCall": {"functionCalls": calls}, "echo": echo}


def declared(asked: Json) -> list[str]:
    """The names of a request's tools."""
    tools = asked.get("tools") or ()
    named = [one for tool in tools for one in tool.get("functionDeclarations") or [tool.get("function", tool)]]
    return [one["name"] for one in named]


Calls = list[tuple[str, Json]]


def _content(text: str, calls: Calls, stream: bool) -> list[Json]:
    parts: list[Json] = [{"text": text}, *({"functionCall": {"name": name, "args": args}} for name, args in calls)]
    return [{"candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, "finishReason": "STOP"}]}]


def _completion(text: str, calls: Calls, stream: bool) -> list[Json]:
    made = [
        {
            "index": number,
            "id": f"c{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(args)},
        }
        for number, (name, args) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, **({"tool_calls": made} if made else {})}
    choice = {"index": 0, "delta" if stream else "message": message, "finish_reason": "tool_calls" if made else "stop"}
    return [{"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}]


def _interaction(text: str, calls: Calls, stream: bool) -> list[Json]:
    made = [
        {"type": "function_call", "id": f"c{number}", "name": name, "arguments": args}
        for number, (name, args) in enumerate(calls)
    ]
    steps: list[Json] = [{"type": "model_output", "content": [{"type": "text", "text": text}]}, *made]
    ended = {"id": f"v1_{hashlib.sha256(text.encode()).hexdigest()}", "model": "m"}
    ended["status"] = "requires_action" if made else "completed"
    if not stream:
        return [{**ended, "steps": steps}]
    events: list[Json] = [{"event_type": "interaction.created", "interaction": {**ended, "status": "in_progress"}}]
    for number, step in enumerate(steps):
        events.append({"event_type": "step.start", "index": number, "step": step})
        events.append({"event_type": "step.stop", "index": number})
    return [*events, {"event_type": "interaction.completed", "interaction": ended}]


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
