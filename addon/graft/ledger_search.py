"""Searches the ledger for the unknown turns of a history, in the order of decreasing proof.

`ledger_evidence` decides whether a turn is an entry.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from addon.core.history.keys import Keys, marks_of
from addon.core.history.placeholder import Placeholder
from addon.core.history.steps import TrueTurn
from addon.core.history.turns import (
    CALLS,
    SIGNATURES,
    WINDOWS,
    HistoryTurn,
    chain_key,
    chains_without_ids,
    windows,
    windows_without_ids,
)
from addon.graft.ledger_evidence import (
    ENOUGH_ALONE,
    NOTHING,
    SAYS_SOMETHING,
    Asked,
    Miss,
    Named,
    Place,
    Verdict,
    by_bare,
    by_key,
    by_marks,
    by_step,
    marked_entries,
    pair_of,
    placeholders_in,
    says_enough,
    step_digest,
    true_turns,
)
from store.base import Store
from store.budget import Budget, Share
from store.models import LedgerChanges, LedgerMatches
from store.models import Turn as Entry

type _Entry = tuple[int, TrueTurn]
"""The ledger's revision at which the turn was valid, and the turn."""


class TrueTurns:
    """A cache of true turns by their ids, for histories whose beginning is not cached: those of clients that edit or
    cut earlier turns, and copies of a chat."""

    def __init__(self, store: Store, budget: Budget) -> None:
        self.store = store
        self._turns: Share[tuple[str, str], _Entry] = budget.share("true turns", 1 / 24)

    def find(self, session: str, revision: int | None, turn_ids: Iterable[str]) -> dict[str, TrueTurn]:
        """The cached turns with these ids. `revision`: the oldest acceptable revision of the ledger. None finds
        nothing."""
        found: dict[str, TrueTurn] = {}
        changes: dict[int, LedgerChanges | None] = {}
        if revision is None:
            return found
        for turn_id in turn_ids:
            known = self._turns.get((session, turn_id))
            if known is None:
                continue
            since, true = known
            if since != revision:
                if since not in changes:
                    changes[since] = self.store.changes(session, since)
                if (touched := changes[since]) is None or turn_id in touched.turn_ids:
                    continue
                self._turns.replace((session, turn_id), (revision, true))
            found[turn_id] = true
        return found

    def clear(self) -> None:
        self._turns.clear()

    def keep(self, session: str, revision: int | None, true: TrueTurn) -> None:
        """Cache a turn. `revision`: the ledger's, before the turn was looked up."""
        if revision is not None:
            self._turns.put((session, true.turn_id), (revision, true), true.size)


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


_ALIKE = 64
"""How many entries with a turn's words, newest first, are checked against the turns after it."""

_LINES = 3
"""How many histories that a turn may continue are followed: each edit by a client starts another."""

_FEW = 16
"""Up to this many unknown turns are looked up by all their keys in the first question, to save a round trip."""


class Search:
    """One search of the ledger for unknown turns of a history. `hits`: the known turns. `turn_ids`: the ids that the
    keeper of the history knows. `revision`: the ledger's. `strict`: nothing is judged by words and neighbours.
    `placeholders`: those of the turns, each on lines of its own. `marks`: the keys of the model's marks, for turns that
    may have some. `open`: turns with known words that are not found yet. `bare`: placeholders without an id."""

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
        *,
        strict: bool,
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
        self.strict = strict
        self.misses: dict[int, Miss] = {}
        self.found = LedgerMatches()
        self.asked: set[bytes] = set()
        self.known: dict[int, Known] = {}
        self.unsure: list[int] = []
        self.placeholders: dict[int, list[Named]] = {}
        self.marks: dict[int, dict[tuple[str, bytes], bytes]] = {}
        self.open: list[int] = []
        self.bare: set[int] = set()
        self._by_id: dict[str, TrueTurn] = {}
        self._asked_by_index: dict[int, Asked] = {}
        self._chains_without_ids: list[bytes] = []

    async def run(self, wanted: Sequence[int]) -> None:
        self._read(wanted)
        await self._look_up(wanted)
        self._by_marks(wanted)
        if self.open:
            await self._by_history()
        if self.open and not self.strict:
            await self._by_neighbours()
            self._by_links()

    # --- proof in the turn itself ---------------------------------------------------------------------------------

    def _read(self, wanted: Sequence[int]) -> None:
        """Read the turns' placeholders and marks."""
        body, keys, turns, placeholder = self.body, self.keys, self.turns, self.placeholder
        for index, key in zip(wanted, keys.owns([turns[index].digest for index in wanted]), strict=True):
            turn = turns[index]
            turn.key = key
            if index in self.turn_ids:
                continue
            if turn.may_hold_id and (found := placeholders_in(self._place(index), placeholder, keys)):
                self.placeholders[index] = found
            if turn.holds & (SIGNATURES | CALLS):
                self.marks[index] = {mark: keys.mark(*mark) for mark in marks_of(turn.contents(body))}
        others = [index for index in wanted if index not in self.placeholders and index not in self.turn_ids]
        may_be_bare = placeholder.may_be_bare([turns[index].full_utf8(body) for index in others])
        for index, may_be in zip(others, may_be_bare, strict=True):
            if may_be and placeholder.is_bare(turns[index].full_text(body)):
                self.bare.add(index)

    async def _look_up(self, wanted: Sequence[int]) -> None:
        """Look up the entries with the turns' ids and marks, and which turns' words are known."""
        named = [one for mine in self.placeholders.values() for one in mine]
        turn_ids = dict.fromkeys([*(self.turn_ids[at] for at in wanted if at in self.turn_ids)])
        turn_ids |= dict.fromkeys(one.turn_id for one in named)
        self._by_id = self.true_turns.find(self.session, self.revision, turn_ids)
        unknown = [turn_id for turn_id in turn_ids if turn_id not in self._by_id]
        asked = [key for marks in self.marks.values() for key in marks.values()]
        asked += [one.pair for one in named]
        few = wanted if len(wanted) <= _FEW else [*self.placeholders]
        asked += [key for index in few if index not in self.turn_ids for key in self._asked_of(index).all]
        known = [self.turns[index].key for index in wanted]
        known += [step for index in self.marks if (step := self._asked_of(index).step)]
        self.found = await self.store.look_up(self.session, turn_ids=unknown, keys=asked, known=known)
        self.asked.update(asked)
        for true in true_turns(unknown, self.found):
            self._by_id[true.turn_id] = true
            self.true_turns.keep(self.session, self.revision, true)

    def _by_marks(self, wanted: Sequence[int]) -> None:
        """Find turns by placeholder ids and by echoed marks. Other turns whose words are known go into `open`."""
        for index in wanted:
            named = self.placeholders.get(index, [])
            if (given := self._by_id.get(self.turn_ids.get(index, ""))) is not None:
                # A request with the same bytes may name another turn here, so its neighbours learn nothing.
                under, verdict = given.turn_id.encode(), Verdict((given.without_chain(),))
                self._settle(index, verdict, under, turn_ids=[given.turn_id])
                continue
            verdict = NOTHING
            if named:
                verdict = Verdict(self._by_ids(index, named))
            if not verdict.true and index in self.marks:
                verdict = by_marks(self._place(index), self.keys, self.found)
            if verdict.true:
                self._settle(index, verdict, self.keys.chat, keys=[*(one.pair for one in named)])
            elif index in self.bare or self.turns[index].key in self.found.known:
                self.open.append(index)
            elif index in self.marks and self._asked_of(index).step in self.found.known:
                self.open.append(index)
            elif named:
                is_moved = any(one.turn_id in self._by_id for one in named)
                verdict = Verdict(miss=Miss.CONTEXT) if is_moved else NOTHING
                self._settle(index, verdict, self.keys.root, keys=self._asked_of(index).all)
            elif index in self.marks:
                self._settle(index, NOTHING, self.keys.chat)

    def _by_ids(self, index: int, named: Sequence[Named]) -> tuple[TrueTurn, ...]:
        """The true turns of a turn's placeholders. The turn must read as the entry and follow the same words of the
        user. If clients have joined several turns, the first one must; each other must follow the one before it, or
        repeat one."""
        asked, true = self._asked_of(index), self._by_id.get(named[-1].turn_id)
        if not self.found.plain.keys().isdisjoint((asked.history, *asked.windows)):
            return ()
        if true is not None and true.pair == asked.pair:
            return (true,)
        found: dict[str, TrueTurn] = {}
        used = self._used_ids()
        for one in named:
            if (true := self._by_id.get(one.turn_id)) is None:
                continue
            # a retry may have given the client the placeholder alone
            alone = not one.lead and pair_of(self._place(index), [{"text": true.visible_text}], self.keys)
            pairs = (one.pair, alone)
            is_first = one is named[0] and true.pair in pairs and one.pair not in self.found.plain
            follows = bool(found) and not self.strict and true.before in found and true.visible_text == one.text
            repeats = not one.lead and true.turn_id in used | found.keys()
            if is_first or follows or repeats:
                found[true.turn_id] = true
        return tuple(found.values())

    # --- proof by the turns before it -----------------------------------------------------------------------------

    async def _by_history(self) -> None:
        """Find turns by all turns before them, or else by words that cannot coincide."""
        asked: dict[int, Asked] = {index: self._asked_of(index) for index in self.open}
        await self._ask([key for mine in asked.values() for key in mine.all])
        unproved: list[int] = []
        unclear: list[int] = []
        bare_verdicts = self._by_bare(asked)
        for index, mine in asked.items():
            proof = self._by_all_before(self._place(index), mine)
            if (bare := bare_verdicts.get(index)) is not None and (proof is None or proof.true):
                if proof is not None and bare.true:
                    proof = Verdict(miss=Miss.AMBIGUOUS)  # the same words, spoken by the model
                elif proof is None and (bare is not NOTHING or self.turns[index].key not in self.found.known):
                    proof = bare
            elif proof is None and self._may_be_changed(index, mine):
                proof = by_step(self._place(index), mine.step, self.found)
            if proof is None:
                unproved.append(index)
                continue
            self._settle(index, proof, self.keys.root, keys=mine.all)
            if proof.miss is Miss.AMBIGUOUS and index not in self.bare:
                unclear.append(index)
        claims = {index: self._by_words(self._place(index), asked[index]) for index in unproved}
        claimed = Counter(true.turn_id for claim in claims.values() for true in claim.true)
        used = self._used_ids()
        self.open = unclear
        for index, claim in claims.items():
            # An entry cannot be two turns of a history.
            if any(true.turn_id in used or claimed[true.turn_id] > 1 for true in claim.true):
                claim = Verdict(miss=Miss.CONTEXT)
            if not claim.true:
                self.open.append(index)
            self._settle(index, claim, self.keys.chat if claim.true else self.keys.root, keys=asked[index].all)

    def _asked_of(self, index: int) -> Asked:
        if (known := self._asked_by_index.get(index)) is not None:
            return known
        keys, turn = self.keys, self.turns[index]
        before = [one.digest for one in self.turns[max(0, index - 2 * WINDOWS) : index]]
        sent = windows(before, turn.digest)
        is_telling = turn.word_count(self.body) >= SAYS_SOMETHING
        self._asked_by_index[index] = asked = Asked(
            keys.history(turn.key, turn.chain),
            keys.whole(turn.key, turn.chain),
            (keys.window(turn.key, sent[-1]), keys.window(turn.key, sent[0])),
            turn.key if is_telling else b"",
            self._bare_keys(index) if index in self.bare else (b"", b""),
            keys.step(self.turns[index - 1].chain, step) if (step := step_digest(self._place(index))) else b"",
        )
        return asked

    def _may_be_changed(self, index: int, asked: Asked) -> bool:
        """Whether a turn may be one whose calls the client has changed: no turn reads as it does, and the turns before
        it say too much to be the end of another chat's."""
        is_known = self.turns[index].key in self.found.known or asked.window in self.found.plain
        if self.strict or is_known or asked.step not in self.found.by_key:
            return False
        return says_enough(self.body, self.turns[max(0, index + 1 - 2 * WINDOWS) : index])

    def _bare_keys(self, index: int) -> tuple[bytes, bytes]:
        body, placeholder = self.body, self.placeholder
        if not self._chains_without_ids:
            self._chains_without_ids = chains_without_ids(self.turns, body, placeholder)
        sent = windows_without_ids(self.turns[max(0, index - 2 * WINDOWS) : index], body, placeholder)
        return self.keys.bare(self._chains_without_ids[index - 1]), self.keys.bare_window(sent[-1])

    def _by_all_before(self, place: Place, asked: Asked) -> Verdict | None:
        """The verdict on a turn by all turns before it. The history may be the end of a longer one, so turns at the end
        of longer histories must mean the same, unless the chat has a name."""
        found, named = self.found, self.keys.is_named
        if asked.history not in found.by_key:
            if asked.history in found.plain:
                return NOTHING
            is_known = named and (asked.whole in found.by_key or asked.whole in found.plain)
            return by_key(place, asked.whole, found, named=True) if is_known else None
        proof = by_key(place, asked.history, found, named=named)
        if proof.true and not named and (asked.window in found.by_key or asked.window in found.plain):
            return _both(proof, by_key(place, asked.window, found))
        return proof

    def _by_bare(self, asked: Mapping[int, Asked]) -> dict[int, Verdict]:
        """The verdicts on placeholders without an id. Placeholders at the end of longer histories must mean the same,
        as in `_by_all_before`; those that are other turns of this history do not count."""
        found, named = self.found, self.keys.is_named
        whole = {
            index: by_bare(self._place(index), asked[index].bare[0], self.placeholder, found, named=named)
            for index in self.bare & asked.keys()
        }
        claimed = {true.turn_id for verdict in whole.values() for true in verdict.true} | self._used_ids()
        for index, verdict in whole.items():
            if named or not verdict.true:
                continue
            mine = asked[index]
            others = claimed.difference(verdict.alike)
            sent = by_bare(self._place(index), mine.bare[1], self.placeholder, found, named=False, exclude=others)
            if mine.window in found.plain:
                whole[index] = Verdict(miss=Miss.PLAIN)
            elif sent is not NOTHING:
                whole[index] = _both(verdict, sent)
        return whole

    def _by_words(self, place: Place, asked: Asked) -> Verdict:
        """The verdict by words that cannot coincide: all that the client still sends up to the turn, or its own."""
        found, body, at = self.found, place.body, place.at
        if self.strict:
            return Verdict(miss=Miss.CONTEXT)
        # a placeholder can be copied into any chat
        counts = asked.own and at not in self.placeholders
        own = by_key(place, asked.own, found) if counts else Verdict(miss=Miss.CONTEXT)
        if asked.window in found.by_key:
            claim = by_key(place, asked.window, found)
            sent = self.turns[max(0, at + 1 - 2 * WINDOWS) : at + (1 if own.true else 0)]
            if not claim.true or says_enough(body, sent):
                return claim
        elif asked.window in found.plain:
            return NOTHING  # a turn without calls, as far as is known
        if own.true and place.turn.word_count(body) < ENOUGH_ALONE:
            return Verdict(miss=Miss.CONTEXT)
        return own

    # --- proof by another turn: an entry records the turns before it ----------------------------------------------

    async def _by_neighbours(self) -> None:
        """Find turns that nothing else proves by a known turn and the turns between the two."""
        await self._ask([turn.key for turn in self._plain_turns()])
        lines, alike = self._lines(), await self._alike()
        asked = {index: self._neighbour_keys(index, lines[index], alike.get(index, ())) for index in self.open}
        await self._ask([key for mine in asked.values() for pair in mine.items() for key in pair if key])
        ids = [true.turn_id for here in self.hits.values() for true in here]
        witnesses = self._witness_keys()
        for index, mine in asked.items():
            for key, doubt in mine.items():
                verdict = self._by_neighbour(index, key, doubt)
                if verdict.true or verdict.miss is not None or key in self.found.plain:
                    under = self.keys.chat if verdict.true else self.keys.root
                    self._settle(index, verdict, under, turn_ids=ids, keys=[*mine, *self.known[index].keys, *witnesses])
                    break

    def _by_neighbour(self, index: int, key: bytes, doubt: bytes) -> Verdict:
        """The verdict by a key derived from another turn. Entries under the key `doubt` must mean the same."""
        place = self._place(index)
        verdict = by_key(place, key, self.found, named=self.keys.is_named)
        if any(true.turn_id in self._used_ids() for true in verdict.true):
            return NOTHING
        if verdict.true and (doubt in self.found.by_key or doubt in self.found.plain):
            return _both(verdict, by_key(place, doubt, self.found))
        return verdict

    async def _alike(self) -> dict[int, list[Entry]]:
        """Entries with the same words, for each open turn with changed earlier turns that a later turn can prove."""
        wanted = {at: key for at in self.open if self._has_changed(at) and (key := self.turns[at].key)}
        if not wanted:
            return {}
        found = await self.store.look_up(self.session, keys=list(dict.fromkeys(wanted.values())), matches=_ALIKE)
        entries = {key: [found.turns[turn_id] for turn_id in ids] for key, ids in found.by_key.items()}
        return {at: [entry for entry in entries.get(key, ()) if entry.pair] for at, key in wanted.items()}

    def _neighbour_keys(self, index: int, lines: Sequence[bytes], alike: Sequence[Entry]) -> dict[bytes, bytes]:
        """The possible keys of a turn according to known turns, each with its `doubt` key (or b"") for
        `_by_neighbour`."""
        turn = self.turns[index]
        asked = dict.fromkeys((self.keys.whole(turn.key, line) for line in lines), b"")
        for chain, doubt in self._leading(index, alike):
            asked.setdefault(self.keys.whole(turn.key, chain), doubt)
        return asked

    def _lines(self) -> dict[int, list[bytes]]:
        """For each open turn: its chains, if it follows known turns."""
        found: dict[int, list[bytes]] = {}
        lines: list[bytes] = []
        unknown = set(self.open)
        for index, turn in enumerate(self.turns):
            lines = [chain_key(line, turn.side, turn.digest) for line in lines]
            if index in unknown:
                found[index] = lines
            elif (line := self._line(index)) and line not in lines:
                lines = [line, *lines[: _LINES - 1]]
        return found

    def _plain_turns(self) -> Iterator[HistoryTurn]:
        """Turns without hidden parts whose own words may identify them."""
        for index, turn in enumerate(self.turns):
            if turn.side == "model" and index and index not in self.hits:
                turn.key = self.keys.own(turn.digest)
            if turn.key and turn.key not in self.found.known and turn.word_count(self.body) >= ENOUGH_ALONE:
                yield turn

    def _by_links(self) -> None:
        """Find turns with an id or a mark by the known turn right before or after them, whose record names the other:
        the words between them may have changed."""
        for indices in (self.open, [*reversed(self.open)]):
            for index in indices:
                if index in self.hits or self._asked_of(index).pair in self.found.plain:
                    continue
                before = {true.turn_id for true in self.hits.get(index - 2, ())}
                after = {true.before for true in self.hits.get(index + 2, ())}
                for true in self._marked(index):
                    if (true.before in before or true.turn_id in after) and true.turn_id not in self._used_ids():
                        ids = [*before, *(one.turn_id for one in self.hits.get(index + 2, ()))]
                        mine = self._asked_of(index).all
                        self._settle(index, Verdict((true,)), self.keys.chat, turn_ids=ids, keys=mine)
                        break

    def _marked(self, index: int) -> list[TrueTurn]:
        """The entries that read as a turn and have its id, or a mark of it."""
        turn = self.turns[index]
        named = [self._by_id.get(one.turn_id) for one in self.placeholders.get(index, ()) if one.text == turn.text]
        entries = marked_entries(self._place(index), self.found)
        return [
            *(true for true in named if true is not None and true.visible_text == turn.text),
            *true_turns([entry.turn_id for entry in entries], self.found),
        ]

    def _line(self, index: int) -> bytes:
        """The chain that a known turn had when it was stored, or b""."""
        turn, true = self.turns[index], self.hits.get(index, ())
        if len(true) == 1 and true[0].chain:
            return self.keys.mask_chain(true[0].turn_id.encode(), true[0].chain)
        if true or index in self.open or turn.word_count(self.body) < ENOUGH_ALONE:
            return b""
        chain = self.found.plain.get(turn.key, b"")
        return self.keys.mask_chain(turn.key, chain) if chain else b""

    def _witness_keys(self) -> set[bytes]:
        """The keys of the known turns that prove others. A write under one of these may invalidate the proof."""
        found: set[bytes] = set()
        for index, turn in enumerate(self.turns):
            if self._line(index):
                known = self.known.get(index) or turn.memo
                found.update((self.keys.own(turn.digest), *(known.keys if known is not None else ())))
        return found

    def _later(self, index: int) -> int | None:
        return next((at for at in range(index + 1, len(self.turns)) if self._line(at)), None)

    def _has_changed(self, index: int) -> bool:
        """Whether the turns before the next known turn have changed since it was stored."""
        later = self._later(index)
        return later is not None and self._line(later) != self.turns[later].chain

    def _leading(self, index: int, alike: Sequence[Entry]) -> list[tuple[bytes, bytes]]:
        """The chains of a turn if known turns follow it: its own if nothing has changed since, or that of an entry with
        the same words. Its history may be the end of a longer one, so each chain comes with the key of entries that may
        follow the same words."""
        later = self._later(index)
        if later is None:
            return []
        line, (sent, pair) = self._line(later), self._asked_of(index).windows
        if line == self.turns[later].chain:
            return [(self.turns[index].chain, sent)]
        near = {turn_id for key in (sent, pair) for turn_id in self.found.by_key.get(key, ())}
        entries = [*(self.found.turns[turn_id] for turn_id in near), *alike]
        between = self.turns[index + 1 : later + 1]
        chains = {self.keys.mask_chain(entry.turn_id.encode(), entry.chain): entry.pair or pair for entry in entries}
        return [(chain, pair) for chain, pair in chains.items() if _extended(chain, between) == line]

    # --- the findings ---------------------------------------------------------------------------------------------

    def remember(self, wanted: Sequence[int]) -> int:
        """Store the findings in the turns. Returns how many turns from the start are now known."""
        nothing = _nothing(self.keys.chat)
        unsure = set(self.unsure)
        for index in wanted:
            self.turns[index].memo = None if index in unsure else self.known.get(index, nothing)
        return min(unsure, default=len(self.turns))

    def _place(self, index: int) -> Place:
        return Place(self.body, self.turns, index, self.marks.get(index, {}))

    def _used_ids(self) -> set[str]:
        return {true.turn_id for here in self.hits.values() for true in here}

    async def _ask(self, asked: Sequence[bytes]) -> None:
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
            self.keys.mask_chain(entry.turn_id.encode(), entry.chain) if entry.chain else b"" for entry in entries
        }
        return true if len(chains) == 1 else (true[0].without_chain(),)

    def _settle(
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
        ids.update(turn_ids, [one.turn_id for one in self.placeholders.get(index, ())])
        ids.update([true.turn_id for true in verdict.true])
        self.known[index] = Known(under, verdict.true, frozenset(ids), on)


def _both(verdict: Verdict, other: Verdict) -> Verdict:
    """`verdict` with the entries of both, or `other` if that is a miss."""
    return verdict._replace(alike=(*verdict.alike, *other.alike)) if other.true else other


def _extended(chain: bytes, turns: Sequence[HistoryTurn]) -> bytes:
    for turn in turns:
        chain = chain_key(chain, turn.side, turn.digest)
    return chain
