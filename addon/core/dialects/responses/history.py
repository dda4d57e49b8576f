"""Converts input items to the Contents that a request adds to a history.

`StoredCalls` holds the data that the conversion needs from the store. The Contents keep Gemini's order: the calls of
one step are in one Content, as the model made them; their responses follow in call order, before anything else of the
next turn. A step's calls may be *hidden*: the client gets calls one by one and does not know these yet. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from addon.core.dialects.responses.errors import Invalid, bad
from addon.core.dialects.responses.items import CallOutput, Carried, FunctionCall, Item, Message, Part
from addon.core.framing.documents import Document, encode, get
from addon.core.history.calls import has_user_content, responses_in
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.core.model_names import generation, is_before

_GEMINI_3 = (3, 0)


@dataclass(frozen=True)
class StoredCalls:
    """The stored calls of a request and of the history that the request continues.

    `calls`: call id → the functionCall Part as the model sent it. `steps`: call id → a value shared by the calls of one
    step (such as their response's id), for clients that send parallel calls one after the other. `waiting`: the calls
    of the history's last turn, in order. `responses`: call id → the functionResponse Part of each waiting call that
    already has its result. `hidden`: the waiting calls that the client has not received yet. `step`: the calls, in
    order, of the step that ends the input, if calls are given out one by one. `has_history`: whether a history exists.
    `asked`: the user's last message before the waiting calls. `answered`: call id → the functionResponses in the
    history that may be the result of an earlier call."""

    calls: Mapping[str, Part] = field(default_factory=dict)
    steps: Mapping[str, object] = field(default_factory=dict)
    waiting: Sequence[str] = ()
    responses: Mapping[str, Part] = field(default_factory=dict)
    hidden: Collection[str] = ()
    step: Mapping[str, Part] = field(default_factory=dict)
    has_history: bool = False
    asked: Sequence[Part] = ()
    answered: Mapping[str, Sequence[Document]] = field(default_factory=dict)


class AddedContents(NamedTuple):
    """The Contents that a request adds. `missing`: the calls that still have no output. In that case nothing is sent,
    and each functionResponse Part in `contents` has a call id, even if the model gave its calls no ids."""

    contents: list[Document]
    missing: list[str]


def add_items(items: Sequence[Item], past: StoredCalls, model: str, carried: Carried) -> AddedContents:
    """Convert items to Contents. `carried`: for calls that are not stored. Raises Invalid for outputs of unknown calls,
    calls without outputs, and items in an invalid order."""
    items = _without_question(_without_answered(items, past, model), past)
    outputs = {item.call_id: item for item in items if isinstance(item, CallOutput)}
    _check_outputs(items, outputs, past)
    responses = dict(past.responses)
    for call_id in past.waiting:
        if call_id in outputs:
            response = _response(past.calls[call_id], outputs[call_id], model)
            if past.responses.get(call_id, response) != response:
                raise _differs(outputs[call_id])
            responses[call_id] = response
    missing = [call_id for call_id in past.waiting if call_id not in responses]
    waiting = set(past.waiting)
    rest = [item for item in items if isinstance(item, Message) or item.call_id not in waiting]
    if missing:
        if rest and (known := [call_id for call_id in missing if call_id not in past.hidden]):
            raise _no_output(known)
        new = {call_id: response for call_id, response in responses.items() if call_id not in past.responses}
        parts = [*_with_call_ids(new), *_user_parts(rest)]
        return AddedContents([{"role": "user", "parts": parts}] if parts else [], missing)
    builder = _Builder(past, outputs, model, carried)
    builder.parts = [responses[call_id] for call_id in past.waiting]
    for item in rest:
        builder.take(item)
    return builder.end()


def _without_answered(items: Sequence[Item], past: StoredCalls, model: str) -> Sequence[Item]:
    """The items without outputs that the history already has: some clients resend all outputs since the question."""
    left: list[Item] = []
    for item in items:
        if not isinstance(item, CallOutput) or item.call_id not in past.answered:
            left.append(item)
        elif _response(past.calls[item.call_id], item, model)["functionResponse"] not in past.answered[item.call_id]:
            raise _differs(item)
    return left


def _differs(output: CallOutput) -> Invalid:
    message = f"differs from the output that was given for {output.call_id} before; the first one counts"
    return bad(f"{output.at}.output", message)


def _without_question(items: Sequence[Item], past: StoredCalls) -> Sequence[Item]:
    """The items without the question that led to the waiting calls: some clients resend it with the outputs."""
    parts: list[Part] = []
    for at, item in enumerate(items):
        if not isinstance(item, Message):
            return items[at:] if parts and parts == list(past.asked) else items
        parts += item.parts if item.side == "user" else []
    return items


def _check_outputs(items: Sequence[Item], outputs: Mapping[str, CallOutput], past: StoredCalls) -> None:
    """Check that each output answers a call of the history's last turn, or an earlier call in the input."""
    called = set(past.waiting)
    unknown: list[str] = []
    elsewhere: list[str] = []
    for item in items:
        if isinstance(item, FunctionCall):
            called.add(item.call_id)
        elif isinstance(item, CallOutput) and item.call_id not in called:
            (elsewhere if item.call_id in past.calls else unknown).append(item.call_id)
    if unknown:
        ids = f"call_id {unknown[0]}" if len(unknown) == 1 else f"call_ids {', '.join(unknown)}"
        raise Invalid(f"No tool call found for function call output with {ids}.", f"{outputs[unknown[0]].at}.call_id")
    if elsewhere:
        message = "does not wait for an output: the history that the request continues does not end with that call"
        raise Invalid(f"{', '.join(elsewhere)} {message}.", f"{outputs[elsewhere[0]].at}.call_id")


def _no_output(call_ids: Sequence[str]) -> Invalid:
    which = f"call {call_ids[0]}" if len(call_ids) == 1 else f"calls {', '.join(call_ids)}"
    return Invalid(f"No tool output found for function {which}.", "input")


def _with_call_ids(answers: Mapping[str, Part]) -> list[Part]:
    return [{"functionResponse": {"id": call_id, **part["functionResponse"]}} for call_id, part in answers.items()]


def _user_parts(items: Sequence[Item]) -> list[Part]:
    """The user's messages beside outputs, while hidden calls wait. Kept, because the client does not know these
    calls."""
    parts: list[Part] = []
    for item in items:
        if not isinstance(item, Message) or item.side != "user":
            raise bad(item.at, "is in the middle of the model's turn; only outputs and a user's messages may be there")
        parts += item.parts
    return parts


def _response(call: Part, output: CallOutput, model: str) -> Part:
    """The functionResponse Part that answers a functionCall Part."""
    made = get(call, "functionCall") or {}
    response: Document = {"id": made["id"]} if made.get("id") else {}
    response |= {"name": made.get("name"), "response": output.response}
    if output.parts:
        if is_before(generation(model), _GEMINI_3):
            raise bad(f"{output.at}.output", f"holds images or files; {model} takes only text (Gemini 3 takes them)")
        response["parts"] = output.parts
    return {"functionResponse": response}


class _Builder:
    """Converts items to Contents one by one. `parts`: the parts of the current turn."""

    def __init__(self, past: StoredCalls, outputs: Mapping[str, CallOutput], model: str, carried: Carried) -> None:
        self.past = past
        self.carried = carried
        self.outputs = outputs
        self.model = model
        self.contents: list[Document] = []
        self.side = "user"
        self.parts: list[Part] = []
        self.calls: list[FunctionCall] = []  # the calls of the current turn
        self.answered = False  # whether an output followed them
        self.missing: list[str] = []
        self.last = "input"

    def take(self, item: Item) -> None:
        if isinstance(item, CallOutput):
            self.answered = True
            return
        if isinstance(item, FunctionCall):
            self._take_call(item)
        else:
            if item.side != self.side or (self.calls and self.answered):
                self._turn(item.side)
            self.parts += item.parts
        self.last = item.at

    def _take_call(self, item: FunctionCall) -> None:
        if self.side != "model" or (self.calls and self.answered and not self._is_parallel(item)):
            self._turn("model")
        if not self.contents and not self.past.has_history:
            raise bad(item.at, "is the first item; a function call must follow a user's message")
        known = self.past.calls.get(item.call_id) or self.carried.call(item.call_id, item.name, item.args)
        part = known or {"functionCall": {"name": item.name, "args": item.args}}
        # Gemini refuses a step without a signature on its first call. A call that Gemini did not make has none.
        signed = self.calls or get(part, "thoughtSignature") is not None or is_before(generation(self.model), _GEMINI_3)
        self.parts.append(part if signed else {**part, "thoughtSignature": DUMMY_SIGNATURE})
        self.calls.append(item)

    def _is_parallel(self, item: FunctionCall) -> bool:
        last = self.calls[-1].call_id
        return any(
            (step := steps.get(item.call_id)) is not None and step == steps.get(last)
            for steps in (self.past.steps, self.carried.steps)
        )

    def _turn(self, side: str) -> None:
        """End the current turn. If it has calls, a user turn with their responses follows."""
        if self.parts:
            self.contents.append({"role": self.side, "parts": self.parts})
        made = [part for part in self.parts if get(part, "functionCall") is not None]
        self.side, self.parts = side, []
        if not self.calls:
            return
        calls, self.calls, self.answered = self.calls, [], False
        self.missing += [call.call_id for call in calls if call.call_id not in self.outputs]
        responses = [
            _response(part, self.outputs[call.call_id], self.model)
            for part, call in zip(made, calls, strict=True)
            if call.call_id in self.outputs
        ]
        if side == "user":
            self.parts = responses
        elif responses:
            self.contents.append({"role": "user", "parts": responses})

    def end(self) -> AddedContents:
        sent = {call.call_id for call in self.calls}
        if (hidden := [call_id for call_id in self.past.step if call_id not in sent]) and sent & self.past.step.keys():
            return self._end_with_hidden(hidden)
        ends_with_model = self.side == "model" and not self.calls
        self._turn("user")
        if self.missing:
            raise _no_output(self.missing)
        if ends_with_model:
            raise bad(self.last, "is the model's; the input must end with a user's message or a call's output")
        if self.parts:
            self.contents.append({"role": "user", "parts": self.parts})
        if not self.contents:
            raise bad("input", "holds nothing that the model could answer")
        return AddedContents(self.contents, [])

    def _end_with_hidden(self, hidden: list[str]) -> AddedContents:
        """End an input whose last step has hidden calls."""
        missing = [*self.missing, *(call.call_id for call in self.calls if call.call_id not in self.outputs)]
        if missing:
            raise _no_output(missing)
        made = [part for part in self.parts if get(part, "functionCall") is not None]
        answers = {
            call.call_id: _response(part, self.outputs[call.call_id], self.model)
            for part, call in zip(made, self.calls, strict=True)
        }
        step = {"role": "model", "parts": [*self.parts, *(self.past.step[call_id] for call_id in hidden)]}
        return AddedContents([*self.contents, step, {"role": "user", "parts": _with_call_ids(answers)}], hidden)


_TOO_LONG = re.compile(r"token count\D{0,20}(\d+)\D{1,60}maximum number of tokens\D{0,40}(\d+)", re.IGNORECASE)
_MARGIN = 0.9
"""A margin, because tokens are not spread evenly over the bytes."""


def too_long(message: str) -> float | None:
    """The part (0 to 1) of the prompt's tokens that the model takes, if this is Gemini's error for a prompt that is too
    long; else None."""
    if (found := _TOO_LONG.search(message)) is None:
        return None
    given, most = int(found[1]), int(found[2])
    return most / given if given > most else None


def truncated(contents: Sequence[Document], part: float) -> list[Document] | None:
    """For `truncation: auto`: the last turns, with at most this share of the bytes, or from the user's last message on
    if that is more. None if nothing can be left out: a history must begin with a message of the user."""
    starts = [at for at, content in enumerate(contents) if at and _is_message(content)]
    sizes = [len(encode(content)) for content in contents]
    most = sum(sizes) * part * _MARGIN
    fitting = next((at for at in starts if sum(sizes[at:]) <= most), starts[-1] if starts else None)
    return None if fitting is None else list(contents[fitting:])


def _is_message(content: Document) -> bool:
    """Whether this is a user's message without results of calls, which would need their calls before them."""
    return content.get("role") != "model" and has_user_content([content]) and not responses_in([content])
