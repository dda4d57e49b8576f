"""Positions in a document of tools, errors that name them, and checks of the values there."""

from __future__ import annotations

from dataclasses import dataclass

from addon.core.framing.documents import Document, camel

MAX_DEPTH = 100  # the service's limit, and a safe depth for recursion over a schema


class BadTool(ValueError):
    """An error in a document of tools.

    `tool`: the name of the tool, or its index if it has no name; "" if the error is in no tool. `field`: the dotted
    path to the error, such as `tools[0].function.parameters`, with Gemini's own keys in camelCase in either spelling;
    "" for the document. `message`: what is wrong, and what fits."""

    def __init__(self, tool: str, field: str, message: str) -> None:
        super().__init__(f"{field or 'the document'} {message}")
        self.tool = tool
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the document, for messages."""

    tool: str
    field: str

    def __truediv__(self, key: str) -> Position:
        return Position(self.tool, f"{self.field}.{key}" if self.field else key)

    def __getitem__(self, index: int) -> Position:
        return Position(self.tool, f"{self.field}[{index}]")

    def of(self, tool: str) -> Position:
        return Position(tool, self.field)

    def bad(self, message: str) -> BadTool:
        return BadTool(self.tool, self.field, message)


def check_bool(fields: Document, key: str, at: Position) -> None:
    if not isinstance(fields.get(key, False), bool):
        raise (at / key).bad("must be true or false")


def fields_of(value: object, known: tuple[str, ...], at: Position) -> Document:
    """An object's fields under their names in `known`, from either spelling. Null is unset; others are refused."""
    if not isinstance(value, dict):
        raise at.bad("must be an object")
    label = at.of(label_of(value, at))
    fields: Document = {}
    spellings: dict[str, str] = {}
    for key, member in value.items():
        name = key if key in known else camel(key)
        if name not in known:
            raise (label / key).bad(f"is not known; known fields are {', '.join(known)}")
        if name in spellings:
            raise (label / key).bad(
                f"is given together with {spellings[name]}, its other spelling; use only one of them"
            )
        spellings[name] = key
        if member is not None:
            fields[name] = member
    return fields


def label_of(value: Document, at: Position) -> str:
    """The label of a tool in messages: its name, if usable, else its index; "" outside of tools."""
    name = value.get("name")
    return name if at.tool and isinstance(name, str) and 0 < len(name) <= 128 else at.tool


def quoted(value: object) -> str:
    """A bad value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def list_at(value: object, at: Position) -> list[object]:
    """A list, or a single object instead of one."""
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise at.bad("must be a list")
    return value


def check_depth(value: object, at: Position) -> None:
    """Refuse a value that is nested too deeply for recursion. Checks level by level, without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            member
            for item in level
            if isinstance(item, dict | list)
            for member in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise at.bad(f"is nested deeper than {MAX_DEPTH} levels")
