"""Of several who want what only one may have, one gets it: tasks in one process, and processes on one Redis."""

from pathlib import Path

import pytest

from tests.store import servers
from tests.store.conftest import URLS
from tests.store.races import PLAYERS, RACES, Round, play, play_in_processes

ROUNDS = 10


@pytest.mark.parametrize("scheme", ["memory", "sqlite"])
async def test_of_concurrent_tasks_one_wins(scheme: str, tmp_path: Path) -> None:
    check([await play(URLS[scheme](tmp_path), ROUNDS)])


@pytest.mark.e2e
def test_of_players_in_two_processes_on_redis_one_wins() -> None:
    check(play_in_processes(servers.new_url(), ROUNDS))


def check(played: list[list[Round]]) -> None:
    assert [len(rounds) for rounds in played] == [len(RACES) * ROUNDS] * len(played)
    for parts in zip(*played, strict=True):
        outcomes = [outcome for part in parts for outcome in part.outcomes]
        view, where = parts[0].view, parts[0].session
        assert len(outcomes) == PLAYERS
        winners = {outcome.wants for outcome in outcomes if outcome.won}
        assert len(winners) == 1, f"{where}: won by {winners}"
        assert all(outcome.won for outcome in outcomes if outcome.wants in winners), where
        assert all(part.view == view for part in parts), f"{where}: not every reader finds the same"
        for outcome in outcomes:
            assert {name: view[name] for name in outcome.view} == outcome.view, where
        if (expected := parts[0].race.events) is not None:
            assert [kind for kind, _ in view["events"]] == expected.split(), where
