"""An upper bound of the work of checking a value against a JSON Schema, computed from the schema alone. Pure.

References that lead out of the schema, and keywords whose work grows faster than the value, have no bound.
"""

import functools
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

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
