"""A simulated power failure: the disk keeps the flushed part of SQLite's log, and only some of the later blocks.

`watch` runs in the proxy, and copies each file at the beginning of its flush. `cut` runs after the proxy was killed,
and leaves the log as the disk would have it. If the log was restarted since its last flush, its earlier contents are
already in the database, on the disk.
"""

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

VARIABLE = "CRASH_FLUSHED"
"""The environment variable that names the folder of the copies."""
BLOCK = 512
_HEADER = 32
"""The size of the log's header, which differs after each restart of the log."""


def watch() -> None:
    """Start copying in this process, if the variable is set."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        return
    flush = os.fdatasync

    def fdatasync(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        copy = Path(folder) / path.name
        begun = copy.with_suffix(".begun")
        begun.write_bytes(path.read_bytes())
        flush(file)
        begun.replace(copy)

    os.fdatasync = fdatasync  # type: ignore[assignment]  # the store gives numbers


def cut(database: Path, flushed: Path, chance: random.Random) -> int:
    """Returns the number of lost bytes of the log. Raises sqlite3.DatabaseError if this damages the database."""
    log = database.with_name(f"{database.name}-wal")
    written = log.read_bytes() if log.exists() else b""
    copy = flushed / log.name
    kept = bytearray(copy.read_bytes() if copy.exists() else b"")
    if kept[:_HEADER] != written[:_HEADER]:
        kept.clear()
    lost = len(written) - len(kept)
    for start in range(len(kept), len(written), BLOCK):
        block = written[start : start + BLOCK]
        kept += block if chance.random() < 0.5 else bytes(len(block))
    log.write_bytes(kept)
    database.with_name(f"{database.name}-shm").unlink(missing_ok=True)
    copy.unlink(missing_ok=True)
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (verdict,) = db.execute("PRAGMA integrity_check").fetchone()
    if verdict != "ok":
        raise sqlite3.DatabaseError(verdict)
    return lost
