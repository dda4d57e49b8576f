"""The ledger, read for a history: which of its model turns stand for something else, and for what."""

from collections.abc import Collection, Mapping, Sequence

from addon.core.calls import calls_in, response_of
from addon.core.placeholder import Placeholder
from addon.core.steps import Slot, Step, TrueTurn, given_answers
from addon.core.turns import History, Turn
from store.base import AlreadyAnswered, Store, UnknownCall
from store.models import Call, Found, Status
from store.models import Turn as Entry

Hits = dict[int, tuple[TrueTurn, ...]]


async def hits_of(store: Store, session: str, body: bytes, history: History, placeholder: Placeholder) -> Hits:
    """The true turns of a history's model turns, by index. What a turn was found to be is remembered with it while
    the ledger does not change. Raises StoreUnavailable."""
    revision = store.revision(session)
    if revision == 0 or not history.turns:
        return {}
    history.identify(body)
    turns = history.turns
    known, hits = _remembered(history, revision)
    wanted = {
        index: [turn_id for _, _, turn_id in placeholder.find(turn.text)]
        for index, turn in enumerate(turns[known:], known)
        if turn.side == "model" and not _is_remembered(turn, revision)
    }
    for index, turn in enumerate(turns[known:], known):
        if index not in wanted and turn.memo is not None and turn.memo[1]:
            hits[index] = turn.memo[1]
    if not wanted:
        _remember(history, revision, hits)
        return hits
    found = await store.look_up(
        session,
        turn_ids=[turn_id for ids in wanted.values() for turn_id in ids],
        keys=[key for index in wanted for key in (turns[index].chain, turns[index].pair)],
    )
    for index, ids in wanted.items():
        if true := _surely(body, turns[index], ids, found):
            hits[index] = true
    taken = {true.turn_id for true_turns in hits.values() for true in true_turns}
    for index in wanted:
        turn = turns[index]
        if index not in hits:
            true = _by_pair(turn, found, taken)
            if not true and not store.read_only and placeholder.is_bare(turn.text):
                true = await _bound(store, session, turns[index - 1], turn)
            if true:
                hits[index] = true
                taken.update(one.turn_id for one in true)
        turn.memo = (revision, hits.get(index, ()))
    _remember(history, revision, hits)
    return hits


def _remembered(history: History, revision: int | None) -> tuple[int, Hits]:
    """How many turns need not be looked at, and what they were found to be. A model turn that nothing stands before is
    none of ours."""
    if revision is None or history.memo is None or history.memo[0] != revision:
        return 1, {}
    _, count, found = history.memo
    return max(1, count), {index: true for index, true in found.items() if index < count}


def _is_remembered(turn: Turn, revision: int | None) -> bool:
    return revision is not None and turn.memo is not None and turn.memo[0] == revision


def _remember(history: History, revision: int | None, hits: Hits) -> None:
    if revision is not None:
        history.memo = (revision, len(history.turns), dict(hits))


def _surely(body: bytes, turn: Turn, ids: Sequence[str], found: Found) -> tuple[TrueTurn, ...]:
    """What a turn is by the ids in its text, else by all that stands before it."""
    by_id = [turn_id for turn_id in ids if turn_id in found.turns]
    if by_id:
        return _true_turns(by_id, found)
    candidates = found.by_key.get(turn.chain, [])
    if len(candidates) > 1:
        # Two chats with the same words in them: where the client kept the calls' ids, they tell which it is.
        own = {call.get("id") for call in calls_in(turn.contents(body))} - {None}
        of_these = [c for c in candidates if own & {call.get("id") for call in calls_in(_said(found.turns[c]))}]
        candidates = of_these or candidates
    return _true_turns(candidates[:1], found)


def _by_pair(turn: Turn, found: Found, taken: Collection[str]) -> tuple[TrueTurn, ...]:
    """What a turn is by the one before it, if only one can be meant, which does not stand elsewhere in the history."""
    candidates = found.by_key.get(turn.pair, [])
    return _true_turns(candidates, found) if len(candidates) == 1 and candidates[0] not in taken else ()


async def _bound(store: Store, session: str, before: Turn, turn: Turn) -> tuple[TrueTurn, ...]:
    """The step that a bare placeholder is bound to from now on, if there is one that it can mean.

    It is bound with everything before it, and not with the words just before it alone: another chat may hold a bare
    placeholder after the same words, and mean another step.
    """
    turn_id = await store.bind(session, before.digest, [turn.chain])
    return () if turn_id is None else _true_turns([turn_id], await store.look_up(session, turn_ids=[turn_id]))


def _said(entry: Entry) -> list[dict[str, object]]:
    return [step.content for step in entry.steps]


def _true_turns(ids: Sequence[str], found: Found) -> tuple[TrueTurn, ...]:
    return tuple(
        true_turn(found.turns[turn_id], found.calls) for turn_id in dict.fromkeys(ids) if turn_id in found.turns
    )


def true_turn(entry: Entry, calls: Mapping[str, Call]) -> TrueTurn:
    """A ledger entry with the answers its calls have by now."""
    steps = [Step(s.content, tuple(Slot(slot.name, slot.call_id) for slot in s.slots)) for s in entry.steps]
    answers = {
        slot.call_id: response_of(call.result, call.error)
        if (call := calls.get(slot.call_id)) and call.status.final
        else None
        for step in steps
        for slot in step.slots
        if slot.call_id is not None
    }
    shown = "".join(str(part["text"]) for part in entry.visible if "text" in part and not part.get("thought"))
    return TrueTurn(
        entry.turn_id,
        steps,
        answers,
        visible_text=shown.strip(),
        passthrough=entry.delivery == "passthrough",
        leased=[call_id for call_id in answers if (call := calls.get(call_id)) and is_leased(call)],
    )


def is_leased(call: Call) -> bool:
    """Whether a worker runs the call, or did when it was last heard of."""
    return call.status is Status.RUNNING and call.lease_until is not None


async def take_answers(store: Store, session: str, body: bytes, history: History, hits: Hits) -> bool:
    """Store what the client itself answered to calls that were passed through to it; whether there was anything. The
    first answer to a call wins."""
    taken = False
    if store.read_only:
        return False
    for index, true_turns in hits.items():
        if index + 1 >= len(history.turns):
            continue
        for true in true_turns:
            if not true.passthrough or not true.pending:
                continue
            said, answered = (history.turns[at].contents(body) for at in (index, index + 1))
            for call_id, response in given_answers(said, answered, true).items():
                try:
                    await store.answer(call_id, result=response, session=session)
                    taken = True
                except (AlreadyAnswered, UnknownCall):
                    continue
    return taken
