"""Detects what a target must never do for any input: log an unexpected error, or block the event loop."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

FREEZE = 0.1
"""Seconds of this thread's processor time, which does not include other processes."""


class Errors(logging.Handler):
    """Collects logged errors, and exceptions of cancelled tasks."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.name == "addon.web.tasks":
            self.found.append(logging.Formatter().format(record))

    def taken(self) -> list[str]:
        """The errors since the last call."""
        found, self.found = self.found, []
        return found


@contextmanager
def watched() -> Iterator[Errors]:
    """Wraps a run. Existing objects are exempt from garbage collection during it."""
    errors, logger = Errors(), logging.getLogger()
    logger.addHandler(errors)
    gc.collect()
    gc.freeze()
    try:
        yield errors
    finally:
        gc.unfreeze()
        logger.removeHandler(errors)
