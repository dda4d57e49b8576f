"""A request's history as turns: runs of Contents of one side, and the hashes by which the ledger knows them.

A `History` holds no bytes, only where its Contents lie in the body: it fits every later body that begins with the
same bytes. Histories grow at their end, so `History.of` goes on from what is already known of the beginning.

The visible form of a turn is its text joined over the run and trimmed, its calls as name and args, and its other
parts; never thoughts, empty parts, ids or signatures, which clients lose or change on their way.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec
import xxhash

from addon.core.documents import Document, Malformed, as_list, camel, decode, encode, get, parts_of

Side = Literal["user", "model"]

_ABSENT = msgspec.Raw(b"null")


class _PartHead(msgspec.Struct, gc=False):
    call: msgspec.Raw = msgspec.field(default=_ABSENT, name="functionCall")
    call_: msgspec.Raw = msgspec.field(default=_ABSENT, name="function_call")
    response: msgspec.Raw = msgspec.field(default=_ABSENT, name="functionResponse")
    response_: msgspec.Raw = msgspec.field(default=_ABSENT, name="function_response")
    server: msgspec.Raw = msgspec.field(default=_ABSENT, name="toolCall")
    server_: msgspec.Raw = msgspec.field(default=_ABSENT, name="tool_call")
    served: msgspec.Raw = msgspec.field(default=_ABSENT, name="toolResponse")
    served_: msgspec.Raw = msgspec.field(default=_ABSENT, name="tool_response")
    signature: msgspec.Raw = msgspec.field(default=_ABSENT, name="thoughtSignature")
    signature_: msgspec.Raw = msgspec.field(default=_ABSENT, name="thought_signature")


class _Head(msgspec.Struct, gc=False):
    role: str | None = None
    parts: list[_PartHead] | _PartHead | None = None


class _RawContent(msgspec.Struct, gc=False):
    parts: list[dict[str, msgspec.Raw]] | dict[str, msgspec.Raw] | None = None


_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_parts = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_heads = msgspec.json.Decoder(list[_Head])
_contents = msgspec.json.Decoder(_RawContent)
_NULL = bytes(_ABSENT)

CALLS, RESPONSES, SERVER_TOOLS, SIGNATURES = 1, 2, 4, 8
"""What a Content holds, as bits: functionCall parts, functionResponse parts, toolCall or toolResponse parts, parts
with a thoughtSignature."""


_PLAIN = _PartHead()


def _holds(head: _Head) -> int:
    holds = 0
    for part in as_list(head.parts):
        if part == _PLAIN:
            continue
        for bit, raws in (
            (CALLS, (part.call, part.call_)),
            (RESPONSES, (part.response, part.response_)),
            (SERVER_TOOLS, (part.server, part.server_, part.served, part.served_)),
            (SIGNATURES, (part.signature, part.signature_)),
        ):
            for raw in raws:
                if raw is not _ABSENT and bytes(raw) != _NULL:
                    holds |= bit
    return holds


class HistoryTurn(msgspec.Struct, eq=False, gc=False):
    """A run of consecutive Contents of one side.

    `spans` are (start, end) in the body. `text` (of model turns), `digest` and `chain` are there after `identify`.
    `key` and `memo` are the ledger's: the key of the turn's own words, and what it was found to be. There are many
    turns, and none is part of a cycle: they are kept from the garbage collector.
    """

    side: Side
    spans: tuple[tuple[int, int], ...]
    holds: int
    text: str = ""
    digest: bytes = b""
    chain: bytes = b""
    key: bytes = b""
    memo: Any = None
    _words: int = -1

    def contents(self, body: bytes) -> list[Document]:
        """The run's Contents, decoded."""
        return [decode(memoryview(body)[start:end]) for start, end in self.spans]

    def words(self, body: bytes) -> int:
        """How many different words the turn says, as far as it was looked at: see `words_of`."""
        if self._words < 0:
            try:
                self._words = words_of(part for content in self.contents(body) for part in parts_of(content))
            except Malformed:
                self._words = 0
        return self._words


class History:
    """The turns of a `contents` array. `end` is where its last Content ends in the body; `holds` is what any holds.

    What was worked out for its first turns goes on with it: `identified` of them have been identified, their texts
    have `read` characters, and `memo` is the ledger's to remember what it found for the first `remembered`.
    """

    __slots__ = ("end", "holds", "identified", "memo", "remembered", "text_size", "turns")

    def __init__(self, turns: Sequence[HistoryTurn], end: int, holds: int = 0) -> None:
        self.turns = turns
        self.end = end
        self.holds = holds
        self.identified = 0
        self.text_size = 0
        self.memo: Any = None
        self.remembered = 0

    def inherit(self, known: "History", turns: int) -> None:
        """This history has its first `turns` turns in common with one that is known."""
        self.identified = min(known.identified, turns)
        self.text_size = known.text_size
        self.memo = known.memo
        self.remembered = min(known.remembered, turns)

    @classmethod
    def of(
        cls, array: bytes | memoryview, spans: Sequence[tuple[int, int]], known: "History | None" = None
    ) -> "History":
        """The history of `array`, a JSON array whose last elements are the Contents at `spans` of the body; after the
        turns that are `known` already, where given. Raises Malformed where a Content is not shaped as one."""
        try:
            heads = _heads.decode(array)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(str(error)) from None
        turns = list(known.turns) if known else []
        holds = known.holds if known else 0
        last = turns.pop() if turns else None  # it may go on; the known one stays as it is
        side: Side = last.side if last else "user"
        run = list(last.spans) if last else []
        held = last.holds if last else 0
        for head, span in zip(heads[len(heads) - len(spans) :], spans, strict=True):
            holds |= (new := _holds(head))
            # Antigravity sends functionResponses under the role `model`.
            of: Side = "model" if head.role == "model" and not new & RESPONSES else "user"
            if run and of != side:
                turns.append(last if last and len(last.spans) == len(run) else HistoryTurn(side, tuple(run), held))
                last, run, held = None, [], 0
            side = of
            run.append(span)
            held |= new
        if run:
            turns.append(last if last and len(last.spans) == len(run) else HistoryTurn(side, tuple(run), held))
        history = cls(turns, spans[-1][1] if spans else (known.end if known else 0), holds)
        if known is not None:
            same = len(known.turns)
            history.inherit(known, same if same and turns[same - 1] is known.turns[-1] else max(0, same - 1))
        return history

    def identify(self, body: bytes) -> None:
        """Fill in text, digest and chain of every turn that lacks them. `body` is what the history was read from.

        `digest` identifies the words of a turn, `chain` the turn together with everything before it.
        """
        chain = self.turns[self.identified - 1].chain if self.identified else b""
        for turn in self.turns[self.identified :]:
            if not turn.chain:
                text, turn.digest = _identity(body, turn.spans)
                turn.text = text if turn.side == "model" else ""
                turn.chain = chain_key(chain, turn.side, turn.digest)
            chain = turn.chain
            self.text_size += len(turn.text)
        self.identified = len(self.turns)


def _identity(body: bytes, spans: Iterable[tuple[int, int]]) -> tuple[str, bytes]:
    """The text and the digest of a run. What cannot be read is known by its bytes, and nothing else equals it."""
    pieces = [memoryview(body)[start:end] for start, end in spans]
    try:
        return visible_form(part for piece in pieces for part in as_list(_contents.decode(piece).parts))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Malformed):
        return "", xxhash.xxh3_128_digest(b"unread" + b"".join(pieces))


def chain_key(before: bytes, side: Side, digest: bytes) -> bytes:
    """The key of a turn with everything before it (`before`: the key of the turn before it, b"" for none)."""
    return xxhash.xxh3_128_digest(b"chain" + before + side.encode() + digest)


WINDOWS = 6
"""How many windows a turn has at most: of 2 turns, of 4, and so on."""


def windows(before: Sequence[bytes], digest: bytes) -> list[bytes]:
    """The hashes of a turn with the one before it, with the three before it, and so on, as far as there are so many.
    `before`: the digests of the turns before it, in order."""
    found: list[bytes] = []
    start = len(before) - 1
    while start >= 0 and len(found) < WINDOWS:
        digest = xxhash.xxh3_128_digest(b"window" + digest + b"".join(before[start : start + (2 if found else 1)]))
        found.append(digest)
        start -= 2
    return found


def visible_digest(parts: Iterable[Document]) -> bytes:
    """The digest of a turn made of these (decoded) parts, as `History.identify` would find it."""
    return visible_form(_raw_parts.decode(encode(list(parts))))[1]


PREFIXES = 64
"""How many beginnings of an answer a client may be taken to have kept, besides all that came. What chats say alike by
chance is short."""

_SHORT = 2**16
"""Bytes of the longest of them: parts may be large."""


def prefix_digests(parts: Sequence[dict[str, msgspec.Raw]]) -> list[bytes]:
    """The digests of a turn that was made of the first of these parts, of the first two, and so on; the last is of all
    of them. Each once."""
    seen = [raw for raw in parts if bytes(raw.get("thought", b"")) != b"true"]
    found: dict[bytes, None] = {}
    size = 0
    for count, raw in enumerate(seen[:PREFIXES], 1):
        size += sum(len(memoryview(value)) for value in raw.values())
        if size > _SHORT:
            break
        found[visible_form(seen[:count])[1]] = None
    whole = visible_form(seen)[1]
    found.pop(whole, None)
    return [*found, whole]


def prefix_digests_of(parts: Iterable[Document]) -> list[bytes]:
    """The same of decoded parts."""
    return prefix_digests(_raw_parts.decode(encode(list(parts))))


_EXACT, _LARGEST = 2**53, 2**1000
_UNSEEN = frozenset({"text", "thought", "thoughtSignature", "functionCall", "functionResponse"})


def visible_form(parts: Iterable[dict[str, msgspec.Raw]]) -> tuple[str, bytes]:
    """The joined text of a turn, trimmed, and the hash of its visible form."""
    texts: list[str] = []
    digest = xxhash.xxh3_128()
    for raw in parts:
        if len(raw) == 1 and "text" in raw and isinstance(value := decode(raw["text"]), str):
            texts.append(value)  # as nearly all are
            continue
        part = {camel(key): value for key, value in raw.items() if bytes(value) != _NULL} if raw else raw
        if "thought" in part and bytes(part["thought"]) == b"true":
            continue
        if (text := part.get("text")) is not None:
            value = decode(text)
            if isinstance(value, str):
                texts.append(value)
        for kind, payload in (("functionCall", "args"), ("functionResponse", "response")):
            if kind in part:
                call = decode(part[kind])
                call = call if isinstance(call, dict) else {}
                named = [kind, get(call, "name"), canonical(get(call, payload) or {})]
                digest.update(encode(named))
        for key in sorted(part.keys() - _UNSEEN):
            digest.update(key.encode())
            if key == "inlineData":
                digest.update(_blob(part[key]))
            else:
                digest.update(encode(canonical(decode(part[key]), named=False)))
    joined = "".join(texts).strip()
    digest.update(b"text")
    digest.update(joined.encode("utf-8", "surrogatepass"))
    return joined, digest.digest()


_LOOKED_AT = 1000
"""Characters of a part, from its beginning, whose words are counted: nothing depends on there being very many."""

_WORD = re.compile(r"[^\W_]{2,}")
_UNSPACED = "\u2e80"
"""From here on characters are written without spaces between words, or mean a syllable each."""


def words_of(parts: Iterable[Document]) -> int:
    """How many different words are in the texts, calls and responses of (decoded) parts; two characters of a script
    that has no spaces count for one. What it begins with is enough of a long part. Thoughts and media do not count."""
    words: set[str] = set()
    for part in parts:
        if part.get("thought"):
            continue
        text = part.get("text")
        for kind, payload in (("functionCall", "args"), ("functionResponse", "response")):
            if isinstance(call := get(part, kind), dict):
                text = f"{get(call, 'name')} {get(call, payload)}"
        if isinstance(text, str):
            words.update(_WORD.findall(text[:_LOOKED_AT].casefold()))
    return sum(1 if word[0] < _UNSPACED else (len(word) + 1) // 2 for word in words)


def _blob(raw: msgspec.Raw) -> bytes:
    """Media by its content: clients may send base64 back in the URL-safe alphabet, and without padding. What is no
    media is known by its bytes."""
    try:
        blob = {camel(key): bytes(value) for key, value in _raw_object.decode(raw).items()}
    except msgspec.ValidationError:
        return bytes(raw)
    data = blob.get("data", b'""')
    for other, usual in ((b"\\/", b"/"), (b"-", b"+"), (b"_", b"/")):
        if other in data:
            data = data.replace(other, usual)
    return blob.get("mimeType", b"").replace(b"\\/", b"/") + data.rstrip(b'="')


def canonical(value: Any, *, named: bool = True) -> Any:
    """JSON in the one form that equal values share: keys sorted, numbers by value.

    `named`: the keys are the user's own, and stay. Otherwise they are Gemini's, and either spelling is the same.
    """
    if isinstance(value, dict):
        items = value.items() if named else ((camel(k), v) for k, v in value.items() if v is not None)
        return {key: canonical(item, named=named) for key, item in sorted(items)}
    if isinstance(value, list):
        return [canonical(item, named=named) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    if isinstance(value, int) and abs(value) >= _EXACT:
        return float(value) if abs(value) < _LARGEST else str(value)  # a float is all that most clients keep of it
    return value
