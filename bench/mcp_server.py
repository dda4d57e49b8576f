"""An MCP server over stdin and stdout whose one tool does nothing."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("bench")


@server.tool()
async def mcp_noop(sent: float = 0) -> dict[str, bool]:
    """Do nothing."""
    return {"ok": True}


if __name__ == "__main__":
    server.run("stdio")
