"""Do arguments fit a schema: problems in words that a model can act on. No I/O: references are never fetched."""

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
_MAX_WORDS = 300
_NOTHING: Registry[Any] = Registry()  # jsonschema's own default would fetch what a `$ref` names


def check(schema: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
    """What keeps the arguments from fitting the JSON Schema, at most MAX_PROBLEMS; none if they fit.

    Each says where, as in "`days[0]`: 'x' is not of type 'integer'". A schema that cannot be used is a problem too.
    Never raises, whatever is in the arguments. It may take any time: see `addon.tools.schema_checks`.
    """
    return check_text(json.dumps(schema), args)


def check_text(schema: str, args: Any) -> list[str]:
    """`check`, of a schema's text."""
    problems: list[str] = []
    try:
        for error in _validator(schema).iter_errors(args):
            problems.append(_words(error))
            if len(problems) == MAX_PROBLEMS:
                break
        return problems
    except SchemaError as e:
        return [f"the tool's schema is no JSON Schema: {_bounded(e.message)}"]
    except Unresolvable as e:
        return [f"the tool's schema cannot be used: {_bounded(str(e))}"]
    except RecursionError:
        return ["the arguments are nested too deeply"]
    except Exception as e:  # such as a number that is too large to be divided
        return problems or [f"the arguments cannot be checked against the tool's schema: {type(e).__name__}"]


def schema_problem(schema: str) -> str | None:
    """Why no arguments can be checked against the schema of a text, in words; None if it is a JSON Schema."""
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
    """Made once for a schema's text: checking a schema costs far more than checking arguments."""
    schema = json.loads(text)
    kind: type[Validator] = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema, registry=_NOTHING)


def _words(error: ValidationError) -> str:
    deepest = error
    while deepest.context and len(deepest.context) == 1:
        deepest = deepest.context[0]
    place = deepest.json_path.removeprefix("$").lstrip(".")
    words = f"`{place}`: {_bounded(deepest.message)}" if place else _bounded(deepest.message)
    return words.encode("utf-8", "replace").decode()  # half a pair of surrogates is no text


def _bounded(text: str) -> str:
    return text if len(text) <= _MAX_WORDS else f"{text[: _MAX_WORDS - 1]}…"
