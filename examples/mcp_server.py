"""A small MCP server, written with the official SDK. The proxy starts it, as `mcp.json` says, and uses stdin and
stdout.

The flights are made up.
"""

from typing import TypedDict

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

PAUSE = 0.7  # seconds, like a service on the network

server = MCPServer("travel")


class Flight(TypedDict):
    number: str
    departs: str
    price: int


@server.tool()
async def find_flights(origin: str, destination: str) -> list[Flight]:
    """Find tomorrow's flights from one city to another; prices are in euros."""
    await anyio.sleep(PAUSE)
    if origin == destination:
        raise ToolError("origin and destination are the same city")
    code = f"{origin[:1]}{destination[:1]}".upper()
    return [
        {"number": f"{code}101", "departs": "07:20", "price": 40 + 9 * len(origin + destination)},
        {"number": f"{code}205", "departs": "15:45", "price": 35 + 7 * len(origin + destination)},
    ]


@server.tool()
async def get_sights(city: str) -> list[str]:
    """Name the sights of a city."""
    await anyio.sleep(PAUSE)
    return [f"{city} Museum", f"Old Town of {city}"]


if __name__ == "__main__":
    server.run("stdio")
