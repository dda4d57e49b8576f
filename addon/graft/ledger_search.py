"""Searches the ledger for the turns of a history that are not known yet, by ever weaker proof.

`graft.evidence` says what proves that a turn is an entry.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from addon.core.history.keys import Keys, marks_of
from addon.core.history.placeholder import Placeholder
from addon.core.history.steps import TrueTurn
from addon.core.history.turns import CALLS, SIGNATURES, WINDOWS, HistoryTurn, chain_key, windows
from addon.graft import evidence
from addon.graft.evidence import Miss, Place, Verdict, true_turns
from addon.graft.true_turns import TrueTurns
from store.base import Store
from store.models import LedgerChanges, LedgerMatches
from store.models import Turn as Entry

Hits = dict[int, tuple[TrueTurn, ...]]
"""True turns by the index of their turn in the history."""

_ALIKE = 64
"""How many entries with a turn's words, the newest, are tried against the turns after it."""

_LINES = 3
"""How many histories that a turn may continue are followed: each edit by a client makes another."""


class Known(NamedTuple):
    """What a turn stands for under a root or chat, and the turns and keys (besides its own words' key) that this
    depends on. For a turn that the client names, `under` is its id."""

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


class _Asked(NamedTuple):
    """The keys of a turn that is known by its words. `windows`: the key with all turns before it that the client still
    sends, and the key with the one turn before it. `own`: of its own words, b"" if they are too few to prove
    anything."""

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


class Search:
    """One search of the ledger for the unknown turns of a history. `hits`: the known ones. `turn_ids`: the ids of those
    that whoever keeps the history knows. `revision`: the ledger's."""

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
        self._asked: set[bytes] = set()
        self._known: dict[int, Known] = {}
        self._unsure: list[int] = []
        self._places: dict[int, Place] = {}
        self._open: list[int] = []
        self._bare: list[int] = []
        self._asked_for: dict[int, _Asked] = {}

    async def run(self, wanted: Sequence[int]) -> None:
        await self._by_marks(wanted)
        if self._open:
            await self._by_history()
        if self._open:
            await self._by_neighbours()
        if not self.store.read_only:
            for index in self._bare:
                if index not in self.hits:
                    await self._bind(index)

    def remember(self, wanted: Sequence[int]) -> int:
        """Store the findings in the turns. Returns how many turns from the beginning are now known."""
        nothing = Known(self.keys.chat, ())
        unsure = set(self._unsure)
        for index in wanted:
            self.turns[index].memo = None if index in unsure else self._known.get(index, nothing)
        return min(unsure, default=len(self.turns))

    # --- proof in the turn itself ---------------------------------------------------------------------------------

    async def _by_marks(self, wanted: Sequence[int]) -> None:
        """Find turns by placeholder ids, and by the marks that clients echo. Unfound turns whose words are known stay
        `_open`."""
        body, keys = self.body, self.keys
        ids: dict[int, list[str]] = {}
        asked: list[bytes] = []
        for index in wanted:
            turn = self.turns[index]
            turn.key = keys.own(turn.digest)
            if index in self.turn_ids:
                ids[index] = [self.turn_ids[index]]
            elif turn.may_hold_id and (placeholders := self.placeholder.find(turn.text)):
                ids[index] = [turn_id for _, _, turn_id in placeholders]
            marks: dict[tuple[str, bytes], bytes] = {}
            if turn.holds & (SIGNATURES | CALLS):
                marks = {mark: keys.mark(*mark) for mark in marks_of(turn.contents(body))}
                asked += marks.values()
            self._places[index] = Place(body, self.turns, index, marks)
        by_id = await self._look_up([one for named in ids.values() for one in named], asked, wanted)
        for index in wanted:
            place, named = self._places[index], ids.get(index, [])
            verdict = Verdict(tuple(by_id[one] for one in dict.fromkeys(named) if one in by_id))
            if not verdict.true and place.marks:
                verdict = evidence.by_marks(place, self.found)
            if verdict.true:
                under = keys.chat
                if index in self.turn_ids and verdict.true[0].turn_id == self.turn_ids[index]:
                    # A request with the same bytes may name another turn here, so its neighbours learn nothing.
                    under, verdict = named[0].encode(), Verdict((verdict.true[0].without_chain(),))
                self._settle(index, verdict, under, turn_ids=named)
                continue
            if self.placeholder.is_bare(self.turns[index].full_text(body)):
                self._bare.append(index)
                self._open.append(index)
            elif self.turns[index].key in self.found.known:
                self._open.append(index)
            elif named or place.marks:
                self._settle(index, verdict, keys.chat, turn_ids=named)

    async def _look_up(
        self, turn_ids: Sequence[str], asked: Sequence[bytes], wanted: Sequence[int]
    ) -> dict[str, TrueTurn]:
        """Find the entries with these ids and keys, and which turns' words are known. Returns the true turns by id."""
        named = self.true_turns.find(self.session, self.revision, turn_ids)
        unknown = [turn_id for turn_id in dict.fromkeys(turn_ids) if turn_id not in named]
        known = [self.turns[index].key for index in wanted]
        self.found = await self.store.look_up(self.session, turn_ids=unknown, keys=asked, known=known)
        self._asked.update(asked)
        for true in true_turns(unknown, self.found):
            named[true.turn_id] = true
            self.true_turns.keep(self.session, self.revision, true)
        return named

    # --- proof by the turns before it -----------------------------------------------------------------------------

    async def _by_history(self) -> None:
        """Find turns by all turns before them, else by words that cannot be a coincidence."""
        asked: dict[int, _Asked] = {index: self._asked_of(index) for index in self._open}
        self._asked_for = asked
        await self._ask([key for mine in asked.values() for key in mine.all])
        unproved: list[int] = []
        unclear: list[int] = []
        for index, mine in asked.items():
            proof = self._by_all_before(self._places[index], mine)
            if proof is None:
                unproved.append(index)
                continue
            self._settle(index, proof, self.keys.root, keys=mine.all)
            if proof.miss is Miss.AMBIGUOUS:
                unclear.append(index)
        claims = {index: self._by_words(self._places[index], asked[index]) for index in unproved}
        claimed = Counter(true.turn_id for claim in claims.values() for true in claim.true)
        used = self._used_ids()
        self._open = unclear
        for index, claim in claims.items():
            # An entry cannot be two turns of a history.
            if any(true.turn_id in used or claimed[true.turn_id] > 1 for true in claim.true):
                claim = Verdict(miss=Miss.CONTEXT)
            if not claim.true:
                self._open.append(index)
            self._settle(index, claim, self.keys.chat if claim.true else self.keys.root, keys=asked[index].all)

    def _asked_of(self, index: int) -> _Asked:
        keys, turn = self.keys, self.turns[index]
        before = [one.digest for one in self.turns[max(0, index - 2 * WINDOWS) : index]]
        sent = windows(before, turn.digest)
        is_telling = turn.word_count(self.body) >= evidence.SAYS_SOMETHING
        return _Asked(
            keys.history(turn.key, turn.chain),
            keys.whole(turn.key, turn.chain),
            (keys.window(turn.key, sent[-1]), keys.window(turn.key, sent[0])),
            turn.key if is_telling else b"",
        )

    def _by_all_before(self, place: Place, asked: _Asked) -> Verdict | None:
        """What a turn is by all turns before it. They may be the rest of a longer history, so turns at the end of
        longer histories must mean the same, unless the chat has a name."""
        found, named = self.found, self.keys.is_named
        if named and (asked.whole in found.by_key or asked.whole in found.plain):
            return evidence.by_key(place, asked.whole, found, named=True)
        if asked.history not in found.by_key:
            return evidence.NOTHING if asked.history in found.plain else None
        proof = evidence.by_key(place, asked.history, found, named=named)
        if proof.true and not named and (asked.window in found.by_key or asked.window in found.plain):
            doubt = evidence.by_key(place, asked.window, found)
            return _both(proof, doubt)
        return proof

    def _by_words(self, place: Place, asked: _Asked) -> Verdict:
        """What a turn is by words that cannot be a coincidence: all that the client still sends up to it, or its own
        words alone."""
        found, body, at = self.found, place.body, place.at
        own = evidence.by_key(place, asked.own, found) if asked.own else Verdict(miss=Miss.CONTEXT)
        if asked.window in found.by_key:
            claim = evidence.by_key(place, asked.window, found)
            sent = self.turns[max(0, at + 1 - 2 * WINDOWS) : at + (1 if own.true else 0)]
            if not claim.true or evidence.says_enough(body, sent):
                return claim
        elif asked.window in found.plain:
            return evidence.NOTHING  # a turn without calls, as far as is known
        if own.true and place.turn.word_count(body) < evidence.ENOUGH_ALONE:
            return Verdict(miss=Miss.CONTEXT)
        return own

    # --- proof by another turn of the history ---------------------------------------------------------------------

    async def _by_neighbours(self) -> None:
        """Find turns by a known turn and the turns between the two: the known turn records what stood before it."""
        await self._ask([turn.key for turn in self._plain_turns()])
        lines, alike = self._lines(), await self._alike()
        asked = {index: self._neighbour_keys(index, lines[index], alike.get(index, ())) for index in self._open}
        await self._ask([key for mine in asked.values() for pair in mine.items() for key in pair if key])
        ids = [true.turn_id for here in self.hits.values() for true in here]
        witnesses = self._witness_keys()
        for index, mine in asked.items():
            for key, doubt in mine.items():
                verdict = self._by_neighbour(index, key, doubt)
                if verdict.true or verdict.miss is not None or key in self.found.plain:
                    under = self.keys.chat if verdict.true else self.keys.root
                    self._settle(
                        index, verdict, under, turn_ids=ids, keys=[*mine, *self._known[index].keys, *witnesses]
                    )
                    break

    def _by_neighbour(self, index: int, key: bytes, doubt: bytes) -> Verdict:
        """What a turn is by a key derived from another turn. Entries under the key `doubt` fit as well, so they must
        mean the same."""
        place = self._places[index]
        verdict = evidence.by_key(place, key, self.found, named=self.keys.is_named)
        if any(true.turn_id in self._used_ids() for true in verdict.true):
            return evidence.NOTHING
        if verdict.true and (doubt in self.found.by_key or doubt in self.found.plain):
            others = evidence.by_key(place, doubt, self.found)
            return _both(verdict, others)
        return verdict

    async def _alike(self) -> dict[int, list[Entry]]:
        """For each open turn whose earlier turns have changed, but that a later turn can prove: the entries with its
        words, whatever else they share with it."""
        wanted = {at: key for at in self._open if self._has_changed(at) and (key := self.turns[at].key)}
        if not wanted:
            return {}
        found = await self.store.look_up(self.session, keys=list(dict.fromkeys(wanted.values())), matches=_ALIKE)
        entries = {key: [found.turns[turn_id] for turn_id in ids] for key, ids in found.by_key.items()}
        return {at: [entry for entry in entries.get(key, ()) if entry.pair] for at, key in wanted.items()}

    def _neighbour_keys(self, index: int, lines: Sequence[bytes], alike: Sequence[Entry]) -> dict[bytes, bytes]:
        """The keys that a turn may have according to known turns, each with the key (or b"") that raises doubts."""
        turn = self.turns[index]
        asked = dict.fromkeys((self.keys.whole(turn.key, line) for line in lines), b"")
        for chain, doubt in self._leading(index, alike):
            asked.setdefault(self.keys.whole(turn.key, chain), doubt)
        return asked

    def _lines(self) -> dict[int, list[bytes]]:
        """For each open turn, the chains that it has if it follows known turns."""
        found: dict[int, list[bytes]] = {}
        lines: list[bytes] = []
        unknown = set(self._open)
        for index, turn in enumerate(self.turns):
            lines = [chain_key(line, turn.side, turn.digest) for line in lines]
            if index in unknown:
                found[index] = lines
            elif (line := self._line(index)) and line not in lines:
                lines = [line, *lines[: _LINES - 1]]
        return found

    def _plain_turns(self) -> Iterator[HistoryTurn]:
        """Turns that hide nothing and may be known by their own words."""
        for index, turn in enumerate(self.turns):
            if turn.side == "model" and index and index not in self.hits and index not in self._places:
                turn.key = self.keys.own(turn.digest)
            if turn.key and turn.key not in self.found.known and turn.word_count(self.body) >= evidence.ENOUGH_ALONE:
                yield turn

    def _line(self, index: int) -> bytes:
        """The chain that a known turn had when it was stored, else b""."""
        turn, true = self.turns[index], self.hits.get(index, ())
        if len(true) == 1 and true[0].chain:
            return self.keys.mask_chain(true[0].turn_id.encode(), true[0].chain)
        if true or index in self._open or turn.word_count(self.body) < evidence.ENOUGH_ALONE:
            return b""
        chain = self.found.plain.get(turn.key, b"")
        return self.keys.mask_chain(turn.key, chain) if chain else b""

    def _witness_keys(self) -> set[bytes]:
        """The keys by which the known turns are known that say what stood before them: a write under one of these may
        take their word away."""
        found: set[bytes] = set()
        for index, turn in enumerate(self.turns):
            if self._line(index):
                known = self._known.get(index) or turn.memo
                found.update((self.keys.own(turn.digest), *(known.keys if known is not None else ())))
        return found

    def _later(self, index: int) -> int | None:
        """The index of the next known turn."""
        return next((at for at in range(index + 1, len(self.turns)) if self._line(at)), None)

    def _has_changed(self, index: int) -> bool:
        """Whether the turns before the next known turn have changed since it was stored."""
        later = self._later(index)
        return later is not None and self._line(later) != self.turns[later].chain

    def _leading(self, index: int, alike: Sequence[Entry]) -> list[tuple[bytes, bytes]]:
        """The chains that a turn has if known turns follow it: its own if nothing has changed since, or that of an
        entry with the same words. That history may itself be the rest of a longer one, so each chain comes with the
        key of entries that may have followed the same words."""
        later = self._later(index)
        if later is None:
            return []
        line, (sent, pair) = self._line(later), self._asked_for[index].windows
        if line == self.turns[later].chain:
            return [(self.turns[index].chain, sent)]
        near = {turn_id for key in (sent, pair) for turn_id in self.found.by_key.get(key, ())}
        entries = [*(self.found.turns[turn_id] for turn_id in near), *alike]
        between = self.turns[index + 1 : later + 1]
        chains = {self.keys.mask_chain(entry.turn_id.encode(), entry.chain): entry.pair or pair for entry in entries}
        return [(chain, pair) for chain, pair in chains.items() if _extended(chain, between) == line]

    def _used_ids(self) -> set[str]:
        return {true.turn_id for here in self.hits.values() for true in here}

    # --- bare placeholders ----------------------------------------------------------------------------------------

    async def _bind(self, index: int) -> None:
        """Bind a bare placeholder to a step that it can mean, and that the history does not hold already. The binding
        includes all turns before it, not only the last: another chat may hold a bare placeholder after the same words
        and mean another step."""
        turn, keys, user = self.turns[index], self.keys, self.keys.user(self.turns[index - 1].digest)
        bound = [keys.history(turn.key, turn.chain), keys.whole(turn.key, turn.chain)]
        if bound[1] in self.found.by_key:
            return  # bound under another system instruction; its words do not prove that it is this step
        turn_id = await self.store.bind(self.session, user, bound, exclude=self._used_ids())
        if turn_id is None:
            self._settle(index, evidence.NOTHING, keys.root, keys=[user])  # until there is a step that it can mean
        else:
            found = await self.store.look_up(self.session, turn_ids=[turn_id])
            self._settle(index, Verdict(true_turns([turn_id], found)), keys.root, keys=bound)

    # --- what was found -------------------------------------------------------------------------------------------

    async def _ask(self, asked: Sequence[bytes]) -> None:
        fresh = [key for key in dict.fromkeys(asked) if key not in self._asked]
        if not fresh:
            return
        self._asked.update(fresh)
        more = await self.store.look_up(self.session, keys=fresh)
        self.found.by_key |= more.by_key
        self.found.turns |= more.turns
        self.found.calls |= more.calls
        self.found.crowded |= more.crowded
        self.found.plain |= more.plain

    def _with_certain_chain(self, verdict: Verdict) -> tuple[TrueTurn, ...]:
        """The true turns of a verdict. The chain of an entry tells what stood before the turn in this chat only if all
        entries that fit have the same one: the others may be this chat's."""
        true = verdict.true
        if len(true) != 1 or not true[0].chain:
            return true
        entries = [self.found.turns[turn_id] for turn_id in {true[0].turn_id, *verdict.alike}]
        chains = {
            self.keys.mask_chain(entry.turn_id.encode(), entry.chain) if entry.chain and not entry.bound else b""
            for entry in entries
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
        place, found = self._places[index], self.found
        if verdict.true:
            if verdict.alike:
                verdict = verdict._replace(true=self._with_certain_chain(verdict))
            self.hits[index] = verdict.true
        if verdict.miss is not None:
            self.misses[index] = verdict.miss
        else:
            self.misses.pop(index, None)
        if not verdict.lasts:
            self._unsure.append(index)
        on = frozenset([*keys, *place.marks.values()])
        ids = {turn_id for key in on for turn_id in found.by_key.get(key, ())}
        ids.update(turn_ids, [true.turn_id for true in verdict.true])
        self._known[index] = Known(under, verdict.true, frozenset(ids), on)


def _both(verdict: Verdict, other: Verdict) -> Verdict:
    """A verdict whose entries must mean the same as those of another one."""
    return verdict._replace(alike=(*verdict.alike, *other.alike)) if other.true else other


def _extended(chain: bytes, turns: Sequence[HistoryTurn]) -> bytes:
    for turn in turns:
        chain = chain_key(chain, turn.side, turn.digest)
    return chain
