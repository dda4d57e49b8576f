"""The wall clock jumps: nothing expires for a day, and no lease ends or is prolonged by it."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from store.backends import _clocks as clocks
from store.base import Store
from store.factory import open_url
from store.models import Status
from tests.store.conftest import URLS
from tests.store.records import a_turn, save

HOUR = 3600.0
DAY = 24 * HOUR
TTL = 7 * DAY
YEAR = 365 * 24


WEATHER = ["get_weather"]
WORKERS = {"owner": "workers", "released": True}


class Machine:
    """A wall clock that can be set, and an uptime that cannot."""

    def __init__(self) -> None:
        self.up = 5000.0
        self.ahead = 1.7e9
        self.boot = "first"

    def wall(self) -> float:
        return self.up + self.ahead

    def uptime(self) -> float:
        return self.up

    def restart(self) -> None:
        """Started again: the wall clock goes on meanwhile, the uptime begins at 0."""
        self.ahead, self.up, self.boot = self.wall(), 0.0, self.boot + "."


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    monkeypatch.setattr(clocks, "boot", lambda: machine.boot)
    return machine


@pytest.fixture
def make(machine: Machine, tmp_path: Path) -> Callable[[str], Store]:
    return lambda kind: open_url(URLS[kind](tmp_path), ttl=TTL, clock=machine.wall, uptime=machine.uptime)


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, make: Callable[[str], Store]) -> AsyncIterator[Store]:
    """Of the backends that date by the proxy's clock."""
    store = make(request.param)
    await store.open()
    yield store
    await store.close()


async def turns(store: Store) -> list[str]:
    return [turn.turn_id for turn in (await store.turns("one")).items]


@pytest.mark.parametrize("hours", [YEAR, -YEAR, 192, -192, 1.1, -1.1])
async def test_nothing_expires_for_a_day_after_a_step(
    store: Store, machine: Machine, hours: float, caplog: pytest.LogCaptureFixture
) -> None:
    await save(store, "t1", created_at=machine.wall())
    assert await store.expire() == 0
    machine.ahead += hours * HOUR
    machine.up += 60
    assert await store.expire() == 0
    assert f"the clock went {abs(hours):.1f} h {'ahead' if hours > 0 else 'back'}" in caplog.text
    machine.up += DAY - 1
    assert await store.expire() == 0
    assert await turns(store) == ["t1"]
    machine.up += 2
    await store.expire()
    assert await turns(store) == ([] if hours >= 192 else ["t1"])


@pytest.mark.parametrize("hours", [YEAR, -YEAR])
async def test_a_clock_that_is_wrong_for_hours_loses_nothing(store: Store, machine: Machine, hours: float) -> None:
    """Neither what was written before, nor what was written meanwhile."""
    await save(store, "before", created_at=machine.wall())
    await store.expire()
    machine.ahead += hours * HOUR
    await store.expire()
    await save(store, "meanwhile", created_at=machine.wall())
    machine.up += 5 * HOUR
    await store.expire()
    machine.ahead -= hours * HOUR
    for _ in range(3):
        machine.up += DAY / 2
        await store.expire()
        assert await turns(store) == ["before", "meanwhile"]
    machine.up += TTL + 1
    await store.expire()
    assert await turns(store) == (["meanwhile"] if hours > 0 else [])


async def test_time_that_passes_and_small_corrections_are_no_step(store: Store, machine: Machine) -> None:
    await save(store, "t1", created_at=machine.wall())
    for minutes in (20, -40):
        machine.ahead += minutes * 60
        machine.up += TTL / 2 + HOUR
        gone = await store.expire()
    assert gone == 2 + 2
    assert await turns(store) == []


@pytest.mark.parametrize("hours", [YEAR, -YEAR])
async def test_leases_do_not_feel_the_wall_clock(store: Store, machine: Machine, hours: float) -> None:
    await store.hold("p1", 60.0)
    await save(store, "t1", call=WORKERS)
    await save(store, "t2", call={"owner": "loop", "proxy_id": "p1"})
    claimed = await store.claim("one", WEATHER, lease=30.0, worker="w1")
    assert claimed
    machine.ahead += hours * HOUR
    machine.up += 29
    assert await store.settle_lost() == []
    assert await store.lease_left("one", "c-t1") == pytest.approx(1)
    assert await store.next_lease("one", WEATHER) == pytest.approx(1)
    machine.up += 2
    assert [call.call_id for call in await store.settle_lost()] == ["c-t1"]
    machine.up += 30
    assert [call.call_id for call in await store.settle_lost()] == ["c-t2"]


async def test_an_answer_that_broke_off_is_found_for_as_long_as_time_passes(store: Store, machine: Machine) -> None:
    turn = a_turn("t1", request_key=b"key", proxy_id="p1")
    await store.save_turn(turn)
    await store.mark_broken_off("one", "t1")
    machine.ahead += 8 * DAY
    machine.up += 59
    assert await store.take_over("one", b"key", window=60.0, proxy_id="p2")
    await store.mark_broken_off("one", "t1")
    machine.ahead -= 8 * DAY
    machine.up += 61
    assert await store.take_over("one", b"key", window=60.0, proxy_id="p2") is None


# --- over restarts: SQLite alone has any --------------------------------------------------------------------------


async def test_a_store_that_was_closed_for_days_on_a_machine_that_was_up_expires(
    make: Callable[[str], Store], machine: Machine
) -> None:
    store = make("sqlite")
    await store.open()
    await save(store, "t1", created_at=machine.wall())
    await store.expire()
    await store.close()
    machine.up += 8 * DAY
    await store.open()
    assert await store.expire() == 4
    await store.close()


@pytest.mark.parametrize("hours", [YEAR, -YEAR])
async def test_nothing_expires_for_a_day_after_the_clock_was_set_while_the_machine_was_off(
    make: Callable[[str], Store], machine: Machine, hours: float
) -> None:
    store = make("sqlite")
    await store.open()
    await save(store, "t1", created_at=machine.wall())
    await store.expire()
    await store.close()
    machine.restart()
    machine.ahead += hours * HOUR
    for _ in range(3):
        await store.open()
        assert await store.expire() == 0
        assert await turns(store) == ["t1"]
        await store.close()
        machine.up += DAY / 3 - 1
    machine.up += 4
    await store.open()
    await store.expire()
    assert await turns(store) == ([] if hours > 0 else ["t1"])
    await store.close()


async def test_a_restart_within_the_hour_is_no_step(make: Callable[[str], Store], machine: Machine) -> None:
    store = make("sqlite")
    await store.open()
    await save(store, "t1", created_at=machine.wall() - TTL + HOUR)
    await store.expire()
    await store.close()
    machine.restart()
    machine.ahead += 50 * 60
    await store.open()
    assert await store.expire() == 0
    machine.up += 11 * 60
    assert await store.expire()
    await store.close()


async def test_a_lease_goes_on_over_a_restart_whatever_the_wall_clock_does(
    make: Callable[[str], Store], machine: Machine
) -> None:
    store = make("sqlite")
    await store.open()
    await save(store, "t1", call=WORKERS, created_at=machine.wall())
    await store.claim("one", WEATHER, lease=30.0, worker="w1")
    await store.expire()
    await store.close()
    machine.ahead += 8 * DAY
    machine.up += 20
    await store.open()
    assert await store.lease_left("one", "c-t1") == pytest.approx(10)
    await store.close()


async def test_a_lease_ends_within_an_hour_of_a_machine_s_start(make: Callable[[str], Store], machine: Machine) -> None:
    store = make("sqlite")
    await store.open()
    await save(store, "t1", call=WORKERS)
    await store.claim("one", WEATHER, lease=3600.0, worker="w1")
    await store.close()
    machine.restart()
    machine.ahead -= 8 * DAY
    await store.open()
    assert await store.lease_left("one", "c-t1") == pytest.approx(3600)
    machine.up += 3601
    settled = await store.settle_lost()
    assert [call.status for call in settled] == [Status.FAILED]
    await store.close()
