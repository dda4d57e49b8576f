"""A flow for each request of a loop, visible in the flow list, in `-w` files and to every other addon. The loop sends
the flow's request and receives its answer as they are after the hooks."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import httpx2
from mitmproxy import connection, ctx, flow, hooks, http
from mitmproxy.net import server_spec

from addon.core.framing import replies
from addon.core.framing.documents import encode
from addon.hooks.messages import UNDECODED, FlowState, body_of, names, new_request, new_response, redirected, url_of
from addon.hooks.streams import comes_whole, is_stream
from addon.loop.upstream import Address, Headers, Outgoing, Received
from addon.settings import Settings

METADATA = "graft"
"""The key in a flow's metadata for the facts that a script or a replay needs besides the flow. `request` numbers the
proxy's requests for a client, from 1."""

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
"""Headers of a single connection. Over HTTP/2 the upstream refuses some of them."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The owner of an exchange. `sent`: the body of the client's request; None from the loop's second round on."""

    session: str
    sent: bytes | None


@dataclass(frozen=True, slots=True)
class LoopClient:
    """The client that a loop answers. `via`: the upstream proxy of its requests. `streams`: whether the model streams
    its answers. `metadata`: added to each flow."""

    client: connection.Client
    origin: Origin
    streams: bool
    via: server_spec.ServerSpec | None = None
    metadata: tuple[tuple[str, str], ...] = ()


class ShadowFlows:
    """Makes a flow for each exchange of a loop. `flows`: the flows made here, which other hooks ignore."""

    def __init__(self) -> None:
        self.flows = FlowState[Origin]("origin")
        self.settings: Callable[[], Settings] = Settings
        self.has_comments = False
        """Whether each flow has a comment, for a list of flows."""

    def of(self, client: LoopClient) -> "LoopWatcher":
        return LoopWatcher(self, client)


class LoopWatcher:
    """`addon.loop.upstream.Watcher` for one client's loop."""

    def __init__(self, shadow_flows: ShadowFlows, client: LoopClient) -> None:
        self._shadow_flows = shadow_flows
        self._client = client
        self._requests = 0

    async def begin(self, address: Address, body: bytes) -> "ShadowExchange":
        client = self._client
        request = new_request(address.method, address.url, address.headers, body)
        if b"host" not in names(request.headers):
            request.headers.insert(0, "Host", netloc(address.url))
        shadow = http.HTTPFlow(
            client.client, connection.Server(address=(request.host, request.port), via=client.via), live=True
        )
        shadow.request = request
        self._requests += 1
        shadow.metadata[METADATA] = {**dict(client.metadata), "request": self._requests}
        if self._shadow_flows.has_comments:
            shadow.comment = f"round {self._requests} of a loop for session {client.origin.session}"
        origin = client.origin if self._requests == 1 else Origin(client.origin.session, None)
        self._shadow_flows.flows[shadow] = origin
        exchange = ShadowExchange(shadow, streams=client.streams, settings=self._shadow_flows.settings())
        await exchange.begin()
        return exchange


class ShadowExchange:
    """`addon.loop.upstream.UpstreamExchange` as a flow of mitmproxy."""

    def __init__(self, shadow: http.HTTPFlow, *, streams: bool, settings: Settings) -> None:
        self.flow = shadow
        self._streams = streams
        self._settings = settings
        self._answer: Received | None = None  # set after the hook of the whole answer
        self._body = bytearray()

    async def begin(self) -> None:
        shadow = self.flow
        shadow.is_replay = "request"  # otherwise mitmproxy demands a proxy password, which the client has already sent
        await _run_hook("requestheaders", shadow)
        shadow.is_replay = None
        if shadow.error is None:
            await _run_hook("request", shadow)
        if shadow.error is None and shadow.response is not None:
            # another addon has answered, for example `--server-replay`
            shadow.response.timestamp_start = time.time()
            await _run_hook("responseheaders", shadow)
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
        await _run_hook("responseheaders", self.flow)
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
        shadow = self.flow
        if shadow.error is None and self._answer is None:
            if shadow.response is not None:
                shadow.response.data.content = bytes(self._body)
            if error is not None:
                shadow.error = flow.Error(error)
            elif shadow.response is not None:
                await self._end()
        if shadow.error is not None:
            await _run_hook("error", shadow)
        shadow.live = False

    async def _end(self) -> None:
        """Run the hook of the complete answer."""
        response = self.flow.response
        assert response is not None
        response.timestamp_end = time.time()
        if self.flow.error is None:
            await _run_hook("response", self.flow)
        response = self.flow.response
        if self.flow.error is not None or response is None:
            self._answer = _killed()
            return
        # an addon may have compressed the body, and a replay may contain it compressed
        body = body_of(response, self._settings.max_answer)
        if body is None and response.data.content is not None:
            self._answer = _error(502, "UNAVAILABLE", UNDECODED)
            return
        fields = [field for field in response.headers.fields if field[0].lower() != b"content-encoding"]
        self._answer = Received(response.status_code, fields, body or b"")


def proxy_url(via: server_spec.ServerSpec | None) -> str:
    """The URL of an upstream proxy, "" for none."""
    return "" if via is None else f"{via[0]}://{via[1][0]}:{via[1][1]}"


def _killed() -> Received:
    return _error(499, "CANCELLED", "the request to the model was killed in mitmproxy")


def _error(code: int, status: str, message: str) -> Received:
    """An error of the proxy instead of the answer."""
    body = encode(replies.error(code, status, f"toolgraft: {message}"))
    return Received(code, ((b"content-type", b"application/json; charset=UTF-8"),), body)


@lru_cache(maxsize=256)
def netloc(url: str) -> str:
    """A URL's host, with its port unless it is the scheme's default. Cached, because a loop repeats its URLs."""
    return httpx2.URL(url).netloc.decode()


async def _run_hook(name: str, subject: http.HTTPFlow) -> None:
    kind: Callable[[http.HTTPFlow], hooks.Hook] = hooks.all_hooks[name]
    await ctx.master.addons.trigger_event(kind(subject))
    if subject.intercepted:
        await subject.wait_for_resume()
