"""Checks arguments against a JSON Schema, with messages for the model. No I/O: references are never fetched."""

import functools
import json
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

MAX_PROBLEMS = 10
_MAX_CHARACTERS = 300
_EMPTY: Registry[Any] = Registry()  # jsonschema's default registry would fetch remote `$ref`s


def check(schema: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
    """The first MAX_PROBLEMS problems of the arguments; empty if they fit the JSON Schema.

    Each names its place, as in "`days[0]`: 'x' is not of type 'integer'". An unusable schema is a problem too. Never
    raises. May take arbitrarily long: see `addon.tools.schema_checks`.
    """
    return check_text(json.dumps(schema), args)


def check_text(schema: str, args: Any) -> list[str]:
    """`check` with the schema as JSON text."""
    problems: list[str] = []
    try:
        for error in _validator(schema).iter_errors(args):
            problems.append(_message(error))
            if len(problems) == MAX_PROBLEMS:
                break
        return problems
    except SchemaError as e:
        return [f"the tool's schema is not a JSON Schema: {_bounded(e.message)}"]
    except Unresolvable as e:
        return [f"the tool's schema cannot be used: {_bounded(str(e))}"]
    except RecursionError:
        return ["the arguments are nested too deeply"]
    except Exception as e:  # for example a number too large to divide
        return problems or [f"the arguments cannot be checked against the tool's schema: {type(e).__name__}"]


def schema_problem(schema: str) -> str | None:
    """Why the schema (JSON text) cannot be used; None if it is a JSON Schema."""
    try:
        _validator(schema)
    except SchemaError as e:
        place = e.json_path.removeprefix("$").lstrip(".")
        return f"{place}: {_bounded(e.message)}" if place else _bounded(e.message)
    except RecursionError:
        return "it is nested too deeply"
    except Exception as e:
        return f"it cannot be used: {type(e).__name__}"
    return None


@functools.lru_cache(maxsize=1024)
def _validator(text: str) -> Validator:
    """Cached: checking a schema costs far more than checking arguments."""
    schema = json.loads(text)
    kind: type[Validator] = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=_EMPTY)


def _message(error: ValidationError) -> str:
    deepest = error
    while deepest.context and len(deepest.context) == 1:
        deepest = deepest.context[0]
    place = deepest.json_path.removeprefix("$").lstrip(".")
    words = f"`{place}`: {_bounded(deepest.message)}" if place else _bounded(deepest.message)
    return words.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"
