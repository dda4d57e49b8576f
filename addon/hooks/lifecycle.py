"""Options registered and parsed, the runtime started and stopped with them, and what is said to the user about it."""

import asyncio
import gc
import json
import logging
import os

from mitmproxy import ctx, exceptions, flowfilter
from mitmproxy.addonmanager import Loader
from pydantic import ValidationError

from addon.control.token import make_folder, write_file
from addon.doors.outward import Outward
from addon.exiting import exit_with_loop
from addon.hooks.banner import addresses, banner, ca_file
from addon.hooks.clients import Clients
from addon.hooks.draining import InFlight, drain
from addon.hooks.runtime import Runtime
from addon.settings import OPTIONS, Settings, explain, unknown_option
from addon.tools.base import SourceError
from addon.tools.bounded import left_behind
from store.base import StoreUnusable

logger = logging.getLogger("toolgraft")


_UNSET = Settings()


class Lifecycle:
    """The first addon. `runtime` is None until the options are known, and where they were refused: then no other
    hook does anything, and mitmproxy ends before it serves anyone. It is None again when this addon alone has ended."""

    name = "toolgraft"

    def __init__(self, outward: Outward, clients: Clients, in_flight: InFlight) -> None:
        self.outward = outward
        self.clients = clients
        self.in_flight = in_flight
        self.runtime: Runtime | None = None
        self.filter: flowfilter.TFilter | None = None
        self._ended: asyncio.Task[None] | None = None
        self._configured = False

    def load(self, loader: Loader) -> None:
        for option in OPTIONS:
            loader.add_option(option.name, option.typespec, option.default, option.help)

    def configure(self, updated: set[str]) -> None:
        if "stream_large_bodies" in updated and ctx.options.stream_large_bodies:
            # a chunked body begins to stream when it has grown too large, long after the last hook that could object
            logger.warning(
                f"stream_large_bodies={ctx.options.stream_large_bodies} is taken back: "
                "bodies that stream are not rewritten, and calls in them would pass unseen"
            )
            ctx.options.update(stream_large_bodies=None)
        if not any(name.startswith("graft_") for name in updated):
            return
        first, self._configured = not self._configured, True
        try:
            self._apply()
        except (ValueError, OSError, StoreUnusable) as error:
            text = explain(error) if isinstance(error, ValidationError) else str(error)
            if not first:
                raise exceptions.OptionsError(text) from error
            refuse_start(text)

    def _apply(self) -> None:
        # what is set and not registered by any addon, mitmproxy keeps for one that may come, and says nothing
        for name in ctx.options.deferred:
            if name.startswith("graft_"):
                raise ValueError(unknown_option(name))
        settings = Settings.from_options({o.name: getattr(ctx.options, o.name) for o in OPTIONS})
        try:
            chosen = flowfilter.parse(settings.filter) if settings.filter else None
        except ValueError as error:
            raise ValueError(f"graft_filter={settings.filter!r}: must be a mitmproxy flow filter: {error}") from None
        if self.runtime is None:
            self.runtime = Runtime.start(settings, self.outward, listening=_ports)
        else:
            self.runtime.change(settings)
        self.filter = chosen

    def settings(self) -> Settings:
        """Those that hold now."""
        return self.runtime.settings if self.runtime is not None else _UNSET

    async def running(self) -> None:
        if self.runtime is None:
            return
        settings = self.runtime.settings
        # the addon sets the upstream's Host itself, so that it can check the client's
        ctx.options.update(keep_host_header=True)
        if settings.redirect:
            # an eager connection would go to the host that the redirect avoids
            ctx.options.update(connection_strategy="lazy")
        try:
            await self.runtime.serve()
            listening = addresses(ctx.master.addons.get("proxyserver").servers)
            make_folder(settings.state)
            ca = ca_file(ctx.options.confdir)
            write_file(settings.state / "proxy.json", json.dumps(listening | {"ca": ca, "pid": os.getpid()}))
        except (OSError, SourceError) as error:
            logger.error(str(error))  # as in `configure`: the start is not over yet
            return
        for line in banner(listening, self.runtime, ca):
            logger.info(line)
        # What was imported is here to stay: full collections need not look through it again and again.
        gc.collect()
        gc.freeze()

    def done(self) -> asyncio.Task[None] | None:
        """mitmproxy serves until this has ended: clients are refused, and not let pass as if there were no addon."""
        runtime = self.runtime
        if runtime is None or runtime.ending:
            return None
        runtime.end()
        path = runtime.settings.state / "proxy.json"
        try:
            if json.loads(path.read_text()).get("pid") == os.getpid():
                path.unlink()
        except (OSError, ValueError):
            pass
        exits = ctx.master.should_exit.is_set()  # else this addon alone is taken out
        self._ended = asyncio.ensure_future(self._stop(runtime, exits))
        if exits:
            exit_with_loop(left_behind)
        return self._ended

    async def _stop(self, runtime: Runtime, exits: bool) -> None:
        if exits and (timeout := runtime.settings.drain_timeout):
            await drain(timeout, lambda: len(self.in_flight) + runtime.asked)
        await runtime.stop()
        await self.clients.close()
        if not exits:
            self.runtime = None


def _ports() -> set[int]:
    """Where the proxy listens now: its modes may change while it runs."""
    servers = ctx.master.addons.get("proxyserver").servers
    return {address[1] for server in servers for address in server.listen_addrs}


def refuse_start(text: str) -> None:
    """Log an error; while mitmproxy starts it ends then, with status 1. It loads scripts while its servers are being
    started, and looks for errors when they are up: without more they would be up for a moment."""
    logger.error(text)
    for task in asyncio.all_tasks():
        if task.get_name() == "setup_servers":
            task.cancel()
