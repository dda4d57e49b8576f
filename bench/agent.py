"""Histories of agents: three of four turns are the client's own calls and their responses.

With `graft_client_tools=strip` the client's tools are removed, and its calls become text; with `keep` both stay.
"""

import sys

from bench.conversations import agent_kind
from bench.measure import Effort, compare, main
from bench.processes import bare, grafted, upstream
from bench.proxy import TOOLSET
from bench.report import Row, at_least

AGENT_100K = agent_kind("100 KB", 100_000, 41)
AGENT_1M = agent_kind("1 MB", 1_000_000, 201)
_REACH = {"strip": ((AGENT_100K, 1.3), (AGENT_1M, 0.9)), "keep": ((AGENT_100K, None), (AGENT_1M, None))}


async def table(effort: Effort) -> list[Row]:
    rows: list[Row] = []
    with upstream() as port, bare(port) as one:
        for mode, kinds in _REACH.items():
            with grafted(port, None, f"graft_client_tools={mode}") as other:
                other.api("PUT", "/v1/sessions/default/tools", TOOLSET)
                for kind, target in kinds:
                    pair = await compare(effort, (one, other), kind)
                    what = f"requests a second: an agent's history of {kind.name}, `{mode}`"
                    rows.append(at_least(what, target, pair.rate, pair.rates))
    return rows


if __name__ == "__main__":
    sys.exit(main(__doc__, [("agent", table)]))
