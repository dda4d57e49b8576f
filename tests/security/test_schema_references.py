"""A `$ref` of a schema never makes the proxy connect to a host or read a file, wherever the schema comes from."""

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest

from addon.control.app import create_app
from addon.tools.base import ToolError
from addon.tools.mcp_config import Server
from addon.tools.mcp_servers import McpSource
from tests.loop.calling import responses, returns
from tests.loop.conftest import Proxy, call
from tests.ports import free_port
from tests.tools.test_mcp_errors import Odd, odd

__all__ = ["odd"]

PLACES = ("http", "file", "relative", "metaschema", "id")


class Lures:
    """A loopback server and a named pipe for schemas to refer to. `touched` is set as soon as either is opened."""

    def __init__(self, folder: Path) -> None:
        self.touched = threading.Event()
        self.pipe = folder / "schema.json"
        os.mkfifo(self.pipe)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._serve), threading.Thread(target=self._write)]
        for thread in self._threads:
            thread.start()

    def schema(self, place: str) -> dict[str, Any]:
        """An object schema with a reference that leads out of it."""
        url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/schema.json"
        reference = {
            "http": {"$ref": url},
            "file": {"$ref": self.pipe.as_uri()},
            "relative": {"$ref": "schema.json#/a"},
            "metaschema": {"$schema": url},
            "id": {"$id": url, "$ref": "other.json"},
        }[place]
        schema: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
        return schema | reference if place == "metaschema" else schema | {"properties": {"a": reference}}

    def close(self) -> None:
        """Serve the threads what they still wait for."""
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.getsockname()).close()
        while any(thread.is_alive() for thread in self._threads):
            os.close(os.open(self.pipe, os.O_RDONLY | os.O_NONBLOCK))
            self._threads[-1].join(0.01)
        self._listener.close()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        self.touched.set()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    def _write(self) -> None:
        """Opening the pipe waits for a reader."""
        with contextlib.suppress(OSError):
            descriptor = os.open(self.pipe, os.O_WRONLY)
            self.touched.set()
            os.write(descriptor, b"{}")
            os.close(descriptor)


@pytest.fixture
def lures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lures]:
    monkeypatch.chdir(tmp_path)  # for relative references
    lures = Lures(tmp_path)
    yield lures
    lures.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    yield proxy
    await proxy.close()


@pytest.mark.parametrize("place", ["http", "file"])
def test_the_lures_notice_a_library_that_fetches(lures: Lures, place: str) -> None:
    assert jsonschema_rs.validator_for(lures.schema(place)).is_valid({"a": 1})
    assert lures.touched.is_set()


@pytest.mark.parametrize("place", PLACES)
async def test_of_a_tool_of_the_proxy(lures: Lures, proxy: Proxy, place: str) -> None:
    proxy.tools.add("t", returns(1), schema=lures.schema(place))
    await proxy.open()
    await responses(proxy, call("t", a=1))
    assert not lures.touched.is_set()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", ["parametersJsonSchema", "inputSchema"])
async def test_of_a_declaration_that_the_control_api_receives(
    lures: Lures, proxy: Proxy, place: str, form: str
) -> None:
    await proxy.open()
    app = create_app(store=proxy.store, settings=proxy.settings, token="t", metrics=proxy.metrics, version="1")
    endpoint = {"type": "http", "url": f"http://127.0.0.1:{free_port()}/"}
    tool = {"name": "t", "description": "d", form: lures.schema(place), "executor": endpoint}
    headers = {"authorization": "Bearer t", "host": "127.0.0.1:8741"}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://x", headers=headers) as client:
        response = await client.put("/v1/sessions/default/tools", json={"tools": [tool]})
    if response.status_code == 200:
        await responses(proxy, call("t", a=1))
    assert response.status_code in (200, 422), response.text
    assert not lures.touched.is_set()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("member", ["inputSchema", "outputSchema"])
async def test_of_a_tool_of_an_mcp_server(lures: Lures, odd: Odd, place: str, member: str) -> None:
    odd.tool[member] = lures.schema(place)
    odd.says["structuredContent"] = {"a": 1}
    async with McpSource("s", Server(url=f"http://127.0.0.1:{odd.port}/"), start_timeout=5) as source:
        async with asyncio.timeout(10):
            with contextlib.suppress(ToolError):
                await source.call("t", {"a": 1}, call_id="c")
    assert not lures.touched.is_set()
