"""The service's checks of JSON Schemas of arguments, function results and output. Pure; references are never fetched.

They are few: keywords that the service does not know or enforce are accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from addon.fake_gemini.errors import Refused

_OBJECTS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LOOP = (
    "ref loops are only supported if they include optional or nullable property values, or a potentially-zero-length "
    "array items, but a ref loop of required fields was found at "
)


def check_schema(schema: Any, *, vertex: bool) -> None:
    """Raise ``Refused`` if the service would."""
    if not isinstance(schema, dict):
        raise Refused("the schema at top-level must be an object")  # own words
    reader = _Reader(schema, vertex)
    if "$ref" in schema and not str(schema["$ref"]).startswith(
        "#/$defs/"
    ):  # no other reference is followed at top level
        raise Refused("reference to undefined schema at top-level")
    for member, path in _walk(schema, ""):
        reader.check(member, path)


def _subschemas(schema: dict[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
    """Keyword, schema and path of the direct subschemas."""
    dot = f"{path}." if path else ""
    for key, value in schema.items():
        if key in _OBJECTS and isinstance(value, dict):
            yield from ((key, member, f"{dot}{key}.{name}") for name, member in value.items())
        elif key in (*_LISTS, "items") and isinstance(value, list):
            yield from ((key, member, f"{dot}{key}.{n}") for n, member in enumerate(value))
        elif key in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
            yield key, value, f"{dot}{key}"


def _walk(schema: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(schema, dict):
        yield schema, path
        for _, member, place in _subschemas(schema, path):
            yield from _walk(member, place)


class _Reader:
    def __init__(self, schema: dict[str, Any], vertex: bool) -> None:
        registry: Registry[Any] = Registry().with_resource("", DRAFT202012.create_resource(schema))
        self._lookup = registry.resolver().lookup
        self._vertex = vertex
        self._without_loop: set[str] = set()  # references known not to loop

    def check(self, schema: dict[str, Any], path: str) -> None:
        for key, value in schema.items():
            if key in _OBJECTS and not isinstance(value, dict):
                raise Refused(f"value for {key} at {path or 'top-level'} must be an object")
            if key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise Refused(f"value at {f'{path}.' if path else ''}{key} must be a number")
        if "$ref" not in schema:
            return
        siblings = [key for key in schema if key not in ("description", "default") and not key.startswith("$")]
        if self._vertex and siblings:
            raise Refused(
                f"Schema.ref '{schema['$ref']}' was set alongside unsupported fields. If a schema node has $ref set, "
                "then only description and default can be set alongside it"
            )
        self._follow(schema["$ref"], path, ())

    def _follow(self, ref: Any, path: str, refs: tuple[str, ...]) -> None:
        try:
            target = self._lookup(ref).contents
        except (Unresolvable, AttributeError, TypeError):
            raise Refused(f"reference to undefined schema at {path}") from None
        if ref in refs:
            raise Refused(_LOOP + path)
        if ref not in self._without_loop:
            self._follow_required(target, ref.lstrip("#/").replace("/", "."), (*refs, ref))
            self._without_loop.add(ref)

    def _follow_required(self, schema: Any, path: str, refs: tuple[str, ...]) -> None:
        """Follow the subschemas that every value must have. All options of a choice count."""
        if not isinstance(schema, dict):
            return
        if "$ref" in schema:
            self._follow(schema["$ref"], path, refs)
        for key, member, place in _subschemas(schema, path):
            if key == "properties":
                name = place.removeprefix(f"{path}.properties." if path else "properties.")
                is_required = name in (schema.get("required") or [])
            elif key == "items":
                is_required = schema.get("type") != "array" or bool(schema.get("minItems"))
            else:
                is_required = key in (*_LISTS, "additionalProperties")
            if is_required:
                self._follow_required(member, place, refs)
