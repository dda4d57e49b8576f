"""Collects the parts of a Content. Consecutive plain texts become one part, and are joined when read."""

from collections import defaultdict
from itertools import pairwise

from addon.core.framing.documents import Document

_REMEMBERED_JOINS = 64
"""How many joins of texts are remembered."""


class Parts:
    def __init__(self) -> None:
        self._parts: list[Document] = []
        self._texts: list[str] = []  # the pieces of the last part, if it is plain text
        self._joins: list[tuple[int, int]] = []  # index of the part, and its length before the join

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, part: Document) -> None:
        """Add a part, unless empty. A signed text stays a separate part, because its signature covers nothing else."""
        text = part.get("text")
        if not part or (text == "" and len(part) == 1):
            return
        if isinstance(text, str) and len(part) == 1:
            if not self._texts:
                self._parts.append(part)
            elif len(self._joins) < _REMEMBERED_JOINS:
                self._joins.append((len(self._parts) - 1, sum(map(len, self._texts))))
            self._texts.append(text)
            return
        self._join()
        self._texts = []
        self._parts.append(part)

    def read(self) -> list[Document]:
        self._join()
        return list(self._parts)

    def pieces(self) -> list[Document]:
        """All parts, with the first texts split as they arrived."""
        joins: defaultdict[int, list[int]] = defaultdict(list)
        for at, join in self._joins:
            joins[at].append(join)
        pieces: list[Document] = []
        for at, part in enumerate(self.read()):
            if at in joins:
                text = part["text"]
                pieces += [{"text": text[start:end]} for start, end in pairwise([0, *joins[at], len(text)])]
            else:
                pieces.append(part)
        return pieces

    def _join(self) -> None:
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
            self._parts[-1] = {"text": self._texts[0]}
