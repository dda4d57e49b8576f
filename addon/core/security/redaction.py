"""Masks secrets by their value, for example in an error that repeats a header, or in a tool's output."""

import json
import re
from collections.abc import Iterable
from urllib.parse import quote

MASK = "***"
SHORTEST = 8
"""The minimum length of a secret to search for. A shorter one would match unrelated text."""
_NUMBER = re.compile(r"[-+.\deE]+")


class Redaction:
    """Replaces these secrets by MASK, in plain form and as encoded in JSON and URLs. JSON stays valid: a secret that
    could be a number is not searched for."""

    def __init__(self, secrets: Iterable[str]) -> None:
        searched = {one for one in secrets if len(one) >= SHORTEST and not _NUMBER.fullmatch(one)}
        forms = {form for one in searched for form in (one, json.dumps(one)[1:-1], quote(one, safe=""))}
        self._texts = sorted(forms, key=len, reverse=True)
        self._bytes = [form.encode("utf-8", "surrogateescape") for form in self._texts]
        self._alphabet = frozenset(b"".join(self._bytes))

    def __bool__(self) -> bool:
        return bool(self._texts)

    def text(self, text: str) -> str:
        for form in self._texts:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def data(self, data: bytes) -> bytes:
        for form in self._bytes:
            if data.find(form) >= 0:  # several times as fast as `in`
                data = data.replace(form, MASK.encode())
        return data

    def is_clean(self, data: bytes) -> bool:
        """Whether the data certainly contains no secret, and no beginning of one at its end. True for most events."""
        for form in self._bytes:
            if data.find(form) >= 0:
                return False
        return not data or data[-1] not in self._alphabet

    def partial_at_end(self, data: bytes) -> int:
        """How many of the last bytes may begin a secret that continues in the next piece."""
        most = 0
        for form in self._bytes:
            tail = data[-(len(form) - 1) :]
            at = tail.find(form[:1])
            while at != -1 and len(tail) - at > most:
                if form.startswith(tail[at:]):
                    most = len(tail) - at
                at = tail.find(form[:1], at + 1)
        return most


class RedactedStream:
    """Masks a stream of bytes. Holds back the end of a piece if it may begin a secret."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        if not self._rest and self._redaction.is_clean(chunk):
            return chunk
        data = self._redaction.data(self._rest + chunk if self._rest else chunk)
        if size := self._redaction.partial_at_end(data):
            self._rest = data[-size:]
            return data[:-size]
        self._rest = b""
        return data

    def flush(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest
