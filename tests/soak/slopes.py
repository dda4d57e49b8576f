"""Samples the resources of a process at work, and checks whether they grow with the work done."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

PER = 1000
"""Requests that a slope refers to."""


class Sample(NamedTuple):
    """The proxy's resources after a number of requests, with none in flight."""

    requests: int
    memory: float
    descriptors: float
    tasks: float


@dataclass(frozen=True)
class Limit:
    """The steepest slope that is no leak, in `unit` per `PER` requests."""

    of: str
    most: float
    unit: str
    scale: float = 1.0

    def slope(self, samples: Sequence[Sample]) -> float:
        points = [(one.requests / PER, getattr(one, self.of) / self.scale) for one in samples]
        return least_squares(points)


LIMITS = (
    # A flow takes some 40 KB, so a leak of one in ten exceeds this. The allocator and limited caches that are not full
    # yet stay below: 2 MiB in the second thousand requests, half of one after ten thousand, mostly the cached tool
    # plans of up to a thousand sessions.
    Limit("memory", 4.0, "MiB", scale=2**20),
    # Without requests in flight these are constant, except for some idle connections. A kind of request that always
    # leaves one behind adds some 50 per 1,000.
    Limit("descriptors", 5.0, "descriptors"),
    Limit("tasks", 5.0, "tasks"),
)


def least_squares(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the line that fits the points best. Raises ValueError unless they have two different places."""
    mean_x = sum(x for x, _ in points) / max(len(points), 1)
    mean_y = sum(y for _, y in points) / max(len(points), 1)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        raise ValueError(f"{len(points)} points have no slope")
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread


def findings(samples: Sequence[Sample], limits: Sequence[Limit] = LIMITS) -> list[str]:
    """A sentence for each limit that is exceeded."""
    return [
        f"{limit.of}: {slope:.1f} {limit.unit} more per {PER} requests, and more than {limit.most:g} are a leak"
        for limit in limits
        if (slope := limit.slope(samples)) > limit.most
    ]
