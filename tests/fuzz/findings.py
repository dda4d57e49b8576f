"""What a target must never do, whatever it is fed: log an error that nobody foresaw, hold up the event loop."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

FREEZE = 0.1
"""Seconds of this thread's own processor time: what other processes do does not count."""


class Errors(logging.Handler):
    """What was logged as an error, and exceptions of what was cancelled."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.name == "addon.web.tasks":
            self.found.append(logging.Formatter().format(record))

    def taken(self) -> list[str]:
        """Those since the last time."""
        found, self.found = self.found, []
        return found


@contextmanager
def watched() -> Iterator[Errors]:
    """Around a run. What was there before it is no garbage to be looked through meanwhile."""
    errors, logger = Errors(), logging.getLogger()
    logger.addHandler(errors)
    gc.collect()
    gc.freeze()
    try:
        yield errors
    finally:
        gc.unfreeze()
        logger.removeHandler(errors)
