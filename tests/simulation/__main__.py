"""Simulates sessions with many chats, and says what their requests carried of the calls that truly were.

The exit status is 1 where a request carried a call of another chat's.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from store.factory import open_url
from tests.simulation.chat import Habits
from tests.simulation.habits import canned, habits, hasty, odd, of_one_account
from tests.simulation.words import KINDS, TIED, Kind
from tests.simulation.world import Tally, World

Clients = Callable[[random.Random, int, Sequence[Kind]], Sequence[Habits]]


async def simulated(
    seed: int,
    chats: int,
    steps: int,
    kinds: Sequence[Kind] = KINDS,
    url: str = "memory://",
    *,
    clients: Clients = habits,
    processes: int = 1,
) -> World:
    """A session in which so many chats took about so many steps each. `processes`: that share the store."""
    async with contextlib.AsyncExitStack() as stack:
        stores = [open_url(url, ttl=1e9) for _ in range(processes)]
        for store in stores:
            await store.open()
            stack.push_async_callback(store.close)
        world = World(stores[0], seed, stores[1:])
        await world.run(clients(random.Random(seed), chats, kinds), steps)
        return world


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--chats", type=int, default=120, help="in each session (120)")
    parser.add_argument("--steps", type=int, default=12, help="of each chat, about (12)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one session each (1 2 3)")
    every = [*KINDS, TIED]
    parser.add_argument("--words", nargs="+", choices=every, default=every, help="how the chats talk (all)")
    parser.add_argument("--store", default="memory://", help="URL of an empty store (memory://)")
    parser.add_argument("--processes", type=int, default=1, help="that share a store in Redis (1)")
    parser.add_argument("--show", type=int, default=0, help="so many wrong hits of each session, in words")
    parser.add_argument("--hasty", action="store_true", help="clients of one account, who often hang up")
    parser.add_argument("--odd", action="store_true", help="clients that quote, imitate, forge and fork other chats")
    parser.add_argument("--canned", action="store_true", help="clients of one account, whom a script often answers")
    given = parser.parse_args(argv)
    begun = time.perf_counter()
    total: defaultdict[tuple[str, str, str], Tally] = defaultdict(Tally)
    misses: Counter[str] = Counter()
    requests = twins = 0
    for seed, kinds, chats, who in _sessions(given):
        world = asyncio.run(
            simulated(seed, chats, given.steps, kinds, given.store, clients=who, processes=given.processes)
        )
        requests += world.requests
        twins += world.twins
        misses += world.metrics.misses
        for kind, tally in world.tallies.items():
            total[kind] += tally
        for line in world.wrong[: given.show]:
            print(f"seed {seed}: {line}")
    _print(total)
    print("turns that were told as missed:", ", ".join(f"{reason} {n}" for reason, n in sorted(misses.items())))
    print("histories that were word for word another since the same summary, and got its call:", twins)
    print(f"{requests} requests in {time.perf_counter() - begun:.1f} s")
    return 1 if any(tally.wrong for tally in total.values()) else 0


def _sessions(given: argparse.Namespace) -> Iterator[tuple[int, Sequence[Kind], int, Clients]]:
    """The seed, words, number of chats and clients of each session."""
    clients = hasty if given.hasty else odd if given.odd else canned if given.canned else habits
    mixed = [kind for kind in given.words if kind != TIED]
    for seed in given.seeds:
        if mixed:
            yield seed, mixed, given.chats, clients
        if TIED in given.words:
            yield seed, [TIED], max(1, given.chats // 4), of_one_account


def _print(total: dict[tuple[str, str, str], Tally]) -> None:
    print(f"{'words':10} {'told by':10} {'history':8} {'hidden calls':>12} {'missed':>7} {'%':>6} {'wrong':>6}")
    for (words, told_by, history), tally in sorted(total.items()):
        calls, rate = tally.hits + tally.missed, 100 * tally.rate
        print(f"{words:10} {told_by:10} {history:8} {calls:12} {tally.missed:7} {rate:6.2f} {tally.wrong:6}")


if __name__ == "__main__":
    sys.exit(main())
