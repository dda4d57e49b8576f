"""Requests with a million turns and calls in Redis, against requests with a thousand.

What the session holds is copied from one captured turn and its call, by the server itself.
"""

import asyncio
import shutil
import sys
from typing import Any

import redis

from addon.settings import Settings
from bench.measure import PATH, Effort, compare, main
from bench.processes import grafted, upstream
from bench.proxy import TEXT_2K
from bench.report import Row, at_most
from bench.seed import capture
from bench.shared_store import server
from store.backends._redis_values import Keys
from store.factory import open_url
from store.models import Call

_SMALL = 1_000
_BATCH = 5_000
_COPY = """
-- KEYS: one for each template. ARGV: the ids of turn and call, the first and the last number, and the templates, each
-- with its kind, its name, and its value or score.
local turn, call = ARGV[1], ARGV[2]
local function renamed(text, turn_id, call_id)
  return (text:gsub(turn, turn_id):gsub(call, call_id))
end
for number = tonumber(ARGV[3]), tonumber(ARGV[4]) do
  local ending = string.format('%08x', number)
  local turn_id, call_id = turn:sub(1, -9) .. ending, call:sub(1, -9) .. ending
  for index, key in ipairs(KEYS) do
    local kind, name, value = ARGV[3 * index + 2], ARGV[3 * index + 3], ARGV[3 * index + 4]
    if kind == 'hash' then
      redis.call('HSET', key, renamed(name, turn_id, call_id), renamed(value, turn_id, call_id))
    elseif kind == 'zset' then
      redis.call('ZADD', key, value, renamed(name, turn_id, call_id))
    else
      redis.call('SET', renamed(key, turn_id, call_id), value)
    end
  end
end
"""


async def table(effort: Effort) -> list[Row]:
    if shutil.which("redis-server") is None:
        return [Row("a large store in Redis", "", "not measured", None, "redis-server is not installed")]
    count = 50 * effort.requests
    with upstream() as port, server() as small, server() as large:
        for url, records in ((small, _SMALL), (large, count)):
            store = open_url(url, ttl=Settings().ttl)
            await store.open()
            await capture(store, "default", 1, answered=True)
            (call,) = (await store.calls(session="default")).items
            await store.close()
            await asyncio.to_thread(fill, url, "default", call, records)
        with grafted(port, None, f"graft_store={small}") as one, grafted(port, None, f"graft_store={large}") as other:
            rows = []
            for what, path in (("2 KB", PATH), ("2 KB, every answer a call", f"{PATH}?call=get_weather")):
                pair = await compare(effort, (one, other), TEXT_2K, path=path)
                text = f"a request with {count:,} calls in Redis against {_SMALL:,}: {what}"
                rows.append(at_most(text, 1.1, 1 / pair.rate, "x", pair.rates))
    return rows


def fill(url: str, session: str, call: Call, count: int) -> None:
    """Copy this call and its turn so many times, in all hashes, indexes and strings that name them. Events and writes
    are not copied: of each session the last 10,000 and 128 are kept."""
    client = redis.Redis.from_url(url)
    keys = Keys("toolgraft")
    turn_id, call_id = call.turn_id, call.call_id
    found = [*_named(client, keys, session, turn_id.encode(), call_id.encode())]
    found.append((keys.of_call(call_id), "string", b"", session.encode()))
    copy = client.register_script(_COPY)
    templates = [word for _, *template in found for word in template]
    for first in range(0, count, _BATCH):
        last = min(first + _BATCH, count) - 1
        copy(keys=[key for key, *_ in found], args=[turn_id, call_id, first, last, *templates])
    client.close()


def _named(client: Any, keys: Keys, session: str, *ids: bytes) -> list[tuple[bytes, str, bytes, Any]]:
    """The entries with one of these ids in their names: key, type, name, value or score."""
    found: list[tuple[bytes, str, bytes, Any]] = []
    for key in client.scan_iter(keys.of(session, "*")):
        kind = client.type(key).decode()
        if key == keys.of(session, "writes"):
            continue
        entries = {"hash": client.hscan_iter, "zset": client.zscan_iter}.get(kind, lambda key: ())(key)
        found += [(key, kind, name, value) for name, value in entries if any(one in name for one in ids)]
    return found


if __name__ == "__main__":
    sys.exit(main(__doc__, [("large Redis", table)]))
