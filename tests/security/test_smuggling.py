"""An upstream that sends more than its answer cannot put words into the next one."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest

from addon.loop.upstream import Address, Upstream
from addon.tools.http_connections import Egress, OwnedConnections
from addon.tools.http_endpoint import HttpExecutor, endpoint_client
from tests.certificates import secure
from tests.hooks.harness import GOOGLE
from tests.hooks.proxied import Proxied, answer, requests, serving
from tests.loop.conftest import Watcher

pytestmark = pytest.mark.e2e

PATH = "/v1beta/models/gemini-3-flash:generateContent"
NAMES = ("x-goog-api-key:", "x-vault-token:")
"""The headers that say who asks."""
TOOLS = '''
async def lookup(what: str = "it") -> str:
    """Look it up."""
    return f"found {what}"
'''

ASKED = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}

Json = dict[str, Any]


def response(text: str) -> bytes:
    document = {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "finishReason": "STOP"}]}
    return answer(json.dumps(document).encode())


class Surplus:
    """Says who asked, and sends an answer that nobody asked for behind each. `connections`: who asked on each. A client
    that takes it for a proxy gets a tunnel to itself: `tls` secures it."""

    def __init__(self, *, surplus: bool = True, tls: ssl.SSLContext | None = None) -> None:
        self.surplus = surplus
        self.tls = tls
        self.connections: list[list[str]] = []
        self._idle: dict[asyncio.StreamWriter, str] = {}

    async def push(self) -> None:
        """Send an answer that nobody asked for on each idle connection."""
        for writer, who in self._idle.items():
            with contextlib.suppress(
                ConnectionError, AttributeError
            ):  # the latter is asyncio's, after a TLS connection
                writer.write(response(f"surplus of {who}"))
                await writer.drain()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked: list[str] = []
        self.connections.append(asked)
        async for head, _ in requests(reader):
            self._idle.pop(writer, None)
            if head.startswith(b"CONNECT "):
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                assert self.tls is not None
                await writer.start_tls(self.tls)
                continue
            lines = head.decode().split("\r\n")
            who = next((line.partition(": ")[2] for line in lines if line.lower().startswith(NAMES)), "")
            asked.append(who)
            writer.write(response(f"for {who}"))
            if self.surplus:
                writer.write(response(f"surplus of {who}"))
            await writer.drain()
            self._idle[writer] = who
        self._idle.pop(writer, None)


async def ask(upstream: Upstream, url: str, key: str, name: bytes = b"x-goog-api-key") -> str:
    """One request of a loop's, to its end."""
    address = Address("POST", url, ((name, key.encode()), (b"content-type", b"application/json")))
    async with upstream.send(address, b"{}") as got:
        body = await got.body()
    text: str = json.loads(body)["candidates"][0]["content"]["parts"][0]["text"]
    return text


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with OwnedConnections(lambda: httpx2.AsyncHTTPTransport(verify=context, trust_env=False)) as connections:
        yield Upstream(lambda _: connections, Watcher())


@pytest.mark.parametrize("ending", ["plain", "secured", "cut"])
async def test_an_answer_without_a_length_that_is_cut_below_tls_is_not_whole(
    upstream: Upstream, tmp_path: Path, ending: str
) -> None:
    """Anyone on the way can end a connection; that the server ended it is said within TLS."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await anext(requests(reader))
        writer.write(response("whole").replace(b"content-length", b"x-length"))
        await writer.drain()
        if ending == "cut":
            writer.transport.abort()

    own, _ = secure(tmp_path)
    async with serving(serve, None if ending == "plain" else own) as url:
        asking = ask(upstream, url, "alice")
        if ending == "cut":
            with pytest.raises(httpx2.RemoteProtocolError, match="in the middle of an answer"):
                await asking
        else:
            assert await asking == "whole"


@pytest.mark.parametrize("name", [b"x-goog-api-key", b"X-Vault-Token"])
async def test_connections_are_kept_for_the_same_credentials_alone(upstream: Upstream, name: bytes) -> None:
    server = Surplus(surplus=False)
    async with serving(server) as url:
        for key in ("alice", "bob", "alice", "bob", "carol"):
            assert await ask(upstream, url, key, name) == f"for {key}"
    assert server.connections == [["alice", "alice"], ["bob", "bob"], ["carol"]]


async def test_endpoints_of_tools_are_held_to_the_same() -> None:
    server = Surplus(surplus=False)
    async with serving(server) as url, endpoint_client(Egress()) as client:
        named, secret = url.replace("//", "//{}@"), f"{url}/?key={{}}"
        for key in ("alice", "bob", "alice"):
            for address in (url, named, secret):
                executor = {"type": "http", "url": address.format(key)} | (
                    {} if address != url else {"headers": {"x-tenant": key}}
                )
                await HttpExecutor(executor, client).call("lookup", {}, call_id="c")
    assert [len(asked) for asked in server.connections] == [2, 2, 2, 1, 1, 1]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Proxied]]]:
    async with AsyncExitStack() as stack:

        async def starts(server: Surplus, **options: Any) -> Proxied:
            (tmp_path / "tools.py").write_text(TOOLS)
            url = await stack.enter_async_context(serving(server))
            options.setdefault("redirect", [f"{GOOGLE}={url}"])
            return await stack.enter_async_context(Proxied(tmp_path, url, **options))

        yield starts


@pytest.mark.parametrize("name", ["x-goog-api-key", "X-Vault-Token"])
@pytest.mark.parametrize("redirected", [True, False])
async def test_mitmproxy_s_own_connections_are_kept_for_the_same_credentials_alone(
    start: Callable[..., Awaitable[Proxied]], redirected: bool, name: str
) -> None:
    """A client may be a gateway, on whose connection many people ask."""
    server = Surplus(surplus=False)
    proxied = await start(server)
    url = f"http://{GOOGLE}{PATH}" if redirected else f"{proxied.reverse}{PATH}"
    async with proxied.client(proxy=proxied.regular if redirected else None) as client:
        for key in ("alice", "alice", "bob", "alice", "bob"):
            assert f"for {key}" in (await client.post(url, json={}, headers={name: key})).text
    assert server.connections == [["alice", "alice", "alice"], ["bob", "bob"]]


@pytest.mark.parametrize("loops", [True, False], ids=["loops", "mitmproxy's own"])
async def test_no_session_is_given_the_surplus_of_another(
    start: Callable[..., Awaitable[Proxied]], tmp_path: Path, caplog: pytest.LogCaptureFixture, loops: bool
) -> None:
    caplog.set_level("DEBUG", "mitmproxy")
    proxied = await start(Surplus(), **({"tools": [str(tmp_path / "tools.py")]} if loops else {}))
    async with proxied.client() as client:
        for name in ("a", "b", "a", "b"):
            got = await client.post(
                f"{proxied.reverse}/@{name}{PATH}", json=ASKED, headers={"x-goog-api-key": f"key-{name}"}
            )
            assert f"key-{name}" in got.text
            assert f"key-{'b' if name == 'a' else 'a'}" not in got.text
    assert loops or "surplus" not in caplog.text
    assert loops or "Unexpected data from server (not shown)" in caplog.text


WAYS = {
    "plain": (False, False),
    "TLS": (True, False),
    "upstream proxy": (False, True),
    "TLS through an upstream proxy": (True, True),
}


@pytest.mark.parametrize("pushes", [False, True], ids=["with the answer", "on an idle connection"])
@pytest.mark.parametrize("way", WAYS)
async def test_no_round_gets_bytes_that_were_sent_for_another_credential(
    tmp_path: Path, way: str, pushes: bool
) -> None:
    is_secure, has_proxy = WAYS[way]
    (tmp_path / "tools.py").write_text(TOOLS)
    own, _ = secure(tmp_path)
    server = Surplus(surplus=not pushes, tls=own)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(server, own if is_secure and not has_proxy else None))
        options: dict[str, Any] = {} if has_proxy else {"redirect": [f"{GOOGLE}={url}"]}
        tools = [str(tmp_path / "tools.py")]
        mitm = {"ssl_insecure": True}
        proxied = await stack.enter_async_context(Proxied(tmp_path, url, tools=tools, mitm=mitm, **options))
        proxy = proxied.chained if has_proxy else proxied.regular
        client = await stack.enter_async_context(proxied.client(proxy=proxy))
        for who in ("alice", "bob", "alice", "carol", "bob", "alice"):
            headers = {"x-goog-api-key": who}
            got = await client.post(f"http{'s' if is_secure else ''}://{GOOGLE}{PATH}", json=ASKED, headers=headers)
            others = {"alice", "bob", "carol"} - {who}
            assert not any(other in got.text for other in others), got.text
            assert who in got.text or got.status_code == 502
            if pushes:
                await server.push()
    assert sum(len(asked) for asked in server.connections) >= 6
    assert all(len(set(asked)) <= 1 for asked in server.connections)


@pytest.mark.parametrize("pushes", [False, True], ids=["with the answer", "on an idle connection"])
async def test_no_tool_gets_bytes_that_were_sent_for_another_credential(
    start: Callable[..., Awaitable[Proxied]], pushes: bool
) -> None:
    client = (await start(Surplus())).runtime.executors._http
    server = Surplus(surplus=not pushes)
    async with serving(server) as url:
        for who in ("alice", "bob", "alice", "carol", "bob", "alice"):
            executor = {"type": "http", "url": url, "headers": {"x-goog-api-key": who}}
            found = await HttpExecutor(executor, client).call("lookup", {}, call_id="c")
            assert {"alice", "bob", "carol"} & set(json.dumps(found).replace('"', " ").split()) == {who}
            if pushes:
                await server.push()
    assert all(len(set(asked)) == 1 for asked in server.connections)
