"""The parts that the hooks share, created once the options are known: settings, store, grafter, metrics, control API.

Most failures of a start happen here. The rest, such as a store that cannot be opened, happen in `serve`; until that has
succeeded, requests wait.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from addon import package_version
from addon.config_file.reading import SessionEntry, apply_sessions
from addon.console.pages import console_routes
from addon.control.app import ControlApp, create_app
from addon.core.framing.documents import Document
from addon.core.security.egress import PUBLIC_ONLY
from addon.core.summaries import Summary
from addon.gateway.downloads import Downloads
from addon.gateway.engine import UpstreamFactory
from addon.gateway.mount import gateway_routes, key_of
from addon.graft.grafter import Grafter
from addon.loop.executors import Executors
from addon.loop.live import LiveSessions
from addon.loop.server import LoopServer
from addon.loop.sources import ProxySources, sources_of
from addon.loop.tool_trials import ToolTrials
from addon.monitoring.metrics import Metrics
from addon.monitoring.own_secrets import own_secrets
from addon.monitoring.recent_requests import RecentRequests
from addon.options import OPTIONS
from addon.process import control_connections, raise_descriptor_limit
from addon.settings import Settings
from addon.state_folder import (
    clear_address,
    leave_place,
    lock_folder,
    make_folder,
    take_place,
    write_address,
    write_file,
)
from addon.tools.http_connections import Egress
from addon.tools.mcp_pins import Pins
from addon.urls import redacted
from addon.web import tasks
from addon.web.own_token import token_at_start
from addon.web.server import Bounds, ControlServer, bind, url_of
from store.base import Store, StoreError
from store.budget import Budget
from store.factory import open_url

logger = logging.getLogger("toolgraft")

FIXED = tuple(option.key for option in OPTIONS if option.is_fixed)
"""Settings that cannot change while the proxy runs."""

SOURCES = ("tools", "mcp")
"""Settings among FIXED that change together with the files that they name (`addon.hooks.reloading`)."""

_LEASE = 60.0
"""Seconds after which a proxy that has not renewed its lease counts as dead, and its calls as lost."""

_LEASE_RENEWAL = 10.0
"""Seconds between two renewals of the lease, and between two looks for lost calls."""

_SHARED_RENEWALS = 5
"""How much more often the lease is renewed if other proxies use the store: a request that was sent to another proxy
before waits for it (`Store.take_over`)."""

_LEASE_PAUSE = 1.0
"""The shortest pause, in seconds, before a failed renewal is repeated."""

_CLOSE_TIMEOUT = 15.0
"""Seconds for each part to close."""

_UPKEEP_INTERVAL = 60.0
"""Seconds between two deletions of old records: short, so that each deletes few records."""

_BATCH_PAUSE = 0.01
"""Seconds between two batches of a deletion, in which requests are served."""


def _report_nothing(summary: Summary) -> None:
    pass


class Runtime:
    """Created by `start`. If a part fails, `start` raises with nothing left open."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        token: str | None,
        listener: socket.socket | None,
        sources: ProxySources | None,
        pins: Pins | None,
        upstreams: UpstreamFactory,
        environ: Mapping[str, str],
        listening: Callable[[], Collection[int]],
    ) -> None:
        self.settings = settings
        most_connections = control_connections(settings.max_connections, raise_descriptor_limit())
        self.store = store
        self.metrics = Metrics()
        self.recent = RecentRequests(most_bodies=settings.keep_requests)
        self.proxy_id = f"proxy-{secrets.token_hex(8)}"
        self._predecessor: str | None = None
        """The last proxy with this state folder, if it ended without settling its calls."""

        def own_ports() -> set[int]:
            return {*listening(), *(self.control_address or ())[1:]}

        egress = Egress(settings.egress, own_ports)
        self.executors = Executors(
            store,
            None if sources is None else sources.combined,
            proxy_id=self.proxy_id,
            egress=egress,
            count=self.metrics.count_ended,
            max_media=settings.max_media,
        )
        self.budget = Budget(settings.cache_bytes)
        store.remember_within(self.budget)
        self.metrics.cache_sizes = self.budget.sizes
        self.metrics.store = store.traffic
        self.grafter = Grafter(store, settings, self.metrics, owners=self.executors, budget=self.budget)
        self.loops = LoopServer()
        self.lives = LiveSessions()
        self.ending = False
        """Whether new requests are refused because the proxy ends."""
        self.is_serving = False
        """Whether the start has succeeded."""
        self.setting_rows: Callable[[], Sequence[Document]] = tuple
        """The options with their values and where they are set, for `/v1/config`."""
        self.report: Callable[[Summary], None] = _report_nothing
        """Called at the end of each request to a front door."""
        self.ready = asyncio.Event()
        """Set once the store is open and the tools of all sources are known. Requests wait until then."""
        self.sources = sources
        self.changes_sources = False
        """Whether the tool sources are being replaced."""
        self.control_address: tuple[str, int] | None = None
        self.control_url: str | None = None
        own_secrets.learn([token or "", key_of(environ), environ.get("TOOLGRAFT_REDIS_PASSWORD", "")])
        self.has_gemini_key = bool(key_of(environ))
        self.control: ControlApp | None = None
        self._server: ControlServer | None = None
        self.has_store = False
        """Whether the store was opened."""
        self._holds_lease = True
        """Whether the last renewal of this proxy's lease succeeded."""
        self._upkeep: list[asyncio.Task[None]] = []
        self._holds_folder = False
        self._sessions: Mapping[str, SessionEntry] = {}
        self._resources = ExitStack()
        """Releases the state folder and the port."""
        if listener is not None:
            self.control_address = listener.getsockname()[:2]
            self.control_url = url_of(listener)
            self.control = create_app(
                store=store,
                settings=settings,
                token=token,
                metrics=self.metrics,
                version=package_version(),
                pins=pins,
                shared=lambda: self.grafter.session_configs.shared,
                origin=self.executors.origin,
                server_states=sources.combined.server_states if sources is not None else tuple,
                recent=self.recent,
                problems=self._problems,
                tool_version=self._tool_version,
                try_tool=ToolTrials(self.executors, lambda session: self.grafter.session_config(session)).begin,
                restart_server=sources.combined.restart if sources is not None else None,
                setting_rows=lambda: self.setting_rows(),
                extra_routes=gateway_routes(
                    store=store,
                    grafter=lambda: self.grafter,
                    executors=self.executors,
                    upstreams=upstreams,
                    environ=environ,
                    report=lambda summary: self.report(summary),
                    begun=self.recent.begin,
                    # Any client chooses these URLs, so they must not reach other services of this machine.
                    download=Downloads(Egress(settings.egress or (PUBLIC_ONLY,), own_ports)),
                )
                | console_routes(),
            )
            self._server = ControlServer(
                self.control,
                listener,
                bounds=Bounds(most_connections, settings.max_headers, settings.header_timeout, settings.max_body),
            )

    @classmethod
    def start(
        cls,
        settings: Settings,
        upstreams: UpstreamFactory,
        environ: Mapping[str, str] = os.environ,
        listening: Callable[[], Collection[int]] = frozenset,
    ) -> "Runtime":
        """Bind the control API's port. `listening`: returns the proxy's open ports. Raises OSError or ValueError, whose
        message says what to do."""
        try:
            store = open_url(settings.store_url, ttl=settings.ttl, durability=settings.durability)
        except ValueError as error:
            raise ValueError(f"graft_store={redacted(settings.store_url)}: {error}") from None
        with ExitStack() as undo:
            holds_folder = bool(settings.control or not settings.store)
            if holds_folder:  # otherwise the folder may not exist before `serve`
                undo.callback(lock_folder(settings.state).release)
            has_mcp = settings.mcp or settings.config  # which may name servers later
            pins = Pins(settings.state / "mcp_pins.json", _write) if has_mcp and settings.mcp_pin else None
            sources = sources_of(settings, pins)
            token = token_at_start(settings, environ) if settings.control else None
            listener = bind(*settings.control) if settings.control else None
            if listener is not None:
                undo.callback(listener.close)
            runtime = cls(settings, store, token, listener, sources, pins, upstreams, environ, listening)
            runtime._holds_folder, runtime._resources = holds_folder, undo.pop_all()
        return runtime

    def set_sessions(self, sessions: Mapping[str, SessionEntry]) -> None:
        """Set the sessions that get policies and toolsets from `serve`, before the first request."""
        self._sessions = sessions

    def change(self, settings: Settings) -> None:
        """Apply new settings. Raises ValueError if one of FIXED differs."""
        for name in FIXED:
            if name in SOURCES and self.changes_sources:
                continue
            if getattr(settings, name) != getattr(self.settings, name):
                raise ValueError(f"graft_{name} cannot be changed while the proxy runs: restart it")
        self.settings = settings
        shared, warner = self.grafter.session_configs.shared, self.grafter.warner
        self.grafter = Grafter(self.store, settings, self.metrics, shared, self.executors, self.budget, warner)
        self.recent.bodies.most = settings.keep_requests
        self.recent.bodies.shrink()
        if self.control is not None:
            self.control.change(settings)

    async def serve(self) -> None:
        """Open the store and the tool sources; start the control API and the store's upkeep. Raises OSError,
        SourceError or StoreUnusable, whose message says what to do."""
        if not self._holds_folder:
            self._resources.callback(lock_folder(self.settings.state).release)
        await self.store.open()
        self.has_store = True
        self._predecessor = take_place(self.settings.state, self.proxy_id)
        await self._renew_lease()
        await apply_sessions(self.store, self._sessions)
        await self.executors.open(changed=self._share)
        self._share()
        self.ready.set()
        if self._server is not None:
            await self._server.start()
            write_address(self.settings.state, self._server.url)
        self._upkeep = [
            tasks.spawn(self._keep_lease(), name="the proxy's lease"),
            tasks.spawn(self._expire(), name="expiry of old records"),
        ]
        self.is_serving = True

    def _share(self) -> None:
        self.grafter.session_configs.share([tool.declaration for tool in self.executors.tools.values()])

    async def _keep_lease(self) -> None:
        often = _SHARED_RENEWALS if self.executors.late_writes.has_server else 1
        number = 0
        while True:
            await asyncio.sleep(_LEASE_RENEWAL / often)
            number += 1
            while not await self._renew_lease(settles=number % often == 0):
                number = 0
                await asyncio.sleep(_LEASE_PAUSE)
                await self.store.recovered(_LEASE_RENEWAL)

    async def _renew_lease(self, *, settles: bool = True) -> bool:
        """Renew the lease, and if it `settles` the calls of dead proxies and of lost workers. Returns whether the store
        worked."""
        try:
            await self.executors.catch_up()  # first: other proxies rely on it
            if self._predecessor is not None:
                for call in await self.store.drop(self._predecessor):
                    self.metrics.count_ended(call.status)
                self._predecessor = None
            await self.store.hold(self.proxy_id, _LEASE)
            if not self._holds_lease:  # after an outage, the other proxies must be able to renew their leases first
                self._holds_lease = True
                return True
            if not settles:
                return True
            for call in await self.store.settle_lost():
                self.metrics.count_ended(call.status)
        except StoreError as error:
            self._holds_lease = False
            logger.warning("lost calls cannot be settled now: %s", error)
            return False
        return True

    async def _expire_all(self) -> int:
        total = 0
        while deleted := await self.store.expire():
            total += deleted
            await asyncio.sleep(_BATCH_PAUSE)
        return total

    async def _expire(self) -> None:
        while True:
            try:
                if deleted := await self._expire_all():
                    logger.info("%d records older than graft_ttl were deleted", deleted)
            except StoreError as error:
                logger.warning("old records cannot be deleted now: %s", error)
            await asyncio.sleep(_UPKEEP_INTERVAL)

    def end(self) -> None:
        self.ending = True
        if self.control is not None:
            self.control.drain()

    def stop_listening(self) -> None:
        """Accept no new connections to the control API, and close each one after its current answer."""
        if self._server is not None:
            self._server.stop_listening()

    async def _problems(self, session: str, name: str, args: Document) -> list[str]:
        config = await self.grafter.session_config(session)
        return [] if config is None else self.executors.problems(config, name, args)

    async def _tool_version(self, session: str, name: str) -> str:
        config = await self.grafter.session_config(session)
        return "" if config is None else self.executors.binding(config, name).version.hex()

    @property
    def active_requests(self) -> int:
        """How many requests to the front doors are in progress."""
        return self.control.api.active_requests if self.control is not None else 0

    async def stop(self) -> None:
        """Close every part, even if another fails to close."""
        for task in self._upkeep:
            task.cancel()
        if self._server is not None:  # before the tools, which the front doors run
            try:
                clear_address(self.settings.state, self._server.url)
            except OSError as error:  # for example on a read-only disk
                logger.warning("the control API's address stays in the state folder: %s", error)
            await _closed("control API", self._server.stop())
        for name, part in (("Live", self.lives.close), ("loops", self.loops.stop), ("tools", self.executors.close)):
            await _closed(name, part())
        if self.has_store:
            try:
                await self.store.drop(self.proxy_id)
                leave_place(self.settings.state)
            except StoreError as error:
                logger.warning("the calls of this proxy stay as they are until it is started again: %s", error)
        await self.store.close()
        self._resources.close()


def _write(path: Path, text: str) -> None:
    make_folder(path.parent)
    write_file(path, text)


async def _closed(name: str, closing: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(closing)
    await asyncio.wait({task}, timeout=_CLOSE_TIMEOUT)
    if not task.done():
        task.cancel()
        logger.warning("%s: not closed within %g s", name, _CLOSE_TIMEOUT)
    elif not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("%s: could not be closed", name, exc_info=error)
