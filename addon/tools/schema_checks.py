"""Checks values against JSON Schemas, with messages for the model. References are never fetched.

A check may run in the event loop: patterns are matched in linear time, a schema that could take long is not used, and a
value that could take long is refused. `problems` and `schema_problem` read a schema once, and log a warning for each
part that they leave out. `name` is the tool's.
"""

import functools
import json
import logging
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from jsonschema_rs import RegexOptions, ValidationError, Validator, validator_cls_for

from addon.core.framing.documents import MAX_DEPTH
from addon.core.summaries import problem

MAX_WEIGHT = 1024
_REF_COST = 4  # following a reference
_MAX_TEXT = 64 * 1024
_MAX_PATTERNS = 64  # compiling one takes some milliseconds
_MAX_STATES = 256  # of a pattern: each character may require following all of them
_SAME_VALUE = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref")
_SEPARATE = ("properties", "prefixItems", "items", "additionalItems", "additionalProperties")  # one for each place
_TOGETHER = ("patternProperties", "contains", "propertyNames", "uniqueItems")  # all for the same places
_MAPS = ("properties", "patternProperties")
_COMPARED = ("enum", "const", "required", "dependentRequired")
_UNBOUNDED = frozenset(
    "unevaluatedProperties unevaluatedItems dependentSchemas dependencies $dynamicRef $recursiveRef".split()
)
_NAMES = ("$id", "id")  # in a subschema, they change the target of its references
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|.", re.DOTALL)

MAX_PROBLEMS = 10
_MAX_WORK = 2**22  # visits of places in a value; they take about 100 ms
_MAX_EXPLAINED = 2**12  # visits that list all errors: each visit may add one, with its message
_PER_CHARACTER = 1 / 64  # places for a character of a string
_PER_STATE = 1 / 4  # places for a character and a state of a pattern: few states are followed together
_MAX_CHARACTERS = 300  # of a problem
_MAX_GIVEN = 100  # characters of the value in a problem
_PATTERNS = RegexOptions(size_limit=1024 * 1024)
_MASK = "\ufffc"  # stands for the value in the library's message
_DRAFTS = tuple(f"http://json-schema.org/draft-0{number}/schema" for number in (4, 6, 7)) + tuple(
    f"https://json-schema.org/draft/{version}/schema" for version in ("2019-09", "2020-12")
)
_log = logging.getLogger(__name__)


class _Unbounded(Exception):
    pass


class _Work(NamedTuple):
    """How often, at most, the value itself is visited, and any place inside it. `recursions`: how many visits of one
    place inside start again at a schema that contains this one."""

    own: int
    below: int = 0
    recursions: int = 0


class Weight(NamedTuple):
    """`visits`: how often each place in a value is visited, at most, when it is checked. `states`: how many of a
    pattern are followed for each character, at most."""

    visits: int
    states: int


@functools.lru_cache(maxsize=1024)
def weight(text: str) -> Weight | None:
    """The weight of a schema (JSON text). None: without a bound, too high, or slow to read."""
    if len(text) > _MAX_TEXT or text.lower().count('"pattern') > _MAX_PATTERNS:
        return None
    try:
        schema = json.loads(text)
        weigher = _Weigher(schema)
        work = weigher.weigh(schema, 0)
    except (_Unbounded, RecursionError):
        return None
    most = max(work.own, work.below)
    return Weight(most, weigher.states) if most <= MAX_WEIGHT else None


class _Weigher:
    def __init__(self, root: Any) -> None:
        self.states = 0
        self._root = root
        self._known: dict[int, _Work] = {}
        self._open: dict[int, int] = {}  # the depth in the value at which a schema is being weighed

    def weigh(self, schema: Any, depth: int) -> _Work:
        if not isinstance(schema, dict):
            return _Work(1)
        if (known := self._known.get(id(schema))) is not None:
            return known
        if (since := self._open.get(id(schema))) is not None:
            if since == depth:
                raise _Unbounded
            return _Work(1, recursions=1)
        if any(key in _UNBOUNDED or (key in _NAMES and schema is not self._root) for key in schema):
            raise _Unbounded
        self.states = max([self.states, *map(_states, _patterns(schema))])
        if self.states > _MAX_STATES:
            raise _Unbounded
        self._open[id(schema)] = depth
        same = self._weigh_all(schema, _SAME_VALUE, depth)
        together = self._weigh_all(schema, _TOGETHER, depth + 1)
        separate = self._weigh_all(schema, _SEPARATE, depth + 1)
        recursions = sum(work.recursions for work in [*same, *together])
        recursions += max((work.recursions for work in separate), default=0)
        if recursions > 1:
            raise _Unbounded
        own = 1 + sum(work.own for work in same) + len(separate) // 8 + _REF_COST * ("$ref" in schema)
        own += sum(len(value) // 4 for key in _COMPARED if isinstance(value := schema.get(key), list | dict))
        below = sum(work.below for work in same) + sum(max(work.own, work.below) for work in together)
        below += max((max(work.own, work.below) for work in separate), default=0)
        del self._open[id(schema)]
        self._known[id(schema)] = found = _Work(own, below, recursions)
        return found

    def _weigh_all(self, schema: dict[str, Any], keys: Iterable[str], depth: int) -> list[_Work]:
        return [self.weigh(one, depth) for key in keys if key in schema for one in self._members(key, schema[key])]

    def _members(self, key: str, value: Any) -> list[Any]:
        if key == "$ref":
            return [self._resolve(value)]
        if key in _MAPS and isinstance(value, dict):
            return list(value.values())
        return value if isinstance(value, list) else [value]

    def _resolve(self, ref: Any) -> Any:
        """The subschema at a plain JSON pointer; None: no such place."""
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")) or "~" in ref or "%" in ref:
            raise _Unbounded
        found = self._root
        for name in ref.split("/")[1:]:
            if isinstance(found, dict):
                found = found.get(name)
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                return None
        return found


def _patterns(schema: dict[str, Any]) -> list[str]:
    names = schema.get("patternProperties")
    found = [schema.get("pattern"), *(names if isinstance(names, dict) else ())]
    return [one for one in found if isinstance(one, str)]


def _states(pattern: str) -> int:
    """The approximate number of states of a compiled pattern: its characters and classes, multiplied by their
    repetitions."""
    outer, states, last = list[int](), 0, 0
    for token in _TOKEN.finditer(pattern):
        least, most = token.groups()
        if least is not None:
            times = max(int(least[:9]), int((most or "0")[:9]), 1)
            states += last * (times - 1)
            last *= times
        elif token[0] == "(":
            outer.append(states)
            states = 0
        elif token[0] == ")" and outer:
            last, states = states, outer.pop() + states
        elif token[0] not in "*+?|^$":
            states, last = states + 1, 1
    return sum(outer, states)


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
    """Compile a schema (JSON text) of the tool `name`. Cached, because this takes far longer than checking a value."""
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
