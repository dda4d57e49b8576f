"""Reads the usual history: each of its Contents is one text, user and model take turns, and nothing is written with
spaces.

Nearly every history is of this kind, so it is read with few steps for each turn: its texts are found by what stands
between them, and are hashed as soon as they are read. A history of any other kind is left to `contents` and `turns`.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from addon.core.framing.documents import Member, members, strings_in, trimmed
from addon.core.history.contents import Span
from addon.core.history.placeholder import may_hold_id
from addon.core.history.turns import History, HistoryTurn

_OPENING = re.compile(rb'[ \t\r\n]*{[ \t\r\n]*("contents"[ \t\r\n]*:[ \t\r\n]*)\[')
_FIRST = b'{"contents":[]'
_NO_TEXT = b'"'
_BACKSLASH = 0x5C
_SPACE, _UNDERSCORE, _ASCII_END = 0x20, 0x5F, 0x80

_AT_ONCE = 32
"""How many turns are read at once: many, but what they say stays in the processor's caches."""

_TAIL = 8192
"""How many bytes are searched for the user's last text, before all is read."""

_QUOTES = 64
"""How many quotes are looked at one by one."""


class _Form(NamedTuple):
    """How a Content of one side is written: what stands before its text and behind it, quotes included, and behind it
    up to the next text, or to the end of the array."""

    before: bytes
    behind: bytes
    to_next: bytes
    to_end: bytes


def _forms(user: tuple[bytes, bytes], model: tuple[bytes, bytes]) -> tuple[_Form, _Form]:
    return (
        _Form(*user, b"%b,%b" % (user[1], model[0]), b"%b]" % user[1]),
        _Form(*model, b"%b,%b" % (model[1], user[0]), b"%b]" % model[1]),
    )


_LAYOUTS = (
    _forms((b'{"role":"user","parts":[{"text":"', b'"}]}'), (b'{"role":"model","parts":[{"text":"', b'"}]}')),
    _forms((b'{"parts":[{"text":"', b'"}],"role":"user"}'), (b'{"parts":[{"text":"', b'"}],"role":"model"}')),
)


def usual_in(data: bytes, start: int, end: int) -> tuple[list[Member], History] | None:
    """The members of the object in `data[start:end]` and its history, with its hashes. None if it does not begin with
    a usual history. Raises Malformed."""
    opening = _OPENING.match(data, start, end)
    if opening is None:
        return None
    at = opening.end()
    layout = next((layout for layout in _LAYOUTS if data.startswith(layout[0].before, at)), None)
    if layout is None:
        return None
    first = _end_of_text(data, at + len(layout[0].before), end)
    if first is not None and not data.startswith((layout[0].to_next, layout[0].to_end), first):
        return None  # so are most other histories
    if (last := data.rfind(layout[1].to_next, max(at, end - _TAIL), end)) >= 0:
        stop = _end_of_text(data, last + len(layout[1].to_next), end)
        if stop is not None and not data.startswith((layout[0].to_next, layout[0].to_end), stop):
            return None  # a chat that has called functions since
    if (read := _read(data, at, end, layout)) is None:
        return None
    history, close = read
    others = members(_FIRST + data[close:end])[1:]
    shift = close - len(_FIRST)
    array = Member("contents", opening.start(1), opening.end(1), close)
    found = [array, *(Member(m.name, m.key + shift, m.start + shift, m.end + shift) for m in others)]
    return found, history


def _read(data: bytes, at: int, end: int, layout: tuple[_Form, _Form]) -> tuple[History, int] | None:
    """The history whose first Content begins at `at`, and the end of the array."""
    turns: list[HistoryTurn] = []
    chain, size, is_model = b"", 0, False
    digest_of = xxhash.xxh3_128_digest
    for spans, raw in _cut(data, at, end, layout):
        texts = strings_in(b'"%b"' % b'","'.join(raw))
        if texts is None or len(texts) != len(raw) or any([_is_open(text) for text in raw if text[-1:] == b"\\"]):
            return None  # what was found does not stand between texts
        for (start, stop), text in zip(spans, texts, strict=True):
            if not text or not _SPACE < text[0] < _ASCII_END or not _SPACE < text[-1] < _ASCII_END:
                text = trimmed(text)
            digest = digest_of(b"text" + text)
            if is_model:
                chain = digest_of(b"chain%bmodel%b" % (chain, digest))  # `chain_key`, for speed
                may_hold = _UNDERSCORE in text and may_hold_id(text)
                turns.append(HistoryTurn("model", start, stop, 0, text, digest, chain, True, may_hold))
                if may_hold:
                    size += len(text)
            else:
                chain = digest_of(b"chain%buser%b" % (chain, digest))
                turns.append(HistoryTurn("user", start, stop, 0, b"", digest, chain))
            is_model = not is_model
    history = History(turns, turns[-1].end)
    history.identified, history.text_size = len(turns), size
    return history, history.end + 1


def _cut(data: bytes, at: int, end: int, layout: tuple[_Form, _Form]) -> Iterator[tuple[list[Span], list[bytes]]]:
    """The spans of the Contents from `at` on, and their texts as JSON without quotes, many at once. What is no text has
    a quote in it."""
    find = data.find
    user, model = layout
    to_model, before_user, behind_user = user.to_next, len(user.before), len(user.behind)
    to_user, before_model, behind_model = model.to_next, len(model.before), len(model.behind)
    spans: list[Span] = []
    raw: list[bytes] = []
    while True:
        last, begin = user, at + before_user
        if (stop := find(to_model, begin, end)) < 0:
            break
        raw.append(data[begin:stop])
        stop += behind_user
        spans.append((at, stop))
        at = stop + 1
        last, begin = model, at + before_model
        if (stop := find(to_user, begin, end)) < 0:
            break
        raw.append(data[begin:stop])
        stop += behind_model
        spans.append((at, stop))
        at = stop + 1
        if len(raw) == _AT_ONCE:
            yield spans, raw
            spans, raw = [], []
    known = _end_of_text(data, begin, end)
    stop = find(last.to_end, begin if known is None else known, end if known is None else known + len(last.to_end))
    raw.append(_NO_TEXT if stop < 0 else data[begin:stop])
    spans.append((at, stop + len(last.behind)))
    yield spans, raw


def _end_of_text(data: bytes, at: int, end: int) -> int | None:
    """Where the text at `at` ends; None if it has too many quotes to look at."""
    for _ in range(_QUOTES):
        if (at := data.find(b'"', at, end)) < 0:
            break
        before = at - 1
        while data[before] == _BACKSLASH:
            before -= 1
        if (at - before) % 2 == 1:
            return at
        at += 1
    return None


def _is_open(text: bytes) -> bool:
    """Whether the quote behind this text belongs to it."""
    return (len(text) - len(text.rstrip(b"\\"))) % 2 == 1
