"""The model's answer, as it comes and as the client sees it: calls are captured, and replaced by a placeholder.

An `AnswerRewriter` is fed the response documents of one request: one for JSON, one for each event of a stream. For each
candidate it keeps what the model really said (`said`), what the client was shown (`shown`), and the calls.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from addon.core.arguments import NO_LIMITS, Assembly, Bounds, Limits
from addon.core.documents import Document, camel, get, listed, objects, parts_of
from addon.core.parts import Parts
from addon.core.placeholder import Placeholder
from addon.core.steps import CallSlot

CONTINUATION = "CONTINUATION"
FILLER: Document = {"text": "", "thought": True}
"""A part that every client takes and none shows: an event without a non-empty part makes chats forget the turn."""

_KEPT_OF_THOUGHTS = ("thoughtSignature", "functionCall", "toolCall", "toolResponse")


class ToolNames(NamedTuple):
    """Whose a call is. `names`: the name used in the request → the toolset's. `all_grafted`: a name that is not among
    them is an unknown tool, not one of the client's own."""

    names: Mapping[str, str]
    all_grafted: bool


class CapturedCall(NamedTuple):
    """A call of a grafted tool, and its place in its step. `fault`: why it fails at once, in words for the model."""

    call_id: str
    name: str
    args: Document
    gemini_id: str | None
    place: int
    fault: str | None = None


class _Partial(NamedTuple):
    """A call whose arguments come piece by piece."""

    part: Document
    args: Assembly


class Candidate:
    """One candidate of an answer. `slots` are all its calls in order, `captured` the grafted ones among them.
    `hides` says that the client was not shown everything; `ended` that the finishReason has come; `paused` that the
    rest is to be asked for (finishReason CONTINUATION), and `continues` that the proxy does so itself; `goes_on` that
    the proxy answers the step itself, and the client's turn does not end with it. `finish` is the finishReason."""

    def __init__(self, index: int, turn_id: str, limits: Limits = NO_LIMITS) -> None:
        self.index = index
        self.turn_id = turn_id
        self.bounds = Bounds(limits)
        self.slots: list[CallSlot] = []
        self.captured: list[CapturedCall] = []
        self.hides = False
        self.ended = False
        self.paused = False
        self.continues = False
        self.goes_on = False
        self.finish: str | int | None = None
        self.partial: _Partial | None = None
        self._said = Parts()
        self._shown = self._given = Parts()

    @property
    def said(self) -> list[Document]:
        """What the model said."""
        return self._said.read()

    @property
    def shown(self) -> list[Document]:
        """What the client was given."""
        return self._shown.read()

    @property
    def pieces(self) -> list[Document]:
        """The same parts, split as they arrived, as far as the pieces are known."""
        return self._shown.pieces()

    @property
    def given(self) -> list[Document]:
        """What of that the client was given in answer to its present request."""
        return self._given.read()

    @property
    def is_grafted(self) -> bool:
        """Whether the ledger has to know this turn: calls were captured, or something was hidden."""
        return bool(self.captured) or (self.hides and bool(self._said))

    @property
    def wants_placeholder(self) -> bool:
        return self.hides and not self.goes_on and bool(self.captured) and len(self.captured) == len(self.slots)

    @property
    def shown_text(self) -> str:
        return "".join(str(p["text"]) for p in self.shown if "text" in p and not p.get("thought"))

    def say(self, part: Document) -> None:
        """Add to what the model said. Thoughts and empty parts are not told again, unless they are signed or hold a
        call: a call that is marked as a thought has a response, which may not stand without it."""
        if not part.get("thought") or any(get(part, kind) is not None for kind in _KEPT_OF_THOUGHTS):
            self._said.add(part)

    def show(self, part: Document) -> None:
        """Add to what the client was given."""
        self._shown.add(part)
        if self._given is not self._shown:
            self._given.add(part)

    def resume(self, *, anew: bool) -> None:
        """The rest of the answer comes. `anew`: in answer to another request of the client's."""
        self.ended = self.paused = self.continues = self.goes_on = False
        self.finish = None
        if anew:
            self._given = Parts()


class AnswerRewriter:
    def __init__(
        self,
        naming: ToolNames,
        placeholder: Placeholder,
        *,
        passthrough: bool,
        hides_server_tools: bool,
        new_turn_id: Callable[[], str],
        call_id: Callable[[str, Document], str],
        limits: Limits = NO_LIMITS,
        goes_on: Callable[[Candidate], bool] = lambda candidate: False,
        continues: Callable[[str], bool] = lambda token: False,
    ) -> None:
        """`call_id` gives a call of this name with these arguments its id. `goes_on` is asked when a candidate's
        finishReason has come, or its stream has ended without one: whether the proxy goes on with it, so that neither a
        finishReason nor a placeholder is shown. `continues` is asked when a continuationToken has come: whether the
        proxy asks for the rest itself, so that the client sees no token."""
        self.naming = naming
        self.placeholder = placeholder
        self.passthrough = passthrough
        self.hides_server_tools = hides_server_tools
        self.new_turn_id = new_turn_id
        self.call_id = call_id
        self.limits = limits
        self.goes_on = goes_on
        self.continues = continues
        self.candidates: dict[int, Candidate] = {}
        self.continuation: str | None = None
        """The last token by which the rest can be asked for, unless the answer has come to its end since."""
        self.unfinished: set[str] = set()
        """The names of the calls whose arguments never came to their end."""
        self._moved: Document = {}
        self._meta: Document = {}

    def resumed(self, *, anew: bool = True) -> "AnswerRewriter":
        """A copy that goes on where this one paused: the rest may be asked for more than once. `anew`: by the client,
        in another request."""
        again = copy.copy(self)
        again.candidates = copy.deepcopy(self.candidates)
        for state in again.candidates.values():
            state.resume(anew=anew)
        again.continuation = None
        again._moved, again._meta = {}, {}
        return again

    def feed(self, response: Document, *, whole: bool = False) -> Document | None:
        """One response document: what the client is to see instead (the same object where nothing changes), or None
        where nothing is left of it. `whole`: there will be no other."""
        self._meta.update({k: response[k] for k in ("modelVersion", "responseId") if k in response})
        kept: list[Document] = []
        changed = ends = False
        for candidate in objects(response.get("candidates")):
            seen = self._candidate(candidate, whole)
            changed = changed or seen is not candidate
            ends = ends or candidate.get("finishReason") is not None
            if seen is not None:
                kept.append(seen)
        if changed and not kept:
            self._moved |= {k: v for k, v in response.items() if k != "candidates"}
            return None
        # What was said of usage later holds for all before it.
        moved = {k: v for k, v in self._moved.items() if k not in response}
        if not changed and not (moved and ends):
            self._moved = moved
            return response
        self._moved = {}
        return {**moved, **response, "candidates": [_filled(candidate) for candidate in kept]}

    def close(self) -> Document | None:
        """The clean end of a stream: the event that is still to be sent, if a placeholder is, or the usage that was
        told in an event that was dropped."""
        open_ended = [state for state in self.candidates.values() if not state.ended and not state.paused]
        for state in open_ended:
            self._cut_short(state)
            state.goes_on = self.goes_on(state)
        if any(state.goes_on or state.continues for state in self.candidates.values()):
            return None
        parts = {state.index: (self._place(state), "STOP") for state in open_ended if state.wants_placeholder}
        if not parts and "usageMetadata" not in self._moved:
            return None
        for index in parts:
            self.candidates[index].ended = True
        candidates: list[Document] = [
            {"content": {"parts": [part], "role": "model"}, "finishReason": reason, "index": index}
            for index, (part, reason) in parts.items()
        ]
        filler: Document = {"content": {"parts": [FILLER], "role": "model"}, "index": 0}
        moved, self._moved = self._moved, {}
        return {"candidates": candidates or [filler], **self._meta, **moved}

    def _candidate(self, candidate: Document, whole: bool) -> Document | None:
        index = candidate.get("index")
        index = index if isinstance(index, int) else 0
        state = self.candidates.get(index)
        if state is None:
            state = self.candidates[index] = Candidate(index, self.new_turn_id(), self.limits)
        content = candidate.get("content")
        content = content if isinstance(content, dict) else {}
        parts = parts_of(content)
        seen = [part for part in parts if self._take(state, part)]
        hid = len(seen) < len(parts)
        finish = candidate.get("finishReason")
        state.paused = finish == CONTINUATION
        hides_token = self._token(state, candidate.get("continuationToken"), finish)
        ends = (finish is not None or whole) and not state.paused and not state.ended
        if ends:
            state.ended, state.finish = True, finish
            self._cut_short(state)
            state.goes_on = self.goes_on(state)
        places = ends and state.wants_placeholder
        if not hid and not places and not hides_token and not (ends and state.goes_on):
            return candidate
        if finish is not None or hid or whole:
            seen = [part for part in seen if part.get("text") != "" or part.get("thought")]
        shown = dict(candidate)
        if places:
            seen.append(self._place(state))
            shown["finishReason"] = 1 if isinstance(finish, int) else "STOP"
            shown.pop("finishMessage", None)  # it speaks of function calls
        if hides_token or places or state.goes_on:
            shown.pop("continuationToken", None)
        if places or state.goes_on:
            self.continuation = None  # the step is answered as far as it has come
        if state.goes_on or state.continues:
            shown.pop("finishReason", None)
            shown.pop("finishMessage", None)
        if not seen:
            if state.goes_on or state.continues or (finish is None and not whole):
                return None
            seen.append(FILLER)
        shown["content"] = {"parts": seen, "role": "model"} | {k: v for k, v in content.items() if k != "parts"}
        return shown

    def _token(self, state: Candidate, token: Any, finish: Any) -> bool:
        """Take in a token by which the rest can be asked for, if there is one; whether the client is not to see it."""
        if not isinstance(token, str) or not token:
            if finish is not None and not state.paused:
                self.continuation = None
            return False
        self.continuation = token
        hides = finish in (None, CONTINUATION) and self.continues(token)
        state.continues = state.paused and hides
        return hides

    def _place(self, state: Candidate) -> Document:
        names = [call.name for call in state.captured]
        part = {"text": self.placeholder.after(state.shown_text, names, state.turn_id)}
        state.show(part)
        return part

    def _take(self, state: Candidate, part: Document) -> bool:
        """Take in a part; whether the client gets it."""
        call = get(part, "functionCall")
        if isinstance(call, dict):
            visible = self._call(state, part, call)
        else:
            state.say(part)
            visible = not self.hides_server_tools or (get(part, "toolCall") or get(part, "toolResponse")) is None
            if visible:
                state.show(part)
        state.hides = state.hides or not visible
        return visible

    def _call(self, state: Candidate, part: Document, call: Document) -> bool:
        """Take in a call, or a piece of one; whether the client gets it."""
        pieces = listed(get(call, "partialArgs"))
        goes_on = bool(get(call, "willContinue"))
        if state.partial is None and not pieces and not goes_on:
            return self._captured(state, part, call)
        if state.partial is not None and call.get("name"):
            self._assembled(state, state.partial)  # another call begins: the one before it has come to its end
            state.partial = None
        if state.partial is None:
            head = {k: v for k, v in call.items() if camel(k) not in ("partialArgs", "willContinue")}
            state.partial = _Partial({**part, "functionCall": head}, Assembly(self.limits.args))
        partial = state.partial
        for key, value in part.items():
            partial.part.setdefault(key, value)  # the signature may come with a later piece
        for piece in objects(pieces):
            partial.args.put(piece)
        if isinstance(args := call.get("args"), dict):
            partial.args.update(args)  # all at once, with the last piece
        if not goes_on:
            state.partial = None
            return self._assembled(state, partial)
        used = str(partial.part["functionCall"].get("name", ""))
        return self.passthrough or self._toolset_name(used) is None

    def _assembled(self, state: Candidate, partial: _Partial) -> bool:
        call = {**partial.part["functionCall"], "args": partial.args.done()}
        return self._captured(state, {**partial.part, "functionCall": call}, call, is_too_long=partial.args.is_too_long)

    def _cut_short(self, state: Candidate) -> None:
        """A call whose arguments are still to come when the answer ends is what came of it: its pieces were hidden,
        and the turn must not be empty."""
        partial, state.partial = state.partial, None
        if partial is not None:
            self.unfinished.add(str(partial.part["functionCall"].get("name", "")))
            self._assembled(state, partial)

    def _toolset_name(self, used: str) -> str | None:
        """The toolset's name of a call; None where it is the client's own."""
        return self.naming.names.get(used, used if self.naming.all_grafted else None)

    def _captured(self, state: Candidate, part: Document, call: Document, *, is_too_long: bool = False) -> bool:
        """Take in a call that is complete; whether the client gets it."""
        used = str(call.get("name", ""))
        name = self._toolset_name(used)
        bounds = state.bounds
        if self.passthrough and bounds.are_full:
            name = None  # the client answers it, as all the others; it is not asked for what is not kept
        if name is not None and bounds.are_exceeded:
            return False
        fault = bounds.fault(call.get("args"), is_too_long=is_too_long)
        if fault is not None:
            call = {**call, "args": {}}
            part = {**part, "functionCall": call}
        if name is None:
            state.slots.append(CallSlot(used, None))
            state.say(part)
            state.show(part)
            return True
        overflow = bounds.take()
        args = call["args"] if isinstance(call.get("args"), dict) else {}
        captured = CapturedCall(
            call_id=self.call_id(name, args),
            name=name,
            args=args,
            gemini_id=call["id"] if isinstance(call.get("id"), str) else None,
            place=len(state.slots),
            fault=f"unknown tool: {name}" if used not in self.naming.names else overflow or fault,
        )
        state.captured.append(captured)
        state.slots.append(CallSlot(name, captured.call_id))
        state.say({**part, "functionCall": {**call, "name": name}})
        if self.passthrough:
            state.show(part)
        return self.passthrough


def _filled(candidate: Document) -> Document:
    """A candidate of an event that is made anew: with a part that is not empty."""
    content = candidate.get("content")
    content = content if isinstance(content, dict) else {}
    if any(part and part != {"text": ""} for part in parts_of(content)):
        return candidate
    return {**candidate, "content": {"role": "model", **content, "parts": [FILLER]}}
