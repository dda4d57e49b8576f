"""Races for everything that only one caller may get, and the processes that run them."""

import asyncio
import contextlib
import multiprocessing
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any

from store.base import (
    AlreadyAnswered,
    ConversationMoved,
    Decided,
    LeaseLost,
    NotPending,
    Store,
    VersionChanged,
)
from store.factory import open_url
from store.models import Call, GivenCall, Policy, Status, UndeliveredAnswer
from tests.store.records import WORKERS, save
from tests.store.response_records import a_part, a_response

PLAYERS = 4
PATIENCE = 60.0
"""Seconds in which all races must end."""

_MOMENT = 1e-6  # a lease that has expired at the next call of a method
_TOOLS = ["get_weather"]

type View = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`wants`: players who want the same may win together. `view`: the part of the session's view that the method
    returned, or its error."""

    wants: int | str
    won: bool
    view: View = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Player:
    """`version`: of the session, before the round."""

    number: int
    store: Store
    session: str
    version: int

    @property
    def call_id(self) -> str:
        return f"c-{self.session}"


@dataclass(frozen=True, slots=True)
class Race:
    """`prepare` makes the records of one round, in its session. `attempt`: a player's action; unexpected errors end the
    test. `events`: the types of all events of the round, None if they depend on who wins."""

    name: str
    prepare: Callable[[Store, str], Awaitable[object]]
    attempt: Callable[[Player], Awaitable[Outcome]]
    events: str | None


@dataclass(frozen=True, slots=True)
class Round:
    """The outcomes of the players of one process in a round."""

    race: Race
    session: str
    outcomes: tuple[Outcome, ...]
    view: View


async def view_of(store: Store, session: str) -> View:
    """Everything that a reader sees of the session."""
    snapshot = await store.snapshot(session)
    head = await store.conversation(session, "chat")
    calls = (await store.calls(session=session)).items
    keys = [b"%d" % player for player in range(PLAYERS)]
    return {
        "version": snapshot.version,
        "session": snapshot.record and snapshot.record.model_dump(mode="json"),
        "call": calls[0].model_dump(mode="json") if calls else None,
        "calls": [await store.call(session, call.call_id) for call in calls],
        "turns": (await store.turns(session)).items,
        "keys": (await store.look_up(session, keys=keys)).by_key,
        "head": head,
        "history": await store.history(session, head) if head else [],
        "given": await store.given_calls(session, ["given"]),
        "events": [(event.type, event.data) for event in await store.events(after=None, session=session)],
    }


def _call(call: Call | None) -> View:
    return {} if call is None else {"call": call.model_dump(mode="json")}


# --- calls ----------------------------------------------------------------------------------------------------
#
# A round's turn has the name of its session, and its call is `c-SESSION`.


async def _save(store: Store, session: str, **call: Any) -> None:
    await save(store, session, session, call=call, request_key=b"request")


async def _save_released(store: Store, session: str) -> None:
    await _save(store, session, **WORKERS)


async def _let_lease_run_out(store: Store, session: str) -> None:
    await _save_released(store, session)
    assert await store.claim(session, _TOOLS, lease=_MOMENT, worker="late") is not None


async def _lose_worker(store: Store, session: str) -> None:
    await _save(store, session, owner="workers", released=True)
    assert await store.claim(session, _TOOLS, lease=_MOMENT, worker="late") is not None


async def _wait_for_approval(store: Store, session: str) -> None:
    await _save(store, session, approval="waiting")


async def _save_of_proxy(store: Store, session: str) -> None:
    await store.hold(session, 60.0)
    await _save(store, session, owner="loop", proxy_id=session)


async def _claim(player: Player) -> Outcome:
    call = await player.store.claim(player.session, _TOOLS, lease=60.0, worker=f"w{player.number}")
    return Outcome(player.number, call is not None, _call(call))


async def _claim_or_start(player: Player) -> Outcome:
    if player.number < PLAYERS // 2:
        return await _claim(player)
    try:
        return Outcome(
            player.number,
            True,
            _call(await player.store.start(player.session, player.call_id, loop_id=f"l{player.number}")),
        )
    except NotPending as error:
        return Outcome(player.number, False, _call(error.call))


async def _claim_or_renew(player: Player) -> Outcome:
    if player.number:
        return await _claim(player)
    try:
        return Outcome(
            player.number, True, _call(await player.store.renew(player.session, player.call_id, "late", 60.0))
        )
    except LeaseLost as error:
        return Outcome(player.number, False, _call(error.call))


async def _answer(player: Player) -> Outcome:
    return await _answer_with(player, player.number)


async def _answer_alike(player: Player) -> Outcome:
    return await _answer_with(player, player.number // 2)


async def _answer_with(player: Player, result: int) -> Outcome:
    try:
        call, _ = await player.store.answer(player.session, player.call_id, result=result)
    except AlreadyAnswered as error:
        return Outcome(result, False, _call(error.call))
    return Outcome(result, True, _call(call))


async def _answer_or_settle_lost(player: Player) -> Outcome:
    if player.number < PLAYERS // 2:
        return await _answer(player)
    settled = [call for call in await player.store.settle_lost() if call.session == player.session]
    return Outcome(player.number, bool(settled), _call(next(iter(settled), None)))


async def _answer_or_expire(player: Player) -> Outcome:
    if player.number < PLAYERS // 2:
        return await _answer(player)
    call = await player.store.settle(player.session, player.call_id, Status.EXPIRED, error="nobody waits")
    return Outcome("expired", call.status is Status.EXPIRED, _call(call))


async def _answer_or_drop(player: Player) -> Outcome:
    if player.number:
        return await _answer(player)
    dropped = await player.store.drop(player.session)
    return Outcome(player.number, bool(dropped), _call(next(iter(dropped), None)))


async def _decide(player: Player) -> Outcome:
    try:
        call = await player.store.decide(player.session, player.call_id, player.number // 2 == 0, reason="because")
        return Outcome(player.number // 2, True, _call(call))
    except Decided as error:
        return Outcome(player.number // 2, False, _call(error.call))


# --- turns ----------------------------------------------------------------------------------------------------


async def _break_off(store: Store, session: str) -> None:
    await _save(store, session)
    assert await store.mark_broken_off(session, session)


async def _take_over(player: Player) -> Outcome:
    found = await player.store.take_over(player.session, b"request", window=60.0, proxy_id=f"p{player.number}")
    return Outcome(player.number, found is not None, {"turns": [found[0]]} if found else {})


async def _mark_delivered(player: Player) -> Outcome:
    return Outcome(player.number, await player.store.mark_delivered(player.session, player.session))


async def _mark_broken_off(player: Player) -> Outcome:
    return Outcome(player.number, await player.store.mark_broken_off(player.session, player.session))


# --- responses, sessions --------------------------------------------------------------------------------------


async def _begin_conversation(store: Store, session: str) -> None:
    await store.add_response(a_response("r", session=session, conversation="chat"))


async def _keep_answer(store: Store, session: str) -> None:
    undelivered = UndeliveredAnswer(b"request", session, {"id": "r"})
    await store.add_response(a_response("r", session=session), undelivered=undelivered)
    await store.mark_not_handed_over(session, "r")


async def _nothing(store: Store, session: str) -> None:
    pass


async def _hold(store: Store, session: str) -> None:
    await store.hold(session, 60.0)


async def _put_policy(store: Store, session: str) -> None:
    await store.put_policy(session, Policy())


async def _move_head(player: Player) -> Outcome:
    return await _add_response(player, "r")


async def _create_conversation(player: Player) -> Outcome:
    return await _add_response(player, None)


async def _add_response(player: Player, head: str | None) -> Outcome:
    part = a_part(f"{player.number}")
    fields = {"session": player.session, "conversation": "chat", "calls": {"given": part}}
    response = a_response(f"r{player.number}", head, **fields)
    try:
        await player.store.add_response(response, head=head)
    except ConversationMoved as error:
        return Outcome(player.number, False, {"head": error.head})
    given = {"given": GivenCall(part, response.response_id)}
    return Outcome(player.number, True, {"head": response.response_id, "given": given})


async def _lock(player: Player) -> Outcome:
    holder, proxy_id = f"h{player.number}", player.session
    won = await player.store.lock_conversation(player.session, "chat", holder=holder, proxy_id=proxy_id)
    return Outcome(player.number, won)


async def _take_answer(player: Player) -> Outcome:
    found = await player.store.take_answer(player.session, b"request", window=60.0, proxy_id=f"p{player.number}")
    assert found in (None, ("r", {"id": "r"}))
    return Outcome(player.number, found is not None)


async def _change_session(player: Player) -> Outcome:
    policy = Policy(max_rounds=player.number + 1)
    try:
        record = await player.store.put_policy(player.session, policy, if_version=player.version)
    except VersionChanged as error:
        return Outcome(player.number, False, {"version": error.current})
    return Outcome(player.number, True, {"version": record.version, "session": record.model_dump(mode="json")})


async def _delete_session(player: Player) -> Outcome:
    return Outcome(player.number, await player.store.delete_session(player.session))


# --- the races ------------------------------------------------------------------------------------------------

_SAVED = "turn.created call.created"

RACES = (
    Race("claim", _save_released, _claim, f"{_SAVED} call.updated"),
    Race("claim-after-lease", _let_lease_run_out, _claim, f"{_SAVED} call.updated call.updated"),
    Race("claim-or-renew", _let_lease_run_out, _claim_or_renew, None),
    Race("claim-or-start", _save_released, _claim_or_start, f"{_SAVED} call.updated"),
    Race("answer", _save, _answer, f"{_SAVED} call.updated"),
    Race("answer-alike", _save, _answer_alike, f"{_SAVED} call.updated"),
    Race("answer-running", _let_lease_run_out, _answer, f"{_SAVED} call.updated call.updated"),
    Race("answer-or-settle", _lose_worker, _answer_or_settle_lost, f"{_SAVED} call.updated call.updated"),
    Race("answer-or-expire", _save, _answer_or_expire, f"{_SAVED} call.updated"),
    Race("answer-or-drop", _save_of_proxy, _answer_or_drop, f"{_SAVED} call.updated"),
    Race("decide", _wait_for_approval, _decide, f"{_SAVED} call.updated"),
    Race("take-over", _break_off, _take_over, f"{_SAVED} turn.updated turn.updated"),
    Race("mark-delivered", _save, _mark_delivered, f"{_SAVED} turn.updated"),
    Race("mark-broken-off", _save, _mark_broken_off, f"{_SAVED} turn.updated"),
    Race("take-answer", _keep_answer, _take_answer, ""),
    Race("move-head", _begin_conversation, _move_head, ""),
    Race("create-conversation", _nothing, _create_conversation, ""),
    Race("lock-conversation", _hold, _lock, ""),
    Race("create-session", _nothing, _change_session, "session.updated"),
    Race("change-session", _put_policy, _change_session, "session.updated session.updated"),
    Race("delete-session", _save, _delete_session, "session.deleted"),
)


async def play(
    url: str, rounds: int, *, numbers: Sequence[int] = range(PLAYERS), meet: Callable[[], object] = lambda: None
) -> list[Round]:
    """Play all races in this store, as the players with these numbers. `meet` returns once all other processes have
    reached the same point."""
    store = open_url(url, ttl=1000.0)
    await store.open()
    try:
        sessions = [(race, f"{race.name}-{number}") for race in RACES for number in range(rounds)]
        return [
            await _round(store, race, session, numbers, meet, prepares=place % PLAYERS in numbers)
            for place, (race, session) in enumerate(sessions)
        ]
    finally:
        await store.close()


async def _round(
    store: Store, race: Race, session: str, numbers: Sequence[int], meet: Callable[[], object], *, prepares: bool
) -> Round:
    if prepares:
        await race.prepare(store, session)
    meet()
    version = (await store.snapshot(session)).version
    players = [Player(number, store, session, version) for number in numbers]
    meet()
    outcomes = await asyncio.gather(*map(race.attempt, players))
    meet()
    return Round(race, session, tuple(outcomes), await view_of(store, session))


def _process(url: str, rounds: int, numbers: Sequence[int], barrier: Barrier, results: Connection) -> None:
    try:
        results.send(asyncio.run(play(url, rounds, numbers=numbers, meet=barrier.wait)))
    except BaseException:
        barrier.abort()
        results.send(traceback.format_exc())
        raise


def play_in_processes(url: str, rounds: int, count: int = 2) -> list[list[Round]]:
    """The rounds of each process. Each has a share of the players, and its own store object for this URL."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count, timeout=PATIENCE)
    played: list[list[Round]] = []
    with contextlib.ExitStack() as stack:
        pipes = []
        for number in range(count):
            receiver, sender = map(stack.enter_context, context.Pipe(duplex=False))
            arguments = url, rounds, range(number, PLAYERS, count), barrier, sender
            process = context.Process(target=_process, args=arguments, daemon=True)
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            pipes.append(receiver)
        for receiver in pipes:
            assert receiver.poll(PATIENCE), "a process does not play on"
            found = receiver.recv()
            assert isinstance(found, list), found
            played.append(found)
    return played
