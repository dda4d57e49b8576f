"""The ledger's view of a turn: its steps, the owner of each call, and the results so far."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from addon.core.framing.documents import Document, get, memory_of, parts_of
from addon.core.history.calls import calls_in, responses_in
from addon.core.history.outcomes import outcome_in
from addon.core.history.placeholder import Placeholder
from addon.core.history.request import Piece
from addon.core.history.turns import CALLS, History
from addon.core.history.visible import canonical


class CallSlot(NamedTuple):
    """A call of a step. `name`: in the toolset, or as the client declares it. `call_id`: None for the client's own
    call."""

    name: str
    call_id: str | None


class TrueStep(NamedTuple):
    """A step of a true turn: the model's Content, and the owner of each call in it, in order."""

    content: Document
    slots: tuple[CallSlot, ...]


def with_restored_calls(content: Document, slots: Sequence[CallSlot], made: Mapping[str, Document]) -> TrueStep:
    """A step of an older record, which lacks the calls that the model had marked as thoughts. Restores each from `made`
    (functionCalls by call id). Leaves out the slot of a call that is no longer stored."""
    left, parts, found = list(parts_of(content)), list[Document](), list[CallSlot]()
    for slot in slots:
        while left and get(left[0], "functionCall") is None:
            parts.append(left.pop(0))
        call = made.get(slot.call_id or "")
        if left and _is_call_of(slot, call, get(left[0], "functionCall")):
            parts.append(left.pop(0))
        elif call is not None:
            parts.append({"functionCall": call})
        else:
            continue
        found.append(slot)
    return TrueStep({**content, "parts": [*parts, *left]}, tuple(found))


def _is_call_of(slot: CallSlot, made: Document | None, call: Document) -> bool:
    return call.get("name") == slot.name and (made is None or (call.get("args") or {}) == made["args"])


class TrueTurn:
    """The model's and the tools' real messages behind a visible turn.

    `responses`: the outcome of each call by its id (`outcomes`), None while it is missing. `passthrough`: the client
    got the calls and sends their results itself. `chain`, `pair`, `before`: of the turn's record. Immutable, except for
    `written`, which caches the bytes last written for the turn.
    """

    __slots__ = (
        "_decoded_size",
        "before",
        "chain",
        "pair",
        "passthrough",
        "responses",
        "steps",
        "turn_id",
        "visible_text",
        "written",
    )

    def __init__(
        self,
        turn_id: str,
        steps: Sequence[TrueStep],
        responses: Mapping[str, Document | None],
        *,
        visible_text: str = "",
        passthrough: bool = False,
        chain: bytes = b"",
        pair: bytes = b"",
        before: str = "",
    ) -> None:
        self.turn_id = turn_id
        self.steps = tuple(steps)
        self.responses = responses
        self.visible_text = visible_text
        self.passthrough = passthrough
        self.chain = chain
        self.pair = pair
        self.before = before
        self.written: tuple[object, list[Piece]] | None = None
        self._decoded_size = 0

    def without_chain(self) -> "TrueTurn":
        """The same turn for places where its earlier turns are uncertain."""
        return TrueTurn(
            self.turn_id,
            self.steps,
            self.responses,
            visible_text=self.visible_text,
            passthrough=self.passthrough,
            pair=self.pair,
            before=self.before,
        )

    @property
    def size(self) -> int:
        """The approximate memory use in bytes, decoded and written. The written form may become as large as the decoded
        one, so it is counted in advance."""
        if not self._decoded_size:
            self._decoded_size = memory_of(self.steps, list(self.responses.values()))
        written = self._decoded_size if self.written is None else sum(len(piece) for piece in self.written[1])
        return 1024 + self._decoded_size + written

    @property
    def is_shared(self) -> bool:
        """Whether the client sends results of calls of the last step: its own, or all of them (passthrough)."""
        return bool(self.steps[-1].slots) and (
            self.passthrough or any(slot.call_id is None for slot in self.steps[-1].slots)
        )

    @property
    def pending(self) -> list[str]:
        """The ids of the calls that have no result yet, in order."""
        return [call_id for call_id, response in self.responses.items() if response is None]


def client_results(
    visible: Sequence[Document] | None, answered: Sequence[Document], true: TrueTurn
) -> dict[str, Document]:
    """The client's outcomes of passed-through calls without a result, by call id. `visible`: the client's form of the
    model turn (see `client_calls`). `answered`: the user turn after it."""
    if not true.passthrough or not true.pending:
        return {}
    sent = responses_in(answered)
    found: dict[str, Document] = {}
    for slot, call in zip(true.steps[-1].slots, client_calls(visible, true), strict=True):
        response = take_response(call, sent)
        if response is not None and slot.call_id is not None and true.responses.get(slot.call_id) is None:
            found[slot.call_id] = outcome_in(response)
    return found


def client_calls(visible: Sequence[Document] | None, true: TrueTurn) -> list[Document | None]:
    """Each call of the last step in the client's form, with the client's name and id; None for a hidden call.

    `visible`: the client's form of the model turn; None if the client only names the turn: the calls are the
    model's."""
    step = true.steps[-1]
    made = dict(enumerate(calls_in([step.content])))
    own_calls = [at for at, slot in enumerate(step.slots) if true.passthrough or slot.call_id is None]
    if visible is None:
        return [made.get(at) if at in own_calls else None for at in range(len(step.slots))]
    left, found = calls_in(visible), dict[int, Document]()
    # clients change the order of calls and their arguments, and the proxy their names
    for is_same in (_is_same_call, _has_same_name, lambda call, one: True):
        for at in [at for at in own_calls if at not in found]:
            call = made.get(at, {})
            if (match := next((n for n, one in enumerate(left) if is_same(call, one)), None)) is not None:
                found[at] = left.pop(match)
    return [found.get(at) for at in range(len(step.slots))]


def _is_same_call(call: Document, other: Document) -> bool:
    return _has_same_name(call, other) and canonical(get(call, "args") or {}) == canonical(get(other, "args") or {})


def _has_same_name(call: Document, other: Document) -> bool:
    return bool(call.get("name") == other.get("name"))


def take_response(call: Document | None, responses: list[Document]) -> Document | None:
    """Remove the response to a call from `responses`: the one with its id, else the next one with its name."""
    if call is None:
        return None
    call_id = call.get("id")
    fits = [i for i, one in enumerate(responses) if call_id is not None and one.get("id") == call_id]
    fits = fits or [
        i for i, one in enumerate(responses) if one.get("name") == call.get("name") and None in (one.get("id"), call_id)
    ]
    return responses.pop(fits[0]) if fits else None


def segments(
    text: str, found: Mapping[str, TrueTurn], placeholder: Placeholder
) -> Iterator[tuple[str, TrueTurn | None]]:
    """Split a turn's text at the placeholders of these true turns. Yields for each placeholder the text before it,
    without the model's own text there, and its true turn; then the text after the last placeholder, with None."""
    at = 0
    for start, end, turn_id in placeholder.find(text):
        if (true := found.get(turn_id)) is not None:
            own = placeholder.find(true.visible_text)
            model_text = true.visible_text[: own[0][0]].strip() if own else ""
            yield text[at:start].strip().removesuffix(model_text).rstrip(), true
            at = end
    if at:
        yield text[at:].strip(), None


def last_step(history: History, hits: Mapping[int, Sequence[TrueTurn]], placeholder: Placeholder) -> TrueTurn | None:
    """The true turn of a history's last model turn, if any; none if it only repeats earlier placeholders."""
    first: dict[str, int] = {}
    for index in sorted(hits):
        for true in hits[index]:
            first.setdefault(true.turn_id, index)
    for index in range(len(history.turns) - 1, -1, -1):
        turn = history.turns[index]
        if turn.side != "model":
            continue
        here = {true.turn_id: true for true in hits.get(index, ())}
        if fresh := [true for true in here.values() if first[true.turn_id] == index]:
            return fresh[-1]
        if not here or turn.holds & CALLS or any(text for text, _ in segments(turn.text, here, placeholder)):
            return None
    return None
