"""How long the store blocks the event loop: SQLite, at the rate of a busy proxy.

Runs in this process. Each second `RATE` model turns with a call are saved, their calls are answered, and each is looked
up with a history of twenty turns. A stall is one call of the store: nothing else runs meanwhile.
"""

import asyncio
import gc
import tempfile
import time
from pathlib import Path

from bench.measure import Effort
from bench.report import Row, at_most
from bench.seed import RESULT, answer_with_call, default_store
from store.base import Store
from store.models import Call, Slot, Step, Turn

RATE = 100


async def table(effort: Effort) -> list[Row]:
    times: dict[str, list[float]] = {"save_turn": [], "answer": [], "look_up": []}
    begun, seconds = time.perf_counter(), effort.rounds * effort.seconds * 3
    gc.freeze()  # as the proxy does
    try:
        with tempfile.TemporaryDirectory() as folder:
            store = default_store(Path(folder))
            await store.open()
            try:
                for number in range(1, max(2, round(seconds * RATE))):
                    await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
                    await _step(store, number, times)
            finally:
                await store.close()
    finally:
        gc.unfreeze()
    every = [one for each in times.values() for one in each]
    medians = ", ".join(f"{name} {quantile(each, 0.5):.2f}" for name, each in times.items())
    what = "longest stall of the event loop by the store, p99.9"
    detail = f"{len(every)} calls of the store, the longest {max(every):.2f} ms; p50 {medians}"
    return [at_most(what, 20, quantile(every, 0.999), "ms", detail)]


def quantile(values: list[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


async def _step(store: Store, number: int, times: dict[str, list[float]]) -> None:
    turn_id, call_id = f"turn_{number:016x}", f"call_{number:024x}"
    now = time.time()
    content = answer_with_call(number)["candidates"][0]["content"]
    turn = Turn(
        turn_id=turn_id,
        session="default",
        visible=[{"text": f"Tool call completed: get_weather [{turn_id}]"}],
        steps=[Step(content=content, slots=[Slot(name="get_weather", call_id=call_id)])],
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
    times["save_turn"].append(1000 * (time.perf_counter() - begun))

    begun = time.perf_counter()
    await store.answer("default", call_id, result=RESULT)
    times["answer"].append(1000 * (time.perf_counter() - begun))

    begun = time.perf_counter()
    found = await store.look_up(
        "default",
        turn_ids=[f"turn_{n:016x}" for n in earlier],
        keys=[key.to_bytes(16) for n in earlier for key in (2 * n, 2 * n + 1)],
    )
    times["look_up"].append(1000 * (time.perf_counter() - begun))
    assert len(found.turns) == len(earlier)
