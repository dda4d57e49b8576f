"""A backend's exchanges with its server, counted for `/metrics`. Counting is on the hot path, so it is cheap."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Literal, get_args

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""The upper bounds of the histogram's buckets, in seconds."""

type BreakerState = Literal["closed", "open", "half_open"]
"""`closed`: the server is asked. `open`: it is not. `half_open`: only a probe asks it."""

type Failure = Literal["timeout", "connection", "refused", "skipped"]
"""`refused`: the server answered with an error. `skipped`: the breaker was open, or opened during the operation."""


class Traffic:
    """Since the start of the process. `buckets`: the answers by their time, the last ones without a bound. `seconds`:
    the time of all answers."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self.failures: Counter[Failure] = Counter(dict.fromkeys(get_args(Failure.__value__), 0))
        self.running = 0
        """The number of operations that wait for an answer."""
        self.connections: Callable[[], int] = lambda: 0
        """Returns the number of open connections."""
        self.state: BreakerState = "closed"
        self.openings = 0

    def answered(self, seconds: float) -> None:
        """Count an operation that was answered after this time."""
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
