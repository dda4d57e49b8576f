"""The text that replaces calls in a client's history: written from a template, and found again in a turn's text.

The texts come from clients and models, so the search takes linear time for any text: it finds ids first, and then
matches the template around each id, with names of limited length.
"""

import re
from collections.abc import Sequence

NAMES_LIMIT = 4096
"""The maximum length of the names in a placeholder."""

STATUSES = ("requested", "completed")
"""Values of `{status}`: a call is pending, or none is."""

TURN_ID = re.compile(r"turn_[0-9a-f]{16}")
_NAMES = re.compile(r"[\w.:-]+(?:, [\w.:-]+)*")
_WORD = re.compile(r"[^\W\d_]{3}")


class Placeholder:
    """A template such as `Tool call completed: {names} [{turn_id}]`, with or without `{names}` and `{status}`.

    The status is `requested` while the turn has a pending call, and `completed` otherwise. A client's history may hold
    either, whatever the current status.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        statuses = STATUSES if "{status}" in template else STATUSES[:1]
        self._forms = [_Form(template.replace("{status}", status)) for status in statuses]

    def text(self, names: Sequence[str], turn_id: str, *, is_pending: bool = True) -> str:
        text = self.template.replace("{names}", ", ".join(names)).replace("{turn_id}", turn_id)
        return text.replace("{status}", STATUSES[0] if is_pending else STATUSES[1])

    def after(self, text: str, names: Sequence[str], turn_id: str, *, is_pending: bool = True) -> str:
        """The placeholder to append to `text`: after a blank line, unless `text` is empty."""
        own = self.text(names, turn_id, is_pending=is_pending)
        if not text.strip():
            return own
        have = len(text) - len(text.rstrip("\n"))
        return "\n" * max(0, 2 - have) + own

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """The placeholders with an id in the text: (start, end, turn id), in order."""
        if len(self._forms) == 1:
            return self._forms[0].find(text)
        found: list[tuple[int, int, str]] = []
        # of two that overlap, take the one that begins later: the other has read it as names
        for one in sorted((one for form in self._forms for one in form.find(text)), key=lambda one: (one[1], -one[0])):
            if not found or one[0] >= found[-1][1]:
                found.append(one)
        return found

    def without_ids(self, text: str) -> str:
        """The text with its placeholders in their bare form, with names."""
        pieces, at = list[str](), 0
        for start, end, turn_id in self.find(text):
            pieces += [text[at:start], _without_id(*text[start:end].split(turn_id, 1))]
            at = end
        return "".join([*pieces, text[at:]]).strip()

    def bare_forms(self, text: str) -> set[str]:
        """What is left of a text that ends with a placeholder if a client drops the id, or the names as well."""
        if not (found := self.find(text)):
            return set()
        before = text[: found[-1][0]]
        return {self.without_ids(text), *((before + form.wordless).strip() for form in self._forms)}

    def may_be_bare(self, texts: Sequence[bytes]) -> list[bool]:
        """Whether `is_bare` may hold for each of these UTF-8 texts. It is False for nearly every text."""
        if len(self._forms) == 1:
            return self._forms[0].may_be_bare(texts)
        return [any(one) for one in zip(*(form.may_be_bare(texts) for form in self._forms), strict=True)]

    def is_bare(self, text: str) -> bool:
        """Whether the (trimmed) text is a bare placeholder, or ends with one on a separate line."""
        return any(form.is_bare(text) for form in self._forms) and not self.find(text)


class _Form:
    """A template such as `Tool call completed: {names} [{turn_id}]`, without `{status}`.

    The *bare* form is the template without the id, with or without names: `Tool call completed`, or `Tool call
    completed: get_weather`. A template without a word of three letters has no bare form, because any text could match.
    """

    def __init__(self, template: str) -> None:
        head, tail = template.split("{turn_id}")
        self._before, named, mid = head.strip().partition("{names}")
        self._mid = mid if named else None
        self._gap = head != head.rstrip()
        after, named, end = tail.rstrip().partition("{names}")
        self._after = after
        self._end = end if named else None
        bare = _without_id(head, tail)
        before, named, behind = bare.partition("{names}")
        self.wordless = wordless = f"{before.rstrip(' :-')}{behind}".strip()
        names = rf"[^\n]{{1,{NAMES_LIMIT}}}"
        forms = [re.escape(before) + names + re.escape(behind), re.escape(wordless)] if named else [re.escape(bare)]
        if _WORD.search(before) is None and _WORD.search(behind) is None:
            forms = []
        # Each form with its number of lines: it is matched against the last lines of a text, without a search.
        lines = [before.count("\n") + behind.count("\n") + 1, wordless.count("\n") + 1]
        self._bare = [(count, re.compile(rf"[ \t]*+{form}")) for count, form in zip(lines, forms, strict=False) if form]
        self._in_bare = before.rstrip(" :-")  # common to all forms
        self._in_bare_utf8 = self._in_bare.encode()
        self._most_lines = max(lines)

    def find(self, text: str) -> list[tuple[int, int, str]]:
        if "_" not in text or "turn_" not in text:  # one character is found much faster than several
            return []
        found: list[tuple[int, int, str]] = []
        floor = 0
        for turn_id in TURN_ID.finditer(text):
            if turn_id.start() < floor:
                continue
            start = self._start(text, floor, turn_id.start())
            end = self._stop(text, turn_id.end())
            if start is not None and end is not None:
                found.append((start, end, turn_id[0]))
                floor = end
        return found

    def may_be_bare(self, texts: Sequence[bytes]) -> list[bool]:
        always = self._in_bare_utf8
        if self._most_lines == 1:
            return [text.find(always, text.rfind(b"\n") + 1) >= 0 for text in texts]
        return [always in text for text in texts]

    def is_bare(self, text: str) -> bool:
        start = text.rfind("\n") if self._most_lines == 1 else _last_lines(text, self._most_lines)
        if text.find(self._in_bare, max(start, 0)) < 0:  # true for nearly every text
            return False
        return any(form.fullmatch(text, _last_lines(text, count)) for count, form in self._bare)

    def _start(self, text: str, floor: int, end: int) -> int | None:
        """The start of the template's text before an id at `end`, not before `floor`; None if it does not match."""
        if self._gap:
            while end > floor and text[end - 1].isspace():
                end -= 1
        if self._mid is None:
            at = end - len(self._before)
            return at if at >= floor and text.startswith(self._before, at) else None
        end -= len(self._mid)
        if end < floor or not text.startswith(self._mid, end):
            return None
        first = max(text.rfind("\n", max(floor, end - NAMES_LIMIT), end) + 1, end - NAMES_LIMIT, floor)
        at = text.find(self._before, max(first - len(self._before), floor), end)
        return at if at >= 0 else None

    def _stop(self, text: str, start: int) -> int | None:
        """The end of the template's text after an id that ends at `start`; None if it does not match."""
        if not text.startswith(self._after, start):
            return None
        start += len(self._after)
        if self._end is None:
            return start
        if not self._end:
            names = _NAMES.match(text, start, start + NAMES_LIMIT)
            return names.end() if names else None
        line = text.find("\n", start, start + NAMES_LIMIT)
        limit = start + NAMES_LIMIT if line < 0 else line
        at = text.find(self._end, start, limit + len(self._end))
        return at + len(self._end) if at >= 0 else None


def _without_id(head: str, tail: str) -> str:
    """The bare form of a placeholder from the texts before and after its id."""
    return f"{head.rstrip(' [(<')} {tail.lstrip(' ])>')}".strip()


def may_hold_id(utf8: bytes) -> bool:
    """Whether a text may hold a turn's id."""
    return utf8.find(b"turn_") >= 0


def _last_lines(text: str, count: int) -> int:
    """The start of the last `count` lines of a text."""
    start = len(text) + 1
    for _ in range(count):
        start = text.rfind("\n", 0, start - 1) + 1
        if start == 0:
            break
    return start
