"""A hand-written MCP server of 2025 over stdio: no `server/discover`, no structured content, noise on stdout."""

import json
import sys
from typing import Any

names = ["one"]


def send(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


print("Starting the server…", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    match request["method"]:
        case "initialize":
            result: dict[str, Any] = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "old", "version": "1"},
            }
        case "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
        case "tools/call":
            result = {"content": [{"type": "text", "text": request["params"]["name"]}]}
            if "two" not in names:
                names.append("two")
                send(method="notifications/tools/list_changed")
        case _:
            if "id" in request:
                send(id=request["id"], error={"code": -32601, "message": "Method not found"})
            continue
    send(id=request["id"], result=result)
