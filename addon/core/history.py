"""Visible turns → true turns: what the client remembers is replaced by what the model really said and was told.

`rewrite` takes a history and, for its model turns, the true turns that the ledger holds, and gives the pieces of the
new `contents`. What it gives always keeps Gemini's order: a turn with calls comes right after a user turn or after
responses, and is followed by exactly its responses, in call order, before anything else of that user turn. Turns that
need nothing stay the bytes they are, and a history that was rewritten once is not changed by being rewritten again.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from addon.core.calls import calls_in, flat, is_ordinary, responses_in, responses_lead, signed_calls
from addon.core.documents import Document, encode, get, parts_of
from addon.core.placeholder import Placeholder
from addon.core.request import Piece
from addon.core.tools import Generation, Plan, is_before
from addon.core.turns import CALLS, RESPONSES, SERVER_TOOLS, History, Turn

NO_RESULT: Document = {"error": "no result"}
DUMMY_SIGNATURE = "skip_thought_signature_validator"
"""Documented by Google for calls whose signature is not to be had. The last resort: it can make answers worse."""


class Slot(NamedTuple):
    """A call of a step: its name in the toolset (or the client's own), and the captured call, None for the client's."""

    name: str
    call_id: str | None


class Step(NamedTuple):
    content: Document
    slots: tuple[Slot, ...]


class TrueTurn:
    """What really happened in place of a visible turn.

    `answers`: for each call id the functionResponse's `response`, None while there is none. `passthrough`: the client
    was given the calls and answers them itself. Immutable, but for the bytes it was last written as.
    """

    __slots__ = ("answers", "passthrough", "steps", "turn_id", "visible_text", "written")

    def __init__(
        self,
        turn_id: str,
        steps: Sequence[Step],
        answers: Mapping[str, Document | None],
        *,
        visible_text: str = "",
        passthrough: bool = False,
    ) -> None:
        self.turn_id = turn_id
        self.steps = tuple(steps)
        self.answers = answers
        self.visible_text = visible_text
        self.passthrough = passthrough
        self.written: tuple[Rules, list[Piece]] | None = None

    @property
    def shares(self) -> bool:
        """Whether the client has a part in the last step: calls of its own, or all of them."""
        return bool(self.steps[-1].slots) and (
            self.passthrough or any(slot.call_id is None for slot in self.steps[-1].slots)
        )

    @property
    def pending(self) -> list[str]:
        """The ids of the calls that have no answer yet, in order."""
        return [call_id for call_id, answer in self.answers.items() if answer is None]


def given_answers(contents: Sequence[Document], true: TrueTurn) -> dict[str, Document]:
    """What the client answered to calls that were passed through to it: the responses in the user turn after them, by
    call id, of the calls that have no answer yet."""
    if not true.passthrough or not true.pending:
        return {}
    step = true.steps[-1]
    left = responses_in(contents)
    given: dict[str, Document] = {}
    for slot, call in zip(step.slots, calls_in([step.content]), strict=False):
        mine = _response_to(call, slot.name, left)
        if mine is not None and slot.call_id is not None and true.answers.get(slot.call_id) is None:
            given[slot.call_id] = get(mine, "response") or {}
    return given


def _response_to(call: Document, name: str, left: list[Document]) -> Document | None:
    """Take the response to a call out of those that are left: the one with its id, else the next one of its name."""
    call_id = call.get("id")
    fits = [one for one in left if call_id is not None and one.get("id") == call_id]
    fits = fits or [one for one in left if get(one, "name") == name and None in (one.get("id"), call_id)]
    if not fits:
        return None
    left.remove(fits[0])
    return fits[0]


class Rules(NamedTuple):
    """How one request is rewritten. `strip`: the client's own calls go too, as text, where nothing declares them.
    `keep_unanswered`: a last step none of whose calls has a result keeps its text."""

    plan: Plan
    strip: bool
    model: Generation
    placeholder: Placeholder
    keep_unanswered: bool = True
    ids: bool = True


def rewrite(body: bytes, history: History, hits: Mapping[int, Sequence[TrueTurn]], rules: Rules) -> list[Piece] | None:
    """The pieces of the new `contents`; None where nothing changes. `hits`: by index of the turn in the history, the
    true turns it stands for (several where placeholders were joined into one turn)."""
    if not hits and not (rules.strip and history.holds & (CALLS | RESPONSES | SERVER_TOOLS)):
        return None
    writer = _Writer(body, history, hits, rules)
    for index, turn in enumerate(history.turns):
        writer.index = index
        if turn.side == "model":
            writer.model_turn(turn)
        else:
            writer.user_turn(turn)
    return writer.out if writer.changed else None


class _Writer:
    def __init__(self, body: bytes, history: History, hits: Mapping[int, Sequence[TrueTurn]], rules: Rules) -> None:
        self.body = body
        self.turns = history.turns
        self.hits = hits
        self.rules = rules
        self.out: list[Piece] = []
        self.changed = False
        self.index = 0
        self.untouched = -2
        self.awaited: tuple[Step, TrueTurn] | None = None  # what the next user turn has to answer
        self.kept_step = False
        self.seen: set[str] = set()
        last = max((i for i, turn in enumerate(history.turns) if turn.side == "model"), default=-1)
        self.last_ids = {true.turn_id for true in hits.get(last, ())}

    # --- turns ------------------------------------------------------------------------------------------------

    def model_turn(self, turn: Turn) -> None:
        self.kept_step = False
        found = [true for true in self.hits.get(self.index, ()) if not self._keeps_text(true)] if self.out else []
        fresh = {true.turn_id: true for true in found if true.turn_id not in self.seen}
        self.seen.update(fresh)
        if not found:
            self._own_turn(turn)
            return
        only = next(iter(fresh.values())) if len(fresh) == 1 else None
        if only is not None and only.shares:
            self._shared_turn(turn, only)
            return
        self.changed = True
        if only is not None and (turn.text == only.visible_text or not self.rules.placeholder.find(turn.text)):
            self.out += self._told(only)
        else:
            self._joined_turn(turn, {true.turn_id: true for true in found}, fresh)

    def user_turn(self, turn: Turn) -> None:
        if self.awaited is not None:
            (step, true), self.awaited = self.awaited, None
            self._answered_turn(turn, step, true)
        elif self.rules.strip and turn.holds & RESPONSES and not self.kept_step:
            self._write([flat(content) for content in turn.contents(self.body)])
        else:
            self._untouched(turn)
        self.kept_step = False

    def _keeps_text(self, true: TrueTurn) -> bool:
        return (
            self.rules.keep_unanswered
            and true.turn_id in self.last_ids
            and not true.shares
            and bool(true.answers)
            and len(true.pending) == len(true.answers)
        )

    # --- model turns ------------------------------------------------------------------------------------------

    def _own_turn(self, turn: Turn) -> None:
        """A turn that the ledger does not know: as it is, or in strip mode without calls that nothing declares."""
        calls = bool(turn.holds & CALLS)
        flat_calls = self.rules.strip and calls and not self._is_whole_step(turn)
        flat_server = self.rules.strip and turn.holds & SERVER_TOOLS and not self._has_server_tools()
        self.kept_step = calls and not flat_calls
        if flat_calls or flat_server:
            self._write([flat(c, calls=flat_calls, server=bool(flat_server)) for c in turn.contents(self.body)])
        else:
            self._untouched(turn)

    def _has_server_tools(self) -> bool:
        config = self.rules.plan.tool_config
        return config is not None and b"includeServerSideToolInvocations" in config

    def _is_whole_step(self, turn: Turn) -> bool:
        """Whether a step of the client's may stay: all declared, after a user turn, with its responses in order."""
        if not self.out or self.index + 1 >= len(self.turns):
            return False
        calls = [get(call, "name") for call in calls_in(turn.contents(self.body))]
        answers = [get(answer, "name") for answer in responses_in(self.turns[self.index + 1].contents(self.body))]
        return calls == answers and all(name in self.rules.plan.declared for name in calls)

    def _joined_turn(self, turn: Turn, found: Mapping[str, TrueTurn], fresh: dict[str, TrueTurn]) -> None:
        """A turn in which placeholders stand among other text: each is told in its place, the other text stays. One
        that was told before goes, and where nothing else is left the user turns around it join."""
        at = 0
        for start, end, turn_id in self.rules.placeholder.find(turn.text):
            if (true := found.get(turn_id)) is None:
                continue
            lead = turn.text[at:start].strip()
            own = self.rules.placeholder.find(true.visible_text)
            told = true.visible_text[: own[0][0]].strip() if own else ""
            if told and lead:
                lead = lead[: len(lead) - len(told)].rstrip() if lead.endswith(told) else ""
            if lead:
                self._write([{"role": "model", "parts": [{"text": lead}]}])
            if fresh.pop(turn_id, None) is not None:
                self.out += self._told(true)
            at = end
        if at and (rest := turn.text[at:].strip()):
            self._write([{"role": "model", "parts": [{"text": rest}]}])

    def _told(self, true: TrueTurn) -> list[Piece]:
        """A true turn of which the client has no part, responses included."""
        if true.written is not None and true.written[0] is self.rules:
            return true.written[1]
        pieces: list[Piece] = []
        for step in true.steps:
            contents = [self._said(step)]
            if step.slots:
                contents.append({"role": "user", "parts": self._paired([], step, true)[0]})
            if not self._is_declared(step):
                contents = [flat(content) for content in contents]
            pieces += [encode(content) for content in contents]
        true.written = (self.rules, pieces)
        return pieces

    def _is_declared(self, step: Step) -> bool:
        return all(slot.call_id is None or slot.name in self.rules.plan.names for slot in step.slots)

    def _used(self, slot: Slot) -> str:
        return slot.name if slot.call_id is None else self.rules.plan.names.get(slot.name, slot.name)

    def _said(self, step: Step) -> Document:
        """A step's model Content under this request's names, its first call signed where that is asked for."""
        parts: list[Document] = []
        slots = iter(step.slots)
        unsigned = True
        for part in parts_of(step.content):
            call = get(part, "functionCall")
            if isinstance(call, dict) and (slot := next(slots, None)) is not None:
                call = {**call, "name": self._used(slot)}
                if not self.rules.ids:
                    call.pop("id", None)
                part = {**part, "functionCall": call}
                if unsigned and get(part, "thoughtSignature") is None and self._must_be_signed():
                    part["thoughtSignature"] = DUMMY_SIGNATURE
                unsigned = False
            parts.append(part)
        return {**step.content, "parts": parts}

    def _must_be_signed(self) -> bool:
        """Whether Gemini refuses an unsigned call here: from 3.5 on anywhere, from 3 on in the current turn."""
        if self.rules.model is None or is_before(self.rules.model, (3, 0)):
            return False
        if not is_before(self.rules.model, (3, 5)):
            return True
        later = self.turns[self.index + 1 :]
        return not any(turn.side == "user" and is_ordinary(turn.contents(self.body)) for turn in later)

    # --- steps that the client has a part in --------------------------------------------------------------------

    def _shared_turn(self, turn: Turn, true: TrueTurn) -> None:
        """A mixed step, or one that was passed through: restored whole, unless it is right as it came."""
        *earlier, step = true.steps
        if earlier:
            self.changed = True
            self.out += self._told(TrueTurn(true.turn_id, earlier, true.answers))
        said = self._said(step)
        if not self._is_declared(step):
            self._write([flat(said)])
        elif not earlier and signed_calls(turn.contents(self.body)) == signed_calls([said]):
            self._untouched(turn)
        else:
            self._write([said])
        self.awaited = (step, true)
        if self.index + 1 >= len(self.turns):
            self._answered_turn(Turn("user", (), 0), step, true)
            self.awaited = None

    def _answered_turn(self, turn: Turn, step: Step, true: TrueTurn) -> None:
        """The user turn after a shared step: responses of both sides in call order, then what else it holds."""
        contents = turn.contents(self.body)
        given = responses_in(contents)
        paired, left = self._paired(given, step, true)
        declared = self._is_declared(step)
        if declared and [part["functionResponse"] for part in paired] == given and responses_lead(contents):
            self._untouched(turn)
            return
        responses: Document = {"role": "user", "parts": paired}
        rest: list[Document] = []
        for content in contents:
            others = [part for part in parts_of(content) if get(part, "functionResponse") is None]
            if others:
                rest.append({**content, "role": "user", "parts": others})
        if left:
            rest.append(flat({"role": "user", "parts": [{"functionResponse": one} for one in left]}))
        self._write([responses if declared else flat(responses), *rest])

    def _paired(self, given: list[Document], step: Step, true: TrueTurn) -> tuple[list[Document], list[Document]]:
        """The step's functionResponse parts in call order, and those of the client that belong to no call of it."""
        left = list(given)
        parts: list[Document] = []
        for slot, call in zip(step.slots, calls_in([step.content]), strict=False):
            head: Document = {"name": self._used(slot)}
            if self.rules.ids and call.get("id") is not None:
                head = {"id": call["id"], **head}
            if slot.call_id is None or true.passthrough:
                mine = _response_to(call, head["name"], left)
                if mine is not None:
                    parts.append({"functionResponse": {**mine, **head}})
                    continue
            answer = true.answers.get(slot.call_id) if slot.call_id is not None else None
            parts.append({"functionResponse": {**head, "response": NO_RESULT if answer is None else answer}})
        return parts, left

    # --- output -----------------------------------------------------------------------------------------------

    def _untouched(self, turn: Turn) -> None:
        start, end = turn.spans[0][0], turn.spans[-1][1]
        if self.untouched == self.index - 1 and self.out and isinstance(last := self.out[-1], tuple):
            self.out[-1] = (last[0], end)
        else:
            self.out.append((start, end))
        self.untouched = self.index

    def _write(self, contents: Sequence[Document]) -> None:
        self.changed = True
        self.out += [encode(content) for content in contents]
