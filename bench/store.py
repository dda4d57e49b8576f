"""How long the store holds up the event loop: SQLite, in the loop, at a rate that a busy proxy has.

Runs in this process. Each second `RATE` model turns with a call are saved and their calls answered, and each is looked
up with a history of twenty turns. A stall is one call of the store: it never suspends, so nothing else runs meanwhile.
"""

import asyncio
import gc
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import Effort, main
from bench.report import Row, at_most
from bench.seed import RESULT, answer_with_call, default_store
from store.base import Store
from store.models import Call, Slot, Step, Turn

RATE = 100
_COUNTED = 25_000
"""A number whose counting takes about as long as a call of the store."""


async def table(effort: Effort) -> list[Row]:
    seconds = effort.rounds * effort.seconds * 3
    gc.freeze()  # as the proxy does
    try:
        with tempfile.TemporaryDirectory() as folder:
            store = default_store(Path(folder))
            await store.open()
            try:
                stalls, late = await _run(store, seconds)
            finally:
                await store.close()
    finally:
        gc.unfreeze()
    counting = stalls.pop("counting")
    _, idle = await _run(None, min(seconds, 2.0))
    every = [one for times in stalls.values() for one in times]
    each = ", ".join(f"{name} {_ms(times, 0.5)}/{_ms(times, 0.999)}" for name, times in stalls.items())
    lateness = f"{_ms(late, 0.999)} : {_ms(idle, 0.999)} ms"
    return [
        at_most(
            "longest stall of the event loop by the store, p99.9",
            0.5,
            quantile(every, 0.999),
            "ms",
            f"p50/p99.9: {each}",
        ),
        at_most("the same, the longest of all", 3, max(every), "ms", f"{len(every)} calls of the store"),
        at_most(
            "counting beside it, which needs neither disk nor lock, p99.9",
            None,
            quantile(counting, 0.999),
            "ms",
            f"p50 {_ms(counting, 0.5)}, the longest {max(counting):.2f} ms: so far the machine",
        ),
        at_most(
            "lateness of a timer beside it, p99.9",
            None,
            quantile(late, 0.999),
            "ms",
            f"with : without the store {lateness}",
        ),
    ]


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def _ms(values: list[float], q: float) -> str:
    return f"{quantile(values, q):.2f}"


async def _run(store: Store | None, seconds: float) -> tuple[dict[str, list[float]], list[float]]:
    """Milliseconds of each call of the store, by its name, of counting, and of each tick's lateness."""
    stalls: dict[str, list[float]] = {"save_turn": [], "answer": [], "look_up": [], "counting": []}
    late: list[float] = []
    ticking = asyncio.ensure_future(_tick(late))
    begun = time.perf_counter()
    number = 0
    while time.perf_counter() - begun < seconds:
        number += 1
        if store is not None:
            await _step(store, number, stalls)
        await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
    ticking.cancel()
    return stalls, late or [0.0]


async def _tick(late: list[float]) -> None:
    while True:
        due = time.perf_counter() + 0.001
        await asyncio.sleep(0.001)
        late.append(1000 * (time.perf_counter() - due))


async def _step(store: Store, number: int, stalls: dict[str, list[float]]) -> None:
    turn_id, call_id = f"turn_{number:016x}", f"call_{number:024x}"
    now = time.time()
    content = answer_with_call(number)["candidates"][0]["content"]
    turn = Turn(
        turn_id=turn_id,
        session="default",
        visible=[{"text": f"Tool call completed: get_weather [{turn_id}]"}],
        steps=[Step(content=content, slots=[Slot(name="get_weather", call_id=call_id)])],
        user_key=number.to_bytes(16),
        delivered=True,
        created_at=now,
    )
    call = Call(
        call_id=call_id,
        session="default",
        name="get_weather",
        args={"city": f"City {number}"},
        turn_id=turn_id,
        created_at=now,
        updated_at=now,
    )
    keys = [(2 * number).to_bytes(16), (2 * number + 1).to_bytes(16)]
    earlier = range(max(1, number - 10), number + 1)

    begun = time.perf_counter()
    await store.save_turn(turn, [call], keys)
    stalls["save_turn"].append(1000 * (time.perf_counter() - begun))

    begun = time.perf_counter()
    await store.answer("default", call_id, result=RESULT)
    stalls["answer"].append(1000 * (time.perf_counter() - begun))

    begun = time.perf_counter()
    found = await store.look_up(
        "default",
        turn_ids=[f"turn_{n:016x}" for n in earlier],
        keys=[key.to_bytes(16) for n in earlier for key in (2 * n, 2 * n + 1)],
    )
    stalls["look_up"].append(1000 * (time.perf_counter() - begun))
    assert len(found.turns) == len(earlier)

    for _ in range(3):  # as many as calls of the store
        await asyncio.sleep(0)  # the timer is not to be late because of the counting
        begun = time.perf_counter()
        sum(range(_COUNTED))
        stalls["counting"].append(1000 * (time.perf_counter() - begun))


if __name__ == "__main__":
    sys.exit(main(__doc__, [("store", table)]))
