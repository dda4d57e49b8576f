"""The model's answer, as it comes and as the client sees it: calls are captured, and replaced by a placeholder.

An `Answer` is fed the response documents of one request, one for JSON or one an event of a stream. It keeps, for each
candidate, what the model really said (`said`), what the client was shown (`shown`), and the calls.
"""

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from addon.core.documents import Document, camel, get, listed, objects, parts_of
from addon.core.placeholder import Placeholder
from addon.core.steps import Slot

CONTINUATION = "CONTINUATION"
FILLER: Document = {"text": "", "thought": True}
"""A part that every client takes and none shows: an event without a non-empty part makes chats forget the turn."""

MAX_DEPTH = 100
"""How deep the arguments of a call may be nested. Protobuf goes no deeper, and neither could the store."""

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")


class Naming(NamedTuple):
    """Whose a call is. `names`: the name used in the request → the toolset's. `all_grafted`: a name that is not among
    them is an unknown tool, not one of the client's own."""

    names: Mapping[str, str]
    all_grafted: bool


class Captured(NamedTuple):
    """A call of a grafted tool, and its place in its step. `known` False: the toolset has no tool of that name.
    `too_deep`: its arguments were nested too deeply, and left out."""

    call_id: str
    name: str
    args: Document
    gemini_id: str | None
    place: int
    known: bool
    too_deep: bool = False


class _Partial(NamedTuple):
    """A call whose arguments come piece by piece."""

    part: Document
    args: Document


class Candidate:
    """One candidate of an answer. `slots` are all its calls in order, `captured` the grafted ones among them.
    `hides` says that the client was not shown everything; `ended` that the finishReason has come; `paused` that the
    client is to ask for the rest (finishReason CONTINUATION); `goes_on` that the proxy answers the step itself, and the
    client's turn does not end with it. `finish` is the finishReason."""

    def __init__(self, index: int, turn_id: str) -> None:
        self.index = index
        self.turn_id = turn_id
        self.said: list[Document] = []
        self.shown: list[Document] = []
        self.slots: list[Slot] = []
        self.captured: list[Captured] = []
        self.hides = False
        self.ended = False
        self.paused = False
        self.goes_on = False
        self.finish: str | int | None = None
        self.partial: _Partial | None = None

    @property
    def is_grafted(self) -> bool:
        """Whether the ledger has to know this turn: calls were captured, or something was hidden."""
        return bool(self.captured) or (self.hides and bool(self.said))

    @property
    def wants_placeholder(self) -> bool:
        return self.hides and not self.goes_on and bool(self.captured) and len(self.captured) == len(self.slots)

    @property
    def shown_text(self) -> str:
        return "".join(str(p["text"]) for p in self.shown if "text" in p and not p.get("thought"))

    def say(self, part: Document) -> None:
        """Add to what the model said. Thoughts and empty parts are not told again, unless they are signed."""
        if get(part, "thoughtSignature") is not None or not part.get("thought"):
            _add(self.said, part)

    def show(self, part: Document) -> None:
        """Add to what the client was given."""
        _add(self.shown, part)


def _add(parts: list[Document], part: Document) -> None:
    """Plain texts grow together. One that is signed stays by itself: its signature belongs to no other part."""
    text = part.get("text") if set(part) == {"text"} else None
    if not part or text == "":
        return
    if isinstance(text, str) and parts and set(parts[-1]) == {"text"} and isinstance(parts[-1]["text"], str):
        parts[-1] = {"text": parts[-1]["text"] + text}
    else:
        parts.append(part)


class Answer:
    def __init__(
        self,
        naming: Naming,
        placeholder: Placeholder,
        *,
        passthrough: bool,
        hides_server_tools: bool,
        new_turn_id: Callable[[], str],
        new_call_id: Callable[[], str],
        goes_on: Callable[[Candidate], bool] = lambda candidate: False,
    ) -> None:
        """`goes_on` is asked when a candidate's finishReason has come, or its stream has ended without one: whether
        the proxy goes on with it, so that neither a finishReason nor a placeholder is shown."""
        self.naming = naming
        self.placeholder = placeholder
        self.passthrough = passthrough
        self.hides_server_tools = hides_server_tools
        self.new_turn_id = new_turn_id
        self.new_call_id = new_call_id
        self.goes_on = goes_on
        self.candidates: dict[int, Candidate] = {}
        self.continuation: str | None = None
        self.unfinished: set[str] = set()
        """The names of the calls whose arguments never came to their end."""
        self._moved: Document = {}
        self._meta: Document = {}

    def resumed(self) -> "Answer":
        """A copy that goes on where this one paused: the client may ask for the rest more than once."""
        again = copy.copy(self)
        again.candidates = copy.deepcopy(self.candidates)
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
        if any(state.goes_on for state in self.candidates.values()):
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
            state = self.candidates[index] = Candidate(index, self.new_turn_id())
        content = candidate.get("content")
        content = content if isinstance(content, dict) else {}
        parts = parts_of(content)
        seen = [part for part in parts if self._take(state, part)]
        hid = len(seen) < len(parts)
        finish = candidate.get("finishReason")
        state.paused = finish == CONTINUATION
        if state.paused and isinstance(token := candidate.get("continuationToken"), str):
            self.continuation = token
        ends = (finish is not None or whole) and not state.paused and not state.ended
        if ends:
            state.ended, state.finish = True, finish
            self._cut_short(state)
            state.goes_on = self.goes_on(state)
        places = ends and state.wants_placeholder
        if not hid and not places and not (ends and state.goes_on):
            return candidate
        seen = [part for part in seen if part.get("text") != "" or part.get("thought")]
        shown = dict(candidate)
        if places:
            seen.append(self._place(state))
            shown["finishReason"] = 1 if isinstance(finish, int) else "STOP"
            shown.pop("finishMessage", None)  # it speaks of function calls
        if state.goes_on:
            shown.pop("finishReason", None)
            shown.pop("finishMessage", None)
        if not seen:
            if state.goes_on or (finish is None and not whole):
                return None
            seen.append(FILLER)
        shown["content"] = {"parts": seen, "role": "model"} | {k: v for k, v in content.items() if k != "parts"}
        return shown

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
            args = call.get("args")
            head = {k: v for k, v in call.items() if camel(k) not in ("partialArgs", "willContinue")}
            state.partial = _Partial({**part, "functionCall": head}, dict(args) if isinstance(args, dict) else {})
        partial = state.partial
        for key, value in part.items():
            partial.part.setdefault(key, value)  # the signature may come with a later piece
        for piece in objects(pieces):
            put(partial.args, piece)
        if isinstance(args := call.get("args"), dict):
            partial.args.update(args)  # all at once, with the last piece
        if not goes_on:
            state.partial = None
            return self._assembled(state, partial)
        used = str(partial.part["functionCall"].get("name", ""))
        return self.passthrough or self._toolset_name(used) is None

    def _assembled(self, state: Candidate, partial: _Partial) -> bool:
        call = {**partial.part["functionCall"], "args": partial.args}
        return self._captured(state, {**partial.part, "functionCall": call}, call)

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

    def _captured(self, state: Candidate, part: Document, call: Document) -> bool:
        """Take in a call that is complete; whether the client gets it."""
        used = str(call.get("name", ""))
        name = self._toolset_name(used)
        too_deep = is_deeper(call.get("args"), MAX_DEPTH)
        if too_deep:
            call = {**call, "args": {}}
            part = {**part, "functionCall": call}
        if name is None:
            state.slots.append(Slot(used, None))
            state.say(part)
            state.show(part)
            return True
        args = call.get("args")
        captured = Captured(
            call_id=self.new_call_id(),
            name=name,
            args=args if isinstance(args, dict) else {},
            gemini_id=call["id"] if isinstance(call.get("id"), str) else None,
            place=len(state.slots),
            known=used in self.naming.names,
            too_deep=too_deep,
        )
        state.captured.append(captured)
        state.slots.append(Slot(name, captured.call_id))
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


def is_deeper(value: Any, depth: int) -> bool:
    """Whether JSON is nested more than `depth` levels deep."""
    level = [value]
    for _ in range(depth + 1):
        containers = [one for one in level if isinstance(one, (dict, list))]
        if not containers:
            return False
        level = [item for one in containers for item in (one.values() if isinstance(one, dict) else one)]
    return True


def put(args: Document, piece: Mapping[str, Any]) -> None:
    """Set one partialArgs piece, `{"jsonPath": "$.a[0].b", "stringValue": "x"}`, in `args` (which is changed: it is
    the assembly itself). Strings of one path grow."""
    path: list[str | int] = [
        int(number) if number else (name or quoted)
        for name, number, quoted in _STEP.findall(str(piece.get("jsonPath", "")))
    ]
    value = next((piece[k] for k in ("stringValue", "numberValue", "boolValue") if k in piece), None)
    if not path:
        return
    target: Any = args
    for key, following in zip(path, [*path[1:], None], strict=True):
        if isinstance(key, int):
            if not isinstance(target, list) or key > len(target):
                return
            if key == len(target):
                target.append(None)
        elif not isinstance(target, dict):
            return
        held = target[key] if isinstance(key, int) else target.get(key)
        if following is None:
            target[key] = held + value if isinstance(held, str) and isinstance(value, str) else value
        elif held is None:
            target[key] = [] if isinstance(following, int) else {}
        target = target[key]
