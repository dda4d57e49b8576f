"""The options of `Settings` as mitmproxy and the documentation need them, and their values as texts."""

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic.fields import FieldInfo

from addon.settings import Group, Settings, fitting


class Option(NamedTuple):
    """One option of the proxy, set with `--set graft_NAME=VALUE`. `key`: its name in a toolgraft.toml. `typespec`: a
    type that mitmproxy supports, `str` or `Sequence[str]`. `variable`: an environment variable that also sets it.
    `is_path`: in a toolgraft.toml, it is relative to the file's folder. `is_fixed`: it cannot change while the proxy
    runs."""

    name: str
    key: str
    typespec: Any
    default: str | tuple[()]
    help: str
    group: Group
    variable: str
    is_path: bool
    is_fixed: bool


def _option(key: str, field: FieldInfo) -> Option:
    extra: Any = field.json_schema_extra
    is_list = isinstance(field.default, tuple) and not field.default
    default = () if is_list else "" if field.default_factory is not None else _default_text(field.default)
    words = [field.description or ""]
    if (fits := fitting(field)).startswith("a number"):
        range_ = fits.removeprefix("a number").removeprefix(" of").lstrip(", ")
        words.append(f"{range_[0].upper()}{range_[1:]}.")
    if is_list:
        words.append("Repeatable.")
    return Option(f"graft_{key}", key, Sequence[str] if is_list else str, default, " ".join(words), **extra)


def _default_text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.15g}" if isinstance(value, float) else option_text(value)


def option_text(value: Any) -> str:
    """A value as text, close to how people write it."""
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


OPTIONS = tuple(_option(key, field) for key, field in Settings.model_fields.items())
USUAL = tuple(option for option in OPTIONS if option.group is Group.USUAL)


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """Option values by full name, from texts in the form of `--set`: `graft_NAME=VALUE`. Raises ValueError."""
    values: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        option = next((o for o in OPTIONS if o.name == name), None)
        if option is None:
            raise ValueError(unknown_option(name))
        values[name] = value if option.typespec is str else [*values.get(name, ()), value]
    return values


def unknown_option(name: str) -> str:
    near = difflib.get_close_matches(name, [o.name for o in OPTIONS], 1)
    return f"{name}: there is no such option{f'; did you mean {near[0]}?' if near else ''}"
