"""Requests with a million turns and calls in the store, against requests with a thousand: the proxy with the addon on
both sides.

The stores are copies of one. What they hold besides is written into the SQLite file directly, as copies of one turn
and its call, for the proxy itself would take an hour.
"""

import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from bench.conversations import text_kind
from bench.measure import PATH, Effort, Pair, compare, main
from bench.processes import grafted, upstream
from bench.proxy import TEXT_2K
from bench.report import Row, at_most
from bench.seed import RESULT, SIGNATURE, capture, default_store

_SMALL = 1000
_HITS = 20
_COPY = (
    "CREATE TEMP TABLE copy AS"
    " WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :count)"
    " SELECT n + :turn AS turn, n + :call AS call, n * :gap AS place,"
    " printf('turn_%012x0000', n * :gap) AS turn_id, printf('call_%012x000000000000', n * :gap) AS call_id FROM number",
    "INSERT INTO turn (seq, session, turn_id, user_key, bound, created_at, record)"
    " SELECT copy.turn, session, copy.turn_id, key_at(place, 16), bound, created_at,"
    " replace(replace(short, :turn_id, copy.turn_id), :call_id, copy.call_id)"
    " FROM copy, (SELECT *, replace(record, :signature, 'c2ln') AS short FROM turn) WHERE seq = :turn",
    "INSERT INTO call SELECT copy.call, copy.call_id, session, copy.turn, name, status,"
    " replace(replace(short, :turn_id, copy.turn_id), :call_id, copy.call_id), claimable_at, proxy_id,"
    " parts"
    " FROM copy, (SELECT *, replace(record, :note, 'Rain.') AS short FROM call) WHERE seq = :call",
    "INSERT INTO turn_key SELECT :session, key_at(place, 16), 1, turn FROM copy",
    "INSERT INTO turn_key SELECT :session, key_at(place, 22), 1, turn FROM copy",
    "INSERT INTO plain_key SELECT :session, key_at(place, 6), :hour, x'10' || key_at(place, 42) FROM copy",
    "DROP TABLE copy",
)
"""Places are spread evenly, as ids and keys are, and are written in order, which is quick. Texts are shortened, so that
the file is not larger than its number of rows asks for."""


async def table(effort: Effort) -> list[Row]:
    count = 50 * effort.requests
    with tempfile.TemporaryDirectory() as folder, upstream() as port:
        small, large = Path(folder) / "small", Path(folder) / "large"
        store = default_store(small)
        await store.open()
        captured = await capture(store, "default", _HITS, answered=True)
        await store.close()
        shutil.copytree(small, large)
        for home, records in ((small, _SMALL), (large, count)):
            fill(home / "state" / "toolgraft.db", records)
        kind = text_kind("100 KB, 20 ledger hits, every request new", 100_000, 200, [one.text for one in captured])
        with grafted(port, small) as one, grafted(port, large) as other:
            sides = (one, other)
            rows = [
                _row(count, TEXT_2K.name, await compare(effort, sides, TEXT_2K)),
                _row(count, kind.name, await compare(effort, sides, kind, cold=True)),
                _row(
                    count,
                    "2 KB, every answer a call",
                    await compare(effort, sides, TEXT_2K, path=f"{PATH}?call=get_weather"),
                ),
            ]
    return rows


def _row(count: int, what: str, pair: Pair) -> Row:
    few, many = (1000 * seconds for seconds in pair.cpu_each)
    detail = f"CPU {many:.2f} : {few:.2f} ms; {pair.latencies}"
    text = f"a request with {count:,} turns and calls in the store against {_SMALL:,}: {what}"
    return at_most(text, 1.05, 1 / pair.cpu, "x", detail)


def fill(path: Path, count: int) -> None:
    """Copy the newest turn of this SQLite store, which has one call, and its call: so many times. There is a note of a
    turn without calls beside each."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.create_function("key_at", 2, lambda place, size: place.to_bytes(6) + os.urandom(size - 6))
        for setting in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -500000", "temp_store = MEMORY"):
            db.execute(f"PRAGMA {setting}")
        db.row_factory = sqlite3.Row
        (newest,) = db.execute(
            "SELECT turn.seq AS turn, turn_id, turn.session, call.seq AS call, call_id, created_at / 3600 AS hour"
            " FROM turn JOIN call ON call.turn = turn.seq ORDER BY turn.seq DESC LIMIT 1"
        )
        values = {**newest, "count": count, "gap": 2**48 // (count + 1), "hour": int(newest["hour"])}
        values |= {"signature": SIGNATURE, "note": RESULT["note"]}
        db.execute("BEGIN")
        for statement in _COPY:
            db.execute(statement, values)
        db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")


if __name__ == "__main__":
    sys.exit(main(__doc__, [("large store", table)]))
