"""An MCP server over stdio with one tool."""

from mcp.server.mcpserver import MCPServer

from tests.crash.runs import work_async

server = MCPServer("crash")


@server.tool()
async def stdio(mark: str, seconds: float) -> dict[str, str]:
    """Work in an MCP server."""
    return await work_async("stdio", mark, seconds)


if __name__ == "__main__":
    server.run("stdio")
