"""The loops under way in this process: an approval for a call whose loop is gone would run nothing."""

import asyncio
from collections.abc import Iterator

from addon.loop.runner import Runner


class Running:
    def __init__(self) -> None:
        self._runners: set[Runner] = set()

    def __iter__(self) -> Iterator[Runner]:
        return iter(self._runners)

    def __len__(self) -> int:
        return len(self._runners)

    def begin(self, runner: Runner) -> None:
        self._runners.add(runner)

    def end(self, runner: Runner) -> None:
        """An answer has come to its end; its loop is alive as long as it has calls that may wait for an approval."""
        if not runner.background:
            self._runners.discard(runner)
            return
        over = asyncio.gather(*runner.background, return_exceptions=True)
        over.add_done_callback(lambda _: self._runners.discard(runner))

    def alive(self, loop_id: str) -> bool:
        """Whether the loop still waits for its calls."""
        return any(runner.loop_id == loop_id for runner in self._runners)
