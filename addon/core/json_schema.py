"""A JSON Schema as the service takes it in `parametersJsonSchema` and its like: nearly as it is.

The service reads the whole of JSON Schema there, and ignores what it does not enforce. It refuses a request for four
things alone: a value of the wrong kind; a `$ref` that names nothing; one with much beside it, or in the place of the
whole schema (not each of them is followed); references in a circle that no value gets out of. What of these can be
said in another way is said so; the rest is for the schema's author to mend. Pure: a schema is never changed in place,
and comes back itself where nothing stands against it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from addon.core.documents import as_list
from addon.core.schema import Unfit, join_path

type Schema = dict[str, Any]
type _Place = tuple[str, str | int | None]

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = (
    *("additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains"),
    *("propertyNames", "not", "if", "then", "else"),
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# What may stand beside a `$ref`, and beside one that is the whole schema without a word on what that holds.
_BESIDE_REF = ("description", "default")
_BESIDE_ROOT_REF = frozenset(("type", "title", "description", "definitions", "$defs", "$schema", "$id", "$comment"))


@dataclass(frozen=True, slots=True)
class _Edge:
    """A schema that values of its holder have to fit somewhere: by that required property, if it has a name.

    `path` leads to the schema, `at` to where the holder says so: they differ for a `$ref`.
    """

    holder: Schema
    name: str | None
    schema: Schema
    path: str
    at: str


def fit_schema(schema: Schema) -> Schema:
    """The schema in words that the service takes. Raises Unfit, with the path, where there are none.

    - A `$ref` that is the whole schema gives way to what it names.
    - A `$ref` with more than a description and a default beside it becomes an `anyOf` of one.
    - A required property in a circle of references that may be null becomes an optional one: null is no way out of a
      circle to the service.
    """
    try:
        _check(schema, "", schema)
        schema = _mapped(_rooted(schema), _wrapped)
        while circle := _circle(schema):
            schema = _opened(schema, circle)
    except RecursionError:
        raise Unfit("", "is nested too deeply") from None
    return schema


def _members(schema: Schema) -> Iterator[tuple[_Place, Any]]:
    """The schemas right inside of one: keyword, with name or index where it holds several, and schema."""
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            for name, member in value.items():
                yield (key, name), member
        elif key in (*_LISTS, "items") and isinstance(value, list):
            for index, member in enumerate(value):
                yield (key, index), member
        elif key in _SINGLE or key == "items":
            yield (key, None), value


def _path(path: str, place: _Place) -> str:
    key, name = place
    if name is None:
        return join_path(path, key)
    return f"{join_path(path, key)}[{name}]" if isinstance(name, int) else join_path(join_path(path, key), name)


def _mapped(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """A schema with a change made in it and in all inside of it; itself where none changes."""
    if not isinstance(schema, dict):
        return schema
    new = schema
    for (key, name), member in _members(schema):
        changed = _mapped(member, change)
        if changed is member:
            continue
        new = dict(new)
        if name is None:
            new[key] = changed
        else:
            new[key] = new[key].copy()
            new[key][name] = changed
    return change(new)


def _check(schema: Any, path: str, root: Schema) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise Unfit(path, "must be a schema: an object, or true or false")
    for key, value in schema.items():
        if key in _MAPS and not isinstance(value, dict):
            raise Unfit(join_path(path, key), "must be an object of schemas")
        if key in _LISTS and not isinstance(value, list):
            raise Unfit(join_path(path, key), "must be a list of schemas")
        if key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise Unfit(join_path(path, key), "must be a number" + ("; true is of draft 4" if value is True else ""))
    if "$ref" in schema and _named(schema["$ref"], root) is None:
        raise Unfit(join_path(path, "$ref"), f"is {schema['$ref']!r}, which names nothing inside of this schema")
    for place, member in _members(schema):
        _check(member, _path(path, place), root)


def _named(ref: Any, root: Schema) -> Schema | bool | None:
    """What a reference names in a schema, by a JSON pointer, an anchor or an `$id`; None where that is nothing."""
    if not isinstance(ref, str):
        return None
    base, _, fragment = ref.partition("#")
    fragment = unquote(fragment)
    start: Any = root if base in ("", root.get("$id")) else _find(root, lambda schema: schema.get("$id") == base)
    if fragment and not fragment.startswith("/"):
        return _find(start, lambda schema: schema.get("$anchor") == fragment)
    for step in fragment.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(start, list):
            start = start[int(name)] if name.isdecimal() and int(name) < len(start) else None
        else:
            start = start.get(name) if isinstance(start, dict) else None
    return start if isinstance(start, dict | bool) else None


def _find(schema: Any, wanted: Callable[[Schema], bool]) -> Schema | None:
    if not isinstance(schema, dict) or wanted(schema):
        return schema if isinstance(schema, dict) else None
    return next((found for _, member in _members(schema) if (found := _find(member, wanted)) is not None), None)


def _rooted(schema: Schema) -> Schema:
    """A whole schema that is no `$ref`."""
    seen: list[Any] = []
    while "$ref" in schema:
        named = _named(schema["$ref"], schema)
        if named in seen or not isinstance(named, dict) or named == schema:
            raise Unfit("$ref", "names no schema of an object")
        seen.append(named)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        clash = any(key in named and named[key] != value for key, value in beside.items())
        if clash or not beside.keys() <= _BESIDE_ROOT_REF:
            return _wrapped(schema)
        schema = {**named, **beside}
    return schema


def _wrapped(schema: Schema) -> Schema:
    """A `$ref` in an `anyOf` of one, which says the same, if more stands beside it than may."""
    if "$ref" not in schema or all(key in _BESIDE_REF or key.startswith("$") for key in schema):
        return schema
    key = next((key for key in ("anyOf", "oneOf", "allOf") if key not in schema), None)
    if key is None:
        raise Unfit("$ref", "stands beside anyOf, oneOf and allOf; leave out one of them")
    return {**{k: value for k, value in schema.items() if k != "$ref"}, key: [{"$ref": schema["$ref"]}]}


def _circle(root: Schema) -> list[_Edge]:
    """The first circle that every value would go round for ever, as the service sees it; empty if there is none."""
    done: set[int] = set()
    for start, at in _everywhere(root, ""):
        way: dict[int, _Edge] = {}  # how each schema that the search stands in was come to, by the schema's identity
        todo = [iter([_Edge({}, None, start, at, at)])]
        while todo:
            edge = next(todo[-1], None)
            if edge is None:
                todo.pop()
                done.update(way.popitem()[:1] if way else ())
            elif id(edge.schema) in way:
                schemas = list(way)
                return [way[schema] for schema in schemas[schemas.index(id(edge.schema)) + 1 :]] + [edge]
            elif id(edge.schema) not in done:
                way[id(edge.schema)] = edge
                todo.append(_needed(edge.schema, root, edge.path))
    return []


def _everywhere(schema: Any, path: str) -> Iterator[tuple[Schema, str]]:
    if isinstance(schema, dict):
        yield schema, path
        for place, member in _members(schema):
            yield from _everywhere(member, _path(path, place))


def _needed(schema: Schema, root: Schema, path: str) -> Iterator[_Edge]:
    """What a value of a schema holds, or is too: the service takes a choice for all that may be chosen."""
    if "$ref" in schema and isinstance(named := _named(schema["$ref"], root), dict):
        yield _Edge(schema, None, named, unquote(schema["$ref"]).lstrip("#/").replace("/", "."), path)
    empty = schema.get("type") == "array" and not schema.get("minItems")
    for (key, name), member in _members(schema):
        required = key == "properties" and name in as_list(schema.get("required"))
        held = key in (*_LISTS, "additionalProperties") or (key == "items" and not empty)
        if isinstance(member, dict) and (required or held):
            inner = _path(path, (key, name))
            yield _Edge(schema, str(name) if required else None, member, inner, inner)


def _opened(root: Schema, circle: list[_Edge]) -> Schema:
    """The schema with one property in the circle made optional: one that may be null."""
    edge = next((edge for edge in circle if edge.name is not None and _may_be_null(edge.schema)), None)
    if edge is None:
        raise Unfit(
            circle[-1].at,
            "goes in a circle of references that no value gets out of to Gemini; make one of the properties in it "
            "optional, or a list that may be empty",
        )
    old = edge.holder
    new = {**old, "required": [name for name in old["required"] if name != edge.name]}
    opened: Schema = _mapped(root, lambda schema: new if schema is old else schema)
    return opened


def _may_be_null(schema: Schema) -> bool:
    return "null" in as_list(schema.get("type")) or {"type": "null"} in as_list(schema.get("anyOf"))
