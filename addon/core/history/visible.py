"""The visible form of a turn, its hash, and the different words in it.

The visible form is its text, joined over the run and trimmed, its calls as name and args, and its other parts. It
excludes thoughts, empty parts, ids and signatures, which clients drop or change.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import xxhash

from addon.core.framing.documents import Document, all_utf8_of, camel, decode, encode, get, objects, trimmed, utf8_of
from addon.core.history.contents import Part, data_identity, without_inline_data

_NULL = msgspec.Raw(b"null")
_TRUE = msgspec.Raw(b"true")

_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_parts = msgspec.json.Decoder(list[Part])


def visible_digest(parts: Iterable[Document]) -> bytes:
    """The digest that `turns.History.identify` computes for a turn of these (decoded) parts."""
    return visible_form(_raw_parts.decode(without_inline_data(encode(list(parts)), is_answer=True).data))[1]


def text_of(parts: Iterable[Document]) -> str:
    """The visible text of a turn of these (decoded) parts."""
    texts = [part["text"] for part in parts if not part.get("thought") and isinstance(part.get("text"), str)]
    return "".join(texts).strip()


def step_digests(parts: Sequence[Document]) -> list[bytes]:
    """The digests of what clients keep of a turn with calls: its text, if they keep it, and the names of its calls in
    any order. Some drop nulls from arguments, or fill in defaults. Empty without calls."""
    calls = [call for part in parts if not part.get("thought") and isinstance(call := get(part, "functionCall"), dict)]
    names = sorted(str(call.get("name")) for call in calls)
    texts = dict.fromkeys([text_of(parts), ""]) if names else {}
    return [xxhash.xxh3_128_digest(b"step" + encode([text, names])) for text in texts]


PREFIXES = 64
"""How many partial answers of a broken-off one are noted, besides the whole. Chats share only short texts by chance."""

_LONGEST_PREFIX = 2**16
"""The largest partial answer in bytes, because parts may be large."""


def prefix_digests(parts: Sequence[Part]) -> list[bytes]:
    """The digests of turns with the first of these parts, the first two, and so on to all. Each digest once."""
    visible = [raw for raw in parts if bytes(raw.get("thought", b"")) != b"true"]
    found: dict[bytes, None] = {}
    size = 0
    for count, raw in enumerate(visible[:PREFIXES], 1):
        size += sum(len(memoryview(value)) for value in raw.values())
        if size > _LONGEST_PREFIX:
            break
        found[visible_form(visible[:count])[1]] = None
    whole = visible_form(visible)[1]
    found.pop(whole, None)
    return [*found, whole]


def prefix_digests_of(parts: Iterable[Document]) -> list[bytes]:
    """`prefix_digests` of decoded parts."""
    return prefix_digests(_raw_parts.decode(without_inline_data(encode(list(parts)), is_answer=True).data))


_EXACT, _LARGEST = 2**53, 2**1000
_NOT_HASHED = frozenset({"text", "thought", "thoughtSignature", "functionCall", "functionResponse"})


def visible_form(parts: Iterable[Part]) -> tuple[bytes, bytes]:
    """The joined and trimmed text of a turn in UTF-8, and the hash of its visible form."""
    texts: list[msgspec.Raw] = []
    digest = xxhash.xxh3_128()
    for raw in parts:
        if len(raw) == 1 and "text" in raw:
            texts.append(raw["text"])  # the usual part
            continue
        part = {camel(key): value for key, value in raw.items() if value != _NULL} if raw else raw
        if part.get("thought") == _TRUE:
            continue
        if "text" in part:
            texts.append(part["text"])
        for kind, payload in (("functionCall", "args"), ("functionResponse", "response")):
            if kind in part:
                call = decode(part[kind])
                call = call if isinstance(call, dict) else {}
                named = [kind, get(call, "name"), canonical(get(call, payload) or {})]
                digest.update(encode(named))
                for one in objects(get(call, "parts")):
                    blob = get(one, "inlineData")
                    for piece in (
                        [encode(canonical(one, named=False))] if blob is None else _blob(msgspec.Raw(encode(blob)))
                    ):
                        digest.update(piece)
        for key in sorted(part.keys() - _NOT_HASHED):
            digest.update(key.encode())
            if key == "inlineData":
                for piece in _blob(part[key]):
                    digest.update(piece)
            else:
                digest.update(encode(canonical(decode(part[key]), named=False)))
    return _with_text(texts, digest)


def _with_text(texts: Sequence[msgspec.Raw], digest: xxhash.xxh3_128) -> tuple[bytes, bytes]:
    digest.update(b"text")
    if not texts:
        return b"", digest.digest()
    read = all_utf8_of(texts)
    joined = trimmed(b"".join(map(utf8_of, texts) if read is None else read))
    digest.update(joined)
    return joined, digest.digest()


_SEARCHED = 1000
"""How many characters of a part are searched for words."""

_WORD = re.compile(r"[^\W_]{2,}")
_UNSPACED = "\u2e80"
"""The first character of the scripts without spaces between words."""


ENOUGH_WORDS = 8
"""The count stops here, because no threshold is higher."""


def count_words(parts: Iterable[Document]) -> int:
    """The number of different words in the texts, calls and responses of (decoded) parts, at most `ENOUGH_WORDS`. Two
    characters of a script without spaces count as one word. Thoughts and media do not count. Only the beginning of a
    long part is searched."""
    words: set[str] = set()
    count = 0
    for part in parts:
        if part.get("thought"):
            continue
        text = part.get("text")
        for kind, payload in (("functionCall", "args"), ("functionResponse", "response")):
            if isinstance(call := get(part, kind), dict):
                text = f"{get(call, 'name')} {get(call, payload)}"
        if not isinstance(text, str):
            continue
        for match in _WORD.finditer(text[:_SEARCHED].casefold()):
            if (word := match[0]) not in words:
                words.add(word)
                count += 1 if word[0] < _UNSPACED else (len(word) + 1) // 2
                if count >= ENOUGH_WORDS:
                    return ENOUGH_WORDS
    return count


def _blob(raw: msgspec.Raw) -> list[bytes]:
    """The identity of inline data, in pieces. Any other value is identified by its bytes."""
    sent = bytes(raw)
    try:
        blob = {camel(key): bytes(value) for key, value in _raw_object.decode(sent).items()}
    except msgspec.ValidationError:
        return [sent]
    return [blob.get("mimeType", b"").replace(b"\\/", b"/"), data_identity(blob.get("data", b""))]


def canonical(value: Any, *, named: bool = True) -> Any:
    """JSON in a canonical form: keys sorted, numbers by value.

    `named`: the keys are the user's own and stay unchanged. Otherwise they are Gemini's, in either spelling.
    """
    if isinstance(value, dict):
        if not named:  # if a key occurs in both spellings, always the same one counts
            value = {camel(key): value[key] for key in sorted(value) if value[key] is not None}
        return {key: canonical(value[key], named=named) for key in sorted(value)}
    if isinstance(value, list):
        return [canonical(item, named=named) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, int) and abs(value) >= _EXACT:
        return float(value) if abs(value) < _LARGEST else str(value)  # most clients keep only a float
    return value
