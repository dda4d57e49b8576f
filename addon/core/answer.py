"""The model's answer, as it comes and as the client sees it: calls are captured, and replaced by a placeholder.

An `Answer` is fed the response documents of one request, one for JSON or one an event of a stream. It keeps, for each
candidate, what the model really said (`said`), what the client was shown (`shown`), and the calls.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from addon.core.documents import Document, get, listed, objects, parts_of
from addon.core.history import Slot
from addon.core.placeholder import Placeholder

CONTINUATION = "CONTINUATION"
FILLER: Document = {"text": "", "thought": True}
"""A part that every client takes and none shows: an event without a non-empty part makes chats forget the turn."""

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")


class Naming(NamedTuple):
    """Whose a call is. `names`: the name used in the request → the toolset's. `all_grafted`: a name that is not among
    them is an unknown tool, not one of the client's own."""

    names: Mapping[str, str]
    all_grafted: bool


class Captured(NamedTuple):
    """A call of a grafted tool, and its place in its step. `known` False: the toolset has no tool of that name."""

    call_id: str
    name: str
    args: Document
    gemini_id: str | None
    place: int
    known: bool


class _Partial(NamedTuple):
    """A call whose arguments come piece by piece."""

    part: Document
    args: Document


class Candidate:
    """One candidate of an answer. `slots` are all its calls in order, `captured` the grafted ones among them.
    `hides` says that the client was not shown everything; `ended` that the finishReason has come."""

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
        self.partial: _Partial | None = None

    @property
    def is_grafted(self) -> bool:
        """Whether the ledger has to know this turn: calls were captured, or something was hidden."""
        return self.hides or bool(self.captured)

    @property
    def wants_placeholder(self) -> bool:
        return self.hides and bool(self.captured) and len(self.captured) == len(self.slots)

    @property
    def shown_text(self) -> str:
        return "".join(str(p["text"]) for p in self.shown if "text" in p and not p.get("thought"))

    def say(self, part: Document) -> None:
        """Add to what the model said: text grows together, thoughts and empty parts are not told again."""
        signed = get(part, "thoughtSignature") is not None
        if not signed and (part.get("thought") or part.get("text") == "" or not part):
            return
        last = self.said[-1] if self.said else {}
        if set(last) == {"text"} and isinstance(part.get("text"), str) and not part.get("thought"):
            self.said[-1] = {**part, "text": last["text"] + part["text"]}
        else:
            self.said.append(part)


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
    ) -> None:
        self.naming = naming
        self.placeholder = placeholder
        self.passthrough = passthrough
        self.hides_server_tools = hides_server_tools
        self.new_turn_id = new_turn_id
        self.new_call_id = new_call_id
        self.candidates: dict[int, Candidate] = {}
        self.continuation: str | None = None
        self._moved: Document = {}
        self._meta: Document = {}

    def feed(self, response: Document, *, whole: bool = False) -> Document | None:
        """One response document: what the client is to see instead (the same object where nothing changes), or None
        where nothing is left of it. `whole`: there will be no other."""
        self._meta.update({k: response[k] for k in ("modelVersion", "responseId") if k in response})
        kept: list[Document] = []
        changed = False
        for candidate in objects(response.get("candidates")):
            seen = self._candidate(candidate, whole)
            changed = changed or seen is not candidate
            if seen is not None:
                kept.append(seen)
        if not changed:
            return response
        if not kept:
            self._moved |= {k: v for k, v in response.items() if k != "candidates"}
            return None
        moved, self._moved = self._moved, {}
        return {**moved, **response, "candidates": kept}

    def close(self) -> Document | None:
        """The clean end of a stream: the event that is still to be sent, if a placeholder is."""
        due = [c for c in self.candidates.values() if c.wants_placeholder and not c.ended and not c.paused]
        if not due:
            return None
        candidates = []
        for state in due:
            state.ended = True
            part = self._place(state)
            candidates.append(
                {"content": {"parts": [part], "role": "model"}, "finishReason": "STOP", "index": state.index}
            )
        return {"candidates": candidates, **self._meta, **self._moved}

    def _candidate(self, candidate: Document, whole: bool) -> Document | None:
        index = candidate.get("index")
        index = index if isinstance(index, int) else 0
        state = self.candidates.get(index)
        if state is None:
            state = self.candidates[index] = Candidate(index, self.new_turn_id())
        content = candidate.get("content")
        content = content if isinstance(content, dict) else {}
        seen: list[Document] = []
        hid = False
        for part in parts_of(content):
            if self._is_hidden(state, part):
                hid = state.hides = True
            else:
                seen.append(part)
        finish = candidate.get("finishReason")
        state.paused = finish == CONTINUATION
        if state.paused and isinstance(token := candidate.get("continuationToken"), str):
            self.continuation = token
        ends = (finish is not None or whole) and not state.paused and not state.ended
        state.ended = state.ended or ends
        if not hid and not (ends and state.wants_placeholder):
            state.shown += seen
            return candidate
        seen = [part for part in seen if part.get("text") != "" or part.get("thought")]
        state.shown += seen
        shown = dict(candidate)
        if ends and state.wants_placeholder:
            seen.append(self._place(state))
            shown["finishReason"] = 1 if isinstance(finish, int) else "STOP"
            shown.pop("finishMessage", None)  # it speaks of function calls
        if not seen:
            if finish is None and not whole:
                return None
            seen.append(FILLER)
        shown["content"] = {"parts": seen, "role": "model"} | {k: v for k, v in content.items() if k != "parts"}
        return shown

    def _place(self, state: Candidate) -> Document:
        names = [call.name for call in state.captured]
        part = {"text": self.placeholder.after(state.shown_text, names, state.turn_id)}
        state.shown.append(part)
        return part

    def _is_hidden(self, state: Candidate, part: Document) -> bool:
        call = get(part, "functionCall")
        if isinstance(call, dict):
            return self._call(state, part, call) and not self.passthrough
        state.say(part)
        return self.hides_server_tools and (get(part, "toolCall") or get(part, "toolResponse")) is not None

    def _call(self, state: Candidate, part: Document, call: Document) -> bool:
        """Take in a call, or a piece of one; whether it is a grafted tool's."""
        pieces = listed(call.get("partialArgs"))
        goes_on = bool(call.get("willContinue"))
        if state.partial is None and not pieces and not goes_on:
            return self._captured(state, part, call)
        if state.partial is None or call.get("name"):
            whole = {k: v for k, v in call.items() if k not in ("partialArgs", "willContinue")}
            state.partial = _Partial({**part, "functionCall": whole}, dict(call.get("args") or {}))
        partial = state.partial
        for piece in objects(pieces):
            put(partial.args, piece)
        grafted = self._toolset_name(str(partial.part["functionCall"].get("name"))) is not None
        if not goes_on:
            state.partial = None
            whole = {**partial.part["functionCall"], "args": partial.args}
            self._captured(state, {**partial.part, "functionCall": whole}, whole)
        return grafted

    def _toolset_name(self, used: str) -> str | None:
        """The toolset's name of a call; None where it is the client's own."""
        return self.naming.names.get(used, used if self.naming.all_grafted else None)

    def _captured(self, state: Candidate, part: Document, call: Document) -> bool:
        used = str(call.get("name", ""))
        name = self._toolset_name(used)
        if name is None:
            state.slots.append(Slot(used, None))
            state.say(part)
            return False
        args = call.get("args")
        captured = Captured(
            call_id=self.new_call_id(),
            name=name,
            args=args if isinstance(args, dict) else {},
            gemini_id=call["id"] if isinstance(call.get("id"), str) else None,
            place=len(state.slots),
            known=used in self.naming.names,
        )
        state.captured.append(captured)
        state.slots.append(Slot(name, captured.call_id))
        state.say({**part, "functionCall": {**call, "name": name}})
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
