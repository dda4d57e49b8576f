"""The addon's options from the command line and config.yaml, and those of a toolgraft.toml, which they override.

mitmproxy defers the values of an addon's options until it is loaded. It would set them itself right after `load`, but
if it cannot convert a value it silently serves without the addon. It also accepts only texts from config.yaml, where
people write `graft_max_rounds: 5`.
"""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mitmproxy.optmanager import OptManager

from addon.config_file.precedence import SettingRow, masked, overruled
from addon.config_file.reading import ConfigFile, SessionEntry, load_config
from addon.options import OPTIONS, Option, option_text, unknown_option

_NAMES = [option.name for option in OPTIONS]
_DEFAULTS = {option.name: option.default for option in OPTIONS}
_VARIABLES = {option.name: option.variable for option in OPTIONS}


def take_deferred(options: OptManager) -> dict[str, str]:
    """Set the addon's deferred options. Returns for each where it was set; mitmproxy lets config.yaml override `--set`.
    Raises ValueError, whose message names the option but not its value."""
    places = {}
    for option in OPTIONS:
        if option.name in options.deferred:
            given = options.deferred.pop(option.name)
            options.update(**{option.name: _value(option, given)})
            places[option.name] = "command line" if hasattr(given, "val") else "config.yaml"
    try:
        options.process_deferred()
    except Exception as error:  # an option of another script, which would otherwise prevent this addon from loading
        raise ValueError(f"an option of another script: {error}") from error
    return places


def check_misspelt(options: OptManager) -> None:
    """Raises ValueError if an option that no addon knows looks like a misspelling of this addon's."""
    for name in options.deferred:
        if name.startswith("graft_") or difflib.get_close_matches(name.lower().replace("-", "_"), _NAMES, 1, 0.85):
            raise ValueError(unknown_option(name))


def check_unprefixed(options: OptManager) -> None:
    """Raises ValueError if an option that no addon knows only lacks `graft_`. Call this after all scripts are loaded,
    because one of them may define an option of this name."""
    for name in options.deferred:
        if f"graft_{name}" in _NAMES:
            raise ValueError(unknown_option(name))


def _value(option: Option, given: Any) -> str | list[str]:
    """Convert a deferred value to the option's type."""
    is_list = option.typespec is not str
    if hasattr(given, "val"):
        values = given.val  # from the command line: the texts of every --set
    else:
        values = given if is_list and isinstance(given, list) else [given]
    if None in values or (hasattr(given, "val") and not values):
        raise ValueError(f"{option.name} needs a value: {option.name}=VALUE")
    if any(isinstance(value, Mapping | list) for value in values):
        raise ValueError(f"{option.name}: must be {'a list of texts' if is_list else 'one text or number'}")
    if is_list:
        return [option_text(value) for value in values]
    if len(values) > 1:
        raise ValueError(f"{option.name} is given {len(values)} times: give it once")
    return option_text(values[0])


_OPTION = re.compile(r"graft_[a-z_]+")


@dataclass(frozen=True)
class FileOptions:
    """`config`: None if no file is used. `taken`: the file's options that nothing overrides. `given`: the options set
    elsewhere, with the place; `values`: their values. `modes`: those of the start."""

    config: ConfigFile | None = None
    trusted: bool = False
    taken: Mapping[str, str | list[str]] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = ()

    def read(self, path: Path, *, trusted: bool) -> "FileOptions":
        """A copy with this file. Raises ConfigError."""
        config = load_config(path, trusted=trusted)
        without = overruled(self.given, os.environ)
        taken = {name: value for name, value in config.options.items() if name not in without}
        modes = config.modes if self.config is None else self.modes
        return replace(self, config=config, trusted=trusted, taken=taken, modes=modes)

    def reread(self) -> "FileOptions":
        """A copy with the current contents of the file. Raises ConfigError."""
        return self if self.config is None else self.read(self.config.path, trusted=self.trusted)

    def changes(self, before: "FileOptions") -> dict[str, Any]:
        """The options that the file has changed, with their new values, or their defaults if no longer set."""
        return {
            name: self.taken.get(name, _DEFAULTS[name])
            for name in [*self.taken, *(name for name in before.taken if name not in self.taken)]
            if self.taken.get(name) != before.taken.get(name)
        }

    def sessions(self, before: "FileOptions") -> dict[str, SessionEntry]:
        """The sessions that the file has changed or added."""
        old, new = (one.config.sessions if one.config is not None else {} for one in (before, self))
        return {name: entry for name, entry in new.items() if old.get(name) != entry}

    def has_other_modes(self, before: "FileOptions") -> bool:
        """Whether the file's modes have changed and also differ from those of the start, which are in use."""
        old, new = (one.config.modes if one.config is not None else () for one in (before, self))
        return new not in (old, self.modes)

    def with_servers(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options, with the file added to the files of MCP servers if it has any."""
        if self.config is None or not self.config.servers:
            return dict(options)
        return {**options, "graft_mcp": [*options["graft_mcp"], str(self.config.path)]}

    def row(self, name: str, value: Any) -> SettingRow:
        """An option of the running proxy, and where its value is set."""
        variable = _VARIABLES[name]
        if not value and os.environ.get(variable):
            return SettingRow(name, masked(name, os.environ[variable]), variable)
        return SettingRow(name, masked(name, value), self._source(name, value))

    def _source(self, name: str, value: Any) -> str:
        if name in self.given and _same(value, self.values[name]):
            return self.given[name]
        if self.config is not None and name in self.taken and _same(value, self.taken[name]):
            return str(self.config.path)
        return "default" if _same(value, _DEFAULTS[name]) else "changed while it runs"

    def located(self, message: str) -> str:
        """The message, preceded by the file's path if it begins with an option that the file sets."""
        found = _OPTION.match(message)
        if self.config is None or found is None or found[0] not in self.taken:
            return message
        return f"{self.config.path}: {message}"


def _same(one: Any, other: Any) -> bool:
    """Whether two values of an option are equal. Lists may be tuples."""
    return one == other if isinstance(one, str) else list(one) == list(other)
