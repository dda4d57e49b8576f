"""Never a call of another chat's; and as few misses as the words, the marks and the names allow."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.simulation.__main__ import simulated
from tests.simulation.habits import hasty
from tests.simulation.world import Kind, Tally

CHATS, STEPS = 70, 10


def tally(found: Mapping[Kind, Tally], **wanted: str) -> Tally:
    """The sum of the kinds that have all of this."""
    names = ("words", "told_by", "history")
    total = Tally()
    for kind, one in found.items():
        if all(dict(zip(names, kind, strict=True))[name] == value for name, value in wanted.items()):
            total += one
    return total


async def test_no_chat_gets_the_calls_of_another() -> None:
    found: defaultdict[Kind, Tally] = defaultdict(Tally)
    for seed in (1, 2, 3):
        world = await simulated(seed, CHATS, STEPS)
        assert world.wrong == []
        for kind, one in world.tallies.items():
            found[kind] += one
    assert tally(found).hits > 1500
    for kind, one in found.items():
        words, told_by, history = kind
        if told_by == "signatures" or (words == "realistic" and history == "intact"):
            assert one.rate <= 0.01, kind
        elif words == "realistic":
            assert one.rate <= 0.05, kind
    assert found["realistic", "", "cut"].hits > 100
    assert found["realistic", "", "edited"].hits > 50


async def test_chats_of_few_words_alone(tmp_path: Path) -> None:
    """All of them in the same words, in a store that is a file."""
    world = await simulated(4, 30, 8, ("few",), f"sqlite:///{tmp_path}/graft.db")
    assert world.wrong == []
    assert tally(world.tallies, told_by="signatures").rate <= 0.01
    assert sum(world.metrics.misses.values()) > 0, "what is missed is counted"


@pytest.mark.parametrize("seed", [28, 31, 37])
async def test_clients_that_hang_up_and_go_on_with_what_they_have(seed: int) -> None:
    """Sessions in which each of several wrong hits would happen if that were not noted."""
    world = await simulated(seed, 30, 6, ("few",), clients=hasty)
    assert world.wrong == []
    assert world.broken_off > 20
    assert tally(world.tallies).hits > 50
