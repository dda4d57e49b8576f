"""Several waits at once."""

import asyncio

import pytest

from addon.web.waits import Waits


async def test_a_wait_goes_on_while_others_end() -> None:
    queues = {name: asyncio.Queue[str]() for name in "ab"}
    begun = {"a": 0, "b": 0}

    async def a() -> str:
        begun["a"] += 1
        return await queues["a"].get()

    async def b() -> str:
        begun["b"] += 1
        return await queues["b"].get()

    async with Waits(a, b) as waits:
        for text in ("one", "two"):
            queues["b"].put_nowait(text)
            assert await waits.next() == text
        waiting = asyncio.ensure_future(waits.next())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        queues["a"].put_nowait("three")
        assert await waits.next() == "three"
        assert begun == {"a": 1, "b": 3}


async def test_a_wait_that_always_ends_at_once_leaves_room_for_others() -> None:
    async def a() -> str:
        return "a"

    async def b() -> str:
        return "b"

    async with Waits(a, b) as waits:
        assert [await waits.next() for _ in range(6)] == ["a", "b"] * 3


async def test_an_error_is_raised_and_the_others_are_cancelled() -> None:
    ended = asyncio.Event()

    async def wrong() -> None:
        raise ValueError("wrong")

    async def quiet() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ValueError, match="wrong"):
        async with Waits(quiet, wrong) as waits:
            await waits.next()
    assert ended.is_set()
