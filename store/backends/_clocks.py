"""The clocks of a store. Records are dated and expire by the wall clock, which can be set; leases run by the machine's
uptime, which cannot.

A wall clock that disagrees with the uptime, or with what the store noted last, is in doubt until somebody says that it
is right: a clock that is eight days ahead for a minute would otherwise expire every record.
"""

import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Self

MAX_STEP = 3600.0
"""Seconds by which the wall clock may be off before it is in doubt: more than clocks drift while a machine is up."""


class Now(NamedTuple):
    """`wall` dates records, `steady` is what leases are compared with. Both are seconds since the epoch."""

    wall: float
    steady: float


class ClockNote(NamedTuple):
    """What the next process has to know. `seen` is the wall clock when it was last trusted, `offset` what it is ahead
    of the uptime, and `steady` what steady time is ahead of it. `doubt` is why the clock is not trusted, if so."""

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
        self.note = self._right_now(boot())

    def now(self) -> Now:
        return Now(self._wall(), self.steady())

    def steady(self) -> float:
        return self._uptime() + self.note.steady

    def go_on(self, note: ClockNote) -> bool:
        """Go on from what an earlier process noted; False if steady time does not, since the machine was started anew.

        How long a machine was off is known to nobody but its clock: that counts as a step."""
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
        """The note to go on with where the wall clock is right as it is."""
        return self._right_now(self.note.boot)._replace(steady=self.note.steady)

    def _right_now(self, boot: str) -> ClockNote:
        wall = self._wall()
        offset = wall - self._uptime()
        return ClockNote(boot, wall, offset, offset)

    def _doubt(self, step: float, why: str) -> None:
        if abs(step) > MAX_STEP:
            doubt = f"the clock went {abs(step) / 3600:.1f} h {'ahead' if step > 0 else 'back'} {why}"
            self.note = self.note._replace(doubt=doubt)


def boot() -> str:
    """Names the time since the machine was started; another one each time where that cannot be told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return f"unknown-{secrets.token_hex(8)}"
