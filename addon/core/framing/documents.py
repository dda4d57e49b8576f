"""Tolerant access to Gemini JSON: the positions of values in the bytes, and values by either spelling of their keys.

Requests are never decoded whole: `members` and `elements` find the spans of an object's or array's values (msgspec
skips over them in C), so bytes that are not rewritten go upstream unchanged. Small parts that are rewritten are decoded
to plain dicts.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from pydantic_core import SchemaValidator, core_schema

Document = dict[str, Any]

_WORD_START = re.compile(r"_([a-z0-9])")
_KEY = re.compile(rb'[ \t\r\n]*"((?:[^"\\]|\\.)*)"[ \t\r\n]*:[ \t\r\n]*')
_OPEN = re.compile(rb"[ \t\r\n]*[\[{]")
_GAP = re.compile(rb"[ \t\r\n]*")
_COMMA = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape in a string: a surrogate pair, half of one, or any other."""
_CLOSE = re.compile(rb"[ \t\r\n]*}[ \t\r\n]*")

_SPACE = 0x20
_ASCII_SPACES, _ASCII_END = b" \t\n\r\v\f\x1c\x1d\x1e\x1f", 0x80
_WIDEST = 4
"""The most bytes of a character in UTF-8."""
_LONGEST_CACHED = 128

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_any_decoder = msgspec.json.Decoder()
_utf8_decode = SchemaValidator(core_schema.list_schema(core_schema.bytes_schema())).validate_json
encode = msgspec.json.Encoder().encode


class Malformed(ValueError):
    """The bytes are not the expected JSON."""


class NotGrafted(Malformed):
    """The request is of a kind that the proxy passes on unchanged."""


class Member(NamedTuple):
    """A member of an object: its name in camelCase, the start of its key, and the start and end of its value."""

    name: str
    key: int
    start: int
    end: int


def camel(name: str) -> str:
    """`tool_config` → `toolConfig`; camelCase stays."""
    if "_" not in name:
        return name
    return _cached_camel(name) if len(name) <= _LONGEST_CACHED else _camel(name)


def _camel(name: str) -> str:
    return _WORD_START.sub(lambda m: m.group(1).upper(), name)


_cached_camel = lru_cache(maxsize=4096)(_camel)
"""The same few names repeat. Long names, which clients choose, are not cached."""


def decode(data: bytes | memoryview) -> Any:
    """Any JSON value. Invalid Unicode is replaced, see `replace_invalid_text`. Raises Malformed."""
    try:
        return _any_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        good = replace_invalid_text(bytes(data))
        if good == data:
            raise Malformed(str(error)) from None
    try:
        return _any_decoder.decode(good)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from None


def utf8_of(value: msgspec.Raw) -> bytes:
    """The UTF-8 of a string, as `decode` reads it; b"" if the value is no string. Raises Malformed."""
    decoded = decode(bytes(value))
    return decoded.encode() if isinstance(decoded, str) else b""


def all_utf8_of(values: Sequence[msgspec.Raw]) -> list[bytes] | None:
    """Like `utf8_of` for several values, in half the time; None if one of them is invalid or not a string."""
    try:
        found: list[bytes] = _utf8_decode(b"[%b]" % b",".join(values))
        return found
    except ValueError:
        return None


def trimmed(text: bytes) -> bytes:
    """The text without the white space that `str.strip` removes."""
    text = text.strip(_ASCII_SPACES)
    if not text or (text[0] < _ASCII_END and text[-1] < _ASCII_END):  # nearly every text
        return text
    first, last = text[:_WIDEST].decode(errors="ignore")[0], text[-_WIDEST:].decode(errors="ignore")[-1]
    return text.decode().strip().encode() if first.isspace() or last.isspace() else text


def replace_invalid_text(data: bytes) -> bytes:
    """JSON with U+FFFD instead of invalid Unicode: escaped halves of surrogate pairs, which strings of some languages
    hold, and bytes that are no UTF-8. Everything else stays unchanged, valid JSON or not."""
    try:
        data.decode()
    except UnicodeDecodeError:
        data = data.decode("utf-8", "replace").encode()
    return _ESCAPE.sub(_replace_half, data) if b"\\u" in data else data


def _replace_half(escape: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if escape["half"] is not None else escape[0]


def members(data: bytes, start: int = 0, end: int | None = None) -> list[Member]:
    """The members of the object in `data[start:end]`, in order.

    Raises Malformed if the bytes are not an object, or if a key occurs twice (in one spelling or in both).
    """
    end = len(data) if end is None else end
    try:
        raw = _object_decoder.decode(data if end - start == len(data) else memoryview(data)[start:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
    found: list[Member] = []
    opening = _OPEN.match(data, start)
    at = opening.end() if opening else start
    for name, value in raw.items():
        if found:
            if data.startswith(b',"', at):
                at += 1
            else:
                comma = _COMMA.match(data, at)
                at = comma.end() if comma else end
        plain = b'"%b":' % name.encode()
        if data.startswith(plain, at) and data[at + len(plain)] > _SPACE:  # compact JSON
            value_start = at + len(plain)
            found.append(Member(camel(name), at, value_start, at := value_start + len(value)))
            continue
        key = _KEY.match(data, at, end)
        if key is None or (key[1] != name.encode() and _any_decoder.decode(b'"' + key[1] + b'"') != name):
            raise Malformed("an object names a key twice")
        value_start = key.end()
        at = value_start + len(value)
        found.append(Member(camel(name), key.start(0) + _GAP.match(key[0]).end(), value_start, at))  # type: ignore[union-attr]
    if len({m.name for m in found}) != len(found):
        raise Malformed("an object names a key in both spellings")
    if _CLOSE.fullmatch(data, at, end) is None:
        raise Malformed("an object names a key twice")
    return found


def elements(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """The spans of the elements of the array in `data[start:end]`. Raises Malformed."""
    try:
        raw = _array_decoder.decode(memoryview(data)[start:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(str(error)) from None
    spans: list[tuple[int, int]] = []
    opening = _OPEN.match(data, start)
    at = opening.end() if opening else start
    gap, comma = _GAP.match, _COMMA.match
    at = gap(data, at).end()  # type: ignore[union-attr]
    for value in raw:
        if spans:
            at = at + 1 if data.startswith(b",{", at) else comma(data, at).end()  # type: ignore[union-attr]
        stop = at + len(value)
        spans.append((at, stop))
        at = stop
    return spans


def get(document: Mapping[str, Any], name: str) -> Any:
    """The value of a camelCase name in either spelling; None if absent or null."""
    value = document.get(name)
    if value is None:
        value = document.get(snake(name))
    return value


@lru_cache(maxsize=4096)
def snake(name: str) -> str:
    """`toolConfig` → `tool_config`."""
    return re.sub(r"[A-Z]", lambda m: "_" + m.group(0).lower(), name)


def as_list(value: Any) -> list[Any]:
    """The value as a list, [] for None. Proto JSON accepts a single value instead of a list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def parts_of(content: Mapping[str, Any]) -> list[Document]:
    """The parts of a Content that are objects."""
    return [part for part in as_list(content.get("parts")) if isinstance(part, dict)]


def content_of(candidate: Mapping[str, Any]) -> Document:
    """The candidate's Content; {} if it is missing or not an object."""
    content = candidate.get("content")
    return content if isinstance(content, dict) else {}


def index_of(document: Mapping[str, Any]) -> int:
    """The index of a candidate or choice; 0 if it is missing or invalid."""
    index = document.get("index")
    return index if isinstance(index, int) else 0


def objects(value: Any) -> Iterator[Document]:
    """The objects in a list (or the single object)."""
    return (item for item in as_list(value) if isinstance(item, dict))


MAX_DEPTH = 100
"""The most levels of objects and lists in a tool's declaration and in the arguments of a call: the limit of the service
and of the store, and a safe depth for recursion."""


def is_too_deep(value: Any) -> bool:
    """Whether JSON is nested more than MAX_DEPTH levels deep. Does not recurse."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        containers = [one for one in level if isinstance(one, (dict, list))]
        if not containers:
            return False
        level = [item for one in containers for item in (one.values() if isinstance(one, dict) else one)]
    return True


def memory_of(*documents: Any) -> int:
    """The memory use of decoded JSON in bytes, approximately: keys are mostly shared."""
    size, left = 0, list(documents)
    while left:
        value = left.pop()
        size += sys.getsizeof(value)
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, (list, tuple)):
            left += value
    return size
