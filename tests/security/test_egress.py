"""HTTP tools are kept from private networks, the cloud's own addresses, and the proxy's ports."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.core.security.egress import parse_rule
from addon.tools.base import ToolError
from addon.tools.http_connections import Egress, EgressRefused, EgressTransport
from addon.tools.http_endpoint import HttpExecutor
from addon.tools.mcp_config import Server
from addon.tools.mcp_servers import McpSource
from tests.hooks.proxied import Proxied

type Call = Callable[..., Any]


class Endpoint:
    """Answers `"done"` to whatever comes, and counts it."""

    def __init__(self) -> None:
        self.count = 0
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 6\r\n\r\n"done"')
        await writer.drain()
        writer.close()


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    server = await asyncio.start_server(endpoint.handle, "127.0.0.1", 0)
    endpoint.port = server.sockets[0].getsockname()[1]
    async with server:
        yield endpoint


async def run(url: str, *rules: str, own_ports: tuple[int, ...] = ()) -> Any:
    transport = EgressTransport(Egress([parse_rule(rule) for rule in rules], lambda: own_ports))
    async with httpx2.AsyncClient(transport=transport, trust_env=False) as client:
        executor = HttpExecutor({"type": "http", "url": url}, client)
        return await executor.call("tool", {}, call_id="call_1")


def resolves(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
    """Names are found at these addresses: each time at the next."""
    left = list(answers)

    async def getaddrinfo(self: Any, host: Any, port: Any, **_: Any) -> list[Any]:
        addresses = left.pop(0) if left else []
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_this_machine_may_be_called(host: str, endpoint: Endpoint) -> None:
    assert await run(f"http://{host}:{endpoint.port}/") == "done"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", "127.1", "2130706433"])
@pytest.mark.parametrize("rules", [(), ("loopback",), ("127.0.0.0/8", "localhost", "0.0.0.0")])
async def test_the_proxy_s_own_ports_are_never_called(host: str, rules: tuple[str, ...], endpoint: Endpoint) -> None:
    with pytest.raises(ToolError, match="graft_egress") as refused:
        await run(f"http://{host}:{endpoint.port}/", *rules, own_ports=(endpoint.port,))
    assert not refused.value.retryable
    assert not refused.value.sent
    assert endpoint.count == 0


async def test_the_page_of_mitmweb_is_one_of_the_proxy_s_ports(endpoint: Endpoint, tmp_path: Path) -> None:
    async with Proxied(tmp_path, "http://127.0.0.1:1") as proxied:
        client = proxied.runtime.executors._http
        assert (await client.get(f"http://127.0.0.1:{endpoint.port}/")).status_code == 200
        proxied.master.options.add_option("web_port", int, endpoint.port, "As mitmweb has it.")
        with pytest.raises(EgressRefused):
            await client.get(f"http://127.0.0.1:{endpoint.port}/", headers={"connection": "close"})
    assert endpoint.count == 1


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "192.168.1.7", "169.254.169.254", "[fd00:ec2::254]", "[::ffff:169.254.169.254]", "2852039166"]
)
async def test_private_and_link_local_addresses_are_not_called(host: str) -> None:
    with pytest.raises(ToolError, match="graft_egress"):
        await run(f"http://{host}/latest/meta-data")


async def test_a_public_name_of_a_private_address_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, ["169.254.169.254", "10.0.0.1"])
    with pytest.raises(ToolError, match="graft_egress") as refused:
        await run("http://metadata.example/")
    assert "169.254" not in str(refused.value)


async def test_a_name_that_is_another_address_a_moment_later_is_called_at_the_one_that_was_checked(
    monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint
) -> None:
    resolves(monkeypatch, ["169.254.169.254", "127.0.0.1"], ["169.254.169.254"])
    assert await run(f"http://rebinding.example:{endpoint.port}/") == "done"


async def test_a_list_of_hosts_leaves_out_all_others(endpoint: Endpoint) -> None:
    url = f"http://127.0.0.1:{endpoint.port}/"
    assert await run(url, f"127.0.0.1:{endpoint.port}") == "done"
    for rules in (("tools.example",), ("127.0.0.1:1",), ("public",)):
        with pytest.raises(ToolError, match="graft_egress"):
            await run(url, *rules)
    assert endpoint.count == 1


async def test_an_endpoint_that_answers_at_its_second_address_is_called_there(
    monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint
) -> None:
    resolves(monkeypatch, ["127.0.0.2", "127.0.0.1"])
    assert json.dumps(await run(f"http://tools.example:{endpoint.port}/")) == '"done"'


async def test_a_redirect_of_an_mcp_server_leads_nowhere_else(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """What is configured is called, wherever it is; what it names is not."""
    asked = asyncio.Event()

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        location = b"location: http://127.0.0.1:%d/latest/meta-data" % endpoint.port
        writer.write(b"HTTP/1.1 307 Elsewhere\r\n%b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % location)
        await writer.drain()
        writer.close()
        asked.set()

    server = await asyncio.start_server(redirect, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with server, McpSource("s", Server(url=url), start_timeout=5):
        assert asked.is_set()
    assert "it redirects to another URL, which is not followed" in caplog.text
    assert endpoint.count == 0
