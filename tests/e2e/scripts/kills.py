"""Kills the proxy after a front door has stored a response and before its client has any of it, if the file named by
KILLS exists; the file is deleted first."""

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
