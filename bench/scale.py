"""What a store in Redis costs a request and a conversation, and what that makes for many conversations at once.

The costs are measured with a real redis-server. The load of several nodes is simulated for a million sessions, by the
hash slots of the store's own keys and by requests at random: if each session is where its hash tag belongs, and if each
store is as a whole on one node of a Redis Cluster.
"""

import math
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean

import redis
from redis.crc import key_slot

from addon.settings import Settings
from bench.calls import TOOLS
from bench.conversations import bodies
from bench.load import Clients, head
from bench.measure import CLIENTS, PATH, Effort, main
from bench.processes import Side, grafted, upstream
from bench.proxy import TEXT_2K, TOOLSET
from bench.report import Row
from bench.seed import capture
from bench.shared_store import server
from store.backends._redis_values import Keys
from store.factory import open_url

SESSIONS = 1_000_000
SLOTS = 16_384
CALLS = 5
"""Calls of a conversation whose memory is measured, each of 1 KB with its result."""

THINKING = 30.0
"""Seconds from one request of a conversation to its next one: an assumption."""

LOOPS = 0.2
"""The share of requests whose answer is a loop of one step: an assumption. All others have nothing new."""

SPARE = 0.5
"""The share of a core that is planned for; the rest is for peaks, and for what a dead machine leaves."""

_SIMULATED = 30  # seconds
_NODES = 12


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request. CPU in seconds; bytes from Redis's view; commands include those of scripts."""

    redis: float
    proxy: float
    round_trips: float
    commands: float
    bytes_in: float
    bytes_out: float
    events: float

    @property
    def words(self) -> str:
        return (
            f"{self.round_trips:.1f} reads by the server, {self.commands:.0f} commands, {self.bytes_in:,.0f} bytes in, "
            f"{self.bytes_out:,.0f} out, {self.events:.1f} events; the proxy's CPU {1000 * self.proxy:.2f} ms"
        )


async def table(effort: Effort) -> list[Row]:
    if shutil.which("redis-server") is None:
        return [Row("a store in Redis", "", "not measured", None, "redis-server is not installed")]
    with upstream() as port, server() as url:
        costs = await _costs(effort, port, url)
    with server() as url:
        each, words = await _memory(effort, url)
    rows = [
        Row(f"Redis's CPU for {what}", "", f"{1e6 * cost.redis:.0f} µs", None, cost.words)
        for what, cost in costs.items()
    ]
    rows.append(Row(f"memory of a conversation with {CALLS} calls", "", f"{each / 1024:.1f} KB", None, words))
    sessions = max(1000, round(SESSIONS * min(1.0, effort.seconds / 0.6)))
    rows += _balance(sessions)
    plain, loop = (costs[what] for what in ("a request with nothing new", "a loop of one step"))
    rows += [_plan(count, plain, loop, each) for count in (10, 1_000, 100_000)]
    return rows


# --- measured -------------------------------------------------------------------------------------------------


class _Server:
    """What a Redis server has counted since the last question."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url.partition("?")[0])
        self._before = self._now()

    def _now(self) -> Counter[str]:
        found = self._client.info("everything")
        calls = {name: int(value["calls"]) for name, value in found.items() if name.startswith("cmdstat_")}
        return Counter(
            {
                "cpu": found["used_cpu_user"] + found["used_cpu_sys"],
                "reads": found["total_reads_processed"],
                "in": found["total_net_input_bytes"],
                "out": found["total_net_output_bytes"],
                "commands": sum(calls.values()),
                "events": calls.get("cmdstat_xadd", 0),
            }
        )

    def since(self) -> Counter[str]:
        now = self._now()
        found = Counter(now)
        found.subtract(self._before)
        self._before = now
        return found


async def _costs(effort: Effort, port: int, url: str) -> dict[str, Cost]:
    """By sixteen clients, since requests of the same moment share what they ask of Redis."""
    requests = max(2 * CLIENTS, round(3_000 * effort.seconds))
    costs = {}
    with grafted(port, None, f"graft_store={url}", f"graft_tools={TOOLS}") as side:
        side.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        for what, query in (
            ("a request with nothing new", "?same"),
            ("a captured call", "?call=get_weather"),
            ("a loop of one step", "?loop=noop"),
        ):
            conversations = [bodies(TEXT_2K, number, cold=False) for number in range(CLIENTS)]
            clients = await Clients.connect(side.port, head(side.port, f"{PATH}{query}"), conversations)
            await clients.run(requests=2 * CLIENTS)
            costs[what] = await _cost(side, _Server(url), clients, requests)
            clients.close()
    return costs


async def _cost(side: Side, counted: _Server, clients: Clients, requests: int) -> Cost:
    before = side.process.cpu
    counted.since()
    await clients.run(requests=requests)
    found, cpu = counted.since(), side.process.cpu - before
    return Cost(
        redis=found["cpu"] / requests,
        proxy=cpu / requests,
        round_trips=found["reads"] / requests,
        commands=found["commands"] / requests,
        bytes_in=found["in"] / requests,
        bytes_out=found["out"] / requests,
        events=found["events"] / requests,
    )


async def _memory(effort: Effort, url: str) -> tuple[float, str]:
    """Bytes of a conversation in a session of its own, and which keys have them."""
    count = max(4, round(100 * effort.seconds))
    store = open_url(url, ttl=Settings().ttl)
    await store.open()
    await capture(store, "first", CALLS, answered=True)
    client = redis.Redis.from_url(url)
    before = client.info("memory")["used_memory"]
    for number in range(count):
        await capture(store, f"s{number}", CALLS, answered=True)
    each = (client.info("memory")["used_memory"] - before) / count
    sizes = {key.rpartition(b":")[2].decode(): client.memory_usage(key) or 0 for key in client.scan_iter("*{s0}*")}
    await store.close()
    client.close()
    largest = sorted(sizes.items(), key=lambda one: -one[1])[:3]
    words = ", ".join(f"{name} {size / 1024:.1f} KB" for name, size in largest)
    return each, f"{count} sessions; MEMORY USAGE of one: {words}, {sum(sizes.values()) / 1024:.1f} KB in all its keys"


# --- simulated ------------------------------------------------------------------------------------------------

_NAMES: dict[str, Callable[[random.Random, int], str]] = {
    "random ids": lambda rng, number: f"{rng.getrandbits(128):032x}",
    "numbered": lambda rng, number: f"user-{number}",
}


def _slots(names: Iterator[str]) -> list[int]:
    keys = Keys("toolgraft")
    return [key_slot(keys.of(name, "turn")) for name in names]


def _per_node(slots: Sequence[int], nodes: int) -> list[int]:
    """How many of these slots each node has, with ranges as `redis-cli --cluster create` gives them."""
    found = Counter(slot * nodes // SLOTS for slot in slots)
    return [found[node] for node in range(nodes)]


def _balance(sessions: int) -> list[Row]:
    rows, rng = [], random.Random(1)
    for kind, name in _NAMES.items():
        slots = _slots(name(rng, number) for number in range(sessions))
        parts = []
        for nodes in (3, 6, 12):
            counts = _per_node(slots, nodes)
            parts.append(f"{nodes} nodes {max(counts) / mean(counts):.3f}")
        what = f"sessions of the fullest node, in those of the average one: {sessions:,} sessions with {kind}"
        rows.append(Row(what, "", parts[-1].rpartition(" ")[2], None, ", ".join(parts)))
    rate = round(sessions / THINKING)
    seconds = [_per_node(rng.choices(slots, k=rate), _NODES) for _ in range(_SIMULATED)]
    busiest = max(max(counts) for counts in seconds) / mean(map(mean, seconds))
    what = (
        f"requests of the busiest of {_NODES} nodes in its busiest second, in those of the average: {rate:,} a second"
    )
    rows.append(Row(what, "", f"{busiest:.2f}", None, f"{_SIMULATED} simulated seconds"))
    shares = [1 / (rank + 1) for rank in range(len(slots))]
    uneven = [0.0] * _NODES
    for slot, share in zip(slots, shares, strict=True):
        uneven[slot * _NODES // SLOTS] += share
    what = "the same if sessions are used by Zipf's law, the first as often as the next three"
    rows.append(Row(what, "", f"{_NODES * max(uneven) / sum(shares):.2f}", None, "one session is never on two nodes"))
    for stores in (12, 120, 1_200):
        slots = [key_slot(Keys(f"team-{number}").number) for number in range(stores)]
        counts = _per_node(slots, _NODES)
        what = f"stores of the fullest of {_NODES} nodes, in those of the average: {stores:,} stores"
        rows.append(Row(what, "", f"{max(counts) / mean(counts):.2f}", None, "each store is on one node"))
    return rows


def _plan(conversations: int, plain: Cost, loop: Cost, memory: float) -> Row:
    """What so many conversations at once need, by the measured costs."""

    def each(of: Callable[[Cost], float]) -> float:
        return (1 - LOOPS) * of(plain) + LOOPS * of(loop)

    rate = conversations / THINKING
    redis_cores, proxy_cores = rate * each(lambda cost: cost.redis), rate * each(lambda cost: cost.proxy)
    network = 8 * rate * each(lambda cost: cost.bytes_in + cost.bytes_out) / 1e6
    commands, events = rate * each(lambda cost: cost.commands), rate * each(lambda cost: cost.events)
    detail = (
        f"{rate:,.1f} requests a second; Redis {redis_cores:.3f} cores, so {math.ceil(redis_cores / SPARE)} stores; "
        f"{commands:,.0f} commands, {events:,.0f} events, {network:,.1f} Mbit a second; "
        f"{conversations * memory / 2**20:,.1f} MB of records"
    )
    return Row(
        f"{conversations:,} conversations at once", "", f"{math.ceil(proxy_cores / SPARE)} processes", None, detail
    )


if __name__ == "__main__":
    sys.exit(main(__doc__, [("scale", table)]))
