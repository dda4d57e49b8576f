"""One Live connection: which frames pass, which calls run, and when their results go upstream. Pure.

A `LiveMachine` is fed the frames of both sides and the results of calls, and returns the actions to take:

- The client's `setup` and `contextUpdate` also declare the toolset's tools.
- The calls of grafted tools are removed from a `toolCall` and run by the proxy. The client gets the rest. Results
  for removed calls are dropped from the client's `toolResponse`. No other frame of the client changes.
- The results of blocking calls go upstream in one frame, in call order, once the last one has arrived. Other results
  go upstream immediately. A call that the model cancels gets no result.
- While the model waits for a grafted call, the client's `realtimeInput` is held, because the service would close the
  connection. Later frames are held too, so that the client's frames keep their order. The client's `toolResponse` is
  never held: the model may be waiting for it.

From Gemini 3.8 on, a model waits only for functions declared BLOCKING. If it gets input meanwhile, it accepts that and
cancels the call, so nothing is held. Older models wait for every function that is not declared NON_BLOCKING.

A frame in `LiveActions.send` reaches the service later. Until `confirm_sent` was called for each of them, the client's
new frames queue behind them.
"""

import re
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from addon.core.answer import CapturedCall
from addon.core.arguments import NO_LIMITS, Bounds, Limits
from addon.core.framing.documents import (
    Document,
    Malformed,
    as_list,
    camel,
    decode,
    encode,
    get,
    members,
    objects,
    replace_invalid_text,
)
from addon.core.history.calls import called_names
from addon.core.history.outcomes import fitted, outcome_of
from addon.core.history.steps import CallSlot
from addon.core.model_names import generation, is_before
from addon.core.tools.tool_plan import Toolbox

BLOCKING, NON_BLOCKING = "BLOCKING", "NON_BLOCKING"
_RELEVANT = re.compile(rb'"(?:tool_?[Cc]all|turn_?[Cc]omplete|function_?[Cc]all)')
_ESCAPES = (b"\\u00", b"\0")
"""The keys for which a service frame must be decoded, and the escapes that may hide them. Most frames are audio."""
_RESPONSE = re.compile(rb'"tool_?[rR]esponse')
_BEHAVIORS = ("UNSPECIFIED", BLOCKING, NON_BLOCKING)


class Frame(NamedTuple):
    """A WebSocket message. `text`: a text frame, not a binary one."""

    data: bytes
    text: bool = True


class ToolBehavior(NamedTuple):
    """Gemini's `behavior` and `scheduling` of a tool; None if not set."""

    behavior: str | None = None
    scheduling: str | None = None


class TooMuchHeld(Exception):
    """The client has sent more than may be held while the model waits for a call."""


class LiveStep(NamedTuple):
    """A toolCall with grafted calls. `parts`: all its calls, under the toolset's names. `slots`: the owner of each
    call. `calls`: the grafted ones. `number`: its index within the model's turn, from 0."""

    parts: tuple[Document, ...]
    slots: tuple[CallSlot, ...]
    calls: tuple[CapturedCall, ...]
    number: int = 0


def is_relevant(data: bytes) -> bool:
    """Whether a service frame may hold a call or the end of a turn."""
    return _RELEVANT.search(data) is not None or any(escape in data for escape in _ESCAPES)


class LiveActions(NamedTuple):
    """The actions to take. `forward`: the data to pass on instead of the fed frame, None for nothing. `send`: frames to
    send upstream after it. `step`: the calls to run. `cancel`: ids of calls that nobody waits for any longer.
    `results`: the client's answers to passed-through calls, by call id."""

    forward: bytes | None = None
    send: tuple[Frame, ...] = ()
    step: LiveStep | None = None
    cancel: tuple[str, ...] = ()
    results: tuple[tuple[str, Document], ...] = ()


def kind_of(frame: Frame) -> tuple[str, Frame]:
    """What a client frame is: `toolResponse` if it has this member, else the name of its first member that is not null,
    or "" if the frame is no object. Also the frame with valid text."""
    try:
        return _kind(frame.data), frame
    except Malformed:
        good = Frame(replace_invalid_text(frame.data), frame.text)
    try:
        return _kind(good.data), good
    except Malformed:
        return "", frame


def _kind(data: bytes) -> str:
    found = members(data)
    names = [one.name for one in found if data[one.start : one.end] != b"null"] or [one.name for one in found]
    return "toolResponse" if "toolResponse" in names else next(iter(names), "")


def id_of(call: Document) -> str | None:
    gemini_id = call.get("id")
    return None if gemini_id is None else str(gemini_id)


def with_behavior(declaration: Document, tool: ToolBehavior) -> Document:
    return declaration if tool.behavior is None else {**declaration, "behavior": tool.behavior}


def behavior_of(value: Any) -> str:
    """The name of a declaration's behavior. Clients may send its number."""
    if isinstance(value, int) and 0 <= value < len(_BEHAVIORS):
        return _BEHAVIORS[value]
    return str(value).upper()


def with_tools(document: Document, tools: list[Document]) -> Document:
    """The document with these tools, or without any."""
    others = {key: value for key, value in document.items() if key != "tools"}
    return {**others, "tools": tools} if tools else others


def key_of(document: Document, name: str) -> str:
    """The key of a member, in the spelling that the document uses."""
    return next((key for key in document if camel(key) == name), name)


def member_of(document: Any, name: str) -> tuple[str, Document]:
    """The key and the value of a member that is an object; {} if there is none."""
    if not isinstance(document, dict):
        return name, {}
    key = key_of(document, name)
    value = document.get(key)
    return key, value if isinstance(value, dict) else {}


def with_value(document: Document, key: str, value: Any) -> Document:
    """The document with another value under a key; without the key if the value is empty."""
    if value:
        return {**document, key: value}
    return {name: member for name, member in document.items() if name != key}


_DECLARING = ("setup", "contextUpdate")
_ASYNC = (3, 8)
"""The first version of Gemini that waits only for calls of functions declared BLOCKING."""
_FRAME_COST = 256
"""The approximate memory use of a held frame besides its data, in bytes."""


@dataclass(slots=True)
class _WaitingCall:
    """A grafted call whose result has not gone upstream. `step`: the number of its toolCall."""

    step: int
    gemini_id: str | None
    used: str
    blocks: bool
    scheduling: str | None
    outcome: Document | None = None
    is_stored: bool = True


class LiveMachine:
    """`behaviors`: by the toolset's names of the tools. `passthrough`: the client also gets the grafted calls, and
    answers them. `model`: the bare name from the setup; "" before it. A name without a version counts as the newest
    model."""

    def __init__(
        self,
        toolbox: Toolbox,
        behaviors: Mapping[str, ToolBehavior],
        *,
        strips: bool,
        passthrough: bool,
        new_call_id: Callable[[], str],
        limits: Limits = NO_LIMITS,
        max_held: int = sys.maxsize,
    ) -> None:
        declared = [with_behavior(d, behaviors.get(d["name"], ToolBehavior())) for d in toolbox.declarations]
        self.toolbox = Toolbox(declared, toolbox.builtins)
        self.behaviors = behaviors
        self.strips = strips
        self.passthrough = passthrough
        self.new_call_id = new_call_id
        self.limits = limits
        self.max_held = max_held
        self.model = ""
        self._names: dict[str, str] = {}  # the name used upstream → the toolset's name
        self._own: Collection[str] | None = frozenset() if strips else None  # the client's; None: it may have any
        self._free: set[str] = set()  # the client's tools that the model does not wait for
        self._waiting: dict[str, _WaitingCall] = {}
        # ids of the client's calls that the model waits for, together with grafted calls
        self._client_calls: set[str] = set()
        self._hidden: set[str] = set()  # Gemini ids of the calls that the client did not get
        self._passed_through: dict[str, str] = {}  # Gemini ids of the calls that the client runs → call ids
        self._steps = 0
        self._before_turn = 0  # the value of `_steps` when the model's turn began
        self._held_frames: deque[Frame] = deque()
        self._held_bytes = 0
        self._unsent = 0

    # --- the client's frames ----------------------------------------------------------------------------------

    def from_client(self, frame: Frame) -> LiveActions:
        """Raises TooMuchHeld."""
        kind, frame = kind_of(frame)
        if kind in _DECLARING:
            frame = Frame(self._declare_tools(frame.data), frame.text)
        elif kind == "toolResponse":
            data, results = self._client_results(frame.data)
            return LiveActions(data, results=results, send=self._release_held())
        elif not kind and self._hidden and _RESPONSE.search(frame.data):
            return LiveActions()  # the service might read it
        if self._held_frames or (kind == "realtimeInput" and self.is_blocked):
            self._held_frames.append(frame)
            self._held_bytes += len(frame.data) + _FRAME_COST
            if self._held_bytes > self.max_held:
                raise TooMuchHeld(f"the model waits for a call, and more than {self.max_held} bytes wait for the model")
            return LiveActions()
        if self._unsent:
            self._unsent += 1
            return LiveActions(send=(frame,))
        return LiveActions(frame.data)

    def record_unchanged(self, frame: Frame) -> None:
        """Record that a client's frame went upstream unchanged. If it declares tools, only these are declared now."""
        if kind_of(frame)[0] in _DECLARING:
            self._names, self._own, self.strips = {}, None, False

    def confirm_sent(self) -> None:
        """Record that one frame of `LiveActions.send` has gone upstream."""
        self._unsent -= 1

    @property
    def is_blocked(self) -> bool:
        """Whether the model waits for a call and accepts no input."""
        return not self._is_async and (bool(self._client_calls) or any(one.blocks for one in self._waiting.values()))

    @property
    def _is_async(self) -> bool:
        """Whether the model accepts input at any time, and waits only for functions declared BLOCKING."""
        return not is_before(generation(self.model), _ASYNC)

    def _blocks(self, behavior: Any) -> bool:
        """Whether the model waits for a function declared with this behavior."""
        declared = behavior_of(behavior)
        return declared == BLOCKING if self._is_async else declared != NON_BLOCKING

    def _declare_tools(self, data: bytes) -> bytes:
        """A setup or contextUpdate with the toolset's tools. A contextUpdate without tools stays unchanged."""
        document: Document = decode(data)
        outer = next((key for key, value in document.items() if camel(key) in _DECLARING and value is not None), "")
        inner = document.get(outer)
        if not isinstance(inner, dict):
            return data
        if camel(outer) == "setup":
            self.model = str(inner.get("model") or "").rpartition("/")[2]
            tools = self._tools(inner.get("tools"))
            if tools is None:
                return data
            return encode({**document, outer: with_tools(inner, tools)})
        wrapped = inner.get("tools")
        if wrapped is None:
            return data
        if not isinstance(wrapped, dict):
            return data if (tools := self._tools(wrapped)) is None else encode({outer: {**inner, "tools": tools}})
        tools = self._tools(wrapped.get("tools"))
        return data if tools is None else encode({outer: {**inner, "tools": with_tools(wrapped, tools)}})

    def _tools(self, own: Any) -> list[Document] | None:
        """The tools to declare instead of the client's own; None if these stay unchanged."""
        own_tools = [] if self.strips else list(objects(own))
        # no model version: the limits of older models on other surfaces do not apply to Live
        plan = self.toolbox.keep(encode(own_tools), None, None)
        tools: list[Document] = decode(plan.tools) if plan.tools is not None else []
        self._free = {
            str(declaration.get("name"))
            for tool in own_tools
            for declaration in objects(get(tool, "functionDeclarations"))
            if not self._blocks(declaration.get("behavior"))
        }
        self._names, self._own = {used: name for name, used in plan.names.items()}, plan.own
        return None if tools == as_list(own) else tools

    def _client_results(self, data: bytes) -> tuple[bytes | None, tuple[tuple[str, Document], ...]]:
        """Record the client's results. Returns the frame without those for hidden calls, None if nothing is left, and
        the results of passed-through calls, by call id."""
        document = decode(data)
        key, inner = member_of(document, "toolResponse")
        own: dict[str, list[Any]] = {}
        is_changed = False
        for name, given in inner.items():
            if camel(name) == "functionResponses":
                own[name] = [one for one in as_list(given) if not self._is_for_hidden(one)]
                is_changed = is_changed or len(own[name]) != len(as_list(given))
        results: list[tuple[str, Document]] = []
        for one in objects([one for kept in own.values() for one in kept]):
            gemini_id = str(one.get("id"))
            self._client_calls.discard(gemini_id)
            if gemini_id in self._passed_through and not get(one, "willContinue"):
                response = one.get("response")
                results.append((self._passed_through.pop(gemini_id), response if isinstance(response, dict) else {}))
        if not is_changed:
            return data, tuple(results)
        for name, kept in own.items():
            inner = with_value(inner, name, kept)
        visible = with_value(document, key, inner)
        return encode(visible) if visible else None, tuple(results)

    def _is_for_hidden(self, result: Any) -> bool:
        """Whether a client's functionResponse is for a call that the client did not get. The service may go by the id
        or by the name."""
        if self.passthrough or not isinstance(result, dict):
            return False
        gemini_id, name = id_of(result), str(result.get("name"))
        return gemini_id in self._hidden or name in self._names or (not gemini_id and not self._is_own(name))

    # --- the service's frames ---------------------------------------------------------------------------------

    def from_server(self, frame: Frame) -> LiveActions:
        """Raises Malformed for a frame that may hold a call but cannot be decoded, or holds one where none belongs."""
        data = frame.data
        if not is_relevant(data):
            return LiveActions(data)
        document = decode(data)
        if not isinstance(document, dict):
            self._check(document)
            return LiveActions(data)
        if get(member_of(document, "serverContent")[1], "turnComplete"):
            self._before_turn = self._steps
            self._client_calls.clear()  # the model no longer waits for the client's results
        visible, step = self._split_calls(document)
        visible, cancelled = self._cancel(visible)
        self._check(visible)
        forward = data if visible is document else encode(visible) if visible else None
        return LiveActions(forward, self._take_ready() + self._release_held(), step, cancelled)

    def _check(self, visible: Any) -> None:
        """Raise Malformed if the client would see a grafted call at any place."""
        if not self.passthrough and any(self.strips or str(name) in self._names for name in called_names(visible)):
            raise Malformed("a call stands where no call belongs")

    def _split_calls(self, document: Document) -> tuple[Document, LiveStep | None]:
        key, inner = member_of(document, "toolCall")
        own: list[Document] = []
        parts: list[Document] = []
        slots: list[CallSlot] = []
        captured: list[CapturedCall] = []
        blocked: list[str] = []
        bounds = Bounds(self.limits)
        for place, call in enumerate(objects(get(inner, "functionCalls"))):
            used = str(call.get("name"))
            name = self._names.get(used)
            is_own = self._is_own(used) or (self.passthrough and bounds.are_full)
            if not is_own and bounds.are_exceeded:
                self._refuse(call, used, name, captured[-1])
                continue
            fault = bounds.fault(call.get("args"))
            kept_call = call if fault is None else {**call, "args": {}}
            if is_own:
                own.append(call)
                self._hidden.discard(str(call.get("id")))
                slots.append(CallSlot(used, None))
                if used not in self._free:
                    blocked.append(str(call.get("id")))
            else:
                overflow = bounds.take()
                unknown = f"unknown tool: {used}" if name is None else None
                captured.append(self._capture(kept_call, used, name, place, unknown or overflow or fault))
                slots.append(CallSlot(name or used, captured[-1].call_id))
            parts.append({"functionCall": {**kept_call, "name": name or used}})
        if not captured:
            return document, None
        step = LiveStep(tuple(parts), tuple(slots), tuple(captured), self._steps - self._before_turn)
        self._steps += 1
        if self.passthrough:
            return document, step
        if any(self._waiting[call.call_id].blocks for call in captured):
            self._client_calls.update(blocked)
        return with_value(document, key, with_value(inner, key_of(inner, "functionCalls"), own)), step

    def _is_own(self, used: str) -> bool:
        """Whether a called function is the client's. An undeclared one counts as an unknown tool."""
        return used not in self._names and (self._own is None or used in self._own)

    def _capture(self, call: Document, used: str, name: str | None, place: int, fault: str | None) -> CapturedCall:
        gemini_id, args = id_of(call), call.get("args")
        one = CapturedCall(
            call_id=self.new_call_id(),
            name=name or used,
            args=args if isinstance(args, dict) else {},
            gemini_id=gemini_id,
            place=place,
            fault=fault,
        )
        if self.passthrough:
            self._passed_through[str(gemini_id)] = one.call_id
        else:
            self._waiting[one.call_id] = self._awaited(gemini_id, used, name)
        return one

    def _awaited(self, gemini_id: str | None, used: str, name: str | None) -> _WaitingCall:
        tool = self.behaviors.get(name or "", ToolBehavior())
        if gemini_id is not None:
            self._hidden.add(gemini_id)
        return _WaitingCall(self._steps, gemini_id, used, self._blocks(tool.behavior), tool.scheduling)

    def _refuse(self, call: Document, used: str, name: str | None, last: CapturedCall) -> None:
        """Answer a call beyond the limit of a step with the error of the `last` allowed one. The call is not stored."""
        refused = self._awaited(id_of(call), used, name)
        refused.outcome, refused.is_stored = outcome_of(None, last.fault), False
        self._waiting[f"{last.call_id}+{len(self._waiting)}"] = refused

    def _cancel(self, document: Document) -> tuple[Document, tuple[str, ...]]:
        """Process a toolCallCancellation. Returns it without the ids of hidden calls, and the cancelled calls' ids."""
        key, inner = member_of(document, "toolCallCancellation")
        ids = [str(one) for one in as_list(get(inner, "ids"))]
        cancelled_ids = frozenset(ids)
        cancelled = [call_id for call_id, one in self._waiting.items() if one.gemini_id in cancelled_ids]
        removed = {call_id: self._waiting.pop(call_id) for call_id in cancelled}
        hidden = {one.gemini_id for one in removed.values()}
        cancelled = [call_id for call_id, one in removed.items() if one.is_stored]
        self._client_calls.difference_update(ids)
        cancelled += [self._passed_through.pop(one) for one in ids if one in self._passed_through]
        if not hidden:
            return document, tuple(cancelled)
        visible_ids = [one for one in ids if one not in hidden]
        return with_value(document, key, with_value(inner, key_of(inner, "ids"), visible_ids)), tuple(cancelled)

    # --- results ----------------------------------------------------------------------------------------------

    def waits_for(self, call_id: str) -> bool:
        """Whether the call still needs a result."""
        return call_id in self._waiting

    def respond(self, call_id: str, outcome: Document) -> LiveActions:
        """Give a call its outcome (`core.history.outcomes`). Ignored if the call was cancelled meanwhile."""
        if (one := self._waiting.get(call_id)) is None:
            return LiveActions()
        one.outcome = fitted(outcome, generation(self.model))
        return LiveActions(send=self._take_ready() + self._release_held())

    def close(self) -> LiveActions:
        """End the connection: cancel all open calls and drop the held frames."""
        open_calls = (
            *(call_id for call_id, one in self._waiting.items() if one.is_stored),
            *self._passed_through.values(),
        )
        self._waiting.clear()
        self._passed_through.clear()
        self._client_calls.clear()
        self._clear_held()
        return LiveActions(cancel=open_calls)

    def _take_ready(self) -> tuple[Frame, ...]:
        open_steps = {one.step for one in self._waiting.values() if one.blocks and one.outcome is None}
        ready: dict[object, list[str]] = {}
        for call_id, one in self._waiting.items():
            if one.outcome is not None and not (one.blocks and one.step in open_steps):
                ready.setdefault(call_id if not one.blocks and one.is_stored else one.step, []).append(call_id)
        frames = tuple(_tool_response([self._waiting.pop(call_id) for call_id in ids]) for ids in ready.values())
        self._unsent += len(frames)
        return frames

    def _release_held(self) -> tuple[Frame, ...]:
        """The held frames, unless the model still waits for a call."""
        if self.is_blocked:
            return ()
        frames = tuple(self._held_frames)
        self._clear_held()
        self._unsent += len(frames)
        return frames

    def _clear_held(self) -> None:
        self._held_frames.clear()
        self._held_bytes = 0


def _tool_response(calls: Sequence[_WaitingCall]) -> Frame:
    responses: list[Document] = []
    for one in calls:
        head = {} if one.gemini_id is None else {"id": one.gemini_id}
        tail = {"scheduling": one.scheduling} if one.scheduling is not None and not one.blocks else {}
        responses.append({**head, "name": one.used, **(one.outcome or {}), **tail})
    return Frame(encode({"toolResponse": {"functionResponses": responses}}))
