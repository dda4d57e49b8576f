"""Replaces the visible turns of a history by their true turns.

`rewrite` takes a history and the ledger's true turns for its model turns, and returns the pieces of the new `contents`.
The result always keeps Gemini's order: a turn with calls comes right after a user turn or after responses, and exactly
its responses follow, in call order, before anything else of that user turn. Turns that need no change keep their bytes.
Rewriting a rewritten history changes nothing.

A longer history continues from the written form of its beginning: see `Beginning`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from addon.core.framing.documents import Document, encode, get, parts_of
from addon.core.history.calls import as_text, calls_in, echoed_values, has_user_content, responses_in, responses_lead
from addon.core.history.outcomes import fitted
from addon.core.history.placeholder import Placeholder
from addon.core.history.request import Piece
from addon.core.history.steps import CallSlot, TrueStep, TrueTurn, client_calls, last_step, segments, take_response
from addon.core.history.turns import CALLS, RESPONSES, SERVER_TOOLS, SIGNATURES, History, HistoryTurn
from addon.core.model_names import Generation, is_before
from addon.core.tools.tool_plan import ToolPlan


class RewriteRules(NamedTuple):
    """The rules for one request. `strip`: the client's own calls become text if the request does not declare them.
    `ids`: calls have ids. `keeps_history`: the service has the history and waits for the responses to its calls,
    whatever the request declares; otherwise the last step keeps its text if none of its calls has a result.
    `keeps_pending`: any turn with a pending call keeps its visible form, if that form is valid by itself. `signs`: the
    client's own steps are signed if Gemini requires it, because their signatures may have been on hidden calls."""

    plan: ToolPlan
    strip: bool
    model: Generation
    placeholder: Placeholder
    ids: bool = True
    keeps_history: bool = False
    keeps_pending: bool = False
    signs: bool = False


class StepFormat(NamedTuple):
    """The settings that the written form of a step depends on, if the client answers none of its calls."""

    names: Mapping[str, str]
    server_tools: bool
    model: Generation
    ids: bool


_PIECE = 160
"""The approximate memory use of a piece in bytes, besides its own bytes."""

LARGE = 4096
"""From this size in bytes on, pieces are not copied."""


class Beginning(NamedTuple):
    """The written turns before `end`, and the writer's state after them. Valid for these rules and hits, whatever
    follows. `size`: the approximate memory use in bytes."""

    end: int
    rules: RewriteRules
    hits: Mapping[int, Sequence[TrueTurn]]
    pieces: Sequence[Piece]
    untouched: int
    changed: bool
    expanded: frozenset[str]
    size: int


def joined_pieces(known: Beginning | None, written: Sequence[Piece]) -> tuple[list[Piece], int]:
    """The pieces of a beginning, and their size. `written`: all pieces. Those after `known` are joined."""
    count, size = (len(known.pieces), known.size) if known else (0, 0)
    pieces = [*written[:count], *_joined(written[count:])]  # the last known piece may have become longer
    return pieces, size + sum(_PIECE + (len(piece) if isinstance(piece, bytes) else 0) for piece in pieces[count:])


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The same Contents in fewer pieces: adjacent new Contents become one, except large ones, to avoid a copy."""
    run: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes) and len(piece) < LARGE:
            run.append(piece)
            continue
        if run:
            yield b",".join(run)
            run = []
        yield piece
    if run:
        yield b",".join(run)


_MAY_CHANGE = CALLS | RESPONSES | SERVER_TOOLS
"""The parts that may need rewriting even in a turn that the ledger does not know."""

NO_RESULT: Document = {"error": "no result"}
DUMMY_SIGNATURE = "skip_thought_signature_validator"
"""Google's documented value for calls without a signature. The last resort: it can make answers worse."""


def rewrite(
    body: bytes, history: History, hits: Mapping[int, Sequence[TrueTurn]], rules: RewriteRules
) -> list[Piece] | None:
    """The pieces of the new `contents`; None if nothing changes. `hits`: turn index → its true turns (several if
    placeholders were joined into one turn). Continues from the history's `beginning`, and stores a longer one."""
    if not hits and not history.holds & (_MAY_CHANGE if rules.strip else CALLS if rules.signs else 0):
        return None
    writer = _Writer(body, history, hits, rules)
    start = writer.resume(history.beginning)
    end = max(start, _last_model_turn(history))
    writer.write(start, end)
    history.beginning = writer.beginning(history.beginning if start else None, end)
    writer.write(end, len(history.turns))
    return writer.out if writer.changed else None


def _last_model_turn(history: History) -> int:
    """The index of the last model turn, which may continue in the next request; 0 if there is none."""
    turns = history.turns
    return next((index for index in range(len(turns) - 1, 0, -1) if turns[index].side == "model"), 0)


def _with_dummy(contents: Sequence[Document]) -> list[Document]:
    """A model turn with the dummy on its first call."""
    signed: list[Document] = []
    left = True
    for content in contents:
        parts: list[Document] = []
        for part in parts_of(content):
            if left and isinstance(get(part, "functionCall"), dict):
                part, left = {**part, "thoughtSignature": DUMMY_SIGNATURE}, False
            parts.append(part)
        signed.append({**content, "parts": parts})
    return signed


class _Writer:
    def __init__(
        self, body: bytes, history: History, hits: Mapping[int, Sequence[TrueTurn]], rules: RewriteRules
    ) -> None:
        self.body = body
        self.turns = history.turns
        self.hits = hits
        self.rules = rules
        self.out: list[Piece] = []
        self.changed = False
        self.index = 0
        self.untouched = -1  # the turn after the last unchanged piece
        self.awaited: tuple[TrueTurn, list[Document | None]] | None = None  # calls that the next user turn answers
        self.format = StepFormat(rules.plan.names, rules.plan.server_tools, rules.model, rules.ids)
        self.depends_on_place = False
        # the last turn that affects the form of an earlier turn, other than the one right before it
        self.depends_on = 0
        self.kept_step = False
        self.shared_size = 0  # of large pieces that true turns also cache
        self.expanded: set[str] = set()
        self.last = last_step(history, hits, rules.placeholder)

    # --- beginnings -------------------------------------------------------------------------------------------

    def resume(self, known: Beginning | None) -> int:
        """Continue from a known beginning if it is valid here. Returns the index of the next turn."""
        if known is None or known.rules != self.rules or known.hits != self._hits_before(known.end):
            return 0
        self.out, self.untouched, self.changed = list(known.pieces), known.untouched, known.changed
        self.expanded = set(known.expanded)
        return known.end

    def beginning(self, known: Beginning | None, end: int) -> Beginning | None:
        """The beginning that ends before the model turn `end`, after all turns before it were written. Returns `known`
        if the new beginning depends on later turns."""
        if end == (known.end if known else 0):
            return known
        hits = self._hits_before(end)
        if hits is None or self.depends_on >= end:
            return known
        pieces, size = joined_pieces(known, self.out)
        expanded = frozenset(self.expanded)
        return Beginning(end, self.rules, hits, pieces, self.untouched, self.changed, expanded, size - self.shared_size)

    def _hits_before(self, end: int) -> dict[int, Sequence[TrueTurn]] | None:
        """The hits before a turn; None if one of them has a special form because it is the last step."""
        hits = {index: true for index, true in self.hits.items() if index < end}
        return None if self.last is not None and any(self.last in true for true in hits.values()) else hits

    # --- turns ------------------------------------------------------------------------------------------------

    def write(self, first: int, end: int) -> None:
        """Write the turns from `first` up to `end`. Neither is the user turn after a model turn with calls."""
        turns = self.turns
        may_change = [at for at in range(first, end) if at in self.hits or turns[at].holds & _MAY_CHANGE]
        position = first
        for index in sorted({at for i in may_change for at in (i, i + 1) if at < end}):
            self.keep(position, index)
            self.turn(index)
            position = index + 1
        self.keep(position, end)

    def turn(self, index: int) -> None:
        self.index = index
        turn = self.turns[index]
        if turn.side == "model":
            self.model_turn(turn)
        else:
            self.user_turn(turn)

    def keep(self, first: int, end: int) -> None:
        """Write the turns from `first` up to `end` unchanged."""
        if first == end:
            return
        start, stop = self.turns[first].start, self.turns[end - 1].end
        if self.untouched == first and self.out and isinstance(last := self.out[-1], tuple):
            self.out[-1] = (last[0], stop)
        else:
            self.out.append((start, stop))
        self.untouched = end

    def model_turn(self, turn: HistoryTurn) -> None:
        self.kept_step = False
        here = self.hits.get(self.index, ()) if self.out else ()
        found = [true for true in here if not self._keeps_text(turn, true)]
        fresh = {true.turn_id: true for true in found if true.turn_id not in self.expanded}
        self.expanded.update(true.turn_id for true in here)
        if not found:
            self._own_turn(turn)
            return
        only = next(iter(fresh.values())) if len(fresh) == 1 else None
        if only is not None and only.is_shared:
            self._shared_turn(turn, only)
            return
        self.changed = True
        simple = turn.text == only.visible_text or not self.rules.placeholder.find(turn.text) if only else False
        if only is not None and simple and not (turn.holds & CALLS and calls_in(turn.contents(self.body))):
            self._add_true(only)
        else:
            self._joined_turn(turn, {true.turn_id: true for true in found}, fresh)

    def user_turn(self, turn: HistoryTurn) -> None:
        if self.awaited is not None:
            (true, asked), self.awaited = self.awaited, None
            self._answered_turn(turn, true, asked)
        elif self.rules.strip and turn.holds & RESPONSES and not self.kept_step:
            self._write([as_text(content) for content in turn.contents(self.body)])
        else:
            self.keep(self.index, self.index + 1)
        self.kept_step = False

    def _keeps_text(self, turn: HistoryTurn, true: TrueTurn) -> bool:
        if not any(step.slots for step in true.steps) and not self.rules.plan.server_tools:
            return True  # only parts were hidden that this request may not contain
        if self.rules.keeps_pending:
            stands = not true.is_shared or self.rules.strip or self._is_whole_step(turn.contents(self.body))
            return bool(true.pending) and stands
        return (
            not self.rules.keeps_history
            and true is self.last
            and true.turn_id not in self.expanded
            and not true.is_shared
            and bool(true.responses)
            and len(true.pending) == len(true.responses)
        )

    # --- model turns ------------------------------------------------------------------------------------------

    def _own_turn(self, turn: HistoryTurn) -> None:
        """Write a turn that the ledger does not know: unchanged, or in strip mode with undeclared calls as text."""
        calls = bool(turn.holds & CALLS)
        contents = turn.contents(self.body) if self.rules.strip and turn.holds & (CALLS | SERVER_TOOLS) else []
        flat_calls = self.rules.strip and calls and not self._is_whole_step(contents)
        flat_server = self.rules.strip and bool(turn.holds & SERVER_TOOLS) and not self.rules.plan.server_tools
        self.kept_step = calls and not flat_calls
        if flat_calls or flat_server:
            self._write([as_text(content, calls=flat_calls, server=flat_server) for content in contents])
        elif self.rules.signs and calls and not turn.holds & SIGNATURES and self._must_be_signed():
            self._write(_with_dummy(turn.contents(self.body)))
        else:
            self.keep(self.index, self.index + 1)

    def _is_whole_step(self, contents: Sequence[Document]) -> bool:
        """Whether a client's step may stay: all calls declared, after a user turn, with its responses in order.
        `contents`: the model turn."""
        if not self.out or self.index + 1 >= len(self.turns):
            return False
        calls = [str(get(call, "name")) for call in calls_in(contents)]
        if not all(name in self.rules.plan.declared for name in calls):
            return False
        answered = self.turns[self.index + 1].contents(self.body)
        responded = [str(get(one, "name")) for one in responses_in(answered)]
        return responses_lead(answered) and calls == responded

    def _joined_turn(self, turn: HistoryTurn, found: Mapping[str, TrueTurn], fresh: dict[str, TrueTurn]) -> None:
        """Write a turn with placeholders among other text: each true turn replaces its placeholder, the other text
        stays. A repeated placeholder is removed; if nothing else is left, the user turns around it join. The client's
        own calls come last, because their responses follow."""
        for text, true in segments(turn.text, found, self.rules.placeholder):
            if text:
                self._write([{"role": "model", "parts": [{"text": text}]}])
            if true is not None and fresh.pop(true.turn_id, None) is not None:
                self._add_true(true)
        contents = turn.contents(self.body)
        parts = [part for content in contents for part in parts_of(content)]
        if calls := [part for part in parts if isinstance(get(part, "functionCall"), dict)]:
            self.kept_step = not self.rules.strip or self._is_whole_step(contents)
            step: Document = {"role": "model", "parts": calls}
            self._write([step if self.kept_step else as_text(step)])

    def _add_true(self, true: TrueTurn) -> None:
        """Write a true turn whose calls the client does not answer."""
        pieces = self._true_pieces(true)
        self.out += pieces
        if true.written is not None:
            self.shared_size += sum([len(piece) for piece in pieces if len(piece) >= LARGE])

    def _true_pieces(self, true: TrueTurn) -> list[Piece]:
        """The pieces of a true turn whose calls the client does not answer, responses included."""
        if true.written is not None and true.written[0] == self.format:
            return true.written[1]
        self.depends_on_place = False
        pieces: list[Piece] = []
        for step in true.steps:
            contents = [self._model_content(step)]
            if step.slots:
                contents.append({"role": "user", "parts": self._paired([], [], step, true)[0]})
            if not self._is_declared(step):
                contents = [as_text(content, server=False) for content in contents]
            pieces += [encode(content) for content in contents if content["parts"]]
        if not self.depends_on_place:
            true.written = (self.format, pieces)
        return pieces

    def _is_declared(self, step: TrueStep) -> bool:
        plan = self.rules.plan
        return self.rules.keeps_history or all(
            slot.name in plan.names if slot.call_id is not None else not self.rules.strip or slot.name in plan.declared
            for slot in step.slots
        )

    def _used(self, slot: CallSlot) -> str:
        return slot.name if slot.call_id is None else self.rules.plan.names.get(slot.name, slot.name)

    def _model_content(self, step: TrueStep) -> Document:
        """A step's model Content with this request's names, and a signature on its first call if required."""
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
        content: Document = {**step.content, "parts": parts}
        return content if self.rules.plan.server_tools else as_text(content, calls=False)

    def _must_be_signed(self) -> bool:
        """Whether Gemini refuses an unsigned call here: from 3.5 on anywhere, from 3 on in the current turn. An unknown
        model counts as the newest."""
        if is_before(self.rules.model, (3, 0)):
            return False
        if not is_before(self.rules.model, (3, 5)):
            return True
        self.depends_on_place = True
        for at in range(self.index + 1, len(self.turns)):
            self.depends_on = max(self.depends_on, at)
            turn = self.turns[at]
            if turn.side == "user" and has_user_content(turn.contents(self.body)):
                return False
        self.depends_on = len(self.turns)
        return True

    # --- steps whose calls the client answers -------------------------------------------------------------------

    def _shared_turn(self, turn: HistoryTurn, true: TrueTurn) -> None:
        """Write a mixed or passed-through step: restored whole, or unchanged if it is already right."""
        *earlier, step = true.steps
        if earlier:
            self.changed = True
            self.out += self._true_pieces(TrueTurn(true.turn_id, earlier, true.responses))
        content = self._model_content(step)
        contents = turn.contents(self.body)
        if not self._is_declared(step):
            self._write([as_text(content, server=False)])
        elif not earlier and echoed_values(contents) == echoed_values([content]):
            self.keep(self.index, self.index + 1)
        else:
            self._write([content])
        asked = client_calls(None if self.rules.keeps_history else contents, true)
        if self.index + 1 < len(self.turns):
            self.awaited = (true, asked)
        else:
            self._answered_turn(HistoryTurn("user", 0, 0, 0, several=()), true, asked)

    def _answered_turn(self, turn: HistoryTurn, true: TrueTurn, asked: Sequence[Document | None]) -> None:
        """Write the user turn after a shared step: the responses of both sides in call order, then its other parts."""
        step = true.steps[-1]
        contents = turn.contents(self.body)
        sent = responses_in(contents)
        paired, unmatched = self._paired(sent, asked, step, true)
        declared = self._is_declared(step)
        if declared and [part["functionResponse"] for part in paired] == sent and responses_lead(contents):
            self.keep(self.index, self.index + 1)
            return
        responses: Document = {"role": "user", "parts": paired}
        self._write([responses if declared else as_text(responses)])
        for content, span in zip(contents, turn.spans, strict=True):
            others = [part for part in parts_of(content) if get(part, "functionResponse") is None]
            if not responses_in([content]):
                self.out.append(span)
            elif others:
                self._write([{**content, "role": "user", "parts": others}])
        if unmatched:
            self._write([as_text({"role": "user", "parts": [{"functionResponse": one} for one in unmatched]})])

    def _paired(
        self, sent: Sequence[Document], asked: Sequence[Document | None], step: TrueStep, true: TrueTurn
    ) -> tuple[list[Document], list[Document]]:
        """The step's functionResponse parts in call order, and the client's responses that match none of its calls.
        `asked`: the client's form of the calls."""
        unmatched = list(sent)
        parts: list[Document] = []
        for slot, call, client_call in itertools.zip_longest(step.slots, calls_in([step.content]), asked):
            head: Document = {"name": self._used(slot)}
            if self.rules.ids and call.get("id") is not None:
                head = {"id": call["id"], **head}
            response = take_response(client_call, unmatched)
            if response is not None:
                parts.append({"functionResponse": {**response, **head}})
                continue
            known = true.responses.get(slot.call_id) if slot.call_id is not None else None
            outcome = {"response": NO_RESULT} if known is None else fitted(known, self.rules.model)
            parts.append({"functionResponse": {**head, **outcome}})
        return parts, unmatched

    # --- output -----------------------------------------------------------------------------------------------

    def _write(self, contents: Sequence[Document]) -> None:
        self.changed = True
        self.out += [encode(content) for content in contents]
