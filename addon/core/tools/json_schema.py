"""Makes a JSON Schema acceptable to the service in `parametersJsonSchema` and similar fields.

There the service accepts all of JSON Schema, and ignores keywords that it does not enforce. It refuses a request only
for: a value of the wrong type; a `$ref` that names nothing; a `$ref` with most other keywords beside it, or as the
whole schema (the service does not follow every such `$ref`); a cycle of references that no finite value satisfies. If
an equivalent schema without the problem exists, it is used; otherwise the schema's author must fix it. Pure: a schema
is never changed in place, and is returned itself if it is acceptable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from addon.core.framing.documents import as_list
from addon.core.tools.schema import Schema, Unfit, join_path

type _Place = tuple[str, str | int | None]

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = (
    *("additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains"),
    *("propertyNames", "not", "if", "then", "else"),
)
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_DIGITS = 10  # Python refuses to parse numbers with very many digits
# Keywords that may stand beside a `$ref`, and beside one that is the whole schema.
_BESIDE_REF = ("description", "default")
_BESIDE_ROOT_REF = frozenset(("type", "title", "description", "definitions", "$defs", "$schema", "$id", "$comment"))


@dataclass(frozen=True, slots=True)
class _Edge:
    """A schema that each value of `holder` must contain a value of: in the required property `name`, if set.

    `path`: the position of the schema. `at`: the position in the holder, which differs for a `$ref`.
    """

    holder: Schema
    name: str | None
    schema: Schema
    path: str
    at: str


def fit_schema(schema: Schema) -> Schema:
    """An equivalent schema that the service accepts. Raises Unfit, with the path, if there is none.

    - A `$ref` that is the whole schema is replaced by the schema that it names.
    - A `$ref` with more than a description and a default beside it becomes an `anyOf` of one.
    - A required property that may be null becomes optional if it is in a cycle of references: the service does not
      accept null as the end of a cycle.
    """
    try:
        _check(schema, "", schema)
        schema = _map_schemas(_without_root_ref(schema), _with_wrapped_ref)
        while cycle := _cycle(schema):
            schema = _with_optional_property(schema, cycle)
    except RecursionError:
        raise Unfit("", "is nested too deeply") from None
    return schema


def _members(schema: Schema) -> Iterator[tuple[_Place, Any]]:
    """The direct subschemas: keyword, name or index (if the keyword holds several), and schema."""
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


def _map_schemas(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """Apply a change to a schema and all its subschemas. Returns the same object if nothing changes."""
    if not isinstance(schema, dict):
        return schema
    new = schema
    for (key, name), member in _members(schema):
        changed = _map_schemas(member, change)
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
    if "$ref" in schema and _resolve(schema["$ref"], root) is None:
        raise Unfit(join_path(path, "$ref"), f"is {schema['$ref']!r}, which names nothing in this schema")
    for place, member in _members(schema):
        _check(member, _path(path, place), root)


def _resolve(ref: Any, root: Schema) -> Schema | bool | None:
    """The schema that a reference names, by JSON pointer, anchor or `$id`; None if there is none."""
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
            is_place = name.isdecimal() and len(name) < _DIGITS
            start = start[int(name)] if is_place and int(name) < len(start) else None
        else:
            start = start.get(name) if isinstance(start, dict) else None
    return start if isinstance(start, dict | bool) else None


def _find(schema: Any, matches: Callable[[Schema], bool]) -> Schema | None:
    if not isinstance(schema, dict) or matches(schema):
        return schema if isinstance(schema, dict) else None
    return next((found for _, member in _members(schema) if (found := _find(member, matches)) is not None), None)


def _without_root_ref(schema: Schema) -> Schema:
    """The schema without a `$ref` at its top."""
    followed: list[Any] = []
    while "$ref" in schema:
        named = _resolve(schema["$ref"], schema)
        if named in followed or not isinstance(named, dict) or named == schema:
            raise Unfit("$ref", "names no schema of an object")
        followed.append(named)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        clash = any(key in named and named[key] != value for key, value in beside.items())
        if clash or not beside.keys() <= _BESIDE_ROOT_REF:
            return _with_wrapped_ref(schema)
        schema = {**named, **beside}
    return schema


def _with_wrapped_ref(schema: Schema) -> Schema:
    """The schema with its `$ref` moved into an equivalent `anyOf` of one, if other keywords stand beside it."""
    if "$ref" not in schema or all(key in _BESIDE_REF or key.startswith("$") for key in schema):
        return schema
    key = next((key for key in ("anyOf", "oneOf", "allOf") if key not in schema), None)
    if key is None:
        raise Unfit("$ref", "is given together with anyOf, oneOf and allOf; leave out one of them")
    return {**{k: value for k, value in schema.items() if k != "$ref"}, key: [{"$ref": schema["$ref"]}]}


def _cycle(root: Schema) -> list[_Edge]:
    """The first cycle that no finite value satisfies, as the service checks it; [] if there is none."""
    done: set[int] = set()
    for start, at in _all_schemas(root, ""):
        way: dict[int, _Edge] = {}  # id of each schema on the current path → the edge that led to it
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
                todo.append(_required_schemas(edge.schema, root, edge.path))
    return []


def _all_schemas(schema: Any, path: str) -> Iterator[tuple[Schema, str]]:
    if isinstance(schema, dict):
        yield schema, path
        for place, member in _members(schema):
            yield from _all_schemas(member, _path(path, place))


def _required_schemas(schema: Schema, root: Schema, path: str) -> Iterator[_Edge]:
    """The schemas that a value of a schema must also satisfy or contain. The service treats every alternative of a
    choice as required."""
    if "$ref" in schema and isinstance(named := _resolve(schema["$ref"], root), dict):
        yield _Edge(schema, None, named, unquote(schema["$ref"]).lstrip("#/").replace("/", "."), path)
    empty = schema.get("type") == "array" and not schema.get("minItems")
    for (key, name), member in _members(schema):
        required = key == "properties" and name in as_list(schema.get("required"))
        contained = key in (*_LISTS, "additionalProperties") or (key == "items" and not empty)
        if isinstance(member, dict) and (required or contained):
            inner = _path(path, (key, name))
            yield _Edge(schema, str(name) if required else None, member, inner, inner)


def _with_optional_property(root: Schema, cycle: list[_Edge]) -> Schema:
    """The schema with one property in the cycle made optional: one that may be null."""
    edge = next((edge for edge in cycle if edge.name is not None and _may_be_null(edge.schema)), None)
    if edge is None:
        raise Unfit(
            cycle[-1].at,
            "is in a cycle of references that no finite value satisfies for Gemini; make one of the properties in the "
            "cycle optional, or a list that may be empty",
        )
    old = edge.holder
    new = {**old, "required": [name for name in old["required"] if name != edge.name]}
    opened: Schema = _map_schemas(root, lambda schema: new if schema is old else schema)
    return opened


def _may_be_null(schema: Schema) -> bool:
    return "null" in as_list(schema.get("type")) or {"type": "null"} in as_list(schema.get("anyOf"))
