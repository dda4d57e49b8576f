"""An MCP server with a tool that returns a screenshot: noise, which cannot be compressed."""

import random
import struct
import zlib


def png(width: int, height: int) -> bytes:
    """A valid PNG of about 3 bytes a pixel, always the same."""
    noise = random.Random(width * height)
    rows = b"".join(b"\0" + noise.randbytes(3 * width) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


if __name__ == "__main__":
    from mcp.server.mcpserver import Image, MCPServer
    from mcp_types import TextContent

    server = MCPServer("camera")

    @server.tool(structured_output=False)
    def screenshot(width: int, height: int) -> list[TextContent | Image]:
        """Take a screenshot."""
        return [TextContent(type="text", text="The start page."), Image(data=png(width, height), format="png")]

    server.run("stdio")
