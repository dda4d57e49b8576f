"""Pinned descriptions and schemas of MCP tools. A tool that has changed since it was first seen is held back until
somebody has reviewed the difference: a description is an instruction to the model."""

import difflib
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from addon.core.framing.documents import Document
from addon.tools.base import SourceError

_log = logging.getLogger(__name__)


class NotHeldBack(LookupError):
    """No such tool is held back."""


class ChangedAgain(ValueError):
    """The tool has changed since it was reviewed."""


@dataclass(frozen=True, slots=True)
class HeldBackTool:
    """A tool that is held back. `before` is the accepted version, `after` the current one."""

    server: str
    tool: str
    before: Document
    after: Document

    @property
    def digest(self) -> str:
        """The digest of the current version."""
        return digest_of(self.after)

    @property
    def fields(self) -> list[str]:
        """The names of the changed fields."""
        return sorted(name for name in {*self.before, *self.after} if self.before.get(name) != self.after.get(name))

    @property
    def diff(self) -> str:
        before, after = (_text(tool, indent=1).splitlines() for tool in (self.before, self.after))
        return "\n".join(difflib.unified_diff(before, after, "accepted", "now", n=1, lineterm=""))


@dataclass(frozen=True, slots=True)
class PinnedSource:
    """The current tools of a server. `changed` is called when one of them has been accepted."""

    tools: Mapping[str, Document]
    changed: Callable[[], None]


class Pins:
    """The pins in a file, which `write` replaces as a whole. Raises SourceError if an existing file is unreadable."""

    def __init__(self, path: Path, write: Callable[[Path, str], None]) -> None:
        self._path = path
        self._write = write
        self._servers = self._read()
        self._sources: dict[str, PinnedSource] = {}

    def update(self, server: str, tools: Mapping[str, Document], changed: Callable[[], None]) -> list[HeldBackTool]:
        """Set a server's current tools, and return those to hold back. A new tool is pinned as it is. `changed` is
        called when a held-back tool has been accepted."""
        self._sources[server] = PinnedSource(tools, changed)
        pinned = self._servers.setdefault(server, {})
        if new := {name: tool for name, tool in tools.items() if name not in pinned}:
            pinned |= new
            try:
                self._store(self._servers)
            except OSError as error:
                _log.warning("the accepted MCP tools cannot be stored: %s", error)
        return self._held_back_of(server)

    def current(self) -> dict[str, PinnedSource]:
        """The current tools of all servers, for `restore`."""
        return dict(self._sources)

    def restore(self, sources: Mapping[str, PinnedSource]) -> None:
        """Undo each `update` since `current`, because the new servers are not used."""
        self._sources = dict(sources)

    def keep_only(self, servers: Iterable[str]) -> None:
        """Forget the current tools of all other servers. Their pins stay."""
        kept = set(servers)
        self._sources = {name: source for name, source in self._sources.items() if name in kept}

    def held_back(self) -> list[HeldBackTool]:
        return [tool for server in self._sources for tool in self._held_back_of(server)]

    def accept(self, server: str, tool: str, digest: str) -> None:
        """Accept a tool's current version, which must have this digest. Raises NotHeldBack, ChangedAgain, and OSError
        if the file cannot be written: the tool then stays held back."""
        found = next((one for one in self.held_back() if (one.server, one.tool) == (server, tool)), None)
        if found is None:
            raise NotHeldBack(f"the tool {tool} of the MCP server {server} is not held back")
        if found.digest != digest:
            raise ChangedAgain(f"the tool {tool} of the MCP server {server} has changed again: review it once more")
        servers = {**self._servers, server: {**self._servers[server], tool: found.after}}
        self._store(servers)
        self._servers = servers
        self._sources[server].changed()

    def _held_back_of(self, server: str) -> list[HeldBackTool]:
        pinned = self._servers.get(server, {})
        tools = self._sources[server].tools
        return [
            HeldBackTool(server, name, pinned[name], tool)
            for name, tool in tools.items()
            if name in pinned and pinned[name] != tool
        ]

    def _read(self) -> dict[str, dict[str, Document]]:
        try:
            pins = json.loads(self._path.read_text(encoding="utf-8"))
            return {server: {name: dict(tool) for name, tool in tools.items()} for server, tools in pins.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise SourceError(
                f"{self._path}: the accepted MCP tools cannot be read ({type(error).__name__}); "
                "remove the file to accept all current tools"
            ) from None

    def _store(self, servers: Mapping[str, Mapping[str, Document]]) -> None:
        self._write(self._path, json.dumps(servers, ensure_ascii=True, sort_keys=True))


def digest_of(tool: Document) -> str:
    return hashlib.sha256(_text(tool).encode()).hexdigest()


def _text(tool: Document, indent: int | None = None) -> str:
    return json.dumps(tool, ensure_ascii=False, sort_keys=True, indent=indent).encode("utf-8", "replace").decode()
