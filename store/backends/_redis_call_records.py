"""A call's record and its entries in the indexes, in Redis."""

from collections.abc import Sequence

from store.backends import _media as media
from store.backends import _redis_values as values
from store.backends import _states as states
from store.backends._redis_base import body_of
from store.backends._redis_transaction import Transaction
from store.models import Call


def index_call(tx: Transaction, before: Call | None, call: Call, offset: int = 0) -> None:
    """The entries of a call in the indexes. `before` None: it is new, and has its place at this offset."""
    name = call.call_id
    was_open, is_open = before is not None and not before.status.final, not call.status.final
    if before is None and is_open:
        tx.place("open", offset, name)
    elif was_open and not is_open:
        tx.do("ZREM", "open", name)
    (was, was_waiting), (now, waiting) = states.indexed(before) if before else (None, None), states.indexed(call)
    if was == 0 and now != 0:
        tx.index("ready", "calls", name, values.prefix(call.name.encode()), remove=True)
    elif now == 0 and was != 0:
        tx.index("ready", "calls", name, values.prefix(call.name.encode()))
    if now:
        tx.do("ZADD", "lease", repr(now), name)
    elif was:
        tx.do("ZREM", "lease", name)
    if waiting is not None:
        tx.do("HSET", "waiting", name, waiting)
    elif was_waiting is not None:
        tx.do("HDEL", "waiting", name)
    if now or waiting is not None:
        tx.do_shared("ZADD", tx.keys.active, repr(tx.now.wall), call.session)
    if before is not None or now is not None:  # nobody waits for a new call, unless to run it
        tx.wrote_call(call, now is not None)


def put_call(tx: Transaction, before: Call, call: Call, *, quietly: bool = False) -> None:
    """Replace the call; `quietly`: without an event."""
    record = call.model_dump_json()
    tx.put("call", call.call_id, [], body_of(record))
    put_parts(tx, call)
    index_call(tx, before, call)
    tx.touch([call.turn_id])
    if not quietly:
        tx.record("call.updated", record)


def put_parts(tx: Transaction, call: Call) -> None:
    """Store the parts of a call's result, if it has any. Images are compressed already."""
    if (text := media.parts_text(call)) is not None:
        tx.do("HSET", "parts", call.call_id, text)


def lost_ids(flat: Sequence[bytes], waits: dict[bytes, bytes], proxies: set[str], steady: float) -> set[bytes]:
    """The calls that may be lost, of those that workers run and that proxies wait for."""
    ids = {one for one, end in zip(flat[::2], flat[1::2], strict=True) if float(end) <= steady}
    return ids | {one for one, proxy in waits.items() if proxy.decode() not in proxies}


def places_of(flat: Sequence[bytes]) -> list[tuple[bytes, int]]:
    """The members of a zset with their places, as a range with scores has them."""
    return [(member, int(float(place))) for member, place in zip(flat[::2], flat[1::2], strict=True)]


def lease_of(text: bytes) -> tuple[float, float]:
    """The end of a proxy's lease, and when the proxy was last alive. A damaged lease has ended: its proxy renews it."""
    try:
        until, alive = text.split()
        return float(until), float(alive)
    except ValueError:
        return 0.0, 0.0
