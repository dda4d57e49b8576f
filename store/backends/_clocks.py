"""The clocks of a store. Records are dated and expire by the wall clock, which can be set; leases run by the machine's
uptime, which cannot be set.

A wall clock that disagrees with the uptime, or with the store's last note, is in doubt until a user confirms it: a
clock that is eight days ahead for a minute would otherwise expire every record.
"""

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

MAX_STEP = 3600.0
"""Seconds by which the wall clock may be wrong before it is in doubt: more than clocks drift while a machine runs."""


class Now(NamedTuple):
    """`wall` is for dates of records, `steady` for leases. Both are seconds since the epoch."""

    wall: float
    steady: float


class ClockNote(NamedTuple):
    """The state for the next process. `seen`: the wall clock when it was last trusted. `offset`, `steady`: the wall
    clock and steady time minus the uptime. `doubt`: why the clock is not trusted, if it is not."""

    boot: str
    seen: float
    offset: float
    steady: float
    doubt: str = ""

    @classmethod
    def read(cls, text: str) -> Self | None:
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def text(self) -> str:
        return json.dumps(self._asdict())


class Clocks:
    def __init__(self, wall: Callable[[], float], uptime: Callable[[], float]) -> None:
        self._wall, self._uptime = wall, uptime
        self.note = self._fresh_note(boot())

    def now(self) -> Now:
        return Now(self._wall(), self.steady())

    def steady(self) -> float:
        return self._uptime() + self.note.steady

    def resume(self, note: ClockNote) -> bool:
        """Continue from the note of an earlier process; False if steady time restarts because the machine was rebooted.

        Only the wall clock knows how long the machine was off: that time counts as a step."""
        fresh = self.note
        if note.boot == fresh.boot:
            self.note = note
            return True
        self.note = fresh._replace(seen=note.seen, doubt=note.doubt)
        if not note.doubt:
            self._doubt(fresh.seen - note.seen, "since the store was last in use, and the machine was started since")
        return False

    def check(self) -> str:
        """Why the wall clock is not trusted; empty: it is."""
        if not self.note.doubt:
            wall = self._wall()
            self._doubt(wall - self._uptime() - self.note.offset, "compared with the machine's uptime")
            if not self.note.doubt:
                self.note = self.note._replace(seen=wall)
        return self.note.doubt

    def trusted(self) -> ClockNote:
        """The note to continue with if the wall clock is right."""
        return self._fresh_note(self.note.boot)._replace(steady=self.note.steady)

    def _fresh_note(self, boot: str) -> ClockNote:
        wall = self._wall()
        offset = wall - self._uptime()
        return ClockNote(boot, wall, offset, offset)

    def _doubt(self, step: float, why: str) -> None:
        if abs(step) > MAX_STEP:
            doubt = f"the clock went {abs(step) / 3600:.1f} h {'ahead' if step > 0 else 'back'} {why}"
            self.note = self.note._replace(doubt=doubt)


def boot() -> str:
    """Identifies the current boot of the machine; a new value for each call if that is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return f"unknown-{secrets.token_hex(8)}"
