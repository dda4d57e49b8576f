"""Rewrites the model's answer for the client: captures calls and replaces them by a placeholder.

An `AnswerRewriter` is fed the response documents of one request: one for JSON, one for each event of a stream. For each
candidate it keeps the true parts (the model's), the visible parts (the client's) and the calls."""

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from addon.core.arguments import NO_LIMITS, Assembly, Bounds, Limits
from addon.core.framing.documents import Document, as_list, camel, content_of, get, index_of, objects, parts_of
from addon.core.history.placeholder import Placeholder
from addon.core.history.steps import CallSlot

_REMEMBERED_JOINS = 64
"""How many joins of texts are remembered."""


class Parts:
    """The parts of a Content. Consecutive plain texts become one part, and are joined when read."""

    def __init__(self) -> None:
        self._parts: list[Document] = []
        self._texts: list[str] = []  # the pieces of the last part, if it is plain text
        self._joins: list[tuple[int, int]] = []  # index of the part, and its length before the join

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, part: Document) -> None:
        """Add a part, unless empty. A signed text stays a separate part, because its signature covers nothing else."""
        text = part.get("text")
        if not part or (text == "" and len(part) == 1):
            return
        if isinstance(text, str) and len(part) == 1:
            if not self._texts:
                self._parts.append(part)
            elif len(self._joins) < _REMEMBERED_JOINS:
                self._joins.append((len(self._parts) - 1, sum(map(len, self._texts))))
            self._texts.append(text)
            return
        self._join()
        self._texts = []
        self._parts.append(part)

    def read(self) -> list[Document]:
        self._join()
        return list(self._parts)

    def pieces(self) -> list[Document]:
        """All parts, with the first texts split as they arrived."""
        joins: defaultdict[int, list[int]] = defaultdict(list)
        for at, join in self._joins:
            joins[at].append(join)
        pieces: list[Document] = []
        for at, part in enumerate(self.read()):
            if at in joins:
                text = part["text"]
                pieces += [{"text": text[start:end]} for start, end in pairwise([0, *joins[at], len(text)])]
            else:
                pieces.append(part)
        return pieces

    def _join(self) -> None:
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
            self._parts[-1] = {"text": self._texts[0]}


CONTINUATION = "CONTINUATION"
FILLER: Document = {"text": "", "thought": True}
"""A part that every client accepts and none shows. Chats forget a turn if an event has only empty parts."""

_KEPT_OF_THOUGHTS = ("thoughtSignature", "functionCall", "toolCall", "toolResponse")


class ToolNames(NamedTuple):
    """Distinguishes grafted tools from the client's own. `names`: the name used in the request → the toolset's name.
    `own`: the functions that the client declared; None if it may have others."""

    names: Mapping[str, str]
    own: Collection[str] | None

    def toolset_name(self, used: str) -> str | None:
        """The toolset's name of a called tool; None for the client's own tool. An undeclared tool counts as the
        toolset's, so that the model is told that it is unknown."""
        name = self.names.get(used)
        return used if name is None and self.own is not None and used not in self.own else name


class CapturedCall(NamedTuple):
    """A call of a grafted tool. `place`: its index in the step. `fault`: why it cannot run, in words for the model."""

    call_id: str
    name: str
    args: Document
    gemini_id: str | None
    place: int
    fault: str | None = None


class _Partial(NamedTuple):
    part: Document
    args: Assembly


class Candidate:
    """One candidate of an answer. `slots` are all its calls in order, `captured` the grafted ones among them.

    `hides_parts`: the client did not get everything. `hides_signature`: the step's signature is on a hidden call, and
    the client has no call yet. `ended`: the finishReason has arrived. `paused`: the rest must be
    requested (finishReason CONTINUATION). `resumed_by_proxy`: the proxy requests the rest itself. `answered_by_proxy`:
    the proxy runs the step's calls, so the client's turn does not end here. `finish`: the finishReason.
    """

    def __init__(self, index: int, turn_id: str, limits: Limits = NO_LIMITS) -> None:
        self.index = index
        self.turn_id = turn_id
        self.bounds = Bounds(limits)
        self.slots: list[CallSlot] = []
        self.captured: list[CapturedCall] = []
        self.hides_parts = False
        self.hides_signature = False
        self.ended = False
        self._calls_at_end = 0
        self.paused = False
        self.resumed_by_proxy = False
        self.answered_by_proxy = False
        self.finish: str | int | None = None
        self.partial: _Partial | None = None
        self._true = Parts()
        self._visible = self._current = Parts()

    @property
    def true_parts(self) -> list[Document]:
        return self._true.read()

    @property
    def visible_parts(self) -> list[Document]:
        return self._visible.read()

    @property
    def visible_pieces(self) -> list[Document]:
        """The visible parts, split as they arrived, as far as the pieces are known."""
        return self._visible.pieces()

    @property
    def current_visible_parts(self) -> list[Document]:
        """The visible parts that answer the client's current request."""
        return self._current.read()

    @property
    def is_open(self) -> bool:
        """Whether the answer has no end, or calls after it: some services send a finishReason with every event."""
        return not self.ended or self.partial is not None or len(self.captured) > self._calls_at_end

    def end(self) -> None:
        self.ended, self._calls_at_end = True, len(self.captured)

    @property
    def is_grafted(self) -> bool:
        """Whether the turn needs a ledger entry: calls were captured, or parts were hidden."""
        return bool(self.captured) or (self.hides_parts and bool(self._true))

    @property
    def wants_placeholder(self) -> bool:
        return (
            self.hides_parts
            and not self.answered_by_proxy
            and bool(self.captured)
            and len(self.captured) == len(self.slots)
        )

    @property
    def visible_text(self) -> str:
        return "".join(str(p["text"]) for p in self.visible_parts if "text" in p and not p.get("thought"))

    def add_true(self, part: Document) -> None:
        """Add a true part. Thoughts and empty parts are left out unless they are signed or hold a call: a call marked
        as a thought has a response, which is invalid without its call."""
        if not part.get("thought") or any(get(part, kind) is not None for kind in _KEPT_OF_THOUGHTS):
            self._true.add(part)

    def add_visible(self, part: Document) -> None:
        self._visible.add(part)
        if self._current is not self._visible:
            self._current.add(part)

    def resume(self, *, by_client: bool) -> None:
        """Prepare for the rest of the answer. `by_client`: the client requested the rest with another request."""
        self.ended = self.paused = self.resumed_by_proxy = self.answered_by_proxy = False
        self.finish = None
        if by_client:
            self._current = Parts()


class AnswerRewriter:
    def __init__(
        self,
        naming: ToolNames,
        placeholder: Placeholder,
        *,
        passthrough: bool,
        hides_server_tools: bool,
        new_turn_id: Callable[[int], str],
        call_id: Callable[[str, Document], str],
        sign: Callable[[str], str],
        limits: Limits = NO_LIMITS,
        proxy_answers: Callable[[Candidate], bool] = lambda candidate: False,
        proxy_resumes: Callable[[str], bool] = lambda token: False,
    ) -> None:
        """`new_turn_id` returns a turn's id by its candidate's index. `call_id` returns the id for a call with this
        name and these arguments. `sign` returns the signature for the client's first call of a turn with this id, if
        the model's is on a hidden call.

        `proxy_answers` is asked when a candidate's finishReason has arrived, or its stream ended without one. If true,
        the client sees neither a finishReason nor a placeholder. `proxy_resumes` is asked when a continuationToken has
        arrived. If true, the client sees no token."""
        self.naming = naming
        self.placeholder = placeholder
        self.passthrough = passthrough
        self.hides_server_tools = hides_server_tools
        self.new_turn_id = new_turn_id
        self.call_id = call_id
        self.sign = sign
        self.limits = limits
        self.proxy_answers = proxy_answers
        self.proxy_resumes = proxy_resumes
        self.candidates: dict[int, Candidate] = {}
        self.continuation_token: str | None = None
        """The last token for requesting the rest; None once the answer is complete."""
        self.unfinished_calls: set[str] = set()
        """The names of the calls whose arguments were never complete."""
        self._carried: Document = {}
        self._meta: Document = {}

    def resumed(self, *, by_client: bool = True) -> "AnswerRewriter":
        """A copy that continues where this one paused: the rest may be requested more than once. `by_client`: the
        client requested the rest with another request."""
        resumed = copy.copy(self)
        resumed.candidates = copy.deepcopy(self.candidates)
        states = resumed.candidates.values()
        for state in [one for one in states if one.paused] or states:
            state.resume(by_client=by_client)
        resumed.continuation_token = None
        resumed._carried, resumed._meta = {}, {}
        return resumed

    def feed(self, response: Document, *, whole: bool = False) -> Document | None:
        """Process one response document. Returns the document for the client (the same object if nothing changes), or
        None if nothing is left. `whole`: the answer is this document alone."""
        if self.naming.names and not self.passthrough:
            response = _without_messages_on_calls(response)
        self._meta.update({k: response[k] for k in ("modelVersion", "responseId") if k in response})
        visible_candidates: list[Document] = []
        changed = ends = False
        for candidate in objects(response.get("candidates")):
            visible = self._candidate(candidate, whole)
            changed = changed or visible is not candidate
            ends = ends or candidate.get("finishReason") is not None
            if visible is not None:
                visible_candidates.append(visible)
        if changed and not visible_candidates:
            self._carried |= {k: v for k, v in response.items() if k != "candidates"}
            return None
        # Later usage counts include earlier ones.
        carried = {k: v for k, v in self._carried.items() if k not in response}
        if not changed and not (carried and ends):
            self._carried = carried
            return response
        self._carried = {}
        return {**carried, **response, "candidates": [_with_filler(candidate) for candidate in visible_candidates]}

    def close(self) -> Document | None:
        """Process the clean end of a stream. Returns a last event if a placeholder or a dropped event's usage
        remains."""
        open_ended = [state for state in self.candidates.values() if state.is_open and not state.paused]
        for state in open_ended:
            self._cut_short(state)
            state.answered_by_proxy = self.proxy_answers(state)
        if any(state.answered_by_proxy or state.resumed_by_proxy for state in self.candidates.values()):
            return None
        parts = {state.index: (self._add_placeholder(state), "STOP") for state in open_ended if state.wants_placeholder}
        if not parts and "usageMetadata" not in self._carried:
            return None
        for index in parts:
            self.candidates[index].end()
        candidates: list[Document] = [
            {"content": {"parts": [part], "role": "model"}, "finishReason": reason, "index": index}
            for index, (part, reason) in parts.items()
        ]
        filler: Document = {"content": {"parts": [FILLER], "role": "model"}, "index": 0}
        carried, self._carried = self._carried, {}
        return {"candidates": candidates or [filler], **self._meta, **carried}

    def _candidate(self, candidate: Document, whole: bool) -> Document | None:
        index = index_of(candidate)
        state = self.candidates.get(index)
        if state is None:
            state = self.candidates[index] = Candidate(index, self.new_turn_id(index), self.limits)
        content = content_of(candidate)
        parts = parts_of(content)
        visible = [visible_part for part in parts if (visible_part := self._record_part(state, part)) is not None]
        hides = len(visible) < len(parts)
        signs = any(visible_part is not part for visible_part, part in zip(visible, parts, strict=False))
        finish = candidate.get("finishReason")
        state.paused = finish == CONTINUATION
        hides_token = self._record_token(state, candidate.get("continuationToken"), finish)
        ends = (finish is not None or whole) and not state.paused and state.is_open
        if ends:
            state.finish = finish
            self._cut_short(state)
            state.end()
            state.answered_by_proxy = self.proxy_answers(state)
        places = ends and state.wants_placeholder
        goes_on = state.answered_by_proxy and (ends or finish is not None)
        if not hides and not signs and not places and not hides_token and not goes_on:
            return candidate
        if finish is not None or hides or whole:
            visible = [part for part in visible if part.get("text") != "" or part.get("thought")]
        rewritten = dict(candidate)
        if hides:
            rewritten.pop("logprobsResult", None)  # it has the tokens of the hidden call
        if places:
            visible.append(self._add_placeholder(state))
            rewritten["finishReason"] = 1 if isinstance(finish, int) else "STOP"
            rewritten.pop("finishMessage", None)  # it mentions function calls
        if hides_token or places or state.answered_by_proxy:
            rewritten.pop("continuationToken", None)
        if places or state.answered_by_proxy:
            self._forget_token()  # the step is answered without its rest
        if state.answered_by_proxy or state.resumed_by_proxy:
            rewritten.pop("finishReason", None)
            rewritten.pop("finishMessage", None)
        if not visible:
            if state.answered_by_proxy or state.resumed_by_proxy or (finish is None and not whole):
                return None
            visible.append(FILLER)
        rewritten["content"] = {"parts": visible, "role": "model"} | {k: v for k, v in content.items() if k != "parts"}
        return rewritten

    def _record_token(self, state: Candidate, token: Any, finish: Any) -> bool:
        """Record a continuationToken, if any. Returns whether it is hidden from the client."""
        if not isinstance(token, str) or not token:
            if finish is not None:
                self._forget_token()
            return False
        self.continuation_token = token
        hides = finish in (None, CONTINUATION) and self.proxy_resumes(token)
        state.resumed_by_proxy = state.paused and hides
        return hides

    def _forget_token(self) -> None:
        if not any(state.paused for state in self.candidates.values()):
            self.continuation_token = None

    def _add_placeholder(self, state: Candidate) -> Document:
        names = [call.name for call in state.captured]
        is_pending = any(call.fault is None for call in state.captured)
        part = {"text": self.placeholder.after(state.visible_text, names, state.turn_id, is_pending=is_pending)}
        state.add_visible(part)
        return part

    def _record_part(self, state: Candidate, part: Document) -> Document | None:
        """Record a part. Returns the client's form of it; None if the client does not get it."""
        call = get(part, "functionCall")
        visible_part: Document | None = part
        if isinstance(call, dict):
            visible_part = self._record_call(state, part, call)
        else:
            state.add_true(part)
            if self.hides_server_tools and (get(part, "toolCall") or get(part, "toolResponse")) is not None:
                visible_part = None
            else:
                state.add_visible(part)
        state.hides_parts = state.hides_parts or visible_part is None
        return visible_part

    def _record_call(self, state: Candidate, part: Document, call: Document) -> Document | None:
        """Record a call, or a piece of a call. Returns the client's form of the part, as `_record_part`."""
        visible_part, pieces = part, as_list(get(call, "partialArgs"))
        goes_on = bool(get(call, "willContinue"))
        if state.partial is None and not pieces and not goes_on:
            return self._capture(state, part, call)
        if state.partial is not None and call.get("name"):
            self._capture_assembled(state, state.partial)  # another call begins, so this one is complete
            state.partial = None
        if state.partial is None:
            head = {k: v for k, v in call.items() if camel(k) not in ("partialArgs", "willContinue")}
            state.partial = _Partial({**part, "functionCall": head}, Assembly(self.limits.args))
            visible_part = self._signed(state, part)
        partial = state.partial
        for key, value in part.items():
            partial.part.setdefault(key, value)  # the signature may come with a later piece
        for piece in objects(pieces):
            partial.args.put(piece)
        if isinstance(args := call.get("args"), dict):
            partial.args.update(args)  # all arrive with the last piece
        if not goes_on:
            state.partial = None
            return visible_part if self._capture_assembled(state, partial) is not None else None
        used = str(partial.part["functionCall"].get("name", ""))
        return visible_part if self.passthrough or self.naming.toolset_name(used) is None else None

    def _signed(self, state: Candidate, part: Document) -> Document:
        """The part of the client's call, with a signature of the proxy if a hidden call has the model's."""
        if not state.hides_signature or get(part, "thoughtSignature") is not None:
            return part
        return {**part, "thoughtSignature": self.sign(state.turn_id)}

    def _capture_assembled(self, state: Candidate, partial: _Partial) -> Document | None:
        call = {**partial.part["functionCall"], "args": partial.args.done()}
        return self._capture(state, {**partial.part, "functionCall": call}, call, is_too_long=partial.args.is_too_long)

    def _cut_short(self, state: Candidate) -> None:
        """Capture a call that is incomplete at the end of the answer, with the arguments that arrived: its pieces were
        hidden, and the turn must not be empty."""
        partial, state.partial = state.partial, None
        if partial is not None:
            self.unfinished_calls.add(str(partial.part["functionCall"].get("name", "")))
            self._capture_assembled(state, partial)

    def _capture(
        self, state: Candidate, part: Document, call: Document, *, is_too_long: bool = False
    ) -> Document | None:
        """Record a complete call. Returns the client's form of its part, as `_record_part`."""
        given, used = part, str(call.get("name", ""))
        name = self.naming.toolset_name(used)
        bounds = state.bounds
        if self.passthrough and bounds.are_full:
            name = None  # the client answers this call too, but its result is not needed: the call is not stored
        if name is not None and bounds.are_exceeded:
            return None
        fault = bounds.fault(call.get("args"), is_too_long=is_too_long)
        if fault is not None:
            call = {**call, "args": {}}
            part = {**part, "functionCall": call}
        if name is None:
            state.slots.append(CallSlot(used, None))
            state.add_true(part)
            state.add_visible(self._signed(state, part))
            visible_part = self._signed(state, given)
            state.hides_signature = False
            return visible_part
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
        state.add_true({**part, "functionCall": {**call, "name": name}})
        if self.passthrough:
            state.add_visible(part)
            return given
        if get(part, "thoughtSignature") is not None and len(state.captured) == len(state.slots):
            state.hides_signature = True
        return None


def _without_messages_on_calls(response: Document) -> Document:
    """The response without each finishMessage about a wrong call, which quotes the call. A number as the finishReason
    may be any."""
    candidates = as_list(response.get("candidates"))
    kept = [
        {key: value for key, value in one.items() if key != "finishMessage"}
        if isinstance(one, dict) and "finishMessage" in one and _may_be_on_calls(one.get("finishReason"))
        else one
        for one in candidates
    ]
    return {**response, "candidates": kept} if kept != candidates else response


def _may_be_on_calls(finish: Any) -> bool:
    return not isinstance(finish, str) or "MALFORMED" in finish or "CALL" in finish


def _with_filler(candidate: Document) -> Document:
    """The candidate with at least one part that is not empty."""
    content = content_of(candidate)
    if any(part and part != {"text": ""} for part in parts_of(content)):
        return candidate
    return {**candidate, "content": {"role": "model", **content, "parts": [FILLER]}}
