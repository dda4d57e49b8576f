"""Records for tests of the store."""

import asyncio
from typing import Any

from store.base import Store
from store.models import Call, Slot, Step, Turn

SOON = 5.0
"""Seconds after which a wait has failed."""


def a_turn(turn_id: str = "t1", session: str = "one", *calls: Call, **fields: Any) -> Turn:
    parts = [{"functionCall": {"name": call.name, "args": call.args}} for call in calls]
    slots = [Slot(name=call.name, call_id=call.call_id) for call in calls]
    steps = [Step(content={"role": "model", "parts": parts}, slots=slots)]
    known = {"visible": [{"text": f"[{turn_id}]"}], "steps": steps, "created_at": 1_000_000.0}
    return Turn(turn_id=turn_id, session=session, **{**known, **fields})


def a_call(call_id: str = "c1", turn_id: str = "t1", session: str = "one", **fields: Any) -> Call:
    known = {"name": "get_weather", "args": {"city": "Oslo"}, "created_at": 1.0, "updated_at": 1.0}
    return Call(call_id=call_id, turn_id=turn_id, session=session, **{**known, **fields})


WORKERS: dict[str, Any] = {"owner": "workers", "released": True, "redeliver": True}
"""Fields of a call that any worker may claim."""


async def save(
    store: Store,
    turn_id: str,
    session: str = "one",
    *,
    keys: Any = (),
    call: dict[str, Any] | None = None,
    **fields: Any,
) -> Call:
    """Save a turn with one call, with the id `c-TURN`; `call`: fields of the call."""
    one = a_call(f"c-{turn_id}", turn_id, session, **(call or {}))
    await store.save_turn(a_turn(turn_id, session, one, **fields), [one], keys)
    return one


async def revision_of(store: Store, session: str = "one") -> int | None:
    return (await store.snapshot(session)).revision


async def types(store: Store, session: str | None = None) -> list[str]:
    return [event.type for event in await store.events(after=None, session=session, limit=1000)]


async def turns_of_the_loop() -> None:
    """Let started tasks run until they wait."""
    for _ in range(5):
        await asyncio.sleep(0)
