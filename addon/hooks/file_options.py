"""The options of a toolgraft.toml, which the command line and the environment override."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from addon.config_file.precedence import VARIABLES, overruled
from addon.config_file.reading import ConfigFile, SessionEntry, load_config
from addon.config_file.settings_table import SettingRow, masked
from addon.options import OPTIONS

_OPTION = re.compile(r"graft_[a-z_]+")
_DEFAULTS = {option.name: option.default for option in OPTIONS}


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
        variable = VARIABLES.get(name, "")
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
