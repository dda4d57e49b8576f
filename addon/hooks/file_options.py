"""Sets the options that a toolgraft.toml sets, below those of the command line and of the environment."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mitmproxy.optmanager import OptManager

from addon.config_file.precedence import overruled
from addon.config_file.reading import ConfigFile, load_config

_OPTION = re.compile(r"graft_[a-z_]+")


class FileOptions:
    """`config` is None if no file is used."""

    def __init__(self) -> None:
        self.config: ConfigFile | None = None
        self._taken: Mapping[str, str | list[str]] = {}

    def take(self, options: OptManager, given: Mapping[str, str]) -> None:
        """`given`: the options that are set elsewhere, and where. Raises ConfigError."""
        if not options.graft_config:
            return
        self.config = load_config(Path(options.graft_config), trusted=options.graft_config_trusted != "off")
        without = overruled(given, os.environ)
        self._taken = {name: value for name, value in self.config.options.items() if name not in without}
        options.update(**self._taken)

    def values(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with the file itself among those of MCP servers, if it has any."""
        if self.config is None or not self.config.servers:
            return dict(options)
        return {**options, "graft_mcp": [*options["graft_mcp"], str(self.config.path)]}

    def located(self, message: str) -> str:
        """A message that begins with the name of an option, after the line of the file that sets it."""
        found = _OPTION.match(message)
        if self.config is None or found is None or found[0] not in self._taken:
            return message
        return f"{self.config.place_of(found[0])}: {message}"
