"""Sets the addon's options from the command line and config.yaml. mitmproxy defers their values until the addon is
loaded.

mitmproxy would set them itself right after `load`, but if it cannot convert a value it silently serves without the
addon. It also accepts only texts from config.yaml, where people write `graft_max_rounds: 5`.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from mitmproxy.optmanager import OptManager

from addon.options import OPTIONS, Option, unknown_option

_NAMES = [option.name for option in OPTIONS]


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
        return [_text(value) for value in values]
    if len(values) > 1:
        raise ValueError(f"{option.name} is given {len(values)} times: give it once")
    return _text(values[0])


def _text(value: object) -> str:
    """A value of config.yaml, close to its original spelling."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
