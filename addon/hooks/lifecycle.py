"""Registers and parses the options, starts and stops the runtime, and logs the start message."""

import asyncio
import gc
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from mitmproxy import ctx, exceptions, flowfilter, http
from mitmproxy.addonmanager import Loader
from pydantic import ValidationError

from addon.gateway.engine import UpstreamFactory
from addon.hooks import mitmproxy_check
from addon.hooks.draining import InFlight, drain
from addon.hooks.option_sources import FileOptions, check_misspelt, check_unprefixed, take_deferred
from addon.hooks.runtime import Runtime
from addon.hooks.start_message import addresses, banner, ca_file, start_progress
from addon.hooks.upstream_flows import UpstreamPool
from addon.options import OPTIONS
from addon.process import exit_with_loop
from addon.settings import Settings, explain
from addon.state_folder import write_file
from addon.tools.attempts import abandoned_calls
from addon.tools.base import SourceError
from store.base import Store, StoreError
from store.models import Session

logger = logging.getLogger("toolgraft")


_UNSET = Settings()


class Lifecycle:
    """Runs first. `runtime` is None until the options are known. If they are refused it stays None: no other hook does
    anything, and mitmproxy ends before it serves anyone. It becomes None again if this addon ends without mitmproxy."""

    name = "toolgraft"

    def __init__(self, upstreams: UpstreamFactory, pool: UpstreamPool, in_flight: InFlight) -> None:
        self.upstreams = upstreams
        self.pool = pool
        self.in_flight = in_flight
        self.runtime: Runtime | None = None
        self.filter: flowfilter.TFilter | None = None
        self.file_options = FileOptions()
        self.before_stop: list[Callable[[], Awaitable[None]]] = []
        """Called when the requests in flight have ended or run out of time, while the store is still open."""
        self._ended: asyncio.Task[None] | None = None
        self._configured = False
        self._refused = False

    def load(self, loader: Loader) -> None:
        if isinstance(sys.stdout, TextIOWrapper):
            # a program that reads the log through a pipe gets each line immediately
            sys.stdout.reconfigure(line_buffering=True)
        for option in OPTIONS:
            loader.add_option(option.name, option.typespec, option.default, option.help)
        try:
            mitmproxy_check.check()
            self._take_options()
        except Exception as error:
            self._refused = True
            ctx.options.deferred.clear()  # mitmproxy would fail on the same value again
            self.refuse(error, starting=True)

    def _take_options(self) -> None:
        """Set the deferred options, then those of a toolgraft.toml."""
        given = take_deferred(ctx.options)
        values = {name: getattr(ctx.options, name) for name in given}
        self.file_options = FileOptions(given=given, values=values)
        if ctx.options.graft_config:
            trusted = ctx.options.graft_config_trusted != "off"
            self.file_options = self.file_options.read(Path(ctx.options.graft_config), trusted=trusted)
            ctx.options.update(**self.file_options.taken)

    def _setting_rows(self) -> list[dict[str, str]]:
        options = ((option.name, getattr(ctx.options, option.name)) for option in OPTIONS)
        return [self.file_options.row(name, value)._asdict() for name, value in options]

    def configure(self, updated: set[str]) -> None:
        if "stream_large_bodies" in updated and ctx.options.stream_large_bodies:
            # a chunked body begins to stream when it grows too large, long after the last hook that could prevent that
            logger.warning(
                f"stream_large_bodies={ctx.options.stream_large_bodies} is switched off: "
                "a streamed body cannot be rewritten, and calls in it would be missed"
            )
            ctx.options.update(stream_large_bodies=None)
        if self._refused or not any(name.startswith("graft_") for name in updated):
            return
        first, self._configured = not self._configured, True
        try:
            self._apply()
        except Exception as error:
            self._refused = first
            self.refuse(error, starting=first)

    def _apply(self) -> None:
        check_misspelt(ctx.options)
        settings, chosen = self.parse({o.name: getattr(ctx.options, o.name) for o in OPTIONS}, self.file_options)
        if self.runtime is None:
            self.runtime = Runtime.start(settings, self.upstreams, listening=_ports)
            if (config := self.file_options.config) is not None:
                self.runtime.set_sessions(config.sessions)
            self.runtime.setting_rows = self._setting_rows
        else:
            self.runtime.change(settings)
        self.filter = chosen

    def parse(
        self, options: Mapping[str, Any], file_options: FileOptions
    ) -> tuple[Settings, flowfilter.TFilter | None]:
        """The settings and the flow filter of these options. Raises ValueError."""
        settings = Settings.from_options(file_options.with_servers(options))
        try:
            return settings, flowfilter.parse(settings.filter) if settings.filter else None
        except ValueError as error:
            raise ValueError(f"graft_filter={settings.filter!r}: must be a mitmproxy flow filter: {error}") from None

    def refuse(self, error: Exception, *, starting: bool) -> None:
        """Refuse options. In a running mitmproxy, an OptionsError undoes their change. While mitmproxy starts, an error
        in the log ends it with status 1, but only after its servers are up; so this cancels their set-up."""
        words = self.file_options.located(in_words(error))
        if not starting:
            raise exceptions.OptionsError(words) from error
        logger.error(words)
        for task in asyncio.all_tasks():
            if task.get_name() == "setup_servers":
                task.cancel()

    def settings(self) -> Settings:
        """The current settings, or the defaults before the start."""
        return self.runtime.settings if self.runtime is not None else _UNSET

    def filters_out(self, flow: http.HTTPFlow) -> bool:
        """Whether `graft_filter` excludes a flow."""
        return self.filter is not None and not flowfilter.match(self.filter, flow)

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
            check_unprefixed(ctx.options)
            async with start_progress(self.runtime.executors.source):
                await self.runtime.serve()
            listening = addresses(ctx.master.addons.get("proxyserver").servers)
            ca = ca_file(ctx.options.confdir)
            write_file(settings.state / "proxy.json", json.dumps(listening | {"ca": ca, "pid": os.getpid()}))
        except Exception as error:
            # as in `configure`, because the start is not over yet
            logger.error(self.file_options.located(in_words(error)))
            return
        for line in banner(listening, self.runtime, ca, await _sessions(self.runtime.store)):
            logger.info(line)
        gc.collect()
        gc.freeze()  # imported modules stay, so full collections need not traverse them

    def done(self) -> asyncio.Task[None] | None:
        """mitmproxy serves until the task has ended. Meanwhile the addon refuses clients."""
        runtime = self.runtime
        if runtime is None or runtime.ending:
            return None
        runtime.end()
        if ctx.master.addons.get(self.name) is None:  # removed, or about to be loaded again
            logger.error("toolgraft was removed from mitmproxy, which would continue without it: the proxy ends")
            exit_with_loop(abandoned_calls)
            sys.exit(1)
        path = runtime.settings.state / "proxy.json"
        try:
            if json.loads(path.read_text()).get("pid") == os.getpid():
                path.unlink()
        except (OSError, ValueError):
            pass
        exits = ctx.master.should_exit.is_set()  # otherwise only this addon is removed
        self._ended = asyncio.ensure_future(self._stop(runtime, exits))
        if exits:
            exit_with_loop(abandoned_calls)
        return self._ended

    async def _stop(self, runtime: Runtime, exits: bool) -> None:
        if exits and (timeout := runtime.settings.drain_timeout):
            await drain(timeout, lambda: len(self.in_flight) + runtime.active_requests)
        for end in self.before_stop:
            await end()
        await runtime.stop()
        await self.pool.close()
        if not exits:
            self.runtime = None


async def _sessions(store: Store) -> Sequence[Session]:
    """The first sessions, for the start message; none if the store fails."""
    try:
        return (await store.sessions()).items
    except StoreError:
        return ()


def _ports() -> set[int]:
    """The ports that the proxy listens on now, with mitmweb's page. Its modes may change while it runs."""
    servers = ctx.master.addons.get("proxyserver").servers
    page = {ctx.options.web_port} if "web_port" in ctx.options else set()
    return page | {address[1] for server in servers for address in server.listen_addrs}


def in_words(error: Exception) -> str:
    """The error as one line for the log. User input must not forge a line or move a terminal's cursor."""
    if isinstance(error, ValidationError):
        words = explain(error)
    elif isinstance(error, ValueError | OSError | StoreError | SourceError | exceptions.OptionsError):
        words = str(error)
    else:
        logger.debug("why the start failed", exc_info=error)
        words = f"toolgraft cannot start: {type(error).__name__}: {error}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
