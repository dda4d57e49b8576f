"""Reads and checks a toolgraft.toml completely, and gives its sessions to the store. An error is one sentence with the
file, the key and what would fit.
"""

import difflib
import json
import math
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from addon.config_file.choice import untrusted
from addon.core.framing.documents import Document
from addon.core.security.untrusted import printable
from addon.core.tools.tool_forms import BadTool
from addon.graft.session_config import toolset_of
from addon.options import OPTIONS, Option, option_text
from addon.settings import Settings, explain
from addon.urls import redacted
from store.base import Store
from store.models import SESSION_FORM, SESSION_NAME, Policy, Toolset

_TABLES = ("modes", "options", "mcpServers", "sessions")
_OPTIONS = {option.key: option for option in OPTIONS if option.key not in ("config", "config_trusted")}
_TOOLS = ("tools", "tool_config", "tool_choice")
_SESSION = (*Policy.options(), "toolset", *_TOOLS)
_LARGEST = 16 * 1024 * 1024
"""Bytes of a toolgraft.toml."""
_MOST_LEVELS = 100

type KeyPath = tuple[str | int, ...]
"""The keys and list indexes that lead to a value."""


class ConfigError(ValueError):
    """An invalid toolgraft.toml. The message begins with the file. `files`: other files that it names, up to the
    error."""

    def __init__(self, message: str, files: Sequence[Path] = ()) -> None:
        super().__init__(message)
        self.files = tuple(files)


@dataclass(frozen=True)
class SessionEntry:
    """A session of the file: its whole policy, and its toolset, if the file sets one."""

    policy: Policy
    toolset: Toolset | None


@dataclass(frozen=True)
class ConfigFile:
    """`options`: by full name, in the form of mitmproxy's options. `servers`: the MCP servers by name, each with its
    command or URL; `read_servers` reads them. `files`: the other files with contents that belong to it."""

    path: Path
    options: Mapping[str, str | list[str]] = field(default_factory=dict)
    modes: tuple[str, ...] = ()
    servers: Mapping[str, str] = field(default_factory=dict)
    sessions: Mapping[str, SessionEntry] = field(default_factory=dict)
    files: tuple[Path, ...] = ()

    @property
    def programs(self) -> list[str]:
        """The programs and URLs that the file uses, one line each."""
        tools = [f"runs {path}" for path in self.options.get("graft_tools", ())]
        mcp = [f"starts the MCP servers of {path}" for path in self.options.get("graft_mcp", ())]
        return [*tools, *mcp, *(f"MCP server {name}: {what}" for name, what in self.servers.items())]

    @property
    def missing(self) -> str | None:
        """The error of a proxy that starts with this file, if `graft_tools` or `graft_mcp` names a file that does not
        exist; else None."""
        for option in ("graft_tools", "graft_mcp"):
            for path in self.options.get(option, ()):
                if not Path(path).is_file():
                    return f"{self.path}: options.{option.removeprefix('graft_')}: there is no file {path}"
        return None


def read_file(path: Path) -> bytes:
    """Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if len(content) > _LARGEST:
        raise ConfigError(f"{path}: has more than {_LARGEST} bytes")
    return content


def load_config(path: Path, *, trusted: bool = False) -> ConfigFile:
    """`trusted`: only the contents that the user trusts are used. Raises ConfigError."""
    content = read_file(path)
    if trusted:
        try:
            why = untrusted(path, content)
        except (OSError, ValueError) as error:
            raise ConfigError(str(error)) from error
        if why is not None:
            raise ConfigError(f"{path}: {why}: read it, and then run `toolgraft trust {path}`")
    return parse_config(path, content)


def parse_config(path: Path, content: bytes) -> ConfigFile:
    """`path`: names the file in errors, and relative paths start in its folder. Raises ConfigError for the first
    error."""
    files: list[Path] = []
    try:
        try:
            document = tomllib.loads(content.decode())
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: not UTF-8") from None
        except ValueError as error:  # TOMLDecodeError, or a number with thousands of digits
            raise ConfigError(f"{path}: not TOML: {error}") from None
        return _Reader(path, document, files).read()
    except RecursionError:
        raise ConfigError(f"{path}: values are nested too deeply") from None
    except ConfigError as error:
        raise ConfigError(printable(str(error)), files) from None


class _Reader:
    def __init__(self, path: Path, document: Document, files: list[Path]) -> None:
        self._path = path
        self._document = document
        self._files = files

    def read(self) -> ConfigFile:
        for place, value in _leaves((), self._document):
            if not isinstance(value, str | bool | int | float):
                raise self._error(place, "must not be a date or time: write it as a text, in quotation marks")
            if isinstance(value, float) and not math.isfinite(value):
                raise self._error(place, "must be a finite number")
        for name in self._document:
            if name not in _TABLES:
                raise self._error((name,), _unknown(name, _TABLES, at_top=True))
        options = self._options()
        self._check_settings(options)
        modes = self._modes()
        return ConfigFile(
            path=self._path,
            options=options,
            modes=modes,
            servers=self._servers(),
            sessions=self._sessions(),
            files=tuple(self._files),
        )

    def _options(self) -> dict[str, str | list[str]]:
        found: dict[str, str | list[str]] = {}
        for name, value in self._table(("options",)).items():
            place = ("options", name)
            if name not in _OPTIONS:
                raise self._error(place, _unknown(name, _OPTIONS))
            found[_OPTIONS[name].name] = self._option(place, _OPTIONS[name], value)
        return found

    def _option(self, place: KeyPath, option: Option, value: Any) -> str | list[str]:
        if option.typespec is not str:
            texts = self._texts(place, value)
            return [self._resolved(text) for text in texts] if option.is_path else texts
        if isinstance(value, dict | list):
            raise self._error(place, f"is {_kind(value)}; must be one text, number or true or false")
        text = option_text(value)
        return self._resolved(text) if option.is_path else text

    def _resolved(self, text: str) -> str:
        """A path, joined to the file's folder if it is relative."""
        if not text or "\0" in text:
            return text
        try:
            return str(self._path.parent / Path(text).expanduser())
        except RuntimeError:  # unknown user
            return text

    def _check_settings(self, options: Mapping[str, str | list[str]]) -> None:
        """Check each option separately: whether they fit together also depends on the command line."""
        for name, value in options.items():
            try:
                Settings.from_options({name: value})
            except ValidationError as error:
                if error.errors()[0]["loc"]:
                    raise self._error(explain(error, "options.")) from None

    def _modes(self) -> tuple[str, ...]:
        if "modes" not in self._document:
            return ()
        modes = self._texts(("modes",), self._document["modes"])
        if not modes:
            raise self._error(("modes",), 'is empty; an example is ["regular", "reverse:https://…@8081"]')
        from mitmproxy.proxy.mode_specs import ProxyMode  # slow, and not needed without modes

        for mode in modes:
            try:
                ProxyMode.parse(mode)
            except ValueError as error:
                raise self._error(f"modes: {mode!r} is not a mode of mitmproxy: {error}") from None
        return tuple(modes)

    def _servers(self) -> dict[str, str]:
        servers = self._table(("mcpServers",))
        if not servers:
            return {}
        from addon.tools.base import SourceError  # slow, and not needed without servers
        from addon.tools.mcp_config import check_servers

        try:
            found = check_servers({"mcpServers": servers}, self._path)
        except SourceError as error:
            raise ConfigError(str(error)) from None
        return {
            name: shlex.join([one.command, *one.args]) if one.command is not None else redacted(one.url)
            for name, one in found.items()
        }

    def _sessions(self) -> dict[str, SessionEntry]:
        found = {}
        for name, value in self._table(("sessions",)).items():
            place = ("sessions", name)
            if not SESSION_NAME.fullmatch(name):
                raise self._error(f"sessions: {name!r}: the name of a session must be {SESSION_FORM}")
            fields = self._table(place)
            for key in fields:
                if key not in _SESSION:
                    raise self._error((*place, key), _unknown(key, _SESSION))
            try:
                policy = Policy.model_validate({key: value[key] for key in Policy.options() if key in value})
            except ValidationError as error:
                raise self._error(explain(error, f"{_name(place)}.")) from None
            found[name] = SessionEntry(policy, self._toolset(place, fields))
        return found

    def _toolset(self, place: KeyPath, fields: Document) -> Toolset | None:
        given = {key: fields[key] for key in _TOOLS if key in fields}
        if "toolset" in fields:
            if given:
                raise self._error((*place, "toolset"), f"does not go with {next(iter(given))}: use one of them")
            return self._toolset_file((*place, "toolset"), fields["toolset"])
        if not given:
            return None
        try:
            return toolset_of(given)
        except BadTool as error:
            raise self._error(f"{_name(place)}.{error.field} {error.message}") from None
        except ValidationError as error:
            raise self._error((*place, "tools"), error.errors()[0]["msg"]) from None

    def _toolset_file(self, place: KeyPath, value: object) -> Toolset:
        """The toolset of a JSON file, in the form for `toolgraft tools set`."""
        if not isinstance(value, str) or not value or "\0" in value:
            raise self._error(place, "must be the path of a JSON file with tools")
        path = self._path.parent / Path(value).expanduser()
        self._files.append(path)
        try:
            document = json.loads(read_file(path))
            return toolset_of({"tools": document} if isinstance(document, list) else document)
        except ConfigError as error:
            raise self._error(place, str(error)) from None
        except json.JSONDecodeError as error:
            raise self._error(place, f"{path}: not JSON: {error}") from None
        except ValidationError as error:
            raise self._error(place, f"{path}: {error.errors()[0]['msg']}") from None
        except (ValueError, RecursionError) as error:  # BadTool is a ValueError
            raise self._error(place, f"{path}: {error}") from None

    def _table(self, place: KeyPath) -> Document:
        value: Any = self._document
        for key in place:
            value = value.get(key, {})
        if not isinstance(value, dict):
            raise self._error(place, f"is {_kind(value)}; must be a table, such as [{_name(place)}]")
        return value

    def _texts(self, place: KeyPath, value: object) -> list[str]:
        if not isinstance(value, list):
            raise self._error(place, f'is {_kind(value)}; must be a list of texts, such as ["…"]')
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise self._error(f"{_name(place)}: item {index + 1} is {_kind(item)}; must be a text")
        return value

    def _error(self, place: KeyPath | str, message: str = "") -> ConfigError:
        """An error about the value at `place`, or one whose whole message is `place`."""
        return ConfigError(f"{self._path}: {place if isinstance(place, str) else f'{_name(place)} {message}'}")


async def apply_sessions(store: Store, sessions: Mapping[str, SessionEntry]) -> list[str]:
    """Write the file's policies and toolsets that differ from those in the store. Settings that a session's entry does
    not name return to their defaults; its toolset stays if the entry has none. Returns the names of the changed
    sessions. Raises StoreError."""
    changed = []
    for name, entry in sessions.items():
        record, _, _ = await store.snapshot(name)
        has_policy = entry.policy == (record.policy if record is not None else Policy())
        has_tools = entry.toolset is None or (record is not None and record.toolset == entry.toolset)
        if not has_policy:
            await store.put_policy(name, entry.policy)
        if not has_tools:
            await store.put_toolset(name, entry.toolset)
        if not (has_policy and has_tools):
            changed.append(name)
    if changed:
        await store.sync()
    return changed


def _leaves(place: KeyPath, value: Any) -> Iterator[tuple[KeyPath, Any]]:
    if len(place) > _MOST_LEVELS:
        raise RecursionError
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves((*place, key), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves((*place, index), item)
    else:
        yield place, value


def _unknown(name: str, known: Collection[str], *, at_top: bool = False) -> str:
    """The hint for an unknown key: the nearest known one, or all if none is near and they are few."""
    if near := difflib.get_close_matches(name.removeprefix("graft_"), known, 1):
        return f"is unknown; did you mean {near[0]}?"
    if at_top and (near := difflib.get_close_matches(name.removeprefix("graft_"), _OPTIONS, 1)):
        return f"is unknown; did you mean {near[0]} below [options]?"
    names = f"known are {', '.join(known)}" if len(known) < 20 else "docs/options.md lists the options, without graft_"
    return f"is unknown; {names}"


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a table"}
    return kinds[type(value)]


def _name(place: KeyPath) -> str:
    """A place as text: `sessions.work.tools[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".") or "the document"
