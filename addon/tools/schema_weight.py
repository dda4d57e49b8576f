"""An upper bound of the work of checking a value against a JSON Schema, computed from the schema alone. Pure.

Patterns, circular references, and keywords whose work grows faster than the value have no bound.
"""

import functools
import json
from typing import Any

_ANNOTATIONS = frozenset(
    "title description default example examples format deprecated readOnly writeOnly nullable propertyOrdering "
    "$schema $comment $defs definitions".split()
)
_CHEAP_ASSERTIONS = frozenset(
    "type enum const required minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength "
    "minItems maxItems minProperties maxProperties".split()
)
_CHOICES = ("anyOf", "oneOf", "allOf")
_REF_COST = 4  # following a reference
_MAX_TEXT = 8192
_MAX_NODES = 128


class _Unbounded(Exception):
    pass


@functools.lru_cache(maxsize=1024)
def weight(text: str) -> int | None:
    """How often each place in a value is visited, at most, when it is checked against this schema (JSON text).

    None: there is no bound, or the schema is too large to be read in the event loop.
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
        """How often, at most, the value itself is visited, and any place inside it."""
        if isinstance(schema, bool):
            return 1, 0
        if not isinstance(schema, dict) or id(schema) in self._open:
            raise _Unbounded
        if (known := self._known.get(id(schema))) is not None:
            return known
        self._open.add(id(schema))
        own, nested, choices_inside = 1, 0, 0
        for key, value in schema.items():
            if key in _CHOICES or key == "$ref":
                for choice in value if key in _CHOICES and isinstance(value, list) else [self._resolve(value)]:
                    choice_own, choice_inside = self.weigh(choice)
                    own, choices_inside = own + choice_own, choices_inside + choice_inside
                own += _REF_COST * (key == "$ref")
            elif key in ("properties", "prefixItems", "items", "additionalProperties"):
                members = _members(key, value)
                own += len(members) // 8
                nested = max(nested, *(count for member in members for count in self.weigh(member)), 0)
            elif key in _CHEAP_ASSERTIONS:
                own += len(value) // 4 if isinstance(value, list) else 0
            elif key not in _ANNOTATIONS and not key.startswith("x-"):
                raise _Unbounded
        self._open.discard(id(schema))
        self._known[id(schema)] = found = own, nested + choices_inside
        return found

    def _resolve(self, ref: Any) -> Any:
        """The subschema that a plain JSON pointer refers to."""
        if not isinstance(ref, str) or not ref.startswith("#/") or "~" in ref or "%" in ref:
            raise _Unbounded
        found = self._root
        for name in ref[2:].split("/"):
            if not isinstance(found, dict) or name not in found:
                raise _Unbounded
            found = found[name]
        return found


def _members(key: str, value: Any) -> list[Any]:
    if key == "properties" and isinstance(value, dict):
        return list(value.values())
    if key == "prefixItems" and isinstance(value, list):
        return value
    return [value]
