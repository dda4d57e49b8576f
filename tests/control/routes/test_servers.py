"""The MCP servers, and their restart."""

from collections.abc import Sequence

import httpx2
import pytest

from addon.control.app import ControlApp
from addon.settings import Settings
from addon.tools.base import ServerState


@pytest.fixture
def restarts(app: ControlApp) -> list[str]:
    """The servers that were restarted. `files` was down, `a/b c` is."""
    restarts: list[str] = []

    def states() -> Sequence[ServerState]:
        return [
            ServerState("files", True, 2, last_error="the connection has ended", last_error_at=7.0),
            ServerState("a/b c", False, 0, "it is starting"),
        ]

    async def restart(name: str) -> bool:
        restarts.append(name)
        return name in ("files", "a/b c")

    app.api.server_states, app.api.restart_server = states, restart
    return restarts


async def test_each_server_is_listed_with_its_state(client: httpx2.AsyncClient, restarts: list[str]) -> None:
    items = (await client.get("/v1/servers")).json()["items"]
    assert [(one["name"], one["is_up"], one["tools"], one["error"]) for one in items] == [
        ("files", True, 2, None),
        ("a/b c", False, 0, "it is starting"),
    ]
    assert [(one["last_error"], one["last_error_at"]) for one in items] == [
        ("the connection has ended", 7.0),
        (None, None),
    ]


@pytest.mark.parametrize(("path", "name"), [("files", "files"), ("a%2Fb%20c", "a/b c")])
async def test_a_server_is_restarted_by_its_name(
    client: httpx2.AsyncClient, restarts: list[str], settings: Settings, path: str, name: str
) -> None:
    answer = await client.post(f"/v1/servers/{path}/restart", json={})
    assert (answer.status_code, answer.json()["name"]) == (200, name)
    assert restarts == [name]
    assert '"action": "server.restart"' in (settings.state / "audit.jsonl").read_text()


async def test_an_unknown_server_is_named_with_those_there_are(
    client: httpx2.AsyncClient, restarts: list[str], app: ControlApp
) -> None:
    answer = await client.post("/v1/servers/file/restart")
    assert (answer.status_code, answer.json()["detail"]) == (
        404,
        "there is no MCP server file; there are: files, a/b c",
    )
    app.api.server_states, app.api.restart_server = tuple, None
    answer = await client.post("/v1/servers/files/restart")
    assert (answer.status_code, answer.json()["detail"]) == (404, "there is no MCP server files; there are: none")
