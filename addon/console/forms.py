"""Forms for JSON values: the fields of a JSON Schema, and the value of the entered texts. Pure.

Values that no field can represent are entered as JSON."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote

from addon.core.framing.documents import Document, Malformed, decode
from addon.core.security.untrusted import printable

ROOT = "value"
"""The name of the whole value's field. Members and items follow after slashes: `value/days/0`."""

_DEEPEST = 4
"""The most levels of nested lists and objects. Deeper values are entered as JSON."""
_MOST_FIELDS = 60
_MOST_CHOICES = 100
_MOST_ITEMS = 500
_MOST_REFERENCES = 8
_LONGEST_NUMBER = 400
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_KINDS: Mapping[Any, "Kind"] = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}

type Kind = Literal["text", "integer", "number", "boolean", "choice", "object", "list", "json"]


@dataclass(frozen=True, slots=True)
class Field:
    """An input, or a group of them. `key`: the member's name, "" for an item and for the whole value. `choices`: by
    their JSON. `fields`: of an object; `item`: of a list. `nullable`: an empty input of a required value is null."""

    key: str
    kind: Kind
    is_required: bool = True
    nullable: bool = False
    description: str = ""
    default: str = ""
    choices: tuple[tuple[str, Any], ...] = ()
    fields: tuple["Field", ...] = ()
    item: "Field | None" = None

    @property
    def segment(self) -> str:
        """The key as a part of a name: ASCII, without blanks and slashes."""
        return segment(self.key)


class BadFields(ValueError):
    """The input is not a value. `problems`: by the names of the fields. The message names their places."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{place(name)}: {words}" for name, words in problems.items()))
        self.problems = dict(problems)


def segment(key: str) -> str:
    return quote(key, safe="", errors="surrogatepass")


def place(name: str) -> str:
    """The place of a field in the value, for messages: `days[0]`."""
    words = ""
    for part in name.split("/")[1:]:
        words += f"[{part}]" if part.isdecimal() and words else f"{'.' if words else ''}{unquote(part)}"
    return printable(words) or "the value"


def form_of(schema: Document) -> Field | None:
    """The field of a JSON Schema's values. None: only JSON fits."""
    try:
        field = _Builder(schema).field(schema, "", is_required=True, depth=0)
    except _TooMany:
        return None
    return None if field.kind == "json" else field


class _TooMany(Exception):
    pass


class _Builder:
    def __init__(self, root: Document) -> None:
        self._root = root
        self._count = 0

    def field(self, given: Any, key: str, *, is_required: bool, depth: int) -> Field:
        self._count += 1
        if self._count > _MOST_FIELDS:
            raise _TooMany
        schema, nullable = self._plain(given)
        described: dict[str, Any] = {
            "is_required": is_required,
            "nullable": nullable,
            "description": _text(given, "description") or _text(schema, "description"),
            "default": _default(given) or _default(schema),
        }
        choices = [one for one in _choices(schema) if one is not None]
        if choices:
            kind: Kind = "choice" if len(choices) <= _MOST_CHOICES else "json"
            pairs = ((json.dumps(one), one) for one in choices)  # in ASCII
            return Field(key, kind, **described, choices=tuple(pairs) if kind == "choice" else ())
        name = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(name, str) and name in _KINDS:
            return Field(key, _KINDS[name], **described)
        properties, items = schema.get("properties"), schema.get("items")
        if name == "object" and isinstance(properties, dict) and properties and depth < _DEEPEST:
            required = schema.get("required")
            needed = required if isinstance(required, list) else []
            fields = tuple(
                self.field(member, name, is_required=name in needed, depth=depth + 1)
                for name, member in properties.items()
            )
            return Field(key, "object", **described, fields=fields)
        if name == "array" and isinstance(items, dict) and depth < _DEEPEST:
            return Field(key, "list", **described, item=self.field(items, "", is_required=True, depth=depth + 1))
        return Field(key, "json", **described)

    def _plain(self, schema: Any) -> tuple[Document, bool]:
        """The schema without a reference and without null (empty if no field can represent it), and whether null is
        allowed."""
        nullable = False
        for _ in range(_MOST_REFERENCES):
            if not isinstance(schema, dict):
                break
            kinds, choice = schema.get("type"), _alternatives(schema)
            if isinstance(reference := schema.get("$ref"), str):
                schema = self._referenced(reference)
            elif choice is not None:
                others = [one for one in choice if one != {"type": "null"}]
                nullable = nullable or len(others) < len(choice)
                schema = others[0] if len(others) == 1 else {}
            elif isinstance(kinds, list):
                others = [one for one in kinds if one != "null"]
                nullable = nullable or len(others) < len(kinds)
                schema = {**schema, "type": others[0] if len(others) == 1 else None}
            else:
                return ({} if {"allOf", "not", "if"} & schema.keys() else schema), nullable or None in _choices(schema)
        return {}, nullable

    def _referenced(self, reference: str) -> Any:
        """The target of a reference within the schema; None if it does not exist."""
        if not reference.startswith("#"):
            return None
        found: Any = self._root
        for part in reference[1:].split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found


def _alternatives(schema: Document) -> list[Any] | None:
    for key in ("anyOf", "oneOf"):
        if isinstance(found := schema.get(key), list):
            return found
    return None


def _choices(schema: Document) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) else []


def _text(schema: Any, name: str) -> str:
    found = schema.get(name) if isinstance(schema, dict) else None
    return found if isinstance(found, str) else ""


def _default(schema: Any) -> str:
    """The JSON of the default. It is shown but not entered, because the tool itself fills in missing values."""
    if not isinstance(schema, dict) or schema.get("default") is None:
        return ""
    try:
        return json.dumps(schema["default"], ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


class _Absent:
    """Stands for an optional value without input."""


def value_of(form: Field, entered: Mapping[str, str]) -> Any:
    """The value that was entered, by the fields' names. Raises BadFields."""
    reader = _Reader(entered)
    value = reader.value(form, ROOT)
    problems = reader.problems
    if not problems and (unknown := [name for name in entered if name not in reader.known]):
        problems = {unknown[0]: "the form no longer has this field: reload the page"}
    if problems:
        raise BadFields(problems)
    return value


class _Reader:
    def __init__(self, entered: Mapping[str, str]) -> None:
        self._entered = entered
        self.known: set[str] = set()
        self.problems: dict[str, str] = {}

    def value(self, field: Field, name: str) -> Any:
        """The value; _Absent without input, and for an invalid value, which is added to `problems`."""
        self.known.add(name)
        if field.kind == "object":
            return self._object(field, name)
        if field.kind == "list":
            return self._list(field, name)
        text = self._entered.get(name, "")
        if not text.strip() and (field.kind != "text" or not text):
            return self._nothing(field, name)
        try:
            return _READERS[field.kind](field, text)
        except ValueError as error:
            self.problems[name] = str(error)
            return _Absent

    def _nothing(self, field: Field, name: str) -> Any:
        if not field.is_required:
            return _Absent
        if field.nullable:
            return None
        self.problems[name] = "missing" if field.kind != "text" else "missing; an empty text can be given as JSON"
        return _Absent

    def _object(self, field: Field, name: str) -> Any:
        problems = dict(self.problems)
        value = {one.key: found for one, found in self._members(field, name) if found is not _Absent}
        if (field.is_required and not field.nullable) or self._is_entered(name):
            return value
        self.problems = problems  # members of an omitted object are not missing
        return None if field.is_required else _Absent

    def _members(self, field: Field, name: str) -> Iterator[tuple[Field, Any]]:
        for one in field.fields:
            yield one, self.value(one, f"{name}/{one.segment}")

    def _list(self, field: Field, name: str) -> Any:
        assert field.item is not None
        rest = (one[len(name) + 1 :].partition("/")[0] for one in self._entered if one.startswith(f"{name}/"))
        # An item that is a group also has an input, which is empty: the item may have no other.
        places = sorted({int(one) for one in rest if one.isascii() and one.isdecimal() and len(one) < 8})
        if len(places) > _MOST_ITEMS:
            self.problems[name] = f"more than {_MOST_ITEMS} items; they can be given as JSON"
        found = [self.value(field.item, f"{name}/{at}") for at in places[:_MOST_ITEMS]]
        if found or field.is_required:
            return found
        return _Absent

    def _is_entered(self, name: str) -> bool:
        return any(text.strip() for one, text in self._entered.items() if one.startswith(f"{name}/"))


def _integer(field: Field, text: str) -> int:
    if len(text) > _LONGEST_NUMBER or not _INTEGER.fullmatch(text.strip()):
        raise ValueError("must be a whole number, such as 3")
    return int(text)


def _number(field: Field, text: str) -> int | float:
    text = text.strip()
    if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
        raise ValueError("must be a number, such as 3 or 0.5")
    if _INTEGER.fullmatch(text):
        return int(text)
    if not math.isfinite(value := float(text)):
        raise ValueError("must be a number that is not as large")
    return value


def _boolean(field: Field, text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("must be true or false")
    return text == "true"


def _choice(field: Field, text: str) -> Any:
    for written, value in field.choices:
        if written == text:
            return value
    raise ValueError("must be one of the choices")


def _json(field: Field, text: str) -> Any:
    try:
        return decode(text.encode())
    except (Malformed, UnicodeEncodeError) as error:
        raise ValueError(f"must be JSON: {error}") from None


_READERS = {
    "text": lambda field, text: text,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "choice": _choice,
    "json": _json,
}
