"""Kills the proxy when a front door has kept a response and its client has nothing of it yet: once the file that is
named by KILLS is there, which goes with it."""

import os
import signal
from pathlib import Path

from addon.gateway.handover import Handover

_safe = Handover.mark_durable


async def safe(self: Handover) -> None:
    await _safe(self)
    _die()


def _die() -> None:
    file = Path(os.environ["KILLS"])
    if file.exists():
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


Handover.mark_durable = safe  # type: ignore[method-assign]
