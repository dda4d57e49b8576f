"""All the tables: `python -m bench`; with `--quick` a first look."""

import sys

from bench import agent, connect, control, doors, loop, memory, proxy, store, stream
from bench.measure import main

if __name__ == "__main__":
    modules = (proxy, agent, connect, stream, loop, doors, store, control, memory)
    sys.exit(main(__doc__, [(module.__name__.removeprefix("bench."), module.table) for module in modules]))
