"""The addon in mitmproxy's environment, without a proxy: made-up flows go through its hooks in mitmproxy's order.

The only module of the tests that uses mitmproxy's own test helpers, which promise no stable interface.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from mitmproxy import connection, http
from mitmproxy.addons.proxyserver import Proxyserver
from mitmproxy.options import Options
from mitmproxy.proxy.mode_specs import ProxyMode
from mitmproxy.test import taddons, tflow

from addon.hooks.compose import Toolgraft, build_addons
from addon.hooks.delivered import Delivered
from addon.hooks.grafting import Grafting
from addon.hooks.lifecycle import Lifecycle
from addon.hooks.mitmproxy_patches import choose_destination, on_handover
from addon.hooks.routing import Routing
from addon.loop.server import LoopAnswer
from store.base import Store
from store.models import Toolset

PATH = "/v1beta/models/gemini-3-flash-preview:generateContent"
GOOGLE = "generativelanguage.googleapis.com"
LOCAL = "127.0.0.1:8081"


def _own(options: dict[str, Any]) -> dict[str, Any]:
    return {f"graft_{name}": value for name, value in options.items()}


class Hooks:
    """For use in a running event loop. `options`: without their prefix. By default the store is in memory, without a
    control API. `script`: another addon, loaded after toolgraft."""

    def __init__(self, config: str = "", **options: Any) -> None:
        """`config`: a toolgraft.toml. It is set before the addon is loaded, as at a start."""
        (addon,) = build_addons()
        assert isinstance(addon, Toolgraft)
        self.addon = addon
        self.script: object = None
        self._delivered = Delivered()
        self.context = taddons.context(Proxyserver())
        if config:
            self.context.options.set(f"graft_config={config}", defer=True)
        self.context.master.addons.add(addon)
        given = {"store": "memory://", "control": "off"} | options
        self.context.configure(self.addon, keep_host_header=True, **_own(given))
        runtime = self.lifecycle.runtime
        if runtime is not None:
            _at_once(runtime.store.open())
            vars(runtime.store)["open"] = _nothing  # if the proxy begins to run
            _at_once(runtime.store.hold(runtime.proxy_id, 60.0))
            runtime.has_store = True
            runtime.ready.set()

    def set(self, **options: Any) -> None:
        """Change options, like a user. Raises OptionsError."""
        self.context.configure(self.addon, **_own(options))

    @property
    def options(self) -> Options:
        found: Options = self.context.options
        return found

    def part[T](self, kind: type[T]) -> T:
        return next(part for part in self.addon.parts if isinstance(part, kind))

    @property
    def lifecycle(self) -> Lifecycle:
        return self.part(Lifecycle)

    @property
    def store(self) -> Store:
        assert self.lifecycle.runtime is not None
        return self.lifecycle.runtime.store

    def route(self, flow: http.HTTPFlow) -> tuple[str, str] | None:
        """The surface and session that the routing found for a flow."""
        route = self.part(Routing).routes.get(flow)
        return None if route is None else (route.target.surface, route.session)

    def is_grafted(self, flow: http.HTTPFlow) -> bool:
        return flow in self.part(Grafting)._requests

    async def tools(self, *names: str, session: str = "default") -> None:
        """Give a session a toolset of these tools, without parameters."""
        declarations: list[dict[str, Any]] = [{"name": name, "description": "A tool."} for name in names]
        await self.store.put_toolset(session, Toolset(declarations=declarations))

    async def call(self, hook: str, *arguments: object) -> None:
        """Run one hook, if the addon has it, then a script's, and what runs behind all scripts."""
        for each in (self.addon, self.script, self._delivered):
            function: Callable[..., Any] | None = getattr(each, hook, None)
            if function is not None and (result := function(*arguments)) is not None:
                await result

    async def ask(self, flow: http.HTTPFlow) -> http.HTTPFlow:
        """Run the hooks of a request."""
        await self.call("requestheaders", flow)
        if flow.response is None:
            await self.call("request", flow)
        return flow

    def destination(self, flow: http.HTTPFlow) -> LoopAnswer | http.Request | None:
        """The destination that mitmproxy gets after a request's hooks: None to send the request as it stands."""
        choose = choose_destination.pop(flow)
        return choose(flow) if choose is not None else None

    async def answer(
        self,
        flow: http.HTTPFlow,
        response: http.Response,
        pieces: Iterable[bytes] | None = None,
        *,
        replayed: bool = False,
    ) -> bytes:
        """Run the hooks of a response; if it streams, it arrives in `pieces`. Returns the client's body. `replayed`:
        another addon has set the response."""
        body = response.raw_content or b""
        flow.response = response
        if not replayed:
            response.data.content = None
        await self.call("responseheaders", flow)
        if callable(stream := flow.response.stream):
            out: list[bytes] = []
            for piece in [*(pieces or [body]), b""]:
                given = stream(piece)
                given = [given] if isinstance(given, bytes) else list(given)
                assert all(given), "an empty chunk ends a chunked body"
                out += given
            await self.call("response", flow)
            await _hand_over(flow)
            return b"".join(out)
        flow.response.data.content = body
        await self.call("response", flow)
        await _hand_over(flow)
        return bytes(flow.response.raw_content or b"")

    async def done(self) -> None:
        """End the proxy. The clients of flows without an answer have left."""
        for flow in self.lifecycle.in_flight.flows:
            flow.live = False
        await self.call("done")


async def _nothing() -> None: ...


def _at_once(step: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that does not suspend with these stores."""
    with suppress(StopIteration):
        step.send(None)
        raise AssertionError("it waits")


async def _hand_over(flow: http.HTTPFlow) -> None:
    if (settle := on_handover.pop(flow)) is not None:
        settle(True)
        await asyncio.sleep(0)  # a separate task notes it, in one step with these stores


def request(
    url: str = f"https://{GOOGLE}{PATH}",
    body: bytes = b"{}",
    headers: Mapping[str, str] | None = None,
    *,
    mode: str = "regular",
    method: str = "POST",
    client: connection.Client | None = None,
) -> http.HTTPFlow:
    """A flow with a new request. In reverse mode the URL's host is the client's `Host`."""
    given = dict(headers or {})
    made = http.Request.make(method, url, body, [(name.encode(), value.encode()) for name, value in given.items()])
    client = client or tflow.tclient_conn()
    client.proxy_mode = ProxyMode.parse(mode)
    server = tflow.tserver_conn()
    server.address = (made.host, made.port)
    if mode.startswith("reverse:"):
        parsed: Any = client.proxy_mode
        made.headers["host"] = given.get("host", f"{made.host}:{made.port}")
        server.address = parsed.address[:2]
        made.data.host, made.data.port = server.address
        made.scheme = parsed.scheme
    else:
        made.headers.setdefault("host", made.host)
    return tflow.tflow(client_conn=client, server_conn=server, req=made)


def response(body: bytes, kind: str = "application/json; charset=UTF-8", **headers: str) -> http.Response:
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.Response.make(200, body, {"content-type": kind} | more)
