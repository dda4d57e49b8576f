"""The options that a toolgraft.toml sets, below those of the command line and of the environment."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from addon.config_file.precedence import overruled
from addon.config_file.reading import ConfigFile, SessionEntry, load_config
from addon.options import OPTIONS

_OPTION = re.compile(r"graft_[a-z_]+")
_DEFAULTS = {option.name: option.default for option in OPTIONS}


@dataclass(frozen=True)
class FileOptions:
    """`config` is None if no file is used. `taken`: the options of the file that nothing outranks. `given`: the options
    that are set elsewhere. `modes`: those of the start."""

    config: ConfigFile | None = None
    trusted: bool = False
    taken: Mapping[str, str | list[str]] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    modes: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path, *, trusted: bool, given: Mapping[str, str]) -> Self:
        """`given`: the options that are set elsewhere, and where. Raises ConfigError."""
        config = load_config(path, trusted=trusted)
        without = overruled(given, os.environ)
        taken = {name: value for name, value in config.options.items() if name not in without}
        return cls(config, trusted, taken, given, config.modes)

    def reread(self) -> "FileOptions":
        """The file as it is now. Raises ConfigError."""
        if self.config is None:
            return self
        found = FileOptions.read(self.config.path, trusted=self.trusted, given=self.given)
        return FileOptions(found.config, self.trusted, found.taken, self.given, self.modes)

    def changes(self, before: "FileOptions") -> dict[str, Any]:
        """The options that the file sets otherwise than before, with their values, or their defaults if it no longer
        sets them."""
        return {
            name: self.taken.get(name, _DEFAULTS[name])
            for name in [*self.taken, *(name for name in before.taken if name not in self.taken)]
            if self.taken.get(name) != before.taken.get(name)
        }

    def sessions(self, before: "FileOptions") -> dict[str, SessionEntry]:
        """The sessions of the file that it sets otherwise than before."""
        old, new = (one.config.sessions if one.config is not None else {} for one in (before, self))
        return {name: entry for name, entry in new.items() if old.get(name) != entry}

    def has_other_modes(self, before: "FileOptions") -> bool:
        """Whether the file has other modes than before, and than at the start, which are in use."""
        old, new = (one.config.modes if one.config is not None else () for one in (before, self))
        return new not in (old, self.modes)

    def values(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with the file itself among those of MCP servers, if it has any."""
        if self.config is None or not self.config.servers:
            return dict(options)
        return {**options, "graft_mcp": [*options["graft_mcp"], str(self.config.path)]}

    def located(self, message: str) -> str:
        """A message that begins with the name of an option, after the line of the file that sets it."""
        found = _OPTION.match(message)
        if self.config is None or found is None or found[0] not in self.taken:
            return message
        return f"{self.config.place_of(found[0])}: {message}"
