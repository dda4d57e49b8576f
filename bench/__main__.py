"""One table: the proxy against bare mitmdump, and the costs of its loops, stores and memory.

The exit status is 1 if a target was missed."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

from bench import litellm, loop, memory, processes, proxy, redis_store, store, stream
from bench.measure import FULL, QUICK, TINY, Effort
from bench.report import Row, markdown, plain

TABLES: dict[str, Callable[[Effort], Awaitable[list[Row]]]] = {
    "proxy": proxy.table,
    "stream": stream.table,
    "loop": loop.table,
    "store": store.table,
    "redis": redis_store.table,
    "memory": memory.table,
    "litellm": litellm.table,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m bench", description=__doc__, allow_abbrev=False)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"only these: {', '.join(TABLES)}")
    efforts = parser.add_mutually_exclusive_group()
    efforts.add_argument("--quick", action="store_const", const=QUICK, dest="effort", help="a first look")
    efforts.add_argument("--tiny", action="store_const", const=TINY, dest="effort", help="only whether it runs")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the addon")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    given = parser.parse_args(argv)
    if unknown := set(given.tables) - TABLES.keys():
        parser.error(f"there is no table {sorted(unknown)[0]!r}; there are {', '.join(TABLES)}")
    processes.addon_options[:] = given.set
    rows = asyncio.run(_rows(given.tables or list(TABLES), given.effort or FULL))
    print(markdown(rows) if given.markdown else plain(rows))
    return 1 if any(row.ok is False for row in rows) else 0


async def _rows(names: Sequence[str], effort: Effort) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        for row in await TABLES[name](effort):
            print(f"{name}: {row.what}: {row.measured}", file=sys.stderr, flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
