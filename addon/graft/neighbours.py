"""Proves a turn by another turn of its history: an entry records the turns before it."""

from collections.abc import Iterator, Sequence

from addon.core.history.turns import HistoryTurn, chain_key
from addon.graft import ledger_evidence
from addon.graft.ledger_evidence import Verdict
from addon.graft.search_state import SearchState, both
from store.models import Turn as Entry

_ALIKE = 64
"""How many entries with a turn's words, newest first, are checked against the turns after it."""

_LINES = 3
"""How many histories that a turn may continue are followed: each edit by a client starts another."""


class Neighbours:
    """The last stage of a search, for turns that nothing else proves."""

    def __init__(self, state: SearchState) -> None:
        self._state = state
        self._keys = state.keys
        self._body = state.body
        self._turns = state.turns
        self._hits = state.hits
        self._found = state.found
        self._known = state.known
        self._open = state.open

    async def run(self) -> None:
        """Find turns by a known turn and the turns between the two."""
        await self._state.ask([turn.key for turn in self._plain_turns()])
        lines, alike = self._lines(), await self._alike()
        asked = {index: self._neighbour_keys(index, lines[index], alike.get(index, ())) for index in self._open}
        await self._state.ask([key for mine in asked.values() for pair in mine.items() for key in pair if key])
        ids = [true.turn_id for here in self._hits.values() for true in here]
        witnesses = self._witness_keys()
        for index, mine in asked.items():
            for key, doubt in mine.items():
                verdict = self._by_neighbour(index, key, doubt)
                if verdict.true or verdict.miss is not None or key in self._found.plain:
                    under = self._keys.chat if verdict.true else self._keys.root
                    self._state.settle(
                        index, verdict, under, turn_ids=ids, keys=[*mine, *self._known[index].keys, *witnesses]
                    )
                    break

    def _by_neighbour(self, index: int, key: bytes, doubt: bytes) -> Verdict:
        """The verdict by a key derived from another turn. Entries under the key `doubt` must mean the same."""
        place = self._state.place(index)
        verdict = ledger_evidence.by_key(place, key, self._found, named=self._keys.is_named)
        if any(true.turn_id in self._state.used_ids() for true in verdict.true):
            return ledger_evidence.NOTHING
        if verdict.true and (doubt in self._found.by_key or doubt in self._found.plain):
            others = ledger_evidence.by_key(place, doubt, self._found)
            return both(verdict, others)
        return verdict

    async def _alike(self) -> dict[int, list[Entry]]:
        """Entries with the same words, for each open turn with changed earlier turns that a later turn can prove."""
        wanted = {at: key for at in self._open if self._has_changed(at) and (key := self._turns[at].key)}
        if not wanted:
            return {}
        found = await self._state.store.look_up(
            self._state.session, keys=list(dict.fromkeys(wanted.values())), matches=_ALIKE
        )
        entries = {key: [found.turns[turn_id] for turn_id in ids] for key, ids in found.by_key.items()}
        return {at: [entry for entry in entries.get(key, ()) if entry.pair] for at, key in wanted.items()}

    def _neighbour_keys(self, index: int, lines: Sequence[bytes], alike: Sequence[Entry]) -> dict[bytes, bytes]:
        """The possible keys of a turn according to known turns, each with its `doubt` key (or b"") for
        `_by_neighbour`."""
        turn = self._turns[index]
        asked = dict.fromkeys((self._keys.whole(turn.key, line) for line in lines), b"")
        for chain, doubt in self._leading(index, alike):
            asked.setdefault(self._keys.whole(turn.key, chain), doubt)
        return asked

    def _lines(self) -> dict[int, list[bytes]]:
        """For each open turn: its chains, if it follows known turns."""
        found: dict[int, list[bytes]] = {}
        lines: list[bytes] = []
        unknown = set(self._open)
        for index, turn in enumerate(self._turns):
            lines = [chain_key(line, turn.side, turn.digest) for line in lines]
            if index in unknown:
                found[index] = lines
            elif (line := self._line(index)) and line not in lines:
                lines = [line, *lines[: _LINES - 1]]
        return found

    def _plain_turns(self) -> Iterator[HistoryTurn]:
        """Turns without hidden parts whose own words may identify them."""
        for index, turn in enumerate(self._turns):
            if turn.side == "model" and index and index not in self._hits:
                turn.key = self._keys.own(turn.digest)
            if (
                turn.key
                and turn.key not in self._found.known
                and turn.word_count(self._body) >= ledger_evidence.ENOUGH_ALONE
            ):
                yield turn

    def _line(self, index: int) -> bytes:
        """The chain that a known turn had when it was stored, or b""."""
        turn, true = self._turns[index], self._hits.get(index, ())
        if len(true) == 1 and true[0].chain:
            return self._keys.mask_chain(true[0].turn_id.encode(), true[0].chain)
        if true or index in self._open or turn.word_count(self._body) < ledger_evidence.ENOUGH_ALONE:
            return b""
        chain = self._found.plain.get(turn.key, b"")
        return self._keys.mask_chain(turn.key, chain) if chain else b""

    def _witness_keys(self) -> set[bytes]:
        """The keys of the known turns that prove others. A write under one of these may invalidate the proof."""
        found: set[bytes] = set()
        for index, turn in enumerate(self._turns):
            if self._line(index):
                known = self._known.get(index) or turn.memo
                found.update((self._keys.own(turn.digest), *(known.keys if known is not None else ())))
        return found

    def _later(self, index: int) -> int | None:
        return next((at for at in range(index + 1, len(self._turns)) if self._line(at)), None)

    def _has_changed(self, index: int) -> bool:
        """Whether the turns before the next known turn have changed since it was stored."""
        later = self._later(index)
        return later is not None and self._line(later) != self._turns[later].chain

    def _leading(self, index: int, alike: Sequence[Entry]) -> list[tuple[bytes, bytes]]:
        """The chains of a turn if known turns follow it: its own if nothing has changed since, or that of an entry with
        the same words. Its history may be the end of a longer one, so each chain comes with the key of entries that may
        follow the same words."""
        later = self._later(index)
        if later is None:
            return []
        line, (sent, pair) = self._line(later), self._state.asked_for[index].windows
        if line == self._turns[later].chain:
            return [(self._turns[index].chain, sent)]
        near = {turn_id for key in (sent, pair) for turn_id in self._found.by_key.get(key, ())}
        entries = [*(self._found.turns[turn_id] for turn_id in near), *alike]
        between = self._turns[index + 1 : later + 1]
        chains = {self._keys.mask_chain(entry.turn_id.encode(), entry.chain): entry.pair or pair for entry in entries}
        return [(chain, pair) for chain, pair in chains.items() if _extended(chain, between) == line]


def _extended(chain: bytes, turns: Sequence[HistoryTurn]) -> bytes:
    for turn in turns:
        chain = chain_key(chain, turn.side, turn.digest)
    return chain
