"""What tools, models and clients say, made fit to be shown: a terminal obeys control characters, a line break forges a
line of a log, and a bidirectional mark turns words around."""

import re

_NOT_PRINTABLE = re.compile(r"[^\x20-\x7e\n]")


def printable(text: str, *, lines: bool = False) -> str:
    """The text with whatever is not printable spelled out: C0 and C1, bidirectional and other invisible marks, halves
    of surrogate pairs, and line breaks. `lines`: line feeds stay."""

    def spelled(found: re.Match[str]) -> str:
        character = found[0]
        return character if character.isprintable() else character.encode("unicode_escape").decode()

    text = _NOT_PRINTABLE.sub(spelled, text)
    return text if lines else text.replace("\n", "\\n")


def printable_json(text: str) -> str:
    """JSON that shows the same, with whatever is not printable as JSON's own escapes. Line feeds stay."""

    def spelled(found: re.Match[str]) -> str:
        character = found[0]
        if character.isprintable():
            return character
        units = character.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

    return _NOT_PRINTABLE.sub(spelled, text)
