"""Calls and responses in Contents: finds them, compares them by value, and writes them as text."""

import base64
import binascii
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from addon.core.framing.documents import Document, encode, get, objects, parts_of
from addon.core.history.outcomes import described
from addon.core.history.visible import canonical

_OWN = ("functionCall", "functionResponse")
_SERVER = ("toolCall", "toolResponse")
_CALLS = ("functionCall", "function_call", "functionCalls", "function_calls")
_CHAT_CALL = ("tool_calls", "function")
_ARGUMENTS = ("args", "arguments")


def decoded_signature(signature: Any) -> bytes | None:
    """The bytes of a thoughtSignature, which clients may send back in the URL-safe alphabet. None if it is missing.
    Text that is not base64 is returned as its UTF-8 bytes."""
    if not isinstance(signature, str):
        return None
    try:
        return base64.b64decode(signature.replace("-", "+").replace("_", "/") + "==")
    except (binascii.Error, ValueError):
        return signature.encode("utf-8", "surrogatepass")


def calls_in(contents: Sequence[Document]) -> list[Document]:
    """The functionCalls in these Contents, in order."""
    return [call for c in contents for part in parts_of(c) if isinstance(call := get(part, "functionCall"), dict)]


def called_names(document: Any) -> Iterator[Any]:
    """The names of all calls in a document, at any place and in any API's form."""
    left: list[tuple[str, Any]] = [("", document)]
    while left:
        key, value = left.pop()
        if isinstance(value, list):
            left += ((key, one) for one in value)
        elif isinstance(value, dict):
            is_call = key in _CALLS or value.get("type") == "function_call"
            if is_call:
                yield value.get("name", "")
            for name, inner in value.items():
                if not (is_call and name in _ARGUMENTS):  # they are the tool's
                    left.append((_CALLS[0] if (key, name) == _CHAT_CALL else name, inner))


def responses_in(contents: Sequence[Document]) -> list[Document]:
    """The functionResponses in these Contents, in order."""
    return [one for c in contents for part in parts_of(c) if isinstance(one := get(part, "functionResponse"), dict)]


def echoed_values(contents: Sequence[Document]) -> list[tuple[Any, ...]]:
    """The values in these Contents that the client must send back unchanged: each call as name, args, id and signature;
    the toolCall and toolResponse parts."""
    found: list[tuple[Any, ...]] = []
    for content in contents:
        for part in parts_of(content):
            signature = decoded_signature(get(part, "thoughtSignature"))
            if isinstance(call := get(part, "functionCall"), dict):
                found.append((call.get("name"), canonical(get(call, "args") or {}), call.get("id"), signature))
            found += [
                (kind, canonical(used, named=False), signature)
                for kind in _SERVER
                if isinstance(used := get(part, kind), dict)
            ]
    return found


def has_user_content(contents: Sequence[Document]) -> bool:
    """Whether a user turn holds anything but functionResponses."""
    return any(get(part, "functionResponse") is None for content in contents for part in parts_of(content))


def responses_lead(contents: Sequence[Document]) -> bool:
    """Whether all functionResponses come before everything else."""
    kinds = [get(part, "functionResponse") is not None for content in contents for part in parts_of(content)]
    return kinds == sorted(kinds, reverse=True)


def as_text(content: Document, *, calls: bool = True, server: bool = True) -> Document:
    """A Content with its calls and responses as text, so that it is valid without declared tools. Remaining responses
    go first, because no text may precede them. Text of responses gets the role `user`, whatever the client's role,
    because it is no answer of the model. The same object if nothing changes."""
    parts = parts_of(content)
    kinds = (_OWN if calls else ()) + (_SERVER if server else ())
    if all(get(part, kind) is None for part in parts for kind in kinds):
        return content
    flat = [_flat_part(part, calls=calls, server=server) for part in parts]
    if len(flat) > 1:
        flat.sort(key=lambda part: get(part, "functionResponse") is None)
    role = {"role": "user"} if calls and responses_in([content]) else {}
    return {**content, **role, "parts": flat}


def _flat_part(part: Document, *, calls: bool, server: bool) -> Document:
    if calls:
        if isinstance(call := get(part, "functionCall"), dict):
            return {"text": f"[Called {call.get('name')} with {_json(get(call, 'args') or {})}]"}
        if isinstance(answer := get(part, "functionResponse"), dict):
            also = "".join(f" and {described(part)}" for part in objects(get(answer, "parts")))
            return {"text": f"[{answer.get('name')} returned {_json(get(answer, 'response') or {})}{also}]"}
    if server:
        if isinstance(call := get(part, "toolCall"), dict):
            return {"text": f"[Used {get(call, 'toolType')} with {_json(call.get('args') or {})}]"}
        if isinstance(answer := get(part, "toolResponse"), dict):
            return {"text": f"[{get(answer, 'toolType')} returned {_json(answer.get('response') or {})}]"}
    return part


def _json(value: Any) -> str:
    return encode(value).decode()


def args_key(args: Mapping[str, Any]) -> bytes:
    """Arguments as a key. The order of members does not matter; 1, 1.0 and true differ; integers are exact."""
    return json.dumps(args, sort_keys=True, separators=(",", ":")).encode()
