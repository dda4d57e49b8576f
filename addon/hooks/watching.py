"""Requests of a loop, shown to mitmproxy as flows of its own: in the flow list, in `-w` files, to every other addon."""

import inspect
import time
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import httpx2
from mitmproxy import connection, ctx, exceptions, flow, hooks, http
from mitmproxy.addonmanager import safecall, traverse
from mitmproxy.proxy.layers.http._hooks import (
    HttpErrorHook,
    HttpRequestHeadersHook,
    HttpRequestHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
)

from addon.core import replies
from addon.core.documents import encode
from addon.loop.upstream import Address, Headers

METADATA = "graft"
"""Under which a flow's metadata holds what a replay has to know of it, as far as the flow itself does not say it."""

_KILLED = replies.error(499, "CANCELLED", "toolgraft: the request to the model was killed in mitmproxy")


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose an exchange is. `sent` is the client's request that led to it; None for a later round of its loop."""

    session: str
    sent: bytes | None


class Watching:
    """Makes a flow for each exchange. `flows` are those that were made here: nothing is to be done to them again."""

    def __init__(self) -> None:
        self.flows: WeakKeyDictionary[http.HTTPFlow, Origin] = WeakKeyDictionary()

    def of(
        self, client: connection.Client, session: str, sent: bytes, metadata: dict[str, str] | None = None
    ) -> "ClientsWatcher":
        """`metadata` is for each flow."""
        return ClientsWatcher(self, client, session, sent, metadata or {})


class ClientsWatcher:
    """The watcher of one client's loop."""

    def __init__(
        self, watching: Watching, client: connection.Client, session: str, sent: bytes, metadata: dict[str, str]
    ) -> None:
        self._watching = watching
        self._client = client
        self._session = session
        self._sent: bytes | None = sent
        self._metadata = metadata

    async def sent(self, address: Address, body: bytes) -> "Watched":
        made = http.HTTPFlow(self._client, connection.Server(address=None), live=True)
        made.request = http.Request.make(address.method, address.url, body, http.Headers(list(address.headers)))
        made.request.headers.insert(0, "Host", _netloc(address.url))
        made.server_conn.address = (made.request.host, made.request.port)
        if self._metadata:
            made.metadata[METADATA] = dict(self._metadata)
        self._watching.flows[made] = Origin(self._session, self._sent)
        self._sent = None
        made.is_replay = "request"  # whoever is asked to show credentials here was asked for them by the client's flow
        await _tell(HttpRequestHeadersHook(made))
        made.is_replay = None
        await _tell(HttpRequestHook(made))
        return Watched(made)


class Watched:
    def __init__(self, made: http.HTTPFlow) -> None:
        self.flow = made
        self._body = bytearray()

    @property
    def replayed(self) -> tuple[int, Headers, bytes] | None:
        """What another addon answered in the upstream's place, as `--server-replay` does, or that it killed it."""
        if self.flow.error is not None:
            return 499, ((b"content-type", b"application/json; charset=UTF-8"),), encode(_KILLED)
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
        self.flow.live = False
        if self.flow.error is not None:
            await _tell(HttpErrorHook(self.flow))
            return
        if self.flow.response is not None:
            self.flow.response.data.content = bytes(self._body)
            self.flow.response.timestamp_end = time.time()
        if error is None:
            await _tell(HttpResponseHook(self.flow))
        else:
            self.flow.error = flow.Error(error)
            await _tell(HttpErrorHook(self.flow))


@lru_cache(maxsize=256)
def _netloc(url: str) -> str:
    """A URL's host, and its port where it is not the usual one. A loop asks for the same again and again."""
    return httpx2.URL(url).netloc.decode()


async def _tell(hook: hooks.Hook) -> None:
    """Every addon that has the hook, in order, as mitmproxy's own `trigger_event` does it. That one prepares itself for
    each addon, and of the forty there are few have any given hook: it takes a tenth of the time of a loop."""
    name, arguments = hook.name, hook.args()
    for addon in traverse(ctx.master.addons.chain):
        told = getattr(addon, name, None)
        if told is None or not callable(told):
            continue
        try:
            with safecall():
                result = told(*arguments)
                if result is not None and inspect.isawaitable(result):
                    await result
        except exceptions.AddonHalt:
            return
