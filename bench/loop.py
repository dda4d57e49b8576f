"""The tool loop, against the requests that a client would make itself.

The upstream answers a question with calls, and the tools' results with text. Bare mitmdump's client runs the loop
itself, with tools that take no time: its second request has the call and its result after the question.
"""

import itertools
from collections.abc import Iterator
from statistics import median

from bench.conversations import bodies
from bench.load import Clients, Result, head
from bench.measure import CLIENTS, PATH, Effort, Pair, alternate
from bench.processes import ROOT, Side, bare, grafted, upstream
from bench.proxy import TEXT_2K
from bench.report import Row, at_least, at_most

TOOLS = ROOT / "bench" / "tools.py"
_LOOP = f"{PATH}?loop=noop"
_CALL = b'{"id":"f1","name":"noop","args":{"sent":1}}'
_STEP = (
    b',{"role":"model","parts":[{"functionCall":' + _CALL + b',"thoughtSignature":"' + b"c2lnbmVk" * 40 + b'"}]}'
    b',{"role":"user","parts":[{"functionResponse":{"id":"f1","name":"noop","response":{"ok":true}}}]}'
)


async def table(effort: Effort) -> list[Row]:
    with upstream() as port, bare(port) as one, grafted(port, None, f"graft_tools={TOOLS}") as other:
        loops = max(2, round(150 * effort.seconds))
        single = await _compare(effort, one, other, 1, loops)
        many = await _compare(effort.longer(2), one, other, CLIENTS)
        ran = other.api("GET", "/v1/calls?session=default&name=noop&limit=100")["items"]
        if not ran or any(call["status"] != "done" for call in ran):
            raise RuntimeError(f"the calls were not run: {ran[:1]}")
    mine, theirs = single.median(lambda r: r.grafted.p50), single.median(lambda r: _twos(r.bare))
    added = single.median(lambda r: r.grafted.p50 - _twos(r.bare))
    rate, bare_rate = many.median(lambda r: 2 * r.grafted.rate), many.median(lambda r: r.bare.rate)
    return [
        at_most(
            "one step of a loop: added to two bare requests",
            2.5,
            1000 * added,
            "ms",
            f"p50 {1000 * mine:.2f} : {1000 * theirs:.2f} ms",
        ),
        at_least(
            f"{CLIENTS} clients looping: upstream requests a second",
            0.5,
            2 * many.rate,
            f"{rate:,.0f} : {bare_rate:,.0f} a second; by CPU {2 * many.cpu:.2f}",
        ),
    ]


def _by_hand(client: int) -> Iterator[list[bytes]]:
    """The bodies of a client that runs the loop itself: each question twice, the second time followed by the step."""
    for pieces in bodies(TEXT_2K, client, cold=True):
        yield pieces
        yield [*pieces[:-1], _STEP, pieces[-1]]


async def _compare(effort: Effort, one: Side, other: Side, count: int, loops: int = 0) -> Pair:
    """Rounds of `effort.seconds`, or of `loops` loops."""
    seconds = 0.0 if loops else effort.seconds
    by_hand = await Clients.connect(one.port, head(one.port, _LOOP), [_by_hand(n) for n in range(count)])
    looping = await Clients.connect(
        other.port, head(other.port, _LOOP), [bodies(TEXT_2K, n, cold=True) for n in range(count)]
    )
    try:
        for clients in (by_hand, looping):  # opens connections, and fills caches of the first request
            await clients.run(requests=2 * count)
        return await alternate(
            effort,
            (one, other),
            (
                lambda: by_hand.run(seconds=seconds, requests=2 * loops),
                lambda: looping.run(seconds=seconds, requests=loops),
            ),
        )
    finally:
        by_hand.close()
        looping.close()


def _twos(result: Result) -> float:
    """Seconds of two requests, one after the other."""
    return median(map(sum, itertools.batched(result.latencies, 2, strict=True)))
