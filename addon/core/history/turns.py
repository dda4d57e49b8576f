"""A request's history as turns: runs of Contents of one side, with the hashes that the ledger uses.

A `History` holds no bytes, only the positions of its Contents in the body, so it is valid for every later body that
begins with the same bytes. Histories grow at the end, so `History.of` continues from a known beginning.
"""

import functools
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import xxhash

from addon.core.framing.documents import Document, Malformed, all_utf8_of, decode, parts_of, trimmed
from addon.core.history.contents import (
    LONG_DATA,
    UNREAD,
    Content,
    Part,
    Span,
    TextContent,
    content_at,
    without_inline_data,
)
from addon.core.history.placeholder import Placeholder, may_hold_id
from addon.core.history.visible import count_words, text_of, visible_digest, visible_form

Side = Literal["user", "model"]
_SIDES: Mapping[Side, bytes] = {"user": b"user", "model": b"model"}

CALLS, RESPONSES, SERVER_TOOLS, SIGNATURES = 1, 2, 4, 8
"""Bits for the parts in a Content: functionCall, functionResponse, toolCall or toolResponse, thoughtSignature."""

_BITS = {
    "functionCall": CALLS,
    "function_call": CALLS,
    "functionResponse": RESPONSES,
    "function_response": RESPONSES,
    "toolCall": SERVER_TOOLS,
    "tool_call": SERVER_TOOLS,
    "toolResponse": SERVER_TOOLS,
    "tool_response": SERVER_TOOLS,
    "thoughtSignature": SIGNATURES,
    "thought_signature": SIGNATURES,
}
_NULL = msgspec.Raw(b"null")
_SPACE, _UNDERSCORE, _ASCII_END = 0x20, 0x5F, 0x80
_NO_TEXT = msgspec.Raw(b'""')


def _bits_of(parts: Sequence[Part]) -> int:
    holds = 0
    for part in parts:
        for key in part.keys() & _BITS.keys():
            if part[key] != _NULL:
                holds |= _BITS[key]
    return holds


class HistoryTurn(msgspec.Struct, eq=False, gc=False):
    """A run of consecutive Contents of one side, small because histories have many.

    `start` and `end`: its place in the body; `spans`: those of its Contents. Before `identify`, it has its `only_text`
    if it is a single text, or its raw `parts` if it is one Content of another kind. `identify` sets `utf8` (the text of
    a model turn, see `forget_text`), `may_hold_id` (whether the text may hold a placeholder's id), `digest` and
    `chain`. `key` and `memo` belong to the ledger: the key of the turn's own words, and the result of its look-up.
    `gc=False`: no turn is part of a reference cycle.
    """

    side: Side
    start: int
    end: int
    holds: int
    utf8: bytes = b""
    digest: bytes = b""
    chain: bytes = b""
    is_text_known: bool = False
    may_hold_id: bool = False
    only_text: msgspec.Raw = _NO_TEXT
    parts: list[Part] | None = None
    several: tuple[Span, ...] | None = None
    """The spans of its Contents if it is not one Content."""
    key: bytes = b""
    memo: Any = None
    _word_count: int = -1

    @property
    def spans(self) -> tuple[Span, ...]:
        return ((self.start, self.end),) if self.several is None else self.several

    @property
    def text(self) -> str:
        """The text, of model turns, if it is kept."""
        return self.utf8.decode()

    def forget_text(self) -> None:
        """Keep the text only if it may hold a placeholder: texts would be most of a long chat's memory."""
        self.only_text, self.parts = _NO_TEXT, None
        if not self.may_hold_id:
            self.utf8, self.is_text_known = b"", False

    def full_utf8(self, body: bytes) -> bytes:
        """The text of the turn in UTF-8, kept or not."""
        return self.utf8 if self.is_text_known else _hash_run(body, self.side, self.spans)[0]

    def full_text(self, body: bytes) -> str:
        """The text of the turn, kept or not."""
        return self.full_utf8(body).decode()

    def contents(self, body: bytes) -> list[Document]:
        return [decode(memoryview(body)[start:end]) for start, end in self.spans]

    def word_count(self, body: bytes) -> int:
        """The number of different words in the turn, as counted by `count_words`, which stops early."""
        if self._word_count < 0:
            try:
                contents = [decode(without_inline_data(body[start:end]).data) for start, end in self.spans]
                self._word_count = count_words(part for content in contents for part in parts_of(content))
            except Malformed:
                self._word_count = 0
        return self._word_count


class History:
    """The turns of a `contents` array. `end`: where its last Content ends in the body. `holds`: the bits of all turns.

    Results for the first turns are reused: the first `identified` turns have their hashes, `text_size` is the size of
    the texts to keep in bytes, and `memo` holds the ledger's results for the first `remembered` turns. `beginning`: the
    written form of the first turns, see `rewriting.Beginning`.
    """

    __slots__ = ("beginning", "end", "holds", "identified", "memo", "remembered", "text_size", "turns")

    def __init__(self, turns: Sequence[HistoryTurn], end: int, holds: int = 0) -> None:
        self.turns = turns
        self.end = end
        self.holds = holds
        self.identified = 0
        self.text_size = 0
        self.memo: Any = None
        self.remembered = 0
        self.beginning: Any = None

    @property
    def holds_signed_calls(self) -> bool:
        """Whether there may be calls with signatures."""
        return self.holds & (CALLS | SIGNATURES) == CALLS | SIGNATURES

    def inherit(self, known: "History", turns: int) -> None:
        """Reuse the results of a known history that has the same first `turns` turns."""
        self.identified = min(known.identified, turns)
        self.text_size = known.text_size
        self.memo = known.memo
        self.remembered = min(known.remembered, turns)
        if known.beginning is not None and known.beginning.end <= turns:
            self.beginning = known.beginning

    @classmethod
    def of(
        cls, spans: Sequence[Span], contents: Sequence[Content | TextContent], known: "History | None" = None
    ) -> "History":
        """The history that ends with these Contents, at `spans` of the body. `known`: the history before them."""
        turns = list(known.turns) if known else []
        holds = known.holds if known else 0
        run = turns[-1:]  # the pieces of the last turn; a known turn may continue, and is not changed itself
        for content, (start, end) in zip(contents, spans, strict=True):
            if isinstance(content, TextContent):
                only_text = content.parts[0].text if len(content.parts) == 1 else _NO_TEXT
                piece = HistoryTurn("model" if content.role == "model" else "user", start, end, 0, only_text=only_text)
            else:
                piece = _other_piece(content, start, end)
                holds |= piece.holds
            if run and run[0].side == piece.side:
                run.append(piece)
                continue
            if len(run) > 1:
                turns[-1] = _joined(run)
            run = [piece]
            turns.append(piece)
        if len(run) > 1:
            turns[-1] = _joined(run)
        history = cls(turns, spans[-1][1] if spans else (known.end if known else 0), holds)
        if known is not None:
            same = len(known.turns)
            history.inherit(known, same if same and turns[same - 1] is known.turns[-1] else max(0, same - 1))
        return history

    def by_turn[T](self, given: Mapping[int, T]) -> dict[int, T]:
        """Maps values for Contents, by index, to the model turns that consist of one such Content."""
        found: dict[int, T] = {}
        place = 0
        for index, turn in enumerate(self.turns if given else ()):
            if turn.side == "model" and turn.several is None and place in given:
                found[index] = given[place]
            place += len(turn.spans)
        return found

    def identify(self, body: bytes) -> None:
        """Set text, digest and chain of every turn that lacks them. `body`: the body that the history belongs to.

        `digest` identifies the visible form of a turn, `chain` the turn together with everything before it.
        """
        if self.identified == len(self.turns):
            return
        chain = self.turns[self.identified - 1].chain if self.identified else b""
        digest_of = xxhash.xxh3_128_digest
        for at in range(self.identified, len(self.turns), _AT_ONCE):
            turns = self.turns[at : at + _AT_ONCE]
            texts: Iterable[bytes | None] = all_utf8_of([turn.only_text for turn in turns]) or itertools.repeat(None)
            # no function calls for each turn, because histories have many
            for turn, utf8 in zip(turns, texts, strict=False):
                if turn.chain:
                    chain = turn.chain
                    continue
                if utf8 is None or turn.only_text is _NO_TEXT:
                    may_hold_data = turn.side == "model" and turn.end - turn.start > LONG_DATA
                    utf8, digest = _hash_run(body, turn.side, turn.spans, None if may_hold_data else turn.parts)
                    turn.parts = None
                else:
                    if not utf8 or not _SPACE < utf8[0] < _ASCII_END or not _SPACE < utf8[-1] < _ASCII_END:
                        utf8 = trimmed(utf8)
                    digest = digest_of(b"text" + utf8)
                turn.only_text = _NO_TEXT
                turn.digest = digest
                if turn.side == "model":
                    turn.utf8, turn.is_text_known = utf8, True
                    if _UNDERSCORE in utf8 and may_hold_id(utf8):
                        turn.may_hold_id = True
                        self.text_size += len(utf8)
                    turn.chain = chain = digest_of(b"chain%bmodel%b" % (chain, digest))  # like `chain_key`, for speed
                else:
                    turn.chain = chain = digest_of(b"chain%buser%b" % (chain, digest))
        self.identified = len(self.turns)


def _other_piece(content: Content, start: int, end: int) -> HistoryTurn:
    """A Content with other parts than texts, as a separate turn."""
    parts = content.each()
    holds = _bits_of(parts)
    # Antigravity sends functionResponses under the role `model`.
    is_model = content.role == "model" and not holds & RESPONSES
    return HistoryTurn("model" if is_model else "user", start, end, holds, parts=parts)


def _joined(run: Sequence[HistoryTurn]) -> HistoryTurn:
    spans = tuple([span for one in run for span in one.spans])
    holds = functools.reduce(operator.or_, [one.holds for one in run])
    return HistoryTurn(run[0].side, run[0].start, run[-1].end, holds, several=spans)


_AT_ONCE = 32
"""How many turns are read together: many, but few enough that their texts stay in the processor's caches."""


def _hash_run(body: bytes, side: Side, spans: Sequence[Span], parts: list[Part] | None = None) -> tuple[bytes, bytes]:
    """The text and the digest of a run. `parts`: its parts, if known. An undecodable run is hashed by its bytes."""
    try:
        if parts is None:
            pieces = [without_inline_data(body[start:end], is_answer=side == "model").data for start, end in spans]
            parts = [part for piece in pieces for part in content_at(piece).each()]
        return visible_form(parts)
    except (*UNREAD, Malformed):
        return b"", xxhash.xxh3_128_digest(b"unread" + b"".join(body[start:end] for start, end in spans))


def chain_key(before: bytes, side: Side, digest: bytes) -> bytes:
    """The hash of a turn with everything before it. `before`: the chain of the turn before it, b"" for none."""
    return xxhash.xxh3_128_digest(b"chain" + before + _SIDES[side] + digest)


def digest_without_ids(turn: HistoryTurn, body: bytes, placeholder: Placeholder) -> bytes:
    """The digest of a turn if its placeholders had no ids."""
    if not turn.may_hold_id or not placeholder.find(turn.text):
        return turn.digest
    parts = [part for content in turn.contents(body) for part in parts_of(content)]
    others = [part for part in parts if "text" not in part]
    return visible_digest([*others, {"text": placeholder.without_ids(text_of(parts))}])


def chains_without_ids(turns: Sequence[HistoryTurn], body: bytes, placeholder: Placeholder) -> list[bytes]:
    """The chain of each of these turns if no placeholder had an id."""
    first = next((at for at, turn in enumerate(turns) if turn.may_hold_id), len(turns))
    chains = [turn.chain for turn in turns[:first]]
    for turn in turns[first:]:
        chains.append(chain_key(chains[-1] if chains else b"", turn.side, digest_without_ids(turn, body, placeholder)))
    return chains


WINDOWS = 6
"""The maximum number of windows of a turn: of 2 turns, of 4, and so on."""


def windows(before: Sequence[bytes], digest: bytes) -> list[bytes]:
    """The hashes of a turn with the one turn before it, with the three before it, and so on. `before`: the digests of
    the turns before it, in order."""
    if not before:
        return []
    last = len(before) - 1
    found = [xxhash.xxh3_128_digest(b"window" + digest + before[last])]
    for at in range(last - 2, max(-1, last - 2 * WINDOWS), -2):
        found.append(xxhash.xxh3_128_digest(b"window" + found[-1] + before[at] + before[at + 1]))
    return found


def windows_without_ids(turns: Sequence[HistoryTurn], body: bytes, placeholder: Placeholder) -> list[bytes]:
    """The `windows` of any placeholder after these turns if those in it had no ids."""
    return windows([digest_without_ids(turn, body, placeholder) for turn in turns[-2 * WINDOWS :]], b"placeholder")
