"""Plain functions in daemon threads."""

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from addon.tools import daemon_pool as module
from addon.tools.base import ToolError
from addon.tools.daemon_pool import DaemonPool, NoFreeThread


@pytest.fixture
def pool() -> Iterator[DaemonPool]:
    pool = DaemonPool("tests")
    yield pool
    pool.close()


def running() -> int:
    return sum(thread.name == "tests" for thread in threading.enumerate())


async def test_a_function_runs_beside_the_loop_in_a_daemon_thread(pool: DaemonPool) -> None:
    thread = await pool.run(threading.current_thread)
    assert thread is not threading.current_thread()
    assert thread.daemon


async def test_the_function_s_error_is_raised(pool: DaemonPool) -> None:
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await pool.run(lambda: next(iter([])))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("3"), GeneratorExit("3")])
async def test_an_exit_that_would_end_the_event_loop_is_a_tool_error(pool: DaemonPool, error: BaseException) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(ToolError, match=f"{type(error).__name__}: 3"):
        await asyncio.ensure_future(pool.run(fails))


async def test_it_sees_the_context_of_its_caller(pool: DaemonPool) -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)
    assert await pool.run(variable.get) == 7


async def test_calls_run_at_the_same_time(pool: DaemonPool) -> None:
    barrier = threading.Barrier(4, timeout=5)
    await asyncio.gather(*(pool.run(barrier.wait) for _ in range(4)))


async def test_threads_are_used_again(pool: DaemonPool, until: Any) -> None:
    for _ in range(50):
        await pool.run(int)
    assert running() < 10


async def test_one_that_hangs_keeps_no_other_waiting(pool: DaemonPool) -> None:
    release = threading.Event()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.run(release.wait), 0.02)
    assert await pool.run(lambda: 5) == 5
    release.set()


async def test_too_many_that_hang_are_refused(pool: DaemonPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_THREADS", 2)
    release = threading.Event()
    hanging = [asyncio.ensure_future(pool.run(release.wait)) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(NoFreeThread):
        await pool.run(int)
    release.set()
    await asyncio.gather(*hanging)


async def test_closing_ends_all_threads_and_takes_no_more_work(until: Any) -> None:
    pool = DaemonPool("tests")
    release, started = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        release.wait()

    await pool.run(int)
    task = asyncio.ensure_future(pool.run(hang))
    await until(started.is_set)
    pool.close()
    with pytest.raises(NoFreeThread):
        await pool.run(int)
    release.set()
    await task
    await until(lambda: running() == 0)
