"""Never a call of another chat's; and as few misses as the words, the marks and the names allow."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from store.backends.memory import MemoryStore
from tests.simulation import words
from tests.simulation.__main__ import Clients, simulated
from tests.simulation.chat import Chat, Turn
from tests.simulation.habits import canned, habits, hasty, odd, of_one_account, rotating
from tests.simulation.words import KINDS, TIED
from tests.simulation.world import SUMMARY, Kind, Tally, World
from tests.store import servers

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
    """One session; the long run has more of them."""
    world = await simulated(1, CHATS, STEPS)
    assert world.wrong == []
    found = defaultdict(Tally, world.tallies)
    assert tally(found).hits > 500
    for kind, one in found.items():
        words, told_by, history = kind
        if told_by == "signatures" or (words == "realistic" and history == "intact"):
            assert one.rate <= 0.01, kind
        elif words == "realistic":
            assert one.rate <= 0.05, kind
    assert found["realistic", "", "cut"].hits > 30
    assert found["realistic", "", "edited"].hits > 15


async def test_chats_of_few_words_alone(tmp_path: Path) -> None:
    """All of them in the same words, in a store that is a file."""
    world = await simulated(4, 30, 8, ("few",), f"sqlite:///{tmp_path}/graft.db")
    assert world.wrong == []
    assert tally(world.tallies, told_by="signatures").rate <= 0.01
    assert sum(world.metrics.misses.values()) > 0, "what is missed is counted"


_LONG = [pytest.mark.e2e, pytest.mark.long]


@pytest.mark.parametrize(
    ("seed", "chats", "steps", "kinds", "clients"),
    [
        pytest.param(4, 30, 8, ("few",), habits, id="few words"),
        pytest.param(1, CHATS, STEPS, KINDS, habits, id="all words", marks=_LONG),
        pytest.param(28, 30, 6, ("few",), hasty, id="hasty", marks=_LONG),
        pytest.param(2, 30, 10, (TIED,), of_one_account, id="tied", marks=_LONG),
    ],
)
@pytest.mark.e2e
@pytest.mark.parametrize(("program", "processes"), [("redis-server", 1), ("redis-server", 3), ("valkey-server", 3)])
async def test_turns_are_told_apart_in_redis_as_in_memory(
    program: str, processes: int, seed: int, chats: int, steps: int, kinds: Sequence[words.Kind], clients: Clients
) -> None:
    """The same session has the same hits and misses in both, also if each request goes to any of several processes."""
    expected = await simulated(seed, chats, steps, kinds, clients=clients)
    with servers.running(program) as port:
        url = f"redis://127.0.0.1:{port}"
        world = await simulated(seed, chats, steps, kinds, url, clients=clients, processes=processes)
    assert world.wrong == []
    assert tally(world.tallies).hits > 50
    assert world.tallies == expected.tallies
    assert (world.requests, world.broken_off) == (expected.requests, expected.broken_off)


@pytest.mark.parametrize("seed", [28, 31, 37])
async def test_clients_that_hang_up_and_go_on_with_what_they_have(seed: int) -> None:
    """Sessions in which each of several wrong hits would happen if that were not noted."""
    world = await simulated(seed, 30, 6, ("few",), clients=hasty)
    assert world.wrong == []
    assert world.broken_off > 20
    assert tally(world.tallies).hits > 50


@pytest.mark.parametrize("seed", [3, 9])
async def test_chats_that_quote_imitate_forge_and_fork_others(seed: int) -> None:
    world = await simulated(seed, 40, 8, clients=odd)
    assert world.wrong == []
    assert min(world.odd[deed] for deed in ("quote", "imitate", "forge", "fork")) > 5
    assert tally(world.tallies).hits > 100
    assert tally(world.tallies, words="realistic", history="intact").rate <= 0.02


@pytest.mark.parametrize("seed", [4, 6])
async def test_answers_of_a_script_that_read_like_those_of_other_chats(seed: int) -> None:
    """Sessions in which each of several wrong hits would happen if these answers were not noted."""
    world = await simulated(seed, 40, 6, ("few",), clients=canned)
    assert world.wrong == []
    assert world.odd["canned"] > 5
    assert tally(world.tallies).hits > 30


async def test_the_chats_of_one_user_whose_keys_change() -> None:
    world = await simulated(6, 30, 8, clients=rotating)
    assert world.wrong == []
    assert tally(world.tallies, words="realistic", history="intact").rate <= 0.01


@pytest.mark.parametrize("seed", [2, 5])
async def test_chats_that_have_whole_turns_in_common(seed: int) -> None:
    """The same question has the same call and result in each of them, and then they say the same few words. There would
    be wrong hits if such a turn told which chat this is."""
    world = await simulated(seed, 30, 10, (TIED,), clients=of_one_account)
    assert world.wrong == []
    assert tally(world.tallies, told_by="signatures").rate <= 0.05, "a turn whose question was edited later"
    assert tally(world.tallies, history="cut").hits > 100
    assert tally(world.tallies, told_by="", history="intact").rate <= 0.15, "regenerated answers that read alike"


def chat(number: int, first: str, *, cuts: int = 1) -> tuple[Chat, Turn]:
    """A chat that hears "Done." at its end, and that turn."""
    habits = of_one_account(random.Random(1), 1, [TIED])[0]
    done = Turn("model", ({"text": "Done."},), did=(("act", "{}", f"{number}"),))
    turns = [Turn("user", ({"text": first},)), Turn("model", ({"text": "Got it."},)), Turn("user", ({"text": "yes"},))]
    return Chat(number, habits, [*turns, done], cuts=cuts), done


@pytest.mark.parametrize(
    ("one", "other", "is_twin"),
    [
        (chat(1, SUMMARY), chat(2, SUMMARY), True),
        (chat(1, SUMMARY, cuts=1), chat(1, SUMMARY, cuts=2), True),
        (chat(1, SUMMARY), chat(1, SUMMARY), False),
        (chat(1, "Hello"), chat(2, "Hello"), False),
        (chat(1, SUMMARY), chat(2, "Hello"), False),
    ],
    ids=["the same since the summary", "before another cut", "asked again", "no summary", "the same end alone"],
)
def test_only_a_history_that_is_another_since_its_summary_may_get_the_other_s_call(
    one: tuple[Chat, Turn], other: tuple[Chat, Turn], is_twin: bool
) -> None:
    world = World(MemoryStore(), 1)
    world.remember(*other)
    assert world.is_twin(*one, found=other[1].did) is is_twin
    assert not world.is_twin(*one, found=[("act", "{}", "another")])
