"""Searches the ledger for the unknown turns of a history, in the order of decreasing proof.

`graft.evidence` decides whether a turn is an entry.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from addon.core.history.keys import marks_of
from addon.core.history.steps import TrueTurn
from addon.core.history.turns import CALLS, SIGNATURES, WINDOWS, windows
from addon.graft import ledger_evidence
from addon.graft.ledger_evidence import Miss, Place, Verdict, true_turns
from addon.graft.neighbours import Neighbours
from addon.graft.search_state import Asked, SearchState, both

_FEW = 16
"""Up to this many unknown turns are looked up by all their keys in the first question, to save a round trip."""


class Search(SearchState):
    """One search of the ledger for the unknown turns of a history."""

    async def run(self, wanted: Sequence[int]) -> None:
        await self._by_marks(wanted)
        if self.open:
            await self._by_history()
        if self.open:
            await Neighbours(self).run()
        if not self.store.read_only:
            for index in self.bare:
                if index not in self.hits:
                    await self._bind(index)

    # --- proof in the turn itself ---------------------------------------------------------------------------------

    def _read(self, wanted: Sequence[int]) -> dict[int, list[str]]:
        """Read the turns' marks. Returns the turn ids that are given for the turns, or that their placeholders hold."""
        body, keys, turns, placeholder = self.body, self.keys, self.turns, self.placeholder
        ids: dict[int, list[str]] = {}
        for index, key in zip(wanted, keys.owns([turns[index].digest for index in wanted]), strict=True):
            turn = turns[index]
            turn.key = key
            if index in self.turn_ids:
                ids[index] = [self.turn_ids[index]]
            elif turn.may_hold_id and (placeholders := placeholder.find(turn.text)):
                ids[index] = [turn_id for _, _, turn_id in placeholders]
            if turn.holds & (SIGNATURES | CALLS):
                self.marks[index] = {mark: keys.mark(*mark) for mark in marks_of(turn.contents(body))}
        return ids

    async def _by_marks(self, wanted: Sequence[int]) -> None:
        """Find turns by placeholder ids and by echoed marks. Other turns whose words are known go into `open`."""
        body, keys, turns, placeholder = self.body, self.keys, self.turns, self.placeholder
        ids = self._read(wanted)
        verdicts = await self._look_up(ids, wanted)
        marked = {
            index: self._by_own_marks(index, verdicts.get(index, ledger_evidence.NOTHING), ids.get(index, []))
            for index in sorted(ids.keys() | self.marks.keys())
        }
        known = self.found.known
        unknown = [index for index in wanted if not marked.get(index)]
        may_be_bare = placeholder.may_be_bare([turns[index].full_utf8(body) for index in unknown])
        for index, may_be in zip(unknown, may_be_bare, strict=True):
            turn = turns[index]
            if may_be and placeholder.is_bare(turn.full_text(body)):
                self.bare.append(index)
                self.open.append(index)
            elif turn.key in known:
                self.open.append(index)
            elif index in marked:
                self.settle(index, ledger_evidence.NOTHING, keys.chat, turn_ids=ids.get(index, []))

    def _by_own_marks(self, index: int, verdict: Verdict, named: Sequence[str]) -> bool:
        """Settle a turn by its ids, with this verdict, or by its marks. Returns whether it was found."""
        under = self.keys.chat
        if not verdict.true and index in self.marks:
            verdict = ledger_evidence.by_marks(self.place(index), self.found)
        if not verdict.true:
            return False
        if index in self.turn_ids and verdict.true[0].turn_id == self.turn_ids[index]:
            # A request with the same bytes may name another turn here, so its neighbours learn nothing.
            under, verdict = named[0].encode(), Verdict((verdict.true[0].without_chain(),))
        self.settle(index, verdict, under, turn_ids=named)
        return True

    def _first_question(
        self, ids: Mapping[int, Sequence[str]], wanted: Sequence[int]
    ) -> tuple[dict[str, TrueTurn], list[str], list[bytes], list[bytes]]:
        """The cached true turns of these ids, and the arguments for looking up the rest."""
        turn_ids = dict.fromkeys(itertools.chain.from_iterable(ids.values()))
        by_id = self.true_turns.find(self.session, self.revision, turn_ids)
        unknown = [turn_id for turn_id in turn_ids if turn_id not in by_id]
        named = {index for index, mine in ids.items() if not by_id.keys().isdisjoint(mine)}
        known = [self.turns[index].key for index in wanted if index not in named]
        asked = [key for marks in self.marks.values() for key in marks.values()]
        if len(wanted) <= _FEW:
            asked += [key for index in wanted for key in self._asked_of(index).all]
        return by_id, unknown, asked, known

    async def _look_up(self, ids: Mapping[int, Sequence[str]], wanted: Sequence[int]) -> dict[int, Verdict]:
        """Look up the entries with these ids and marks, and which turns' words are known. Returns the verdicts
        on turns with ids."""
        by_id, unknown, asked, known = self._first_question(ids, wanted)
        self.found = await self.store.look_up(self.session, turn_ids=unknown, keys=asked, known=known)
        self.asked.update(asked)
        for true in true_turns(unknown, self.found):
            by_id[true.turn_id] = true
            self.true_turns.keep(self.session, self.revision, true)
        return {
            index: Verdict(tuple([by_id[one] for one in dict.fromkeys(named) if one in by_id]))
            for index, named in ids.items()
        }

    # --- proof by the turns before it -----------------------------------------------------------------------------

    async def _by_history(self) -> None:
        """Find turns by all turns before them, or else by words that cannot coincide."""
        asked: dict[int, Asked] = {index: self._asked_of(index) for index in self.open}
        self.asked_for = asked
        await self.ask([key for mine in asked.values() for key in mine.all])
        unproved: list[int] = []
        unclear: list[int] = []
        for index, mine in asked.items():
            proof = self._by_all_before(self.place(index), mine)
            if proof is None:
                unproved.append(index)
                continue
            self.settle(index, proof, self.keys.root, keys=mine.all)
            if proof.miss is Miss.AMBIGUOUS:
                unclear.append(index)
        claims = {index: self._by_words(self.place(index), asked[index]) for index in unproved}
        claimed = Counter(true.turn_id for claim in claims.values() for true in claim.true)
        used = self.used_ids()
        self.open = unclear
        for index, claim in claims.items():
            # An entry cannot be two turns of a history.
            if any(true.turn_id in used or claimed[true.turn_id] > 1 for true in claim.true):
                claim = Verdict(miss=Miss.CONTEXT)
            if not claim.true:
                self.open.append(index)
            self.settle(index, claim, self.keys.chat if claim.true else self.keys.root, keys=asked[index].all)

    def _asked_of(self, index: int) -> Asked:
        if (known := self._asked.get(index)) is not None:
            return known
        keys, turn = self.keys, self.turns[index]
        before = [one.digest for one in self.turns[max(0, index - 2 * WINDOWS) : index]]
        sent = windows(before, turn.digest)
        is_telling = turn.word_count(self.body) >= ledger_evidence.SAYS_SOMETHING
        self._asked[index] = asked = Asked(
            keys.history(turn.key, turn.chain),
            keys.whole(turn.key, turn.chain),
            (keys.window(turn.key, sent[-1]), keys.window(turn.key, sent[0])),
            turn.key if is_telling else b"",
        )
        return asked

    def _by_all_before(self, place: Place, asked: Asked) -> Verdict | None:
        """The verdict on a turn by all turns before it. The history may be the end of a longer one, so turns at the end
        of longer histories must mean the same, unless the chat has a name."""
        found, named = self.found, self.keys.is_named
        if named and (asked.whole in found.by_key or asked.whole in found.plain):
            return ledger_evidence.by_key(place, asked.whole, found, named=True)
        if asked.history not in found.by_key:
            return ledger_evidence.NOTHING if asked.history in found.plain else None
        proof = ledger_evidence.by_key(place, asked.history, found, named=named)
        if proof.true and not named and (asked.window in found.by_key or asked.window in found.plain):
            doubt = ledger_evidence.by_key(place, asked.window, found)
            return both(proof, doubt)
        return proof

    def _by_words(self, place: Place, asked: Asked) -> Verdict:
        """The verdict by words that cannot coincide: all that the client still sends up to the turn, or its own."""
        found, body, at = self.found, place.body, place.at
        own = ledger_evidence.by_key(place, asked.own, found) if asked.own else Verdict(miss=Miss.CONTEXT)
        if asked.window in found.by_key:
            claim = ledger_evidence.by_key(place, asked.window, found)
            sent = self.turns[max(0, at + 1 - 2 * WINDOWS) : at + (1 if own.true else 0)]
            if not claim.true or ledger_evidence.says_enough(body, sent):
                return claim
        elif asked.window in found.plain:
            return ledger_evidence.NOTHING  # a turn without calls, as far as is known
        if own.true and place.turn.word_count(body) < ledger_evidence.ENOUGH_ALONE:
            return Verdict(miss=Miss.CONTEXT)
        return own

    # --- bare placeholders ----------------------------------------------------------------------------------------

    async def _bind(self, index: int) -> None:
        """Bind a bare placeholder to a step that it can mean and that the history does not contain yet. The binding
        covers all turns before it: another chat may have one after the same words and mean another step."""
        turn, keys, user = self.turns[index], self.keys, self.keys.user(self.turns[index - 1].digest)
        bound = [keys.history(turn.key, turn.chain), keys.whole(turn.key, turn.chain)]
        if bound[1] in self.found.by_key:
            return  # bound under another system instruction; its words do not prove that it is this step
        turn_id = await self.store.bind(self.session, user, bound, exclude=self.used_ids())
        if turn_id is None:
            self.settle(index, ledger_evidence.NOTHING, keys.root, keys=[user])  # until a step appears that it can mean
        else:
            found = await self.store.look_up(self.session, turn_ids=[turn_id])
            self.settle(index, Verdict(true_turns([turn_id], found)), keys.root, keys=bound)
