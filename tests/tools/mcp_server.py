"""A small MCP server with the SDK, run as a process: `mcp_server.py stdio` or `mcp_server.py PORT`.

Tools that hang write a line to the file in their argument.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import TextContent

server = MCPServer("tests")


def note(file: str, word: str) -> None:
    with Path(file).open("a") as out:
        print(word, file=out)


@server.tool()
def add(a: int, b: int) -> dict[str, int]:
    """Add two numbers."""
    return {"sum": a + b}


@server.tool(structured_output=False)
def text(value: str) -> list[TextContent]:
    """Two blocks of text."""
    return [TextContent(type="text", text=part) for part in value.split("|")]


@server.tool(structured_output=False)
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def fail(message: str) -> str:
    """Fail."""
    raise ValueError(message)


@server.tool()
async def hang(file: str) -> str:
    """Never return."""
    note(file, "started")
    try:
        await asyncio.Event().wait()
    finally:
        note(file, "cancelled")
    return ""


@server.tool()
def about() -> dict[str, Any]:
    """Describe this process."""
    return {"pid": os.getpid(), "environment": dict(os.environ)}


@server.tool()
async def grow(tool: str, context: Context) -> str:
    """Add a tool."""
    server.add_tool(add, name=tool)
    await context.notify_tools_changed()
    return "done"


if len(sys.argv) > 2:
    server.add_tool(add, name=sys.argv[2])
if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    server.run("streamable-http", port=int(sys.argv[1]))
