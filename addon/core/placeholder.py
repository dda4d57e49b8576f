"""The text that stands in a client's history for calls: made from a template, and found again in a turn's text."""

import re
from collections.abc import Sequence

_NAMES = r"[\w.:-]+(?:, [\w.:-]+)*"
TURN_ID = re.compile(r"turn_[0-9a-f]{16}")


class Placeholder:
    """A template such as `Tool call completed: {names} [{turn_id}]`.

    The *bare* form is what remains of it without the id, with or without names: `Tool call completed`, or
    `Tool call completed: get_weather`.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        head, tail = template.split("{turn_id}")
        pattern = re.escape(head.strip()).replace(r"\{names\}", r"[^\n]*?")
        gap = r"\s*" if head != head.rstrip() else ""
        after = re.escape(tail.strip())
        if after.endswith(r"\{names\}"):
            after = after.removesuffix(r"\{names\}") + _NAMES
        after = after.replace(r"\{names\}", r"[^\n]*?")
        self._full = re.compile(f"{pattern}{gap}({TURN_ID.pattern}){after}")
        bare = f"{head.rstrip(' [(<')} {tail.lstrip(' ])>')}".strip()
        before, named, behind = bare.partition("{names}")
        wordless = re.escape(f"{before.rstrip(' :-')}{behind}".strip())
        forms = [re.escape(before) + r"[^\n]+?" + re.escape(behind), wordless] if named else [re.escape(bare)]
        self._bare = re.compile(rf"(?:\A|\n[ \t]*)(?:{'|'.join(form for form in forms if form)})\Z")

    def text(self, names: Sequence[str], turn_id: str) -> str:
        return self.template.replace("{names}", ", ".join(names)).replace("{turn_id}", turn_id)

    def after(self, text: str, names: Sequence[str], turn_id: str) -> str:
        """The placeholder as it follows `text`: after a blank line, where there is text."""
        if not text.strip():
            return self.text(names, turn_id)
        have = len(text) - len(text.rstrip("\n"))
        return "\n" * max(0, 2 - have) + self.text(names, turn_id)

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Where placeholders with an id are in the text: (start, end, turn id), in order."""
        if "turn_" not in text:
            return []
        return [(found.start(), found.end(), found[1]) for found in self._full.finditer(text)]

    def is_bare(self, text: str) -> bool:
        """Whether the (trimmed) text is a placeholder without an id, or ends with one on a line of its own."""
        return self._bare.search(text) is not None and not self.find(text)
