"""An MCP server over stdio, without the SDK, which takes a second to import at each start of a proxy."""

import json
import sys
import threading
from typing import Any

from tests.crash.runs import work

Json = dict[str, Any]

_TOOL = {
    "name": "stdio",
    "description": "Work in an MCP server over stdio.",
    "inputSchema": {
        "type": "object",
        "properties": {"mark": {"type": "string"}, "seconds": {"type": "number"}},
        "required": ["mark", "seconds"],
    },
}
_writing = threading.Lock()


def _answer(request: Json) -> None:
    params = request.get("params", {})
    match request["method"]:
        case "initialize":
            about = {"name": "crash", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
            _write(request, result=result)
        case "tools/list":
            _write(request, result={"tools": [_TOOL]})
        case "tools/call":
            text = json.dumps(work("stdio", **params["arguments"]))
            _write(request, result={"content": [{"type": "text", "text": text}]})
        case "ping":
            _write(request, result={})
        case method:
            _write(request, error={"code": -32601, "message": f"there is no method {method}"})


def _write(request: Json, **outcome: Json) -> None:
    with _writing:
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **outcome}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:  # not a notification or an answer
        threading.Thread(target=_answer, args=(message,), daemon=True).start()
