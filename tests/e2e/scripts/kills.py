"""Kills the proxy when a front door has kept a response and its client has nothing of it yet: once the file that is
named by KILLS is there, which goes with it."""

import os
import signal
from pathlib import Path

from addon.doors.handover import Handover

_kept = Handover.kept


async def kept(self: Handover, response_id: str) -> None:
    await _kept(self, response_id)
    _die()


def _die() -> None:
    file = Path(os.environ["KILLS"])
    if file.exists():
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


Handover.kept = kept  # type: ignore[method-assign]
