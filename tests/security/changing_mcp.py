"""An MCP server over stdio, without the SDK, with the tools of a file: `changing_mcp.py FILE`. The tool `renew`
announces that they have changed."""

import json
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]

FILE = Path(sys.argv[1])


def answer(request: Json) -> Json:
    match request["method"]:
        case "initialize":
            version = request["params"]["protocolVersion"]
            about = {"name": "changing", "version": "1"}
            able = {"tools": {"listChanged": True}}
            return {"result": {"protocolVersion": version, "capabilities": able, "serverInfo": about}}
        case "tools/list":
            return {"result": {"tools": json.loads(FILE.read_text())}}
        case "tools/call":
            return {"result": {"content": [{"type": "text", "text": "done"}]}}
        case "ping":
            return {"result": {}}
    return {"error": {"code": -32601, "message": "there is no such method"}}


for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message)}), flush=True)
    if message["method"] == "tools/call" and message["params"]["name"] == "renew":
        print(json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}), flush=True)
