"""Decides whether a turn of a history is an entry of the ledger, and makes the true turn of an entry.

Pure: histories and records in, verdicts out. A match needs proof, and if several entries fit, all must mean the same.
`docs/architecture.md` gives the rules.
"""

import enum
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from addon.core.framing.documents import Document, get, parts_of
from addon.core.history.calls import calls_in, responses_in
from addon.core.history.keys import Keys, is_unguessable, marks_of
from addon.core.history.outcomes import outcome_in, outcome_of, sized, with_omitted
from addon.core.history.placeholder import Placeholder
from addon.core.history.steps import CallSlot, TrueStep, TrueTurn, client_calls, take_response, with_restored_calls
from addon.core.history.turns import CALLS, HistoryTurn
from addon.core.history.visible import ENOUGH_WORDS, step_digests, text_of, visible_digest
from store.models import Call, LedgerMatches
from store.models import Step as Recorded
from store.models import Turn as Entry

ENOUGH = ENOUGH_WORDS
"""With this many different words in the turns that the client still sends, a match is no coincidence."""

ENOUGH_ALONE = 6
"""The same limit for the turn's own words alone."""

SAYS_SOMETHING = 4
"""Turns with fewer different words do not count: short phrases often coincide."""

_exact = msgspec.json.Encoder(order="deterministic").encode


class Miss(enum.StrEnum):
    """Why a turn matches no entry, although entries have its words."""

    AMBIGUOUS = "ambiguous"  # several entries fit, and mean different things
    PLAIN = "plain"  # a turn without calls reads the same
    MARKS = "marks"  # the client's ids or signatures belong to another turn
    ANSWERS = "answers"  # the client answered calls of several such turns, and its results do not decide between them
    CONTEXT = "context"  # the turns before it have changed, and its words may coincide


class Verdict(NamedTuple):
    """`true`: the entry's true turn. `lasts`: later turns cannot change the verdict. `alike`: the entries that fit;
    they mean the same, but may be turns of other chats."""

    true: tuple[TrueTurn, ...] = ()
    miss: Miss | None = None
    lasts: bool = True
    alike: tuple[str, ...] = ()


NOTHING = Verdict()


class Place(NamedTuple):
    """A turn of a history. `marks`: the model's marks in the turn as (kind, value), each with its key."""

    body: bytes
    turns: Sequence[HistoryTurn]
    at: int
    marks: Mapping[tuple[str, bytes], bytes]

    @property
    def turn(self) -> HistoryTurn:
        return self.turns[self.at]


class Asked(NamedTuple):
    """The keys by which a turn is looked up. `windows`: the key with all turns before it that the client still sends,
    and the key with the one turn before it. `own`: of its own words, b"" if they are too few to prove anything. `bare`:
    of a placeholder without an id, by all turns before it and by those that the client still sends; or b"".
    `step`: of a turn with calls without their arguments, or b""."""

    history: bytes
    whole: bytes
    windows: tuple[bytes, bytes]
    own: bytes
    bare: tuple[bytes, bytes]
    step: bytes

    @property
    def all(self) -> list[bytes]:
        return [key for key in (self.history, self.whole, *self.windows, self.own, *self.bare, self.step) if key]

    @property
    def window(self) -> bytes:
        return self.windows[0]

    @property
    def pair(self) -> bytes:
        return self.windows[1]


class Named(NamedTuple):
    """A placeholder in a turn's text: the turn id, the text from the placeholder before it to its end, the part of that
    text before the placeholder, and the key of that text alone with the turn before it."""

    turn_id: str
    text: str
    lead: str
    pair: bytes


def pair_of(place: Place, visible: Sequence[Document], keys: Keys) -> bytes:
    """The key of a turn with these visible parts at a place."""
    return keys.pair(place.turns[place.at - 1].digest, visible_digest(visible))


def placeholders_in(place: Place, placeholder: Placeholder, keys: Keys) -> list[Named]:
    """The placeholders with an id in a turn, on lines or in a Content of their own. Others are quoted."""
    text = place.turn.text
    if not (found := placeholder.find(text)):
        return []
    parts = [part for content in place.turn.contents(place.body) for part in parts_of(content)]
    texts = [str(part["text"]) for part in parts if "text" in part and not part.get("thought")]
    shift = max(0, "".join(texts).find(text))
    edges = {0, len(text), *(end - shift for end in itertools.accumulate(map(len, texts)))}
    named, at = list[Named](), 0
    for start, end, turn_id in found:
        begins = start in edges or text[:start].rstrip(" \t").endswith("\n")
        if begins and (end in edges or text[end:].lstrip(" \t").startswith("\n")):
            own = text[at:end].strip()
            named.append(Named(turn_id, own, text[at:start].strip(), pair_of(place, [{"text": own}], keys)))
            at = end
    return named


def step_digest(place: Place) -> bytes:
    """The first of the turn's `step_digests`, or b""."""
    if not place.turn.holds & CALLS:
        return b""
    parts = [part for content in place.turn.contents(place.body) for part in parts_of(content)]
    return next(iter(step_digests(parts)), b"")


def _is_place_of(place: Place, entry: Entry, keys: Keys) -> bool:
    """Whether an entry reads as the turn, but for what clients change of a turn with calls, and follows the same
    user's turn."""
    is_alike = reads_as(place.turn, entry) or step_digest(place) in step_digests(entry.visible)
    return is_alike and entry.pair == pair_of(place, entry.visible, keys)


def by_marks(place: Place, keys: Keys, found: LedgerMatches) -> Verdict:
    """The verdict on a turn by its marks: they must be the entry's alone, and the user's turn before it the entry's,
    too."""
    meant: dict[str, None] = {}
    alike: dict[str, None] = {}
    for (kind, value), key in place.marks.items():
        ids = found.by_key.get(key, []) if is_unguessable(kind, value) else []
        if not ids or key in found.crowded or not same(ids, found):
            continue
        if kind != "interaction":  # the service keeps an interaction's history, and gives each one a unique name
            if key in found.plain or not any(_is_place_of(place, found.turns[turn_id], keys) for turn_id in ids):
                continue  # the client edited the turn, or moved it to another place
            if _follows_its_steps(place, found.turns[ids[0]]):
                continue
        meant[ids[0]] = None
        alike.update(dict.fromkeys(ids))
    if meant and same([*meant], found):
        return Verdict(true_turns([next(iter(meant))], found), alike=tuple(alike))
    return NOTHING


def marked_entries(place: Place, found: LedgerMatches) -> list[Entry]:
    """The entries that read as the turn and have one of its marks, and nothing without calls has it."""
    keys = [key for mark, key in place.marks.items() if is_unguessable(*mark) and key not in found.plain]
    ids = dict.fromkeys(turn_id for key in keys for turn_id in found.by_key.get(key, ()))
    return [found.turns[turn_id] for turn_id in ids if reads_as(place.turn, found.turns[turn_id])]


def _follows_its_steps(place: Place, entry: Entry) -> bool:
    """Whether the history already holds the entry's earlier steps, as a rewritten history does. This turn is then the
    last step itself, and must not be replaced by all of them."""
    earlier = {mark for step in entry.steps[:-1] for mark in marks_of([step.content])}
    if not earlier or place.at < 2:
        return False
    return not earlier.isdisjoint(marks_of(place.turns[place.at - 2].contents(place.body)))


def reads_as(turn: HistoryTurn, entry: Entry) -> bool:
    """Whether a turn has the visible parts of the entry."""
    return visible_digest(entry.visible) == turn.digest


def by_key(place: Place, key: bytes, found: LedgerMatches, *, named: bool = False) -> Verdict:
    """The verdict by a key that several entries may share: all must mean the same. `named`: the key contains the chat's
    name, so all entries belong to this chat, and the newest delivered one is meant."""
    ids = found.by_key.get(key, [])
    if key in found.plain:
        return Verdict(miss=Miss.PLAIN) if ids else NOTHING
    if not ids:
        return NOTHING
    if not all(reads_as(place.turn, found.turns[turn_id]) for turn_id in ids):
        # a retry has continued the answer to a different end, and the client has kept the words that broke off
        return Verdict(miss=Miss.PLAIN)
    fits = _fitting(place, ids, found)
    if not fits:
        return Verdict(miss=Miss.MARKS)
    delivered = [turn_id for turn_id in fits if found.turns[turn_id].delivered]
    if len(delivered) > 1 and found.turns[delivered[0]].delivery == "passthrough" and key not in found.crowded:
        verdict = _by_client_results(place, true_turns(delivered, found), is_same=same(delivered, found))
        return verdict._replace(alike=tuple(delivered))
    return _agreed(fits, key, found, named=named)


def by_bare(
    place: Place,
    key: bytes,
    placeholder: Placeholder,
    found: LedgerMatches,
    *,
    named: bool,
    exclude: Collection[str] = (),
) -> Verdict:
    """The verdict on a placeholder without an id by the key of all turns before it. `named`: as for `by_key`.
    `exclude`: entries that are other turns of the history."""
    text = place.turn.full_text(place.body)
    others = [turn_id for turn_id in found.by_key.get(key, ()) if turn_id not in exclude]
    ids = [one for one in others if text in placeholder.bare_forms(text_of(found.turns[one].visible))]
    if not ids:
        return NOTHING
    if key in found.plain:
        return Verdict(miss=Miss.PLAIN)
    return _agreed(ids, key, found, named=named)


def by_step(place: Place, key: bytes, found: LedgerMatches) -> Verdict:
    """The verdict on a turn whose calls the client has changed, by the key of all turns before it and of what the turn
    still has: see `visible.step_digests`."""
    ids = found.by_key.get(key, [])
    if key in found.plain:
        return Verdict(miss=Miss.PLAIN)
    if not (fits := _fitting(place, ids, found)):
        return Verdict(miss=Miss.MARKS)
    return _agreed(fits, key, found)


def _agreed(ids: Sequence[str], key: bytes, found: LedgerMatches, *, named: bool = False) -> Verdict:
    """The verdict by entries that fit: all must be there, and mean the same, unless `named`."""
    if named or (key not in found.crowded and same(ids, found)):
        return Verdict(true_turns(ids[:1], found), alike=tuple(ids))
    return Verdict(miss=Miss.AMBIGUOUS)


def _fitting(place: Place, ids: Sequence[str], found: LedgerMatches) -> Sequence[str]:
    """The entries that have most of the turn's marks. Clients echo ids and signatures; some invent missing ids."""
    if not place.marks:
        return ids
    calls, others = _split(place.marks)
    shared: dict[str, int] = {}
    silent: list[str] = []
    for turn_id in ids:
        entry = found.turns[turn_id]
        own_calls, own_others = _split(marks_of([{"parts": entry.visible}, *(step.content for step in entry.steps)]))
        if count := len(calls & own_calls) + len(others & own_others):
            shared[turn_id] = count
        elif not others and not own_calls:
            silent.append(turn_id)
    most = max(shared.values(), default=0)
    return [turn_id for turn_id, count in shared.items() if count == most] or silent


def _split(marks: Collection[tuple[str, bytes]]) -> tuple[set[bytes], set[bytes]]:
    """Split marks into the ids of calls and all others."""
    calls = {value for kind, value in marks if kind == "call"}
    return calls, {value for kind, value in marks if kind != "call"}


def same(ids: Sequence[str], found: LedgerMatches) -> bool:
    """Whether the entries have the same words, calls and results."""
    return len(ids) < 2 or len({_meaning(found.turns[turn_id], found.calls) for turn_id in ids}) == 1


def _meaning(entry: Entry, calls: Mapping[str, Call]) -> bytes:
    steps: list[Any] = []
    for step in entry.steps:
        true = parts_of(step.content)
        parts = [_plain(part) for part in true if not part.get("thought") or get(part, "functionCall") is not None]
        stored = [calls[slot.call_id] if slot.call_id in calls else None for slot in step.slots if slot.call_id]
        responses = [(call.result, call.error) if call is not None and call.status.final else None for call in stored]
        steps.append((parts, [(slot.name, slot.call_id is None) for slot in step.slots], responses))
    return _exact(steps)


def _plain(part: Document) -> Document:
    """A part without the fields that change each time the model repeats it."""
    part = {key: value for key, value in part.items() if key not in ("thoughtSignature", "thought_signature")}
    if isinstance(call := part.get("functionCall"), dict):
        part["functionCall"] = {key: value for key, value in call.items() if key != "id"}
    return part


# --- words --------------------------------------------------------------------------------------------------------


def says_enough(body: bytes, turns: Sequence[HistoryTurn]) -> bool:
    """Whether these turns have too many different words for a coincidence."""
    words = 0
    for turn in reversed(turns):
        if (count := turn.word_count(body)) >= SAYS_SOMETHING:
            words += count
            if words >= ENOUGH:
                return True
    return False


# --- calls that were passed through -------------------------------------------------------------------------------


def _by_client_results(place: Place, alike: Sequence[TrueTurn], *, is_same: bool) -> Verdict:
    """Choose among passed-through turns that look the same to the client, newest first, by the results that follow. A
    miss if the results do not decide, because one chat must not get another chat's results. `is_same`: the turns mean
    the same."""
    visible, index = place.turn.contents(place.body), place.at
    answered = place.turns[index + 1].contents(place.body) if index + 1 < len(place.turns) else []
    is_new = index + 2 >= len(place.turns)  # nothing follows the results yet, so they are new
    client_results = {true.turn_id: _client_results(visible, answered, true) for true in alike}
    # a history with unanswered calls is invalid, so the newest turn is meant if all mean the same
    if not any(client_results.values()):
        return Verdict(tuple(alike[:1]) if is_same else (), None if is_same else Miss.AMBIGUOUS, lasts=False)
    fits = [
        true
        for true in alike
        if all(
            true.responses.get(call_id) in (None, result) for call_id, result in client_results[true.turn_id].items()
        )
    ]
    pending, settled = [true for true in fits if true.pending], [true for true in fits if not true.pending]
    if settled and not (is_new and pending):
        meant = _with_same_results(settled)
    else:
        meant = tuple(pending) if len(pending) == 1 else ()
    return Verdict(meant, None if meant else Miss.ANSWERS, lasts=False)


def _client_results(visible: Sequence[Document], answered: Sequence[Document], true: TrueTurn) -> dict[str, Document]:
    """The client's results for the calls of a turn, by call id."""
    unmatched = responses_in(answered)
    found = [take_response(call, unmatched) for call in client_calls(visible, true)]
    return {
        slot.call_id: outcome_in(one)
        for slot, one in zip(true.steps[-1].slots, found, strict=True)
        if one is not None and slot.call_id is not None
    }


def _with_same_results(alike: Sequence[TrueTurn]) -> tuple[TrueTurn, ...]:
    """The newest of these turns, if all have the same contents and results."""
    known = [([step.content for step in true.steps], list(true.responses.values())) for true in alike]
    return tuple(alike[:1]) if all(one == known[0] for one in known) else ()


# --- records ------------------------------------------------------------------------------------------------------


def true_turns(ids: Sequence[str], found: LedgerMatches) -> tuple[TrueTurn, ...]:
    return tuple(
        true_turn(found.turns[turn_id], found.calls) for turn_id in dict.fromkeys(ids) if turn_id in found.turns
    )


def true_turn(entry: Entry, calls: Mapping[str, Call]) -> TrueTurn:
    """A ledger entry with the current results of its calls."""
    steps = [_step(step, calls) for step in entry.steps]
    responses = {
        slot.call_id: outcome_of_call(call) if (call := calls.get(slot.call_id)) and call.status.final else None
        for step in steps
        for slot in step.slots
        if slot.call_id is not None
    }
    return TrueTurn(
        entry.turn_id,
        steps,
        responses,
        visible_text=text_of(entry.visible),
        passthrough=entry.delivery == "passthrough",
        chain=entry.chain,
        pair=entry.pair,
        before=entry.before,
    )


def _step(step: Recorded, calls: Mapping[str, Call]) -> TrueStep:
    slots = tuple(CallSlot(slot.name, slot.call_id) for slot in step.slots)
    if len(calls_in([step.content])) == len(slots):
        return TrueStep(step.content, slots)
    made: dict[str, Document] = {}
    for slot in slots:
        if (call := calls.get(slot.call_id or "")) is not None:
            head = {} if call.gemini_id is None else {"id": call.gemini_id}
            made[call.call_id] = {**head, "name": call.name, "args": call.model_args}
    return with_restored_calls(step.content, slots, made)


def outcome_of_call(call: Call) -> Document:
    """The outcome of a final call, or an error if the store has lost parts of the result."""
    outcome = outcome_of(call.result, call.error, call.parts)
    if len(call.parts) == len(call.media):
        return outcome
    left = [sized(one.mime_type, one.size) for one in call.media]
    return {"response": with_omitted(outcome["response"], left, "it is not stored any more")}
