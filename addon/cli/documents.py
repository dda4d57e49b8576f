"""Reads users' JSON, with messages that name the place of an error."""

import json
import sys
from pathlib import Path
from typing import Any, NoReturn

from addon.cli.output import fail


def read_json(source: str) -> Any:
    """The JSON document of a file, or of stdin for `-`. Ends the command on an error."""
    if source == "-":
        return parse_json(sys.stdin.buffer.read(), "stdin")
    try:
        return parse_json(Path(source).read_bytes(), source)
    except OSError as error:
        fail(f"{source}: {error.strerror}")


def parse_json(text: bytes, where: str, hint: str = "") -> Any:
    """Parse strictly (no NaN, no Infinity). `where` begins error messages, `hint` ends them."""
    try:
        return json.loads(text.decode("utf-8-sig"), parse_constant=_not_json)
    except json.JSONDecodeError as error:
        fail(f"{where}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}{hint}")
    except UnicodeDecodeError as error:
        fail(f"{where}: not UTF-8 at byte {error.start}")
    except RecursionError:
        fail(f"{where}: nested too deeply")
    except ValueError as error:
        fail(f"{where}: not JSON: {error}{hint}")


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
