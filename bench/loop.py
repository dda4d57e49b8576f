"""The tool loop: what it adds to the requests that a client would make itself, and what it does meanwhile.

The upstream answers a question with calls, and the tools' results with text. Bare mitmdump's client runs the loop
itself, with tools that take no time: it asks, and asks again with the call and its result behind the question.
"""

import itertools
import sys
from collections.abc import Iterator
from statistics import median

from bench import calls, own_loop
from bench.calls import TOOLS
from bench.conversations import bodies
from bench.load import Clients, Result, head
from bench.measure import CLIENTS, PATH, Effort, Pair, alternate, main
from bench.processes import Side, bare, grafted, upstream
from bench.proxy import TEXT_2K
from bench.report import Row, at_least, at_most

STREAM = PATH.replace("generateContent", "streamGenerateContent?alt=sse")
_CALL = b'{"id":"f1","name":"noop","args":{"sent":1}}'
_STEP = (
    b',{"role":"model","parts":[{"functionCall":' + _CALL + b',"thoughtSignature":"' + b"c2lnbmVk" * 40 + b'"}]}'
    b',{"role":"user","parts":[{"functionResponse":{"id":"f1","name":"noop","response":{"ok":true}}}]}'
)


async def table(effort: Effort) -> list[Row]:
    option = f"graft_tools={TOOLS}"
    rows: list[Row] = []
    with upstream() as port:
        with bare(port) as one, bare(port, streams=True) as streaming, grafted(port, None, option) as other:
            rows.append(await _added(effort, one, other))
            rows += await _first_text(effort, streaming, other)
            rows.append(await _parallel(effort, other))
            rows.append(await _start(effort, other))
            rows.append(await _throughput(effort, one, other))
            rows.append(await own_loop.row(effort, port, other))
            _check(other)
        with grafted(port, None, option) as other:
            rows.append(await _memory(effort, other))
        rows += await calls.rows(effort, port)
    return rows


def _check(other: Side) -> None:
    """That the tools were run. Raises RuntimeError."""
    for name in ("noop", "nap", "started", "short_nap", "other_nap"):
        ran = other.api("GET", f"/v1/calls?session=default&name={name}&limit=100")["items"]
        if not ran or any(call["status"] != "done" for call in ran):
            raise RuntimeError(f"calls of {name} were not run: {ran[:1]}")


def _by_hand(client: int) -> Iterator[list[bytes]]:
    """The bodies of a client that runs the loop itself: each question twice, the second time with the step behind."""
    for pieces in bodies(TEXT_2K, client, cold=True):
        yield pieces
        yield [*pieces[:-1], _STEP, pieces[-1]]


async def _clients(side: Side, path: str, count: int = 1, *, by_hand: bool = False, streams: bool = False) -> Clients:
    made = [_by_hand(n) if by_hand else bodies(TEXT_2K, n, cold=True) for n in range(count)]
    return await Clients.connect(side.port, head(side.port, path), made, streams=streams)


async def _compare(
    effort: Effort, sides: tuple[Side, Side], clients: tuple[Clients, Clients], requests: tuple[int, int] | None = None
) -> Pair:
    """Rounds of `effort.seconds`, or of so many requests."""
    one, other = clients
    first, second = requests or (0, 0)
    seconds = 0.0 if requests else effort.seconds
    try:
        for client in clients:  # connections, and what is made at the first request
            await client.run(requests=2 * len(client))
        return await alternate(
            effort,
            sides,
            (
                lambda: one.run(seconds=seconds, requests=first),
                lambda: other.run(seconds=seconds, requests=second),
            ),
        )
    finally:
        one.close()
        other.close()


def _twos(result: Result) -> float:
    """Seconds of two requests, one after the other."""
    return median(map(sum, itertools.batched(result.latencies, 2, strict=True)))


async def _added(effort: Effort, one: Side, other: Side) -> Row:
    path = f"{PATH}?loop=noop"
    loops = max(2, round(150 * effort.seconds))
    clients = await _clients(one, path, by_hand=True), await _clients(other, path)
    pair = await _compare(effort, (one, other), clients, (2 * loops, loops))
    added = 1000 * pair.median(lambda r: r.grafted.p50 - _twos(r.bare))
    mine, theirs = pair.median(lambda r: r.grafted.p50), pair.median(lambda r: _twos(r.bare))
    detail = f"p50 {1000 * mine:.2f} : {1000 * theirs:.2f} ms"
    return at_most("one step, JSON: added to two bare requests", 1.2, added, "ms", detail)


async def _first_text(effort: Effort, one: Side, other: Side) -> list[Row]:
    made = []
    for first in (0.05, 0.0):
        path = f"{STREAM}&events=3&delay=0.001&loop=noop&first={first}"
        clients = await _clients(one, path, streams=True), await _clients(other, path, streams=True)
        made.append(await _compare(effort, (one, other), clients))
    late, at_once = made
    ratio = late.median(lambda r: r.grafted.p50 / r.bare.p50)
    return [
        at_most("first text of a stream, the upstream's after 50 ms", 1.05, ratio, "x", late.latencies),
        at_most("the same, the upstream's at once: added", 2.5, at_once.added, "ms", at_once.latencies),
    ]


async def _parallel(effort: Effort, other: Side) -> Row:
    clients = await _clients(other, f"{PATH}?loop=nap"), await _clients(other, f"{PATH}?loop=nap,nap,nap")
    pair = await _compare(effort, (other, other), clients, (1, 1))
    ratio = pair.median(lambda r: r.grafted.p50 / r.bare.p50)
    return at_most("three parallel tools of 300 ms against one", 1.15, ratio, "x", pair.latencies)


async def _start(effort: Effort, other: Side) -> Row:
    """The stream goes on for 90 ms behind the call. That the tool did not wait for its end is what the figure says."""
    clients = await _clients(other, f"{STREAM}&events=11&delay=0.01&loop=started", streams=True)
    await clients.run(requests=max(5, min(90, round(18 * effort.rounds * effort.seconds))))
    clients.close()
    ran = other.api("GET", "/v1/calls?session=default&name=started&status=done&limit=100")["items"]
    times = sorted(1000 * call["result"]["seconds"] for call in ran)
    detail = f"{len(times)} calls, the slowest {times[-1]:.2f} ms; the stream goes on for 90 ms"
    return at_most("from a call's last byte to its tool's start", 5, median(times), "ms", detail)


async def _throughput(effort: Effort, one: Side, other: Side) -> Row:
    path = f"{PATH}?loop=noop"
    clients = await _clients(one, path, CLIENTS, by_hand=True), await _clients(other, path, CLIENTS)
    pair = await _compare(effort.longer(2), (one, other), clients)
    mine, theirs = pair.median(lambda r: 2 * r.grafted.rate), pair.median(lambda r: r.bare.rate)
    detail = f"{mine:,.0f} : {theirs:,.0f} a second; by CPU {2 * pair.cpu:.2f}"
    return at_least(f"{CLIENTS} clients looping: upstream requests a second", 0.9, 2 * pair.rate, detail)


async def _memory(effort: Effort, other: Side) -> Row:
    loops = effort.requests // 10
    before = loops // 10
    clients = await _clients(other, f"{PATH}?loop=noop", CLIENTS)
    await clients.run(requests=before)
    first = other.process.memory
    await clients.run(requests=loops - before)
    grown = (other.process.memory - first) / 1e6
    clients.close()
    what = f"memory after {loops:,} loops against after {before:,}"
    return at_most(what, 10, grown, "MB", f"from {first / 1e6:.0f} MB", digits=1)


if __name__ == "__main__":
    sys.exit(main(__doc__, [("loop", table)]))
