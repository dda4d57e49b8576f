"""Looks up the model turns of a history in the ledger, and caches the findings until a write affects them."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from addon.core.history.keys import Keys
from addon.core.history.placeholder import Placeholder
from addon.core.history.steps import client_results
from addon.core.history.turns import History, HistoryTurn
from addon.graft.ledger_evidence import Miss
from addon.graft.ledger_search import Hits, Known, Search, TrueTurns
from store.base import AlreadyAnswered, Store, UnknownCall
from store.budget import Budget
from store.models import LedgerChanges

_NONE: Mapping[int, str] = MappingProxyType({})

Missed = Callable[[HistoryTurn, Miss], None]
"""Called with each turn that was not found, although the session has entries with its words."""


class Memo(NamedTuple):
    """The findings for the first turns of a history under a root, at this `revision` of the ledger. `on`: all that the
    findings depend on, maybe more, because longer histories share it. `turn_ids`: the ids that the client gave for
    these turns."""

    revision: int
    root: bytes
    turn_ids: Mapping[int, str]
    hits: Hits
    on: LedgerChanges


async def hits_of(
    store: Store,
    session: str,
    revision: int | None,
    keys: Keys,
    body: bytes,
    history: History,
    placeholder: Placeholder,
    missed: Missed = lambda turn, miss: None,
    turn_ids: Mapping[int, str] = _NONE,
    true_turns: TrueTurns | None = None,
) -> Hits:
    """The true turns of a history's model turns, by index. `revision`: the ledger's. `turn_ids`: the turn ids that the
    keeper of the history knows. `true_turns`: a cache by id. Raises StoreUnavailable."""
    if revision == 0 or not history.turns:
        return {}
    history.identify(body)
    hits, wanted, on = _remembered(store, session, keys, history, revision, turn_ids)
    if wanted:
        by_id = true_turns or TrueTurns(store, Budget())
        search = Search(store, session, keys, body, history.turns, placeholder, hits, turn_ids, by_id, revision)
        await search.run(wanted)
        remembered = search.remember(wanted)
        for index, miss in search.misses.items():
            missed(history.turns[index], miss)
    else:
        remembered = len(history.turns)
    hits = {index: true for index, true in hits.items() if true}
    if revision is not None:
        _depend(on, history.turns[history.remembered if on.keys else 1 : remembered])  # `on` has the others already
        history.memo, history.remembered = Memo(revision, keys.root, turn_ids, hits, on), remembered
    return dict(hits)


def _depend(on: LedgerChanges, turns: Sequence[HistoryTurn]) -> None:
    looked_up: list[tuple[bytes, Known]] = [(turn.key, turn.memo) for turn in turns if turn.memo is not None]
    on.keys.update([key for key, _ in looked_up])
    for known in [known for _, known in looked_up if known.turn_ids or known.keys]:  # rarely any
        on.keys.update(known.keys)
        on.turn_ids.update(known.turn_ids)


def _remembered(
    store: Store, session: str, keys: Keys, history: History, revision: int | None, turn_ids: Mapping[int, str]
) -> tuple[Hits, list[int], LedgerChanges]:
    """The known model turns of a history, the indices to look up, and the known turns' dependencies if they were
    computed. A model turn at the start of a history is never looked up."""
    memo: Memo | None = history.memo
    turns = history.turns
    hits: Hits = {}
    start, on = 1, LedgerChanges()
    touched: LedgerChanges | None = None
    if memo is not None and revision is not None:
        touched = store.changes(session, memo.revision) if memo.revision != revision else LedgerChanges()
        is_same = memo.root == keys.root and _up_to(history, memo.turn_ids) == _up_to(history, turn_ids)
        if is_same and touched is not None and touched.is_disjoint(memo.on):
            hits = {index: true for index, true in memo.hits.items() if index < history.remembered}
            start, on = max(1, history.remembered), memo.on
    wanted: list[int] = []
    for index in [at for at in range(start, len(turns)) if turns[at].side == "model"]:
        turn = turns[index]
        known: Known | None = turn.memo if index < history.remembered else None
        under = (turn_ids[index].encode(),) if index in turn_ids else (keys.chat, keys.root)
        if known is None or touched is None or known.under not in under:
            wanted.append(index)
        elif not known.holds(turn, touched):
            wanted.append(index)
        elif known.true:
            hits[index] = known.true
    return hits, wanted, on


def remembered_size(history: History) -> int:
    """The approximate memory use, in bytes, of a history's cached true turns and rewritten beginning."""
    memo: Memo | None = history.memo
    size = sum(true.size for here in memo.hits.values() for true in here) if memo is not None else 0
    return size + (history.beginning.size if history.beginning is not None else 0)


def has_true_turns(history: History) -> bool:
    """Whether the ledger has true turns for this history."""
    memo: Memo | None = history.memo
    return memo is not None and bool(memo.hits)


def forget(history: History) -> None:
    """Drop the cached true turns and the rewritten beginning."""
    history.beginning = None
    if history.memo is not None and history.memo.hits:
        history.memo = None
        for turn in history.turns:
            turn.memo = None


def _up_to(history: History, turn_ids: Mapping[int, str]) -> dict[int, str]:
    """The ids of the turns up to the end of the cached part."""
    return {index: turn_id for index, turn_id in turn_ids.items() if index < history.remembered}


async def store_client_results(
    store: Store, session: str, body: bytes, history: History, hits: Hits, *, kept_by_service: bool = False
) -> bool:
    """Store the client's results of passed-through calls. Returns whether any was stored. The first result of a call
    wins. `kept_by_service`: the service keeps the history, and the client only names its turn."""
    stored = False
    if store.read_only:
        return False
    for index, here in hits.items():
        if index + 1 >= len(history.turns):
            continue
        for true in here:
            if not true.passthrough or not true.pending:
                continue
            called, answered = (history.turns[at].contents(body) for at in (index, index + 1))
            for call_id, outcome in client_results(None if kept_by_service else called, answered, true).items():
                try:
                    await store.answer(session, call_id, result=outcome["response"], parts=outcome.get("parts", ()))
                    stored = True
                except (AlreadyAnswered, UnknownCall):
                    continue
    return stored
