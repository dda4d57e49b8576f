"""The precedence of settings: the command line, then the environment, then toolgraft.toml, then the defaults."""

from collections.abc import Container, Mapping

from addon.options import OPTIONS

VARIABLES = {"graft_token": "TOOLGRAFT_TOKEN", "graft_state": "TOOLGRAFT_HOME"}
"""The environment variables that set an option."""


def overruled(given: Container[str], environ: Mapping[str, str]) -> list[str]:
    """The options that toolgraft.toml cannot set, because they are `given` elsewhere or set by the environment."""
    return [
        option.name for option in OPTIONS if option.name in given or environ.get(VARIABLES.get(option.name, ""), "")
    ]
