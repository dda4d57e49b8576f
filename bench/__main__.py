"""The tables: `python -m bench`; with `--quick` a first look, with `--all` those too that take long preparation."""

import sys
from types import ModuleType

from bench import (
    agent,
    call_lists,
    connect,
    console,
    control,
    doors,
    large_redis,
    large_store,
    litellm,
    loop,
    memory,
    proxy,
    scale,
    shared_store,
    store,
    stream,
)
from bench.measure import Table, main


def _named(*modules: ModuleType) -> list[tuple[str, Table]]:
    return [(module.__name__.removeprefix("bench."), module.table) for module in modules]


if __name__ == "__main__":
    short = _named(proxy, agent, connect, stream, loop, doors, store, control, console, memory, shared_store)
    sys.exit(main(__doc__, short, longer=_named(large_store, litellm, large_redis, scale, call_lists)))
