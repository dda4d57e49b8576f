"""What the hooks share, made when the options are known: settings, store, grafter, metrics, the control API.

Everything that can go wrong at the start goes wrong here, before the proxy serves anyone.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from addon.control import tasks
from addon.control.app import ControlApp, create_app
from addon.control.server import ControlServer, bind, url_of
from addon.control.token import clear_address, load_token, make_folder, write_address
from addon.doors.mount import key_of, open_doors
from addon.doors.outward import Outward
from addon.graft.grafter import Grafter
from addon.loop.executors import Executors
from addon.loop.live import LiveSessions, expire_left
from addon.loop.server import LoopServer
from addon.loop.sources import sources_of
from addon.metrics import Metrics
from addon.settings import Settings
from addon.tools.base import ToolSource
from store.base import Store, StoreError, run_now
from store.factory import open_url

logger = logging.getLogger("toolgraft")

FIXED = ("tools", "mcp", "store", "state", "ttl", "control", "token", "max_body")
"""Settings that are read once, at the start."""

_UPKEEP = 60.0
"""Seconds between two times that old records go: often, so that they go in small portions."""


def package_version() -> str:
    try:
        return version("toolgraft")
    except PackageNotFoundError:
        return "from a checkout"


class Runtime:
    """Made by `start`, which either returns it whole or raises with nothing left open."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        token: str | None,
        listener: socket.socket | None,
        source: ToolSource | None,
        outward: Outward,
        environ: Mapping[str, str],
    ) -> None:
        self.settings = settings
        self.store = store
        self.metrics = Metrics()
        self.executors = Executors(store, source)
        self.grafter = Grafter(store, settings, self.metrics, running=self.executors.seconds_left)
        self.loops = LoopServer()
        self.lives = LiveSessions()
        self.ready = asyncio.Event()
        """Set once the tools of all sources are known: until then requests have to wait."""
        if source is None:
            self.ready.set()
        self.control_address: tuple[str, int] | None = None
        self.control_url: str | None = None
        self.has_gemini_key = bool(key_of(environ))
        self.control: ControlApp | None = None
        self._server: ControlServer | None = None
        self._upkeep: asyncio.Task[None] | None = None
        if listener is not None:
            self.control_address = listener.getsockname()[:2]
            self.control_url = url_of(listener)
            self.control = create_app(
                store=store,
                settings=settings,
                token=token,
                metrics=self.metrics,
                version=package_version(),
                loops=self,
                mounted=open_doors(
                    store=store,
                    grafter=lambda: self.grafter,
                    executors=self.executors,
                    running=self.loops.running,
                    outward=outward,
                    environ=environ,
                ),
            )
            self._server = ControlServer(self.control, listener)

    @classmethod
    def start(cls, settings: Settings, outward: Outward, environ: Mapping[str, str] = os.environ) -> "Runtime":
        """Open the store and take the control API's port. Raises OSError, ValueError or StoreUnusable, whose message
        says what to do."""
        try:
            store = open_url(settings.store_url, ttl=settings.ttl)
        except ValueError as error:
            raise ValueError(f"graft_store: {error}") from None
        if store.suspends:
            raise ValueError(f"graft_store={settings.store_url!r}: must be a kind of store that answers at once")
        if not settings.store:
            make_folder(settings.state)
        source = sources_of(settings)
        token = load_token(settings, environ) if settings.control else None
        listener = bind(*settings.control) if settings.control else None
        try:
            run_now(store.open())
        except BaseException:
            if listener is not None:
                listener.close()
            raise
        return cls(settings, store, token, listener, source, outward, environ)

    def alive(self, loop_id: str) -> bool:
        """Whether what waits for calls under this id is still there: a loop, or a Live connection."""
        return self.loops.running.alive(loop_id) or self.lives.alive(loop_id)

    def change(self, settings: Settings) -> None:
        """Go on with other settings. Raises ValueError for those that are read once."""
        for name in FIXED:
            if getattr(settings, name) != getattr(self.settings, name):
                raise ValueError(f"graft_{name} cannot be changed while the proxy runs: restart it")
        self.settings = settings
        shared, running = self.grafter.scopes.shared, self.grafter.running
        self.grafter = Grafter(self.store, settings, self.metrics, shared, running)
        if self.control is not None:
            self.control.change(settings)

    async def serve(self) -> None:
        """Open the tool sources, start the control API and the store's upkeep. Raises OSError or SourceError."""
        try:
            if not self.store.suspends:  # else there may be other proxies, and their connections
                await expire_left(self.store)
        except StoreError as error:
            logger.warning("calls of connections that are gone stay for now: %s", error)
        await self.executors.open(changed=self._share)
        self._share()
        await self.loops.start()
        self.ready.set()
        if self._server is not None:
            await self._server.start()
            write_address(self.settings.state, self._server.url)
        self._upkeep = tasks.spawn(self._expire(), name="expiry of old records")

    def _share(self) -> None:
        """Give every session the tools of the proxy's sources."""
        self.grafter.scopes.share([tool.declaration for tool in self.executors.tools.values()])

    async def _expire(self) -> None:
        while True:
            try:
                await self.store.expire()
            except StoreError as error:
                logger.warning("old records stay for now: %s", error)
            await asyncio.sleep(_UPKEEP)

    async def stop(self) -> None:
        """Give everything back."""
        if self._upkeep is not None:
            self._upkeep.cancel()
        await self.lives.close()
        await self.loops.stop()
        await self.executors.close()
        if self._server is not None:
            clear_address(self.settings.state, self._server.url)
            await self._server.stop()
        await self.store.close()
