"""Applies changes of tools files, files of MCP servers and the toolgraft.toml while the proxy runs.

A change is checked completely before any of it is used. If it is invalid, everything stays unchanged, and the log gives
the reason. The files are checked at an interval, like mitmproxy's scripts, and on SIGHUP.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader

from addon.config_file.choice import trust_file
from addon.config_file.reading import ConfigError, SessionEntry, apply_sessions
from addon.hooks.lifecycle import Lifecycle, in_words
from addon.hooks.option_sources import FileOptions
from addon.hooks.runtime import FIXED, SOURCES, Runtime
from addon.loop.sources import Change, ProxySources
from addon.options import OPTIONS
from addon.settings import Settings
from addon.web import tasks
from store.base import StoreError

logger = logging.getLogger("toolgraft")

_INTERVAL = 0.5
"""Seconds between two checks of the files."""

type _Version = tuple[int, int, int] | None


class Reloading:
    """Runs after `Lifecycle`, which then serves."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._task: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        """Whether a SIGHUP has arrived."""
        self._latest: dict[str, _Version] | None = None
        self._applied: dict[str, _Version] | None = None
        self._wanted: Sequence[str] = ()
        """The files of a change that could not be used. One of them may be wrong, or missing."""
        self._due: dict[str, SessionEntry] = {}
        """Sessions that the store has not accepted yet."""

    def load(self, loader: Loader) -> None:
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            with contextlib.suppress(RuntimeError, ValueError):  # not in other threads
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up, _has_terminal())

    def running(self) -> None:
        runtime = self._lifecycle.runtime
        if runtime is not None and runtime.is_serving and runtime.sources is not None:
            self._task = tasks.spawn(self._watch(), name="changed files")

    def done(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _hang_up(self, had_terminal: bool) -> None:
        """Reload on SIGHUP, or shut down if the terminal that started the proxy is gone."""
        runtime = self._lifecycle.runtime
        if had_terminal and not _has_terminal():
            ctx.master.shutdown()
        elif runtime is not None and runtime.sources is None:
            logger.info("SIGHUP: there is no file to read again")
        else:
            logger.info("SIGHUP: the files are read again")
            self._asked.set()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._asked.wait(), _INTERVAL)
            is_asked = self._asked.is_set()
            self._asked.clear()
            try:
                await self.look(is_asked=is_asked)
            except Exception:
                logger.exception("changed files could not be applied")

    async def look(self, *, is_asked: bool = False) -> None:
        """Apply the files if they have changed. A file that has changed since the last check may still be incomplete,
        so it waits for the next one. `is_asked`: read the files even if they seem unchanged."""
        runtime = self._lifecycle.runtime
        if runtime is None or runtime.ending or runtime.sources is None:
            return
        if not (runtime.settings.reload or is_asked):
            return
        now = {path: _version(path) for path in self._files(runtime)}
        is_settled, self._latest = now == self._latest, now
        if is_asked or (is_settled and now != self._applied):
            self._applied = now  # a change that cannot be used is reported once
            await self._reload(runtime, runtime.sources)
        if self._due:
            await self._apply_sessions(runtime)

    def _files(self, runtime: Runtime) -> list[str]:
        options = self._lifecycle.file_options
        found = [*runtime.settings.tools, *runtime.settings.mcp, *self._wanted]
        if options.config is not None:
            found += [str(options.config.path), *map(str, options.config.files)]
        if options.trusted:
            found.append(str(trust_file()))
        return found

    async def _reload(self, runtime: Runtime, sources: ProxySources) -> None:
        before = after = self._lifecycle.file_options
        self._wanted = ()
        try:
            after = before.reread()
            changes = after.changes(before)
            values = {option.name: getattr(ctx.options, option.name) for option in OPTIONS} | changes
            settings, _ = self._lifecycle.parse(values, after)
            self._wanted = [*settings.tools, *settings.mcp]
            fixed = (name for name in FIXED if name not in SOURCES)
            waiting = [name for name in fixed if getattr(settings, name) != getattr(runtime.settings, name)]
            changes = {name: value for name, value in changes.items() if name.removeprefix("graft_") not in waiting}
            change = await sources.prepare(settings)
        except Exception as error:
            if isinstance(error, ConfigError):
                self._wanted = [str(path) for path in error.files]
            _report_refusal(after.located(in_words(error)))
            return
        names = [name.removeprefix("graft_") for name in changes]
        names = [name for name in names if getattr(settings, name) != getattr(runtime.settings, name)]
        try:
            self._apply_options(runtime, after, changes, settings)
        except Exception as error:
            await sources.discard(change)
            _report_refusal(after.located(in_words(error)))
            return
        sources.apply(change)
        runtime.executors.forget_results()
        sessions = after.sessions(before)
        self._due |= sessions
        if after.has_other_modes(before):
            waiting.append("modes")
        self._report(after, change, [*names, *(f"session {name}" for name in sessions)], waiting)

    def _apply_options(self, runtime: Runtime, after: FileOptions, changes: dict[str, Any], settings: Settings) -> None:
        """Raises OptionsError, with everything unchanged."""
        lifecycle, former = self._lifecycle, runtime.settings
        before, lifecycle.file_options = lifecycle.file_options, after
        runtime.changes_sources = True
        try:
            ctx.options.update(**changes)
            # these may have changed without an option
            runtime.settings = runtime.settings.model_copy(update={"tools": settings.tools, "mcp": settings.mcp})
        except BaseException:
            lifecycle.file_options, runtime.settings = before, former
            raise
        finally:
            runtime.changes_sources = False

    async def _apply_sessions(self, runtime: Runtime) -> None:
        due, self._due = self._due, {}
        try:
            await apply_sessions(runtime.store, due)
        except StoreError as error:
            logger.warning("the sessions %s cannot be set now: %s", ", ".join(due), error)
            self._due = due | self._due

    def _report(self, options: FileOptions, change: Change, parts: Sequence[str], waiting: Sequence[str]) -> None:
        if change.used:
            logger.info("changed, and used from now on: %s", ", ".join(change.used))
        if change.left_out:
            logger.info("no longer used: %s", ", ".join(change.left_out))
        path = options.config.path if options.config is not None else ""
        if parts:
            logger.info("%s has changed, and holds from now on: %s", path, ", ".join(parts))
        if waiting:
            logger.warning("%s has changed, but a restart of the proxy is needed for: %s", path, ", ".join(waiting))


def _has_terminal() -> bool:
    """Whether the process has a controlling terminal that has not hung up."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _report_refusal(words: str) -> None:
    logger.warning("%s%s Nothing of the change is used", words, "" if words.endswith(("?", ".")) else ".")


def _version(path: str) -> _Version:
    try:
        found = os.stat(Path(path))
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
