"""How much work a JSON Schema can make of a value: a bound that is known before anything is checked.

Patterns, references in a circle, and keywords whose work grows faster than the value have no bound here. Pure.
"""

import functools
import json
from typing import Any

_SAID = frozenset(
    "title description default example examples format deprecated readOnly writeOnly nullable propertyOrdering "
    "$schema $comment $defs definitions".split()
)
_ASSERTED = frozenset(
    "type enum const required minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength "
    "minItems maxItems minProperties maxProperties".split()
)
_CHOICES = ("anyOf", "oneOf", "allOf")
_REF = 4  # what it costs to follow a reference
_MAX_TEXT = 8192
_MAX_NODES = 128


class _Unbounded(Exception):
    pass


@functools.lru_cache(maxsize=1024)
def weight(text: str) -> int | None:
    """How often each place in a value is looked at, at most, when it is checked against the schema of this text.

    None: there is no bound, or reading the schema is itself too much to be done at once.
    """
    if len(text) > _MAX_TEXT or text.count("{") > _MAX_NODES:
        return None
    try:
        schema = json.loads(text)
        return max(_Weigher(schema).weigh(schema))
    except (_Unbounded, RecursionError):
        return None


class _Weigher:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._known: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def weigh(self, schema: Any) -> tuple[int, int]:
        """How often the value itself is looked at, and how often at most any place inside of it."""
        if isinstance(schema, bool):
            return 1, 0
        if not isinstance(schema, dict) or id(schema) in self._open:
            raise _Unbounded
        if (known := self._known.get(id(schema))) is not None:
            return known
        self._open.add(id(schema))
        here, inside, chosen = 1, 0, 0
        for key, value in schema.items():
            if key in _CHOICES or key == "$ref":
                for one in value if key in _CHOICES and isinstance(value, list) else [self._named(value)]:
                    its_own, its_inside = self.weigh(one)
                    here, chosen = here + its_own, chosen + its_inside
                here += _REF * (key == "$ref")
            elif key in ("properties", "prefixItems", "items", "additionalProperties"):
                members = _members(key, value)
                here += len(members) // 8
                inside = max(inside, *(count for member in members for count in self.weigh(member)), 0)
            elif key in _ASSERTED:
                here += len(value) // 4 if isinstance(value, list) else 0
            elif key not in _SAID and not key.startswith("x-"):
                raise _Unbounded
        self._open.discard(id(schema))
        self._known[id(schema)] = found = here, inside + chosen
        return found

    def _named(self, ref: Any) -> Any:
        """What a plain pointer into the schema names."""
        if not isinstance(ref, str) or not ref.startswith("#/") or "~" in ref or "%" in ref:
            raise _Unbounded
        found = self._root
        for step in ref[2:].split("/"):
            if not isinstance(found, dict) or step not in found:
                raise _Unbounded
            found = found[step]
        return found


def _members(key: str, value: Any) -> list[Any]:
    if key == "properties" and isinstance(value, dict):
        return list(value.values())
    if key == "prefixItems" and isinstance(value, list):
        return value
    return [value]
