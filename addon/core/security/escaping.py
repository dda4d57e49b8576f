"""Escapes text from tools, models and clients before it is shown: a terminal obeys control characters, a line break
forges a log line, and a bidirectional mark reverses words."""

import re

_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e\n]")


def printable(text: str, *, lines: bool = False) -> str:
    """The text with unprintable characters escaped: C0 and C1, bidirectional and other invisible marks, halves of
    surrogate pairs, and line breaks. `lines`: line feeds stay."""

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        return character if character.isprintable() else character.encode("unicode_escape").decode()

    text = _NOT_PRINTABLE.sub(escaped, text)
    return text if lines else text.replace("\n", "\\n")


def printable_json(text: str) -> str:
    """Equivalent JSON with unprintable characters as JSON escapes. Line feeds stay."""

    def escaped(found: re.Match[str]) -> str:
        character = found[0]
        if character.isprintable():
            return character
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

    return _NOT_PRINTABLE.sub(escaped, text)
