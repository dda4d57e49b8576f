"""Checks values against JSON Schemas, with messages for the model. References are never fetched.

A check may run in the event loop: patterns are matched in linear time, a schema that could take long is not used, and a
value that could take long is refused. Both functions read a schema once, and log a warning for each part that they
leave out. `name` is the tool's.
"""

import functools
import json
import logging
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from jsonschema_rs import RegexOptions, ValidationError, Validator, validator_cls_for

from addon.core.arguments import MAX_DEPTH
from addon.core.summaries import problem
from addon.tools.schema_weight import Weight, weight

MAX_PROBLEMS = 10
_MAX_WORK = 2**22  # visits of places in a value: some 100 ms
_MAX_EXPLAINED = 2**12  # the same, if each visit may find an error
_PER_CHARACTER = 1 / 64  # places that a character of a string counts as
_PER_STATE = 1 / 4  # the same for each state of a pattern; few are usually followed together
_MAX_CHARACTERS = 300  # of a problem
_MAX_GIVEN = 100  # characters of the value in a problem
_PATTERNS = RegexOptions(size_limit=1024 * 1024)
_MASK = "\ufffc"  # stands for the value in the library's message
_DRAFTS = tuple(f"http://json-schema.org/draft-0{number}/schema" for number in (4, 6, 7)) + tuple(
    f"https://json-schema.org/draft/{version}/schema" for version in ("2019-09", "2020-12")
)

_log = logging.getLogger(__name__)


class _Schema(NamedTuple):
    """`validator`: None if nothing is checked. `problem`: why the schema cannot be used."""

    validator: Validator | None = None
    weight: Weight = Weight(0, 0)
    problem: str | None = None


def problems(schema: Mapping[str, Any], value: Any, name: str) -> list[str]:
    """The first MAX_PROBLEMS problems of the value; empty if it fits the schema, or the schema is not checked.

    Each names its place, as in "`days[0]`: "x" is not of type "integer"". An unusable schema is a problem too.
    """
    found = _read(json.dumps(schema), name)
    if found.problem is not None:
        return [f"the tool's schema cannot be used: {found.problem}"]
    if found.validator is None:
        return []
    try:
        visits, states = found.weight
        if visits * _size(value, max(_PER_CHARACTER, states * _PER_STATE)) > _MAX_WORK:
            return ["the arguments are too large to be checked against the tool's schema"]
        if found.validator.is_valid(value):
            return []
        if visits * _size(value) > _MAX_EXPLAINED:
            return ["they are not what the tool's schema says"]
        return [_words(error) for error in islice(found.validator.iter_errors(value), MAX_PROBLEMS)]
    except RecursionError:
        return ["the arguments are nested too deeply"]
    except UnicodeEncodeError:  # lone surrogates
        return problems(schema, json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")), name)
    except (ValueError, TypeError) as e:
        return [f"the arguments cannot be checked against the tool's schema: {type(e).__name__}"]


def schema_problem(schema: Mapping[str, Any], name: str) -> str | None:
    """Why the schema cannot be used; None if it can."""
    try:
        return _read(json.dumps(schema), name).problem
    except (RecursionError, ValueError, TypeError):
        return "it is nested too deeply"


@functools.lru_cache(maxsize=1024)
def _read(text: str, name: str) -> _Schema:
    """Cached: reading a schema costs far more than checking a value."""
    found = weight(text)
    if found is None:
        _warn(name, "its schema is too complex or refers to other documents, so nothing is checked against it")
        return _Schema()
    schema = json.loads(text)
    if isinstance(draft := schema.get("$schema"), str) and draft.rstrip("#") not in _DRAFTS:
        del schema["$schema"]
    while True:
        try:
            make = validator_cls_for(schema)
            validator = make(schema, pattern_options=_PATTERNS, validate_formats=False, offline=True, mask=_MASK)
            return _Schema(validator, found)
        except ValidationError as e:
            if getattr(e.kind, "format", None) != "regex":
                return _Schema(problem=_words(e))
            _leave_out(schema, e)
            _warn(name, f"the pattern {_json(e.instance)} in its schema is not supported, so it is not checked")
        except ValueError as e:
            return _Schema(problem=_bounded(str(e)))


def _leave_out(schema: Any, error: ValidationError) -> None:
    """Remove the faulty pattern. With a pattern for names, the rules for other names are removed as well."""
    *parents, name = error.instance_path
    if name == "patternProperties":  # the report of older drafts
        parents, name = error.instance_path, str(error.instance)
    for step in parents:
        if step == "patternProperties":
            schema.pop("additionalProperties", None)
        schema = schema[step]
    del schema[name]


def _warn(name: str, words: str) -> None:
    _log.warning("the tool %s: %s", name, words, extra=problem("unchecked_schema", tool=name))


def _size(value: Any, per_character: float = 0) -> float:
    """The number of places in a value. `per_character`: places for a character of a string. Raises RecursionError."""
    size, level = 0.0, [value]
    for _ in range(MAX_DEPTH + 1):
        size += len(level) + per_character * sum([len(one) for one in level if one.__class__ is str])
        inner = [one for one in level if one.__class__ is dict or one.__class__ is list]
        if not inner:
            return size
        level = [each for one in inner for each in ((*one, *one.values()) if one.__class__ is dict else one)]
    raise RecursionError


def _words(error: ValidationError) -> str:
    """The place of an error, the value, and what would fit: of choices, the closest."""
    choices = [errors[0] for errors in getattr(error.kind, "context", ()) if errors]
    if choices:
        depth = max(len(choice.instance_path) for choice in choices)
        closest = (_words(choice) for choice in choices if len(choice.instance_path) == depth)
        return _bounded(", or ".join(dict.fromkeys(closest)))
    message = error.message.replace(_MASK, _json(error.instance), 1)
    place = "".join(
        f"[{step!r}]" if isinstance(step, int) or not step.isidentifier() else f".{step}"
        for step in error.instance_path
    )
    return _bounded(f"`{place.removeprefix('.')}`: {message}" if place else message)


def _json(value: Any) -> str:
    return _bounded(json.dumps(value, ensure_ascii=False), _MAX_GIVEN)


def _bounded(text: str, most: int = _MAX_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
