"""Corrupts bytes and documents, like broken services, careless proxies and attackers."""

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

_TOKENS = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b'"\\ud800"',
    b'"\\u0000"',
    b"\xff\xfe",
    b"[" * 3000,
    b'{"a":' * 1500,
    b"null",
    b"{}",
    b"[]",
    b'""',
    b"true",
    b"\r\n\r\n",
    b"\n\ndata: ",
    b"data: [DONE]\n\n",
    b'{"error":{"code":500,"message":"m","status":"INTERNAL"}}',
    b'"functionCall"',
    b'"function_call":{"name":"hidden_tool","args":{}}',
    b'"thought":true,',
    b'"index":7,',
    b'"index":-1,',
    b'"index":"1",',
    b'"finishReason":"STOP",',
    b'"finishReason":{},',
    b'"parts":{},',
    b'"name":null,',
    b'"args":[1],',
)


def mutated(data: bytes, rng: random.Random, most: int = 4) -> bytes:
    """`data` with one to `most` changes."""
    for _ in range(rng.randint(1, most)):
        data = rng.choice(_CHANGES)(data, rng)
    return data


def _span(data: bytes, rng: random.Random, longest: int = 40) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.randint(1, longest))


def _flipped(data: bytes, rng: random.Random) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng)
    return data[:start] + data[end:]


def _ended(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def _repeated(data: bytes, rng: random.Random) -> bytes:
    start, end = _span(data, rng, 400)
    return data[:end] + data[start:end] + data[end:]


def _inserted(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice(_TOKENS) + data[at:]


def _replaced(data: bytes, rng: random.Random) -> bytes:
    """Replace a value, or the bytes between two of JSON's delimiters."""
    signs = [at for at, byte in enumerate(data) if byte in b'{}[]:,"']
    if len(signs) < 2:
        return data
    at = rng.randrange(len(signs) - 1)
    return data[: signs[at] + 1] + rng.choice(_TOKENS) + data[signs[at + 1] :]


_CHANGES = (_flipped, _cut, _ended, _repeated, _inserted, _replaced)


def pieces(data: bytes, rng: random.Random) -> list[bytes]:
    """The bytes in pieces, like from a connection."""
    found: list[bytes] = []
    while data:
        size = rng.choice((1, 7, 60, 500, 5000, 100_000))
        found.append(data[:size])
        data = data[size:]
    return found


_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 0.5, 1e308, 2**63, 2**70),
    *("", "x", "\x00", "\u202e", "x" * 10_000, "\ud7ff\U0010ffff"),
    *([], {}, [None], {"": None}, [[[[]]]], {"a": {"a": {}}}, ["default"], {"$ref": "#"}, {"type": "function"}),
    *("default", "get_weather", "worker-1", "***", "http://127.0.0.1:9/x", "${HOME}", "../../x", "a b", "-"),
)


def altered(document: Any, rng: random.Random, most: int = 3) -> Any:
    """A document with up to `most` values changed, left out, doubled or added. It stays JSON."""
    document = deepcopy(document)
    for _ in range(rng.randint(0, most)):
        holders = list(_holders(document))
        if not holders:
            return rng.choice(_VALUES)
        holder = rng.choice(holders)
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        change = rng.randrange(4)
        if change == 0:
            holder[key] = deepcopy(rng.choice(_VALUES))
        elif change == 1:
            del holder[key]
        elif isinstance(holder, list):
            holder.append(deepcopy(holder[key] if change == 2 else rng.choice(_VALUES)))
        elif change == 2:
            holder[f"{key}_"] = deepcopy(holder[key])
        else:
            holder[key] = [holder[key]]
    return document


_KEYS = (
    *("candidates", "content", "parts", "functionCall", "function_call", "index", "response", "error", "finishReason"),
    *("choices", "delta", "message", "tool_calls", "function", "finish_reason", "name", "args", "arguments", "id"),
    *("step", "steps", "interaction", "event_type", "type", "toolCall", "functionCalls", "serverContent", "modelTurn"),
)


def misplaced(documents: Any, rng: random.Random, most: int = 3) -> Any:
    """Documents with up to `most` values moved or repeated elsewhere, or under another key. They stay JSON."""
    documents = deepcopy(documents)
    for _ in range(rng.randint(1, most)):
        if not (holders := list(_holders(documents))):
            break
        source, to = rng.choice(holders), rng.choice(holders)
        key = rng.choice(list(source) if isinstance(source, dict) else range(len(source)))
        value = deepcopy(source[key])
        if rng.random() < 0.5:
            del source[key]
        if isinstance(to, list):
            to.insert(rng.randint(0, len(to)), value)
        else:
            to[key if isinstance(key, str) and rng.random() < 0.6 else rng.choice(_KEYS)] = value
    return documents


def _holders(value: Any) -> Iterator[Any]:
    """The non-empty objects and lists in a value."""
    if isinstance(value, dict | list) and value:
        yield value
        for inner in list(value.values()) if isinstance(value, dict) else value:
            yield from _holders(inner)
