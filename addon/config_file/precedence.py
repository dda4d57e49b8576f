"""The options that a start of the proxy would use, each with its value and the place that sets it: the command line,
then the environment, then toolgraft.toml, then the defaults.
"""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from addon.config_file.reading import ConfigFile
from addon.options import OPTIONS, option_text, parse_options
from addon.settings import Settings
from addon.state_folder import state_folder
from addon.urls import redacted
from store.models import MASK


def overruled(given: Container[str], environ: Mapping[str, str]) -> list[str]:
    """The options that toolgraft.toml cannot set, because they are `given` elsewhere or set by the environment."""
    return [option.name for option in OPTIONS if option.name in given or environ.get(option.variable)]


class SettingRow(NamedTuple):
    """`source`: `default`, a file, a variable, `config.yaml` or `command line`. Secrets in `value` are masked."""

    name: str
    value: str
    source: str


def setting_rows(
    config: ConfigFile | None, given: Sequence[str], yaml: Mapping[str, Any], environ: Mapping[str, str]
) -> list[SettingRow]:
    """`given`: `NAME=VALUE` texts of `--set`. `yaml`: the options of mitmproxy's config.yaml. Raises ValueError, also
    if the values do not fit."""
    on_command_line = parse_options(given)
    values: dict[str, Any] = {}
    rows = []
    value: str | Sequence[str]
    for option in OPTIONS:
        name, variable = option.name, option.variable
        if option.key in ("config", "config_trusted"):
            continue
        if name in yaml:
            value, source = _of_yaml(yaml[name], is_text=option.typespec is str), "config.yaml"
        elif name in on_command_line:
            value, source = on_command_line[name], "command line"
        elif environ.get(variable):
            value, source = environ[variable], variable
        elif config is not None and name in config.options:
            value, source = config.options[name], str(config.path)
        else:
            value, source = option.default, "default"
        values[name] = value
        rows.append(SettingRow(name, masked(name, value), source))
    Settings.from_options(values)
    return rows


def read_yaml(folder: Path) -> dict[str, Any]:
    """The options of mitmproxy's config.yaml in its folder. Raises ValueError."""
    found: dict[str, Any] = {}
    for name in ("config.yaml", "config.yml"):
        path = folder / name
        if not path.is_file():
            continue
        from mitmproxy import exceptions, optmanager  # slow

        try:
            found |= optmanager.parse(path.read_text(encoding="utf-8"))
        except (OSError, exceptions.OptionsError, TypeError) as error:
            raise ValueError(f"{path}: {error}") from None
    return {name: value for name, value in found.items() if name.startswith("graft_")}


def _of_yaml(value: Any, *, is_text: bool) -> str | list[str]:
    if is_text:
        return option_text(value)
    return [option_text(item) for item in (value if isinstance(value, list) else [value])]


def masked(name: str, value: str | Sequence[str]) -> str:
    """An option's value for display, without secrets."""
    if name == "graft_token" and value and value != "off":
        return MASK
    if name == "graft_state" and not value:
        return str(state_folder())
    if isinstance(value, str):
        return redacted(value)[1:-1] if "://" in value or "@" in value else value
    return ", ".join(redacted(item)[1:-1] if "://" in item or "@" in item else item for item in value)
