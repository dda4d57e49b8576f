"""Notes of turns without calls that are not in the database yet: in memory for look-ups, and in a file beside the
database, which the next start reads if the process is killed.

A transaction for each note would cost the proxy more than the rest of an answer without calls. Appending a note to a
file costs a hundredth of that, and a kill loses nothing that was appended. The file need not survive a power failure:
a turn is saved together with the notes before it.
"""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

_LENGTH, _DIGEST = 4, 8
"""Bytes before each note: its length, and a digest keyed with the store's secret, so that neither half a note nor a
note of another store is read."""


class PendingNote(NamedTuple):
    """The arguments of `Store.save_plain`. `noted`: the time, in hours."""

    session: str
    noted: int
    keys: Sequence[bytes]
    chain: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, int, list[bytes], bytes]).decode


class NoteLog:
    def __init__(self, path: Path, secret: bytes) -> None:
        """Read the notes of a killed process, if any. Raises OSError."""
        self.path = path
        self.notes: list[PendingNote] = []
        self._chains: dict[str, dict[bytes, bytes]] = {}
        self._keyed_digest = hashlib.blake2b(key=secret, digest_size=_DIGEST)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._size = self._read(path.read_bytes())
            os.ftruncate(self._file, self._size)
        except OSError:
            os.close(self._file)
            raise

    def add(self, note: PendingNote) -> None:
        """Append a note. Raises OSError, and has not added the note then."""
        encoded = _encode(note)
        record = len(encoded).to_bytes(_LENGTH) + self._digest(encoded) + encoded
        if os.write(self._file, record) < len(record):
            os.ftruncate(self._file, self._size)
            raise OSError(f"{self.path}: there is no space for a note")
        self._size += len(record)
        self._remember(note)

    def chains(self, session: str) -> dict[bytes, bytes]:
        """The noted keys of a session, each with its chain."""
        return self._chains.get(session, {})

    def clear(self) -> None:
        """Forget all notes: they are in the database."""
        self.notes.clear()
        self._chains.clear()
        with contextlib.suppress(OSError):  # then they are written again, which changes nothing
            os.ftruncate(self._file, 0)
            self._size = 0

    def close(self) -> None:
        """Close the file. Notes that are not in the database yet stay for the next start."""
        with contextlib.suppress(OSError):
            os.close(self._file)
            if not self.notes:
                self.path.unlink()

    def _remember(self, note: PendingNote) -> None:
        self.notes.append(note)
        chains = self._chains.setdefault(note.session, {})
        first, *others = note.keys
        own = note.chain if chains.get(first, note.chain) == note.chain else b""
        chains[first] = own
        chains.update(dict.fromkeys(others, b""))

    def _read(self, data: bytes) -> int:
        """Read the valid notes at the beginning of the file. Returns their size in bytes."""
        start = 0
        while True:
            body = start + _LENGTH + _DIGEST
            end = body + int.from_bytes(data[start : start + _LENGTH])
            if end > len(data) or end == body or data[start + _LENGTH : body] != self._digest(data[body:end]):
                return start
            self._remember(PendingNote(*_decode(data[body:end])))
            start = end

    def _digest(self, encoded: bytes) -> bytes:
        digest = self._keyed_digest.copy()
        digest.update(encoded)
        return digest.digest()
