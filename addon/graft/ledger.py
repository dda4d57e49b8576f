"""The ledger, read for a history: which of its model turns stand for something else, and for what.

What proves it is in `graft.evidence`. What a turn was found to be is remembered with it, until a write concerns it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from addon.core.keys import Keys, marks_of
from addon.core.placeholder import Placeholder
from addon.core.steps import TrueTurn, given_answers
from addon.core.turns import CALLS, SIGNATURES, WINDOWS, History, HistoryTurn, chain_key, windows
from addon.graft import evidence
from addon.graft.evidence import Miss, Place, Verdict, true_turns
from store.base import AlreadyAnswered, Store, UnknownCall
from store.models import LedgerChanges, LedgerMatches
from store.models import Turn as Entry

Hits = dict[int, tuple[TrueTurn, ...]]
Missed = Callable[[HistoryTurn, Miss], None]
"""Is told of each turn that was missed, though the session knows its words."""

_ALIKE = 64
"""Of how many entries that read as a turn does, the newest, it is asked whether a turn behind it tells that one."""

_LINES = 3
"""How many histories that a turn may go on from are followed: each edit of a client's makes another."""


class _Known(NamedTuple):
    """What a turn was found to be: under which root or chat, and on which turns and keys (besides that of its own
    words) it depends."""

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
    """The keys of a turn that is known by its words. `windows`: of as much as there is of what the client sends before
    it, and of the turn with the one before it; `own`: of its own words, b"" where they are too few to tell anything."""

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


class Memo(NamedTuple):
    """What was found for the first turns of a history under a root when the ledger was at `revision`. `on` is all that
    it depends on, and maybe more: the histories that go on from it share it."""

    revision: int
    root: bytes
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
) -> Hits:
    """The true turns of a history's model turns, by index, of a ledger that was at `revision`. Raises
    StoreUnavailable."""
    if revision == 0 or not history.turns:
        return {}
    history.identify(body)
    hits, wanted, on = _remembered(store, session, keys, history, revision)
    if wanted:
        search = _Search(store, session, keys, body, history.turns, placeholder, hits)
        await search.run(wanted)
        remembered = search.remember(wanted)
        for index, miss in search.misses.items():
            missed(history.turns[index], miss)
    else:
        remembered = len(history.turns)
    hits = {index: true for index, true in hits.items() if true}
    if revision is not None:
        for turn in history.turns[history.remembered if on.keys else 1 : remembered]:  # the others are in there
            _depend(on, turn)
        history.memo, history.remembered = Memo(revision, keys.root, hits, on), remembered
    return dict(hits)


def _depend(on: LedgerChanges, turn: HistoryTurn) -> None:
    known: _Known | None = turn.memo
    if known is not None:
        on.keys.add(turn.key)
        on.keys.update(known.keys)
        on.turn_ids.update(known.turn_ids)


def _remembered(
    store: Store, session: str, keys: Keys, history: History, revision: int | None
) -> tuple[Hits, list[int], LedgerChanges]:
    """Returns the known model turns of a history, the indices to look up, and the known turns' dependencies if they
    were computed. A model turn at the start of a history is never looked up."""
    memo: Memo | None = history.memo
    turns = history.turns
    hits: Hits = {}
    start, on = 1, LedgerChanges()
    touched: LedgerChanges | None = None
    if memo is not None and revision is not None:
        touched = store.changes(session, memo.revision) if memo.revision != revision else LedgerChanges()
        if memo.root == keys.root and touched is not None and touched.is_disjoint(memo.on):
            hits = {index: true for index, true in memo.hits.items() if index < history.remembered}
            start, on = max(1, history.remembered), memo.on
    wanted: list[int] = []
    for index in range(start, len(turns)):
        turn = turns[index]
        if turn.side != "model":
            continue
        known: _Known | None = turn.memo if index < history.remembered else None
        if known is None or touched is None or known.under not in (keys.chat, keys.root):
            wanted.append(index)
        elif not known.holds(turn, touched):
            wanted.append(index)
        elif known.true:
            hits[index] = known.true
    return hits, wanted, on


class _Search:
    """One look at the ledger: for the turns of a history that are not known yet. `hits` are those that are."""

    def __init__(
        self,
        store: Store,
        session: str,
        keys: Keys,
        body: bytes,
        turns: Sequence[HistoryTurn],
        placeholder: Placeholder,
        hits: Hits,
    ) -> None:
        self.store = store
        self.session = session
        self.keys = keys
        self.body = body
        self.turns = turns
        self.placeholder = placeholder
        self.hits = hits
        self.misses: dict[int, Miss] = {}
        self.found = LedgerMatches()
        self._asked: set[bytes] = set()
        self._known: dict[int, _Known] = {}
        self._unsure: list[int] = []
        self._places: dict[int, Place] = {}
        self._open: list[int] = []
        self._bare: list[int] = []
        self._asked_for: dict[int, _Asked] = {}

    async def run(self, wanted: Sequence[int]) -> None:
        await self._by_what_it_bears(wanted)
        if self._open:
            await self._by_history()
        if self._open:
            await self._by_the_others()
        if not self.store.read_only:
            for index in self._bare:
                if index not in self.hits:
                    await self._bind(index)

    def remember(self, wanted: Sequence[int]) -> int:
        """Keep what was found with the turns; of how many from the beginning it is known now."""
        nothing = _Known(self.keys.chat, ())
        unsure = set(self._unsure)
        for index in wanted:
            self.turns[index].memo = None if index in unsure else self._known.get(index, nothing)
        return min(unsure, default=len(self.turns))

    # --- proof that the turn bears --------------------------------------------------------------------------------

    async def _by_what_it_bears(self, wanted: Sequence[int]) -> None:
        """By the ids of placeholders, and by the marks that clients echo. What is left, and is known by its words, is
        left `_open`."""
        body, keys = self.body, self.keys
        ids: dict[int, list[str]] = {}
        asked: list[bytes] = []
        for index in wanted:
            turn = self.turns[index]
            turn.key = keys.own(turn.digest)
            if "turn_" in turn.text and (there := self.placeholder.find(turn.text)):
                ids[index] = [turn_id for _, _, turn_id in there]
            marks: dict[tuple[str, bytes], bytes] = {}
            if turn.holds & (SIGNATURES | CALLS):
                marks = {mark: keys.mark(*mark) for mark in marks_of(turn.contents(body))}
                asked += marks.values()
            self._places[index] = Place(body, self.turns, index, marks)
        self.found = await self.store.look_up(
            self.session,
            turn_ids=[turn_id for there in ids.values() for turn_id in there],
            keys=asked,
            known=[self.turns[index].key for index in wanted],
        )
        self._asked.update(asked)
        for index in wanted:
            place, named = self._places[index], ids.get(index, [])
            verdict = Verdict(true_turns(named, self.found))
            if not verdict.true and place.marks:
                verdict = evidence.by_marks(place, self.found)
            if verdict.true:
                self._settle(index, verdict, keys.chat, turn_ids=named)
                continue
            if self.placeholder.is_bare(self.turns[index].text):
                self._bare.append(index)
                self._open.append(index)
            elif self.turns[index].key in self.found.known:
                self._open.append(index)
            elif named or place.marks:
                self._settle(index, verdict, keys.chat, turn_ids=named)

    # --- proof by what stands before it ---------------------------------------------------------------------------

    async def _by_history(self) -> None:
        """By all that stands before a turn; else by words that cannot be a coincidence."""
        asked: dict[int, _Asked] = {index: self._asked_of(index) for index in self._open}
        self._asked_for = asked
        await self._ask([key for mine in asked.values() for key in mine.all])
        left: list[int] = []
        unclear: list[int] = []
        for index, mine in asked.items():
            proof = self._by_all_before(self._places[index], mine)
            if proof is None:
                left.append(index)
                continue
            self._settle(index, proof, self.keys.root, keys=mine.all)
            if proof.miss is Miss.AMBIGUOUS:
                unclear.append(index)
        claims = {index: self._by_words(self._places[index], asked[index]) for index in left}
        claimed = Counter(true.turn_id for claim in claims.values() for true in claim.true)
        taken = self._taken()
        self._open = unclear
        for index, claim in claims.items():
            # What was said once cannot be two turns of a history.
            if any(true.turn_id in taken or claimed[true.turn_id] > 1 for true in claim.true):
                claim = Verdict(miss=Miss.CONTEXT)
            if not claim.true:
                self._open.append(index)
            self._settle(index, claim, self.keys.chat if claim.true else self.keys.root, keys=asked[index].all)

    def _asked_of(self, index: int) -> _Asked:
        keys, turn = self.keys, self.turns[index]
        before = [one.digest for one in self.turns[max(0, index - 2 * WINDOWS) : index]]
        sent = windows(before, turn.digest)
        tells = turn.word_count(self.body) >= evidence.SAYS_SOMETHING
        return _Asked(
            keys.history(turn.key, turn.chain),
            keys.whole(turn.key, turn.chain),
            (keys.window(turn.key, sent[-1]), keys.window(turn.key, sent[0])),
            turn.key if tells else b"",
        )

    def _by_all_before(self, place: Place, asked: _Asked) -> Verdict | None:
        """What a turn is by all that stands before it. It may also be what is left of a longer history, so turns that
        came at the end of one must mean the same; unless the chat has a name."""
        found, named = self.found, self.keys.is_named
        if named and (asked.whole in found.by_key or asked.whole in found.plain):
            return evidence.by_key(place, asked.whole, found, named=True)
        if asked.history not in found.by_key:
            return evidence.NOTHING if asked.history in found.plain else None
        proof = evidence.by_key(place, asked.history, found, named=named)
        if proof.true and not named and (asked.window in found.by_key or asked.window in found.plain):
            doubt = evidence.by_key(place, asked.window, found)
            return proof if doubt.true else doubt
        return proof

    def _by_words(self, place: Place, asked: _Asked) -> Verdict:
        """What a turn is by words that cannot be a coincidence: all that the client still sends up to it, or its
        own."""
        found, body, at = self.found, place.body, place.at
        own = evidence.by_key(place, asked.own, found) if asked.own else Verdict(miss=Miss.CONTEXT)
        if asked.window in found.by_key:
            claim = evidence.by_key(place, asked.window, found)
            sent = self.turns[max(0, at + 1 - 2 * WINDOWS) : at + (1 if own.true else 0)]
            if not claim.true or evidence.says_enough(body, sent):
                return claim
        elif asked.window in found.plain:
            return evidence.NOTHING  # it is one of those, as far as is known
        if own.true and place.turn.word_count(body) < evidence.ENOUGH_ALONE:
            return Verdict(miss=Miss.CONTEXT)
        return own

    # --- proof by another turn of the history ---------------------------------------------------------------------

    async def _by_the_others(self) -> None:
        """By a turn that is known, and by what stands between the two: that one says what stood before itself."""
        await self._ask([turn.key for turn in self._tellers()])
        lines, alike = self._lines(), await self._alike()
        asked = {index: self._told_by(index, lines[index], alike.get(index, ())) for index in self._open}
        await self._ask([key for mine in asked.values() for pair in mine.items() for key in pair if key])
        ids = [true.turn_id for here in self.hits.values() for true in here]
        for index, mine in asked.items():
            for key, doubt in mine.items():
                verdict = self._told(index, key, doubt)
                if verdict.true or verdict.miss is not None or key in self.found.plain:
                    under = self.keys.chat if verdict.true else self.keys.root
                    self._settle(index, verdict, under, turn_ids=ids, keys=[*mine, *self._known[index].keys])
                    break

    def _told(self, index: int, key: bytes, doubt: bytes) -> Verdict:
        """What a turn is by a key that another turn tells; `doubt`: by which others that fit as well must mean the
        same."""
        place = self._places[index]
        verdict = evidence.by_key(place, key, self.found, named=self.keys.is_named)
        if any(true.turn_id in self._taken() for true in verdict.true):
            return evidence.NOTHING
        if verdict.true and (doubt in self.found.by_key or doubt in self.found.plain):
            others = evidence.by_key(place, doubt, self.found)
            return verdict if others.true else others
        return verdict

    async def _alike(self) -> dict[int, list[Entry]]:
        """For each turn that is open, and that a turn behind it can tell though what stands before it has changed, the
        entries that read so: they need not share more with it."""
        wanted = {at: key for at in self._open if self._has_changed(at) and (key := self.turns[at].key)}
        if not wanted:
            return {}
        found = await self.store.look_up(self.session, keys=list(dict.fromkeys(wanted.values())), matches=_ALIKE)
        entries = {key: [found.turns[turn_id] for turn_id in ids] for key, ids in found.by_key.items()}
        return {at: [entry for entry in entries.get(key, ()) if entry.pair] for at, key in wanted.items()}

    def _told_by(self, index: int, lines: Sequence[bytes], alike: Sequence[Entry]) -> dict[bytes, bytes]:
        """The keys that a turn may have by turns that are known, each with the key (or b"") that raises doubts."""
        turn = self.turns[index]
        asked = dict.fromkeys((self.keys.whole(turn.key, line) for line in lines), b"")
        for chain, doubt in self._leading(index, alike):
            asked.setdefault(self.keys.whole(turn.key, chain), doubt)
        return asked

    def _lines(self) -> dict[int, list[bytes]]:
        """For each turn that is open, the chains that it has if it follows turns that are known."""
        found: dict[int, list[bytes]] = {}
        lines: list[bytes] = []
        left = set(self._open)
        for index, turn in enumerate(self.turns):
            lines = [chain_key(line, turn.side, turn.digest) for line in lines]
            if index in left:
                found[index] = lines
            elif (line := self._line(index)) and line not in lines:
                lines = [line, *lines[: _LINES - 1]]
        return found

    def _tellers(self) -> Iterator[HistoryTurn]:
        """Turns that may be known by their own words, though nothing is hidden in them."""
        for index, turn in enumerate(self.turns):
            if turn.side == "model" and index and index not in self.hits and index not in self._places:
                turn.key = self.keys.own(turn.digest)
            if turn.key and turn.key not in self.found.known and turn.word_count(self.body) >= evidence.ENOUGH_ALONE:
                yield turn

    def _line(self, index: int) -> bytes:
        """The chain that a turn had when it came, if it is known; else b""."""
        turn, true = self.turns[index], self.hits.get(index, ())
        if len(true) == 1 and true[0].chain:
            return self.keys.mask_chain(true[0].turn_id.encode(), true[0].chain)
        if true or index in self._open or turn.word_count(self.body) < evidence.ENOUGH_ALONE:
            return b""
        chain = self.found.plain.get(turn.key, b"")
        return self.keys.mask_chain(turn.key, chain) if chain else b""

    def _later(self, index: int) -> int | None:
        """The next turn that is known."""
        return next((at for at in range(index + 1, len(self.turns)) if self._line(at)), None)

    def _has_changed(self, index: int) -> bool:
        """Whether the next turn that is known came when something else stood before it than does now."""
        later = self._later(index)
        return later is not None and self._line(later) != self.turns[later].chain

    def _leading(self, index: int, alike: Sequence[Entry]) -> list[tuple[bytes, bytes]]:
        """The chains that a turn has if turns that are known follow it: its own, where nothing has changed since, or
        that of an entry that reads the same. That history may itself have been what was left of a longer one: each
        chain is given with the key of who may have said the same behind the same words."""
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

    def _taken(self) -> set[str]:
        return {true.turn_id for here in self.hits.values() for true in here}

    # --- bare placeholders ----------------------------------------------------------------------------------------

    async def _bind(self, index: int) -> None:
        """A bare placeholder is bound to a step that it can mean: none that the history tells already. It is bound with
        everything before it, and not with the words just before it alone: another chat may hold a bare placeholder
        after the same words, and mean another step."""
        turn, keys, user = self.turns[index], self.keys, self.keys.user(self.turns[index - 1].digest)
        bound = [keys.history(turn.key, turn.chain), keys.whole(turn.key, turn.chain)]
        if bound[1] in self.found.by_key:
            return  # it was bound under another system instruction, and its words do not prove that it is this one
        turn_id = await self.store.bind(self.session, user, bound, exclude=self._taken())
        if turn_id is None:
            self._settle(index, evidence.NOTHING, keys.root, keys=[user])  # until a step comes that it can mean
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

    def _settle(
        self,
        index: int,
        verdict: Verdict,
        under: bytes,
        *,
        turn_ids: Sequence[str] = (),
        keys: Sequence[bytes] = (),
    ) -> None:
        """A turn is this, as far as is known, or nothing that is known."""
        place, found = self._places[index], self.found
        if verdict.true:
            self.hits[index] = verdict.true
        if verdict.miss is not None:
            self.misses[index] = verdict.miss
        else:
            self.misses.pop(index, None)
        if not verdict.lasts:
            self._unsure.append(index)
        keys = [*keys, *place.marks.values()]
        ids = {turn_id for key in keys for turn_id in found.by_key.get(key, ())}
        ids.update(turn_ids, (true.turn_id for true in verdict.true))
        self._known[index] = _Known(under, verdict.true, frozenset(ids), frozenset(keys))


def _extended(chain: bytes, turns: Sequence[HistoryTurn]) -> bytes:
    for turn in turns:
        chain = chain_key(chain, turn.side, turn.digest)
    return chain


async def take_answers(
    store: Store, session: str, body: bytes, history: History, hits: Hits, *, kept: bool = False
) -> bool:
    """Store what the client itself answered to calls that were passed through to it; whether there was anything. The
    first answer to a call wins. `kept`: the service has the history, and the client only names its turn."""
    taken = False
    if store.read_only:
        return False
    for index, here in hits.items():
        if index + 1 >= len(history.turns):
            continue
        for true in here:
            if not true.passthrough or not true.pending:
                continue
            said, answered = (history.turns[at].contents(body) for at in (index, index + 1))
            for call_id, response in given_answers(None if kept else said, answered, true).items():
                try:
                    await store.answer(session, call_id, result=response)
                    taken = True
                except (AlreadyAnswered, UnknownCall):
                    continue
    return taken
