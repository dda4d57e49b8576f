"""The process in which values are checked where that may take any time: see `addon.tools.schema_checks`.

A line of JSON in, `[seconds, schema, value]` with both as text; a line of JSON out: what is wrong. Without a value the
schema itself is checked. It ends by itself when its time is out, also where nobody is left to end it.
"""

import contextlib
import json
import math
import os
import signal
import sys
from typing import Any

import jsonschema
import jsonschema._keywords
import jsonschema._legacy_keywords
import jsonschema._utils
import regex

from addon.tools.arguments import check_text, schema_problem

_MEMORY = 1024 * 1024 * 1024
_KINDS = (
    *(jsonschema.Draft3Validator, jsonschema.Draft4Validator, jsonschema.Draft6Validator, jsonschema.Draft7Validator),
    *(jsonschema.Draft201909Validator, jsonschema.Draft202012Validator),
)


def _prepare() -> None:
    """Patterns are read as JSON Schema's are, which know `\\p{L}`; and nothing here may take all of the memory."""
    for module in (jsonschema._keywords, jsonschema._legacy_keywords, jsonschema._utils):
        module.re = regex  # type: ignore[attr-defined]
    for kind in _KINDS:
        kind.FORMAT_CHECKER.checks("regex", raises=regex.error)(_is_pattern)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        os.nice(5)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def _is_pattern(value: object) -> bool:
    return not isinstance(value, str) or bool(regex.compile(value) or True)


def _answer(schema: str, value: str | None) -> Any:
    return schema_problem(schema) if value is None else check_text(schema, json.loads(value))


def main() -> None:
    _prepare()
    for line in sys.stdin:
        seconds, schema, value = json.loads(line)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, math.ceil(seconds))
        print(json.dumps(_answer(schema, value)), flush=True)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
