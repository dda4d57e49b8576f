"""Requests of a loop, shown to mitmproxy as flows of its own: in the flow list, in `-w` files, to every other addon."""

import time
from weakref import WeakSet

from mitmproxy import connection, ctx, flow, hooks, http
from mitmproxy.proxy.layers.http._hooks import (
    HttpErrorHook,
    HttpRequestHeadersHook,
    HttpRequestHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
)

from addon.loop.upstream import Address, Headers


class Watching:
    """Makes a flow for each exchange. `flows` are those that were made here: nothing is to be done to them again."""

    def __init__(self) -> None:
        self.flows: WeakSet[http.HTTPFlow] = WeakSet()

    def of(self, client: connection.Client) -> "ClientsWatcher":
        return ClientsWatcher(self, client)


class ClientsWatcher:
    """The watcher of one client's loop."""

    def __init__(self, watching: Watching, client: connection.Client) -> None:
        self._watching = watching
        self._client = client

    async def sent(self, address: Address, body: bytes) -> "Watched":
        made = http.HTTPFlow(self._client, connection.Server(address=None))
        made.request = http.Request.make(address.method, address.url, body, http.Headers(list(address.headers)))
        made.server_conn.address = (made.request.host, made.request.port)
        self._watching.flows.add(made)
        await _tell(HttpRequestHeadersHook(made))
        await _tell(HttpRequestHook(made))
        return Watched(made)


class Watched:
    def __init__(self, made: http.HTTPFlow) -> None:
        self.flow = made
        self._body = bytearray()

    @property
    def replayed(self) -> tuple[int, Headers, bytes] | None:
        """What another addon answered in the upstream's place, as `--server-replay` does."""
        response = self.flow.response
        if response is None:
            return None
        return response.status_code, response.headers.fields, response.content or b""

    async def answered(self, status: int, headers: Headers) -> None:
        if self.flow.response is None:
            kept = [(k, v) for k, v in headers if k.lower() not in (b"content-encoding", b"transfer-encoding")]
            self.flow.response = http.Response(
                b"HTTP/1.1", status, b"", http.Headers(kept), None, None, time.time(), None
            )
        await _tell(HttpResponseHeadersHook(self.flow))

    def received(self, chunk: bytes) -> None:
        self._body += chunk

    async def ended(self, error: str | None) -> None:
        if self.flow.response is not None:
            self.flow.response.data.content = bytes(self._body)
            self.flow.response.timestamp_end = time.time()
        if error is None:
            await _tell(HttpResponseHook(self.flow))
        else:
            self.flow.error = flow.Error(error)
            await _tell(HttpErrorHook(self.flow))


async def _tell(hook: hooks.Hook) -> None:
    await ctx.master.addons.trigger_event(hook)
