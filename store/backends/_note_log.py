"""Notes of turns without calls that are not in the database yet: in memory, where look-ups find them, and in a file
beside the database, from which the next start takes them if the process is killed.

A transaction for each note would cost more than all else that an answer without calls costs the proxy. To append one to
a file costs a hundredth of that, and a kill takes nothing of what the file was given. The file need not survive a power
failure: `sync` has the notes written to the database first.
"""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

_LENGTH, _DIGEST = 4, 8
"""Bytes before each note: how long it is, and a digest keyed with the store's secret, so that neither half a note nor
one of another store is taken in."""


class Note(NamedTuple):
    """What `Store.save_plain` was given. `noted`: in hours."""

    session: str
    noted: int
    keys: Sequence[bytes]
    chain: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, int, list[bytes], bytes]).decode


class NoteLog:
    def __init__(self, path: Path, secret: bytes) -> None:
        """Take in what a process that was killed has left. Raises OSError."""
        self.path = path
        self.notes: list[Note] = []
        self._chains: dict[str, dict[bytes, bytes]] = {}
        self._begun = hashlib.blake2b(key=secret, digest_size=_DIGEST)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._size = self._take_in(path.read_bytes())
            os.ftruncate(self._file, self._size)
        except OSError:
            os.close(self._file)
            raise

    def add(self, note: Note) -> None:
        """Raises OSError, and has not taken the note then."""
        told = _encode(note)
        record = len(told).to_bytes(_LENGTH) + self._digest(told) + told
        if os.write(self._file, record) < len(record):
            os.ftruncate(self._file, self._size)
            raise OSError(f"{self.path}: there is no space for a note")
        self._size += len(record)
        self._remember(note)

    def chains(self, session: str) -> dict[bytes, bytes]:
        """The keys that are noted in a session, each with its chain."""
        return self._chains.get(session, {})

    def written(self) -> None:
        """All of them are in the database."""
        self.notes.clear()
        self._chains.clear()
        with contextlib.suppress(OSError):  # then they are taken in once more, which changes nothing
            os.ftruncate(self._file, 0)
            self._size = 0

    def close(self) -> None:
        """What is not in the database yet stays for the next start."""
        with contextlib.suppress(OSError):
            os.close(self._file)
            if not self.notes:
                self.path.unlink()

    def _remember(self, note: Note) -> None:
        self.notes.append(note)
        chains = self._chains.setdefault(note.session, {})
        first, *others = note.keys
        own = note.chain if chains.get(first, note.chain) == note.chain else b""
        chains[first] = own
        chains.update(dict.fromkeys(others, b""))

    def _take_in(self, data: bytes) -> int:
        """Remember the notes that a file begins with. Returns how many bytes of it they are."""
        start = 0
        while True:
            told = start + _LENGTH + _DIGEST
            end = told + int.from_bytes(data[start : start + _LENGTH])
            if end > len(data) or end == told or data[start + _LENGTH : told] != self._digest(data[told:end]):
                return start
            self._remember(Note(*_decode(data[told:end])))
            start = end

    def _digest(self, told: bytes) -> bytes:
        digest = self._begun.copy()
        digest.update(told)
        return digest.digest()
