"""The MCP servers of all processes, and their restart."""

from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from addon.control.app import ControlApp
from addon.settings import Settings


def server(name: str, *, is_up: bool, **more: Any) -> dict[str, Any]:
    return {"name": name, "is_up": is_up, "tools": 2, "error": None if is_up else "it is starting", **more}


@pytest.fixture
def restarts(app: ControlApp) -> list[str]:
    """The servers that were restarted. `files` is down in the second process, and was down in the first."""
    restarts: list[str] = []

    async def states(request_id: str = "") -> Sequence[dict[str, Any]]:
        first = server("files", is_up=True, last_error="the connection has ended", last_error_at=7.0)
        return [
            {"slot": 2, "pid": 102, "mcp": [server("files", is_up=False)]},
            {"slot": 1, "pid": 101, "mcp": [first, server("a/b c", is_up=True)]},
        ]

    async def restart(name: str) -> bool:
        restarts.append(name)
        return name in ("files", "a/b c")

    app.api.processes, app.api.restart_server = states, restart
    return restarts


async def test_each_server_is_listed_with_its_state_in_each_process(
    client: httpx2.AsyncClient, restarts: list[str]
) -> None:
    files, other = (await client.get("/v1/servers")).json()["items"]
    assert (files["name"], files["is_up"]) == ("files", False)
    assert [(one["slot"], one["pid"], one["is_up"], one["error"]) for one in files["processes"]] == [
        (1, 101, True, None),
        (2, 102, False, "it is starting"),
    ]
    assert [(one["last_error"], one["last_error_at"]) for one in files["processes"]] == [
        ("the connection has ended", 7.0),
        (None, None),
    ]
    assert (other["name"], other["is_up"], len(other["processes"])) == ("a/b c", True, 1)


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
    app.api.processes = app.api.restart_server = None
    answer = await client.post("/v1/servers/files/restart")
    assert (answer.status_code, answer.json()["detail"]) == (404, "there is no MCP server files; there are: none")


async def test_a_supervisor_that_does_not_answer_is_told(
    client: httpx2.AsyncClient, restarts: list[str], app: ControlApp
) -> None:
    async def fails(name: str) -> bool:
        raise OSError("the supervisor does not answer")

    app.api.restart_server = fails
    answer = await client.post("/v1/servers/files/restart")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the supervisor does not answer")
