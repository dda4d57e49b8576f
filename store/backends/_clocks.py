"""The clocks of a store. Records are dated and expire by the wall clock, which can be set; leases run by the machine's
uptime, which cannot be set."""

import json
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger("toolgraft")

JUMP, PAUSE = 3600.0, 24 * 3600.0
"""Seconds: a greater step of the wall clock is a jump, and nothing expires for `PAUSE` after it. Otherwise a clock that
is eight days ahead for a minute would expire every record."""


class Now(NamedTuple):
    """`wall` is for dates of records, `steady` for leases. Both are seconds since the epoch."""

    wall: float
    steady: float


class ClockNote(NamedTuple):
    """The state for the next process. `seen`: the wall clock when records could last expire. `offset`, `steady`: the
    wall clock and steady time minus the uptime. `paused_until`: in steady time; 0: records can expire."""

    boot: str
    seen: float
    offset: float
    steady: float
    paused_until: float = 0.0

    def text(self) -> str:
        return json.dumps(self._asdict())


class Clocks:
    def __init__(self, wall: Callable[[], float], uptime: Callable[[], float]) -> None:
        self._wall, self._uptime = wall, uptime
        offset = wall() - uptime()
        self.note = ClockNote(boot(), wall(), offset, offset)

    def now(self) -> Now:
        return Now(self._wall(), self.steady())

    def steady(self) -> float:
        return self._uptime() + self.note.steady

    def resume(self, text: str) -> bool:
        """Continue from the note of an earlier process; False if steady time restarts because the machine was rebooted.
        Only the wall clock shows how long the machine was off: more than an hour counts as a jump."""
        known = json.loads(text)
        was_in_doubt = known.pop("doubt", "")  # noted by an earlier version
        note, fresh = ClockNote(**known), self.note
        is_continuous = note.boot == fresh.boot
        self.note = note if is_continuous else fresh._replace(seen=note.seen, paused_until=note.paused_until)
        if was_in_doubt or (not is_continuous and abs(fresh.seen - note.seen) > JUMP):
            self.note = self.note._replace(paused_until=self.steady() + PAUSE)
        return is_continuous

    def checked(self) -> ClockNote:
        """The note to continue with: nothing expires for a day after a jump of the wall clock."""
        note, wall = self.note, self._wall()
        offset = wall - self._uptime()
        if abs(step := offset - note.offset) > JUMP:
            ahead = "ahead" if step > 0 else "back"
            logger.warning("the clock went %.1f h %s: no record expires for a day", abs(step) / 3600, ahead)
            return note._replace(offset=offset, paused_until=self.steady() + PAUSE)
        if self.steady() < note.paused_until:
            return note._replace(offset=offset)
        return note._replace(offset=offset, seen=wall, paused_until=0.0)


def boot() -> str:
    """Identifies the current boot of the machine; a new value for each call if that is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return f"unknown-{secrets.token_hex(8)}"
