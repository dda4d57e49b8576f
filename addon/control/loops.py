"""What the control API knows of running loops: whether one is there. The proxy gives the real answer."""

from typing import Protocol


class Loops(Protocol):
    def alive(self, loop_id: str) -> bool:
        """Whether this run of a loop still waits for its calls, in this process."""
        ...


class NoLoops:
    """A proxy in which no loop runs."""

    def alive(self, loop_id: str) -> bool:
        return False
