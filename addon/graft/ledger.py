"""The ledger, read for a history: which of its model turns stand for something else, and for what."""

from collections.abc import Mapping, Sequence

from addon.core.calls import calls_in, response_of
from addon.core.history import Slot, Step, TrueTurn, given_answers
from addon.core.placeholder import Placeholder
from addon.core.turns import History, Turn
from store.base import AlreadyAnswered, Store, UnknownCall
from store.models import Call, Found
from store.models import Turn as Entry

Hits = dict[int, tuple[TrueTurn, ...]]


async def hits_of(store: Store, session: str, body: bytes, history: History, placeholder: Placeholder) -> Hits:
    """The true turns of a history's model turns, by index. What a turn was found to be is remembered with it while
    the ledger does not change. Raises StoreUnavailable."""
    revision = store.revision(session)
    if revision == 0 or not history.turns:
        return {}
    history.identify(body)
    hits: Hits = {}
    wanted: list[tuple[int, Turn, list[str]]] = []
    for index, turn in enumerate(history.turns):
        if turn.side != "model" or index == 0:
            continue
        if revision is not None and turn.memo is not None and turn.memo[0] == revision:
            if turn.memo[1]:
                hits[index] = turn.memo[1]
        else:
            wanted.append((index, turn, [turn_id for _, _, turn_id in placeholder.find(turn.text)]))
    if not wanted:
        return hits
    found = await store.look_up(
        session,
        turn_ids=[turn_id for _, _, ids in wanted for turn_id in ids],
        keys=[key for _, turn, _ in wanted for key in (turn.chain, turn.pair)],
    )
    for index, turn, ids in wanted:
        true = _chosen(body, turn, ids, found)
        if not true and not store.read_only and placeholder.is_bare(turn.text):
            bound = await store.bind(session, history.turns[index - 1].digest, [turn.chain, turn.pair])
            if bound is not None:
                true = _true_turns([bound], await store.look_up(session, turn_ids=[bound]))
        if true:
            hits[index] = true
        turn.memo = (revision, true)
    return hits


def _chosen(body: bytes, turn: Turn, ids: Sequence[str], found: Found) -> tuple[TrueTurn, ...]:
    by_id = [turn_id for turn_id in ids if turn_id in found.turns]
    if by_id:
        return _true_turns(by_id, found)
    candidates = found.by_key.get(turn.chain, [])
    if len(candidates) > 1:
        # Two chats with the same words in them: where the client kept the calls' ids, they tell which it is.
        own = {call.get("id") for call in calls_in(turn.contents(body))} - {None}
        of_these = [c for c in candidates if own & {call.get("id") for call in calls_in(_said(found.turns[c]))}]
        candidates = of_these or candidates
    if not candidates:
        candidates = found.by_key.get(turn.pair, [])
        if len(candidates) > 1:
            return ()
    return _true_turns(candidates[:1], found)


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
    )


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
            for call_id, response in given_answers(history.turns[index + 1].contents(body), true).items():
                try:
                    await store.answer(call_id, result=response, session=session)
                    taken = True
                except (AlreadyAnswered, UnknownCall):
                    continue
    return taken
