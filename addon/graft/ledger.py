"""Finds the true turns behind the model turns of a history, and caches histories with what was found.

When a turn of the history is replaced:

1. Each answer with grafted calls has an entry in the ledger, under keys of its visible words, of the turns before it,
   and of the signatures that the model gave it.
2. For each request, `ledger_search` looks up the model turns that are not known from an earlier request.
3. `ledger_evidence` compares them with the entries found: a turn is replaced only if it reads as an entry, and if its
   id or a signature after the same words of the user, all turns before it, words that cannot be a coincidence, or
   another turn that is known show that it is this entry.
4. If several entries fit, all must mean the same, and no noted turn without calls may read the same. Otherwise the turn
   is a miss, and stays as the client has it.
5. A finding holds until a write concerns one of its keys. `core.history.rewriting` then puts the entry's steps, with
   the current results of its calls, in place of the client's turn. A found turn keeps its text if it is the last step
   and none of its calls has a result, or if the request cannot use functions and one has none.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import xxhash

from addon.core.history.keys import Keys
from addon.core.history.placeholder import Placeholder
from addon.core.history.request import Prefix, Request
from addon.core.history.steps import client_results
from addon.core.history.turns import History, HistoryTurn
from addon.graft.ledger_evidence import Miss
from addon.graft.ledger_search import Hits, Known, Search, TrueTurns
from addon.monitoring.metrics import Metrics
from store.base import AlreadyAnswered, Store, UnknownCall
from store.budget import Budget, Share
from store.models import LedgerChanges

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
    missed: Missed,
    turn_ids: Mapping[int, str],
    true_turns: TrueTurns,
    *,
    strict: bool,
) -> Hits:
    """The true turns of a history's model turns, by index. `revision`: the ledger's. `turn_ids`: the turn ids that the
    keeper of the history knows. `true_turns`: a cache by id. `strict`: see `Search`. Raises StoreUnavailable."""
    if revision == 0 or not history.turns:
        return {}
    history.identify(body)
    hits, wanted, on = _remembered(store, session, keys, history, revision, turn_ids)
    if wanted:
        search = Search(
            store, session, keys, body, history.turns, placeholder, hits, turn_ids, true_turns, revision, strict=strict
        )
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


def _remembered_size(history: History) -> int:
    """The approximate memory use, in bytes, of a history's cached true turns and rewritten beginning."""
    memo: Memo | None = history.memo
    size = sum(true.size for here in memo.hits.values() for true in here) if memo is not None else 0
    return size + (history.beginning.size if history.beginning is not None else 0)


def _has_true_turns(history: History) -> bool:
    """Whether the ledger has true turns for this history."""
    memo: Memo | None = history.memo
    return memo is not None and bool(memo.hits)


def _drop(history: History) -> None:
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
    store: Store, session: str, body: bytes, history: History, hits: Hits, *, keeps_history: bool = False
) -> bool:
    """Store the client's results of passed-through calls. Returns whether any was stored. The first result of a call
    wins. `keeps_history`: the service keeps the history, and the client only names its turn."""
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
            for call_id, outcome in client_results(None if keeps_history else called, answered, true).items():
                try:
                    await store.answer(session, call_id, result=outcome["response"], parts=outcome.get("parts", ()))
                    stored = True
                except (AlreadyAnswered, UnknownCall):
                    continue
    return stored


logger = logging.getLogger("toolgraft")

_SIZE = 256
"""The approximate memory use of a missed turn's key in bytes."""

_REASONS = {
    Miss.AMBIGUOUS: "turns of the session that read the same mean different things",
    Miss.PLAIN: "a turn without calls reads the same",
    Miss.MARKS: "its ids or signatures are not those of the turn that reads the same",
    Miss.ANSWERS: "its answers do not tell which of the turns that read the same it is",
    Miss.CONTEXT: "what stands before it has changed, and its words alone may be a coincidence",
}


class MissedTurns:
    """Counts and logs each turn once, however often it is sent."""

    def __init__(self, metrics: Metrics, budget: Budget) -> None:
        self._metrics = metrics
        self._reported: Share[tuple[str, bytes], None] = budget.share("missed turns", 1 / 48)

    def report(self, session: str, keys: Keys, turn: HistoryTurn, miss: Miss) -> None:
        key = session, keys.history(turn.key, turn.chain)
        if key in self._reported:
            return
        self._reported.put(key, None, _SIZE)
        self._metrics.ledger_miss(miss)
        logger.info("session %s: a model turn stays as the client has it: %s", session, _REASONS[miss])


SMALLEST = 1024
"""Beginnings shorter than this are not cached: reading one again costs as little as finding it. Longer ones are indexed
by this many bytes."""

_SIBLINGS = 64

Key = tuple[str, tuple[str, ...], bytes]
"""Session, path, and the hash of the first bytes."""


class Prefixes:
    """Beginnings by session and first bytes. Sessions never share one, because it holds ledger look-ups."""

    def __init__(self, budget: Budget) -> None:
        self._prefixes: Share[int, Key] = budget.share("prefixes", 5 / 48, self._unlink)
        self._rewritten: Share[int, History] = budget.share("rewritten", 3 / 8, lambda number, history: _drop(history))
        self._restored: Share[int, History] = budget.share("restored", 3 / 16, lambda number, history: _drop(history))
        self._by_head: dict[Key, dict[int, Prefix]] = {}  # least recently used first
        self._next = 0

    def find(self, session: str, path: Sequence[str], body: bytes) -> Prefix | None:
        best: tuple[int, Prefix] | None = None
        siblings = self._by_head.get(_key(session, path, body), {})
        for number, prefix in reversed(siblings.items()):
            if (best is None or prefix.end > best[1].end) and prefix.is_start_of(body):
                best = number, prefix
        if best is None:
            return None
        self._prefixes.get(best[0])
        self._rewritten.get(best[0])
        self._restored.get(best[0])
        siblings[best[0]] = siblings.pop(best[0])
        return best[1]

    def keep(self, session: str, path: Sequence[str], request: Request) -> None:
        """Cache the request's beginning instead of the shorter one that it was read with."""
        prefix = request.prefix() if request.history.end >= SMALLEST else None
        if prefix is None or prefix is request.known_prefix or prefix.end < SMALLEST:
            return
        key = _key(session, path, request.body)
        siblings = self._by_head.get(key, {})
        for number, known in siblings.items():
            if known is request.known_prefix:
                self._forget(number, key)
                break
        while len(siblings) >= _SIBLINGS:
            self._forget(next(iter(siblings)), key)
        number, self._next = self._next, self._next + 1
        self._by_head.setdefault(key, {})[number] = prefix
        if not self._prefixes.put(number, key, prefix.size):
            self._unlink(number, key)
        elif size := _remembered_size(prefix.history):
            share = self._restored if _has_true_turns(prefix.history) else self._rewritten
            if not share.put(number, prefix.history, size):
                _drop(prefix.history)

    def clear(self) -> None:
        self._rewritten.drop_all()
        self._restored.drop_all()
        self._prefixes.clear()
        self._by_head.clear()

    def _forget(self, number: int, key: Key) -> None:
        self._prefixes.pop(number)
        self._unlink(number, key)

    def _unlink(self, number: int, key: Key) -> None:
        """Drop everything cached for a beginning."""
        self._rewritten.pop(number)
        self._restored.pop(number)
        siblings = self._by_head[key]
        del siblings[number]
        if not siblings:
            del self._by_head[key]


def _key(session: str, path: Sequence[str], body: bytes) -> Key:
    return session, tuple(path), xxhash.xxh3_128_digest(memoryview(body)[:SMALLEST])
