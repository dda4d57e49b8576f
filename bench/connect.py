"""Through CONNECT, with TLS on both sides, as Gemini's own clients come: regular proxies, bare and with the addon."""

import dataclasses
import sys

from bench.measure import Effort, compare, main
from bench.processes import HOST, bare, grafted, upstream
from bench.proxy import TEXT_2K, TEXT_100K, TOOLSET
from bench.report import Row, at_least, at_most


async def table(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    fewer = dataclasses.replace(effort, rounds=max(1, effort.rounds // 2))
    with upstream("bench.tls_upstream") as port, bare(0) as one, grafted(0) as other:
        sides, tunnel = (one, other), f"{HOST}:{port}"
        other.api("PUT", "/v1/sessions/default/tools", TOOLSET)
        for kind in (TEXT_2K, TEXT_100K):
            pair = await compare(effort, sides, kind, tunnel=tunnel)
            what = f"requests a second through CONNECT with TLS: {kind.name}"
            rows.append(at_least(what, 1.3, pair.rate, pair.rates))
        for kind in (TEXT_2K, TEXT_100K):
            pair = await compare(fewer, sides, kind, clients=1, tunnel=tunnel)
            what = f"p50 added at one client through CONNECT with TLS: {kind.name}"
            rows.append(at_most(what, None, pair.added, "ms", pair.latencies))
        if not other.counted("toolgraft_requests"):
            raise RuntimeError("no request was rewritten")
    return rows


if __name__ == "__main__":
    sys.exit(main(__doc__, [("connect", table)]))
