"""The ledger, read for a history: which of its model turns stand for something else, and for what."""

from collections.abc import Collection, Mapping, Sequence

from addon.core.calls import calls_in, decoded, response_of, responses_in
from addon.core.documents import Document, get, parts_of
from addon.core.history import DUMMY_SIGNATURE
from addon.core.placeholder import Placeholder
from addon.core.steps import Slot, Step, TrueTurn, client_calls, given_answers, response_to
from addon.core.turns import History, Turn
from store.base import AlreadyAnswered, Store, UnknownCall
from store.models import Call, Found, Status
from store.models import Turn as Entry

Hits = dict[int, tuple[TrueTurn, ...]]

_DUMMIES = {decoded(dummy) for dummy in (DUMMY_SIGNATURE, "context_engineering_is_the_way_to_go")}
"""Signatures that clients put where there is none: they tell nothing."""


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
        _remember(history, revision, hits, len(turns))
        return hits
    found = await store.look_up(
        session,
        turn_ids=[turn_id for ids in wanted.values() for turn_id in ids],
        keys=[key for index in wanted for key in (turns[index].chain, turns[index].pair)],
    )
    surely = {index: _surely(body, turns, index, ids, found) for index, ids in wanted.items()}
    unsure = [index for index, (_, sure) in surely.items() if not sure]
    hits |= {index: true for index, (true, _) in surely.items() if true}
    taken = {true.turn_id for true_turns in hits.values() for true in true_turns}
    for index in (index for index in wanted if index not in hits):
        if true := _by_pair(body, turns[index], found, taken):
            hits[index] = true
            taken.update(one.turn_id for one in true)
    for index in wanted:
        turn = turns[index]
        if index not in hits and not store.read_only and placeholder.is_bare(turn.text):
            hits[index] = await _bound(store, session, turns[index - 1], turn, taken)
            taken.update(one.turn_id for one in hits[index])
        if index not in unsure:
            turn.memo = (revision, hits.get(index, ()))
    hits = {index: true for index, true in hits.items() if true}
    _remember(history, revision, hits, min(unsure, default=len(turns)))
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


def _remember(history: History, revision: int | None, hits: Hits, count: int) -> None:
    if revision is not None:
        history.memo = (revision, count, dict(hits))


def _surely(
    body: bytes, turns: Sequence[Turn], index: int, ids: Sequence[str], found: Found
) -> tuple[tuple[TrueTurn, ...], bool]:
    """What a turn is by the ids in its text, else by all that stands before it; and whether it is so whatever comes
    after it."""
    turn = turns[index]
    by_id = [turn_id for turn_id in ids if turn_id in found.turns]
    if by_id:
        return _true_turns(by_id, found), True
    candidates = _marked(body, turn, found.by_key.get(turn.chain, []), found)
    delivered = [turn_id for turn_id in candidates if found.turns[turn_id].delivered]
    if len(delivered) < 2 or found.turns[delivered[0]].delivery != "passthrough":
        return _true_turns(candidates[:1], found), True
    said = turn.contents(body)
    answered = turns[index + 1].contents(body) if index + 1 < len(turns) else []
    is_new = index + 2 >= len(turns)
    return _by_answers(_true_turns(delivered, found), said, answered, is_new=is_new), False


def _marked(body: bytes, turn: Turn, candidates: Sequence[str], found: Found) -> Sequence[str]:
    """Of the candidates for a turn those that it can be by its marks. Chats with the same words in them are told apart
    by the ids of their calls and by their signatures: clients echo both. Some make up ids where the model gave none."""
    if not candidates:
        return candidates
    ids, signatures = _marks(turn.contents(body))
    if not ids and not signatures:
        return candidates
    shared: list[str] = []
    silent: list[str] = []
    for turn_id in candidates:
        own_ids, own_signatures = _marks([step.content for step in found.turns[turn_id].steps])
        if ids & own_ids or signatures & own_signatures:
            shared.append(turn_id)
        elif not signatures and not own_ids:
            silent.append(turn_id)
    return shared or silent


def _marks(contents: Sequence[Document]) -> tuple[set[str], set[bytes]]:
    """The ids of the calls in these Contents, and the signatures, by value."""
    ids = {call_id for call in calls_in(contents) if isinstance(call_id := call.get("id"), str)}
    signatures = {decoded(get(part, "thoughtSignature")) for content in contents for part in parts_of(content)}
    return ids, {signature for signature in signatures if signature is not None} - _DUMMIES


def _by_answers(
    alike: Sequence[TrueTurn], said: Sequence[Document], answered: Sequence[Document], *, is_new: bool
) -> tuple[TrueTurn, ...]:
    """Which of several turns that were passed through, the newest first, and that the client's cannot be told from,
    is meant: by the answers that stand after it. None where that does not tell either, as the answers of one chat must
    not be taken for another's. `is_new`: nothing stands behind the answers yet, so they were not seen before."""
    given = {true.turn_id: _given(said, answered, true) for true in alike}
    if not any(given.values()):
        return tuple(alike[:1])  # a call without an answer cannot stand as it is: the newest is meant
    fits = [
        true
        for true in alike
        if all(true.answers.get(call_id) in (None, answer) for call_id, answer in given[true.turn_id].items())
    ]
    pending, settled = [true for true in fits if true.pending], [true for true in fits if not true.pending]
    if settled and not (is_new and pending):
        return _same(settled)
    return tuple(pending) if len(pending) == 1 else ()


def _given(said: Sequence[Document], answered: Sequence[Document], true: TrueTurn) -> dict[str, Document]:
    """What the client answered to the calls of a turn, by call id."""
    left = responses_in(answered)
    found = [response_to(call, left) for call in client_calls(said, true)]
    return {
        slot.call_id: get(one, "response") or {}
        for slot, one in zip(true.steps[-1].slots, found, strict=True)
        if one is not None and slot.call_id is not None
    }


def _same(alike: Sequence[TrueTurn]) -> tuple[TrueTurn, ...]:
    """The newest of some turns, if they only differ in when they were."""
    told = [([step.content for step in true.steps], list(true.answers.values())) for true in alike]
    return tuple(alike[:1]) if all(one == told[0] for one in told) else ()


def _by_pair(body: bytes, turn: Turn, found: Found, taken: Collection[str]) -> tuple[TrueTurn, ...]:
    """What a turn is by the one before it, if only one can be meant, which does not stand elsewhere in the history."""
    candidates = _marked(body, turn, found.by_key.get(turn.pair, []), found)
    return _true_turns(candidates, found) if len(candidates) == 1 and candidates[0] not in taken else ()


async def _bound(store: Store, session: str, before: Turn, turn: Turn, taken: Collection[str]) -> tuple[TrueTurn, ...]:
    """The step that a bare placeholder is bound to from now on, if there is one that it can mean: none that the history
    tells already.

    It is bound with everything before it, and not with the words just before it alone: another chat may hold a bare
    placeholder after the same words, and mean another step.
    """
    turn_id = await store.bind(session, before.digest, [turn.chain], exclude=taken)
    return () if turn_id is None else _true_turns([turn_id], await store.look_up(session, turn_ids=[turn_id]))


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


async def take_answers(
    store: Store, session: str, body: bytes, history: History, hits: Hits, *, kept: bool = False
) -> bool:
    """Store what the client itself answered to calls that were passed through to it; whether there was anything. The
    first answer to a call wins. `kept`: the service has the history, and the client only names its turn."""
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
            for call_id, response in given_answers(None if kept else said, answered, true).items():
                try:
                    await store.answer(call_id, result=response, session=session)
                    taken = True
                except (AlreadyAnswered, UnknownCall):
                    continue
    return taken
