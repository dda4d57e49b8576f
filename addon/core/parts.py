"""Parts of a Content as they come. Plain texts grow together; they are joined once, when they are read."""

from addon.core.documents import Document


class Parts:
    def __init__(self) -> None:
        self._parts: list[Document] = []
        self._texts: list[str] = []  # of the last part, where it is plain text

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, part: Document) -> None:
        """Empty parts are left out. A text that is signed stays by itself: its signature belongs to no other part."""
        text = part.get("text")
        if not part or (text == "" and len(part) == 1):
            return
        if isinstance(text, str) and len(part) == 1:
            if not self._texts:
                self._parts.append(part)
            self._texts.append(text)
            return
        self._join()
        self._texts = []
        self._parts.append(part)

    def read(self) -> list[Document]:
        """All of them; the list is the caller's."""
        self._join()
        return list(self._parts)

    def _join(self) -> None:
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
            self._parts[-1] = {"text": self._texts[0]}
