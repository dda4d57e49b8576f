"""Requests of a loop as flows of their own: in the flow list, in `-w` files, and before every other addon. What such a
flow holds after its hooks is what is sent, and what the loop gets."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import httpx2
from mitmproxy import connection, ctx, flow, hooks, http
from mitmproxy.net import server_spec
from mitmproxy.proxy.layers.http._hooks import (
    HttpErrorHook,
    HttpRequestHeadersHook,
    HttpRequestHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
)

from addon.core.framing import replies
from addon.core.framing.documents import encode
from addon.hooks.headers import UNDECODED, body_of, names, new_request, new_response, url_of
from addon.hooks.redirects import redirected
from addon.hooks.streams import comes_whole, is_stream
from addon.loop.upstream import Address, Headers, Outgoing, Received
from addon.settings import Settings

METADATA = "graft"
"""Under which a flow's metadata holds what a script or a replay has to know of it, as far as the flow itself does not
say it: `request`, counted from 1, of a request that the proxy makes itself."""

NOT_SENT = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that are about one connection alone. HTTP/2 upstream refuses a request that has some of them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose an exchange is. `sent` is the client's request that led to it; None for a later round of its loop."""

    session: str
    sent: bytes | None


@dataclass(frozen=True, slots=True)
class LoopClient:
    """A client whose loop is watched. `via`: the upstream proxy that its requests go through; `streams`: whether its
    answers come as streams; `metadata` is for each flow."""

    client: connection.Client
    origin: Origin
    streams: bool
    via: server_spec.ServerSpec | None = None
    metadata: tuple[tuple[str, str], ...] = ()


class ShadowFlows:
    """Makes a flow for each exchange. `flows` are those that were made here: nothing is to be done to them again."""

    def __init__(self) -> None:
        self.flows: WeakKeyDictionary[http.HTTPFlow, Origin] = WeakKeyDictionary()
        self.settings: Callable[[], Settings] = Settings

    def of(self, client: LoopClient) -> "ClientsWatcher":
        return ClientsWatcher(self, client)


class ClientsWatcher:
    """The watcher of one client's loop."""

    def __init__(self, shadow_flows: ShadowFlows, client: LoopClient) -> None:
        self._shadow_flows = shadow_flows
        self._client = client
        self._requests = 0

    async def begin(self, address: Address, body: bytes) -> "Watched":
        client = self._client
        made = http.HTTPFlow(client.client, connection.Server(address=None), live=True)
        made.request = new_request(address.method, address.url, address.headers, body)
        if b"host" not in names(made.request.headers):
            made.request.headers.insert(0, "Host", netloc(address.url))
        made.server_conn.address = (made.request.host, made.request.port)
        made.server_conn.via = client.via
        self._requests += 1
        made.metadata[METADATA] = {**dict(client.metadata), "request": self._requests}
        origin = client.origin if self._requests == 1 else Origin(client.origin.session, None)
        self._shadow_flows.flows[made] = origin
        watched = Watched(made, streams=client.streams, settings=self._shadow_flows.settings())
        await watched.begin()
        return watched


class Watched:
    """`addon.loop.upstream.UpstreamExchange` as a flow of mitmproxy's."""

    def __init__(self, made: http.HTTPFlow, *, streams: bool, settings: Settings) -> None:
        self.flow = made
        self._streams = streams
        self._settings = settings
        self._answer: Received | None = None  # once the hook of the whole answer has run
        self._body = bytearray()

    async def begin(self) -> None:
        made = self.flow
        made.is_replay = "request"  # whoever is asked to show credentials here was asked for them by the client's flow
        await _tell(HttpRequestHeadersHook(made))
        made.is_replay = None
        if made.error is None:
            await _tell(HttpRequestHook(made))
        if made.error is None and made.response is not None:
            # another addon answers in the upstream's place, as `--server-replay` does
            made.response.timestamp_start = time.time()
            await _tell(HttpResponseHeadersHook(made))
            await self._end()

    @property
    def outgoing(self) -> Outgoing | Received:
        if self.flow.error is not None:
            return _killed()
        if self._answer is not None:
            return self._answer
        request, proxy = redirected(self.flow.request, self._settings.redirect), ""
        if request is None:
            request, proxy = self.flow.request, proxy_url(self.flow.server_conn.via)
        fields = [field for field in request.headers.fields if field[0].lower() not in NOT_SENT]
        return Outgoing(request.method, url_of(request), fields, request.raw_content or b"", proxy)

    async def receive_head(self, status: int, headers: Headers) -> Received | None:
        packed = any(name.lower() == b"content-encoding" for name, _ in headers)
        not_kept = (b"content-encoding", b"transfer-encoding", *((b"content-length",) if packed else ()))
        response = new_response(status, [field for field in headers if field[0].lower() not in not_kept])
        self.flow.response = response
        response.stream = is_stream(response, asked=self._streams) and not self._comes_whole()
        await _tell(HttpResponseHeadersHook(self.flow))
        if self.flow.error is not None:
            return _killed()
        response = self.flow.response
        if not response.stream or self._comes_whole():
            return None
        return Received(response.status_code, response.headers.fields)

    async def receive_body(self, body: bytes) -> Received:
        assert self.flow.response is not None
        self.flow.response.data.content = self.transform(body) + self.transform(b"")
        self.flow.response.stream = False
        await self._end()
        assert self._answer is not None
        return self._answer

    def transform(self, chunk: bytes) -> bytes:
        stream = self.flow.response.stream if self.flow.response is not None else False
        if callable(stream):
            given = stream(chunk)
            chunk = given if isinstance(given, bytes) else b"".join(given)
        self._body += chunk
        return chunk

    def _comes_whole(self) -> bool:
        return comes_whole(self.flow, self._settings)

    async def close(self, error: str | None) -> None:
        made = self.flow
        if made.error is None and self._answer is None:
            if made.response is not None:
                made.response.data.content = bytes(self._body)
            if error is not None:
                made.error = flow.Error(error)
            elif made.response is not None:
                await self._end()
        if made.error is not None:
            await _tell(HttpErrorHook(made))
        made.live = False

    async def _end(self) -> None:
        """The whole answer is there."""
        response = self.flow.response
        assert response is not None
        response.timestamp_end = time.time()
        if self.flow.error is None:
            await _tell(HttpResponseHook(self.flow))
        response = self.flow.response
        if self.flow.error is not None or response is None:
            self._answer = _killed()
            return
        # what an addon has compressed, or a replay has as it came, is not compressed any more
        body = body_of(response, self._settings.max_answer)
        if body is None and response.data.content is not None:
            self._answer = _own(502, "UNAVAILABLE", UNDECODED)
            return
        fields = [field for field in response.headers.fields if field[0].lower() != b"content-encoding"]
        self._answer = Received(response.status_code, fields, body or b"")


def proxy_url(via: server_spec.ServerSpec | None) -> str:
    """The URL of an upstream proxy, "" for none."""
    return "" if via is None else f"{via[0]}://{via[1][0]}:{via[1][1]}"


def _killed() -> Received:
    return _own(499, "CANCELLED", "the request to the model was killed in mitmproxy")


def _own(code: int, status: str, message: str) -> Received:
    """An error of the proxy's own in the answer's place."""
    body = encode(replies.error(code, status, f"toolgraft: {message}"))
    return Received(code, ((b"content-type", b"application/json; charset=UTF-8"),), body)


@lru_cache(maxsize=256)
def netloc(url: str) -> str:
    """A URL's host, and its port where it is not the usual one. A loop asks for the same again and again."""
    return httpx2.URL(url).netloc.decode()


async def _tell(hook: hooks.Hook) -> None:
    await ctx.master.addons.trigger_event(hook)
    (subject,) = hook.args()
    if subject.intercepted:
        await subject.wait_for_resume()
