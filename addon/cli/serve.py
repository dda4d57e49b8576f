"""`toolgraft serve`: starts mitmdump with the addon. Standard library only, so that the proxy starts quickly, unless a
toolgraft.toml must be checked first."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

_INTERFACES = ("mitmdump", "mitmweb", "mitmproxy")
_GEMINI = "https://generativelanguage.googleapis.com"
_ADDON = Path(__file__).parent.parent

_DEFAULTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # A request can then be diverted or refused before a connection exists.
    ("connection_strategy", ("connection_strategy=lazy",)),
    # The addon checks the Host that the client sent.
    ("keep_host_header", ("keep_host_header=true",)),
    # mitmproxy alone would listen on the whole network. A mode with its own @host:port takes precedence.
    ("listen_host", ("listen_host=127.0.0.1",)),
    ("mode", ("mode=regular", f"mode=reverse:{_GEMINI}@8081")),
)
_WEB_DEFAULTS = (("web_port", ("web_port=8082",)),)  # mitmweb's own default is the port of the reverse proxy


def arguments(
    given: Sequence[str], interface: str = "mitmdump", config: Sequence[str] = (), modes: Sequence[str] = ()
) -> list[str]:
    """The arguments of mitmproxy: toolgraft's defaults, then the user's. `config`: the options that name a
    toolgraft.toml; `modes`: those in it, which replace the default.

    Defaults are `--set` options: config.yaml takes precedence over these, and mitmproxy's own flags (--mode, -p) over
    both. A default is left out if the user sets the same option: mitmproxy would add a second mode, and refuse a
    second value of any other option.
    """
    own = _options_set(given)
    defaults = _DEFAULTS + (_WEB_DEFAULTS if interface == "mitmweb" else ())
    if modes:
        defaults = (*defaults[:-1], ("mode", tuple(f"mode={mode}" for mode in modes)))
    defaults += tuple((option.partition("=")[0], (option,)) for option in config)
    values = [value for name, found in defaults if name not in own for value in found]
    return ["-s", str(_ADDON / "entry.py"), *(word for value in values for word in ("--set", value)), *given]


def _options_set(given: Sequence[str]) -> set[str]:
    """The names of the options that arguments set by `--set NAME`, `--set NAME=VALUE` or `--set=NAME=VALUE`."""
    values = [after for before, after in pairwise(given) if before == "--set"]
    values += [argument.removeprefix("--set=") for argument in given if argument.startswith("--set=")]
    return {value.partition("=")[0] for value in values}


def interface_of(environment: Mapping[str, str]) -> str:
    """The mitmproxy program that `TOOLGRAFT_UI` names. Raises ValueError."""
    interface = environment.get("TOOLGRAFT_UI") or "mitmdump"
    if interface not in _INTERFACES:
        raise ValueError(f"TOOLGRAFT_UI={interface}: must be mitmdump, mitmweb or mitmproxy")
    return interface


def config_of(given: Sequence[str]) -> tuple[str | None, list[str]]:
    """The file that `--config FILE` names, and the other arguments. Raises ValueError."""
    values, others = _taken_out("--config", given)
    if len(values) > 1:
        raise ValueError(f"--config is given {len(values)} times: give it once")
    if values and not values[0]:
        raise ValueError("--config needs the path of a toolgraft.toml")
    for name in ("graft_config", "graft_config_trusted"):
        if name in _options_set(others):
            raise ValueError(f"{name} cannot be set: use --config FILE")
    return (values[0] if values else None), others


def _taken_out(flag: str, given: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of a flag, "" for a missing one, and the arguments without it."""
    others, values = [], []
    words = iter(given)
    for word in words:
        if word == flag:
            values.append(next(words, ""))
        elif word.startswith(f"{flag}="):
            values.append(word.partition("=")[2])
        else:
            others.append(word)
    return values, others


def serve(given: Sequence[str]) -> NoReturn:
    """Replace this process by mitmproxy with the addon."""
    _open_outputs()
    try:
        named, given = config_of(given)
        interface = interface_of(os.environ)
        config, modes = _checked_config(named)
    except ValueError as error:
        sys.exit(f"toolgraft: {error}")
    program = shutil.which(interface, path=str(Path(sys.executable).parent)) or shutil.which(interface)
    if program is None:
        sys.exit(f"toolgraft: there is no {interface} beside {sys.executable}")
    os.execv(program, [program, *arguments(given, interface, config, modes)])


def _checked_config(named: str | None) -> tuple[Sequence[str], Sequence[str]]:
    """The options that name the toolgraft.toml to use, and its modes. Raises ValueError if the file is invalid."""
    from addon.config_file.choice import chosen_file

    try:
        chosen = chosen_file(named)
    except OSError as error:
        raise ValueError(str(error)) from error
    if chosen.notice is not None:
        print(f"toolgraft: {chosen.notice}", file=sys.stderr)
    if chosen.path is None:
        return (), ()
    from addon.config_file.reading import load_config

    modes = load_config(chosen.path, trusted=chosen.trusted).modes
    return [f"graft_config={chosen.path}", *(["graft_config_trusted=on"] if chosen.trusted else ())], modes


def _open_outputs() -> None:
    """Open stdout and stderr if they are closed: mitmproxy does not start without them."""
    for number in (1, 2):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
