"""The process for checks that may take arbitrarily long: see `addon.tools.schema_checks`.

Input: a line of JSON, `[seconds, schema, value]`, where schema and value are JSON text. Output: a line of JSON with the
problems. If the value is null, the schema itself is checked. The process ends itself after `seconds`, even if its
parent is gone.
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

_MAX_MEMORY = 1024 * 1024 * 1024
_VALIDATORS = (
    *(jsonschema.Draft3Validator, jsonschema.Draft4Validator, jsonschema.Draft6Validator, jsonschema.Draft7Validator),
    *(jsonschema.Draft201909Validator, jsonschema.Draft202012Validator),
)


def _prepare() -> None:
    """Use `regex` for patterns, because JSON Schema allows `\\p{L}`, and limit the process's memory."""
    for module in (jsonschema._keywords, jsonschema._legacy_keywords, jsonschema._utils):
        module.re = regex  # type: ignore[attr-defined]
    for validator in _VALIDATORS:
        validator.FORMAT_CHECKER.checks("regex", raises=regex.error)(_is_pattern)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        os.nice(5)
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))


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
