"""Text that clients, tools and models choose: shown safely, and cached only if it is short.

Before text is shown, it is escaped: control characters act on terminals, line breaks forge log lines, and bidirectional
marks reverse words.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, cast

_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e\n]")
_INVISIBLE = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F),  # an invisible joiner
        (0x115F, 0x1160),  # Hangul fillers, also half-width
        (0x3164, 0x3164),
        (0xFFA0, 0xFFA0),
        (0x17B4, 0x17B5),  # Khmer vowels that are not written
        (0x180B, 0x180F),  # variation selectors, of which only U+FE0E and U+FE0F are common, after emoji
        (0xFE00, 0xFE0D),
        (0xE0100, 0xE01EF),
        (0x2800, 0x2800),  # Braille without a dot
    )
    for code in range(first, last + 1)
)
"""Invisible characters that Python calls printable. A row of them can hide text."""


def printable(text: str, *, lines: bool = False) -> str:
    """The text with unprintable characters escaped: C0 and C1, bidirectional and other invisible marks, halves of
    surrogate pairs, and line breaks. `lines`: line feeds stay."""

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        return character if _is_visible(character) else character.encode("unicode_escape").decode()

    text = _NOT_PRINTABLE.sub(escaped, text)
    return text if lines else text.replace("\n", "\\n")


def printable_json(text: str) -> str:
    """Equivalent JSON with unprintable characters as JSON escapes. Line feeds stay."""

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        if _is_visible(character):
            return character
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

    return _NOT_PRINTABLE.sub(escaped, text)


def _is_visible(character: str) -> bool:
    return character.isprintable() and character not in _INVISIBLE


LONGEST_CACHED = 2048
"""The maximum length of an argument whose result is cached."""


def cached_if_short[F: Callable[..., Any]](maxsize: int) -> Callable[[F], F]:
    """Like `functools.lru_cache`, for a function of positional arguments that have a length."""

    def decorate(function: F) -> F:
        cached = functools.lru_cache(maxsize)(function)

        @functools.wraps(function)
        def called(*args: Any) -> Any:
            for arg in args:
                if len(arg) > LONGEST_CACHED:
                    return function(*args)
            return cached(*args)

        return cast(F, called)

    return decorate
