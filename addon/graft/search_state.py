"""The findings of one search of the ledger, and its questions to the store."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from addon.core.history.keys import Keys
from addon.core.history.placeholder import Placeholder
from addon.core.history.steps import TrueTurn
from addon.core.history.turns import HistoryTurn
from addon.graft.ledger_evidence import Miss, Place, Verdict
from addon.graft.true_turns import TrueTurns
from store.base import Store
from store.models import LedgerChanges, LedgerMatches

Hits = dict[int, tuple[TrueTurn, ...]]
"""True turns by the index of their turn in the history."""


class Known(NamedTuple):
    """The true turns of a turn under a root or chat, and the turns and keys (besides the key of its own words) that
    this finding depends on. If the client names the turn, `under` is its id."""

    under: bytes
    true: tuple[TrueTurn, ...]
    turn_ids: frozenset[str] = frozenset()
    keys: frozenset[bytes] = frozenset()

    def holds(self, turn: HistoryTurn, touched: LedgerChanges) -> bool:
        return (
            turn.key not in touched.keys
            and self.turn_ids.isdisjoint(touched.turn_ids)
            and self.keys.isdisjoint(touched.keys)
        )


_NO_KEYS: frozenset[bytes] = frozenset()


@functools.lru_cache(256)
def _nothing(chat: bytes) -> Known:
    """The finding for most turns, shared by all turns of a chat."""
    return Known(chat, ())


class Asked(NamedTuple):
    """The keys by which a turn is looked up. `windows`: the key with all turns before it that the client still sends,
    and the key with the one turn before it. `own`: of its own words, b"" if they are too few to prove anything."""

    history: bytes
    whole: bytes
    windows: tuple[bytes, bytes]
    own: bytes

    @property
    def all(self) -> list[bytes]:
        return [key for key in (self.history, self.whole, *self.windows, self.own) if key]

    @property
    def window(self) -> bytes:
        return self.windows[0]


class SearchState:
    """The unknown turns of a history, and the findings. `hits`: the known turns. `turn_ids`: the ids that the keeper of
    the history knows. `revision`: the ledger's. `marks`: the keys of the model's marks, for turns that may have some.
    `open`: turns with known words that are not found yet. `bare`: the bare placeholders."""

    def __init__(
        self,
        store: Store,
        session: str,
        keys: Keys,
        body: bytes,
        turns: Sequence[HistoryTurn],
        placeholder: Placeholder,
        hits: Hits,
        turn_ids: Mapping[int, str],
        true_turns: TrueTurns,
        revision: int | None,
    ) -> None:
        self.store = store
        self.session = session
        self.keys = keys
        self.body = body
        self.turns = turns
        self.placeholder = placeholder
        self.hits = hits
        self.turn_ids = turn_ids
        self.true_turns = true_turns
        self.revision = revision
        self.misses: dict[int, Miss] = {}
        self.found = LedgerMatches()
        self.asked: set[bytes] = set()
        self.known: dict[int, Known] = {}
        self.unsure: list[int] = []
        self.marks: dict[int, dict[tuple[str, bytes], bytes]] = {}
        self.open: list[int] = []
        self.bare: list[int] = []
        self.asked_for: dict[int, Asked] = {}
        self._asked: dict[int, Asked] = {}

    def remember(self, wanted: Sequence[int]) -> int:
        """Store the findings in the turns. Returns how many turns from the start are now known."""
        nothing = _nothing(self.keys.chat)
        unsure = set(self.unsure)
        for index in wanted:
            self.turns[index].memo = None if index in unsure else self.known.get(index, nothing)
        return min(unsure, default=len(self.turns))

    def place(self, index: int) -> Place:
        return Place(self.body, self.turns, index, self.marks.get(index, {}))

    def used_ids(self) -> set[str]:
        return {true.turn_id for here in self.hits.values() for true in here}

    async def ask(self, asked: Sequence[bytes]) -> None:
        fresh = [key for key in dict.fromkeys(asked) if key not in self.asked]
        if not fresh:
            return
        self.asked.update(fresh)
        more = await self.store.look_up(self.session, keys=fresh)
        self.found.by_key |= more.by_key
        self.found.turns |= more.turns
        self.found.calls |= more.calls
        self.found.crowded |= more.crowded
        self.found.plain |= more.plain

    def _with_certain_chain(self, verdict: Verdict) -> tuple[TrueTurn, ...]:
        """The true turns of a verdict. The chain of an entry is the turn's own only if all entries that fit have the
        same one; otherwise another entry may be the chat's, so the chain is dropped."""
        true = verdict.true
        if len(true) != 1 or not true[0].chain:
            return true
        entries = [self.found.turns[turn_id] for turn_id in {true[0].turn_id, *verdict.alike}]
        chains = {
            self.keys.mask_chain(entry.turn_id.encode(), entry.chain) if entry.chain and not entry.bound else b""
            for entry in entries
        }
        return true if len(chains) == 1 else (true[0].without_chain(),)

    def settle(
        self,
        index: int,
        verdict: Verdict,
        under: bytes,
        *,
        turn_ids: Sequence[str] = (),
        keys: Sequence[bytes] = (),
    ) -> None:
        """Record the verdict on a turn."""
        found, marks = self.found, self.marks.get(index, {})
        if verdict.true:
            if verdict.alike:
                verdict = verdict._replace(true=self._with_certain_chain(verdict))
            self.hits[index] = verdict.true
        if verdict.miss is not None:
            self.misses[index] = verdict.miss
        else:
            self.misses.pop(index, None)
        if not verdict.lasts:
            self.unsure.append(index)
        on = frozenset([*keys, *marks.values()]) if keys or marks else _NO_KEYS
        ids = {turn_id for key in on for turn_id in found.by_key.get(key, ())} if on else set()
        ids.update(turn_ids, [true.turn_id for true in verdict.true])
        self.known[index] = Known(under, verdict.true, frozenset(ids), on)


def both(verdict: Verdict, other: Verdict) -> Verdict:
    """`verdict` with the entries of both, or `other` if that is a miss."""
    return verdict._replace(alike=(*verdict.alike, *other.alike)) if other.true else other
