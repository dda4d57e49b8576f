"""The rounds of one answer: what a retry takes over from a broken-off answer, the fields that all rounds share, and the
rules of the tool loop, which decide what follows each round.

Without a loop the client's own round is the only one, and no call runs.
"""

import copy
import sys
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from addon.core.answer import FILLER, AnswerRewriter, Candidate, CapturedCall
from addon.core.framing.documents import Document, as_list, content_of, decode, get, index_of, objects, parts_of
from addon.core.history.calls import args_key
from addon.core.history.outcomes import fitted
from addon.core.history.request import Request
from addon.core.model_names import generation
from addon.core.toolloop import WRONG_CALLS, Next, ToolLoop
from addon.core.usage import Usage
from addon.graft.exchange import Exchange, Paused, new_call_id
from addon.graft.owners import InitialState, Owners
from store.models import Call, Progress, Slot, Status, Step, Turn


class Resumed(NamedTuple):
    """A call of a complete step. `runs_twice`: it runs again, under this id."""

    call: CapturedCall
    runs_twice: bool


@dataclass(frozen=True, slots=True)
class Resumption:
    """`steps`: the complete steps, with their `calls`; calls that run again have new ids. `visible`: the parts of the
    `rounds` that the client received. `usage`: of each round. `left`: the calls of an incomplete round."""

    turn_id: str
    steps: tuple[Step, ...]
    visible: tuple[Document, ...]
    rounds: int
    usage: tuple[Document, ...]
    meta: Document
    calls: tuple[Resumed, ...]
    left: tuple[Call, ...]

    def identical(self, name: str, args: Document, taken: Collection[str]) -> Call | None:
        """The call of the incomplete round with this name and these arguments; None: the new call must run. `taken`:
        the ids of calls that already have a match."""
        wanted = args_key(args)
        for one in self.left:
            if one.call_id not in taken and one.name == name and args_key(one.model_args) == wanted:
                return one
        return None


def resumption(turn: Turn, calls: Sequence[Call], may_run_twice: Callable[[str], bool]) -> Resumption:
    """`may_run_twice`: whether calls of a tool of this name may run twice."""
    known = {call.call_id: call for call in calls}
    progress = _progress(turn, known)
    steps: list[Step] = []
    resumed: list[Resumed] = []
    complete: set[str] = set()
    for step in turn.steps[: progress.steps]:
        slots: list[Slot] = []
        for slot in step.slots:
            assert slot.call_id is not None
            call = known[slot.call_id]
            complete.add(call.call_id)
            runs_twice = _runs_twice(call, may_run_twice)
            captured = _captured(call, new_call_id() if runs_twice else call.call_id)
            resumed.append(Resumed(captured, runs_twice))
            slots.append(slot.model_copy(update={"call_id": captured.call_id}))
        steps.append(step.model_copy(update={"slots": slots}))
    usage = [*turn.usage[: progress.rounds]]
    return Resumption(
        turn.turn_id,
        tuple(steps),
        tuple(turn.visible[: progress.visible]),
        progress.rounds,
        (*usage, *({} for _ in range(progress.rounds - len(usage)))),
        progress.meta,
        tuple(resumed),
        tuple(call for call in calls if call.call_id not in complete and not _runs_twice(call, may_run_twice)),
    )


def _progress(turn: Turn, known: Container[str | None]) -> Progress:
    """The complete rounds. None of them counts if the store lacks one of their calls, as after the failover of a Redis
    server, because its response is unknown."""
    if turn.progress is not None:
        steps = turn.steps[: turn.progress.steps]
        if all(slot.call_id in known for step in steps for slot in step.slots):
            return turn.progress
    return Progress(steps=0, visible=0, rounds=0)


def has_begun(call: Call) -> bool:
    """Whether a proxy has started the call, or a worker has taken it."""
    return call.loop_id is not None or call.worker is not None


def _runs_twice(call: Call, may_run_twice: Callable[[str], bool]) -> bool:
    return call.status is Status.EXPIRED and (not has_begun(call) or may_run_twice(call.name))


def _captured(call: Call, call_id: str) -> CapturedCall:
    args = copy.deepcopy(call.args)  # the tool that runs the call may change them, and records never change
    return CapturedCall(call_id, call.name, args, call.gemini_id, call.index)


_EMPTY: tuple[Document, ...] = ({}, {"text": ""})  # values that `Parts` leaves out
_ORDINARY = (None, "STOP", 1, "MAX_TOKENS", 2)


class JoinedRounds:
    """Joins the documents of several rounds into one answer, with one responseId and the usage for the client."""

    def __init__(self) -> None:
        self.usage = Usage()
        self._response_id: str | None = None
        self._meta: Document = {}

    @property
    def rounds(self) -> int:
        return len(self.usage.rounds)

    @property
    def meta(self) -> Document:
        """The fields of the upstream's responses that all responses of the answer share."""
        return {**self._meta, **({} if self._response_id is None else {"responseId": self._response_id})}

    def resume(self, usage: Sequence[Document], meta: Document) -> None:
        for counts in usage:
            self.begin_round()
            self.usage.record(counts)
        self.note(meta)

    def begin_round(self) -> None:
        self.usage.begin_round()

    def note(self, response: Document) -> None:
        """Record the metadata of a response, visible or not."""
        if isinstance(usage := response.get("usageMetadata"), dict):
            self.usage.record(usage)
        if "modelVersion" in response:
            self._meta["modelVersion"] = response["modelVersion"]
        if "responseId" in response:
            self._meta["responseId"] = response["responseId"]
            if self._response_id is None and isinstance(response["responseId"], str):
                self._response_id = response["responseId"]

    def part_of_answer(self, response: Document) -> Document:
        """Adapts a later round's response document to the answer."""
        if self.rounds == 1:
            return response
        joined = dict(response)
        if self._response_id is not None:
            joined["responseId"] = self._response_id
        ends = any(one.get("finishReason") is not None for one in objects(joined.get("candidates")))
        if ("usageMetadata" in joined or ends) and (usage := self.usage.visible()):
            joined["usageMetadata"] = usage
        return joined

    def filled(self, response: Document) -> Document:
        """The response with a part in each candidate, because a chat forgets a turn if one of its events has no part. A
        candidate that the model or the service broke off stays unchanged, so that the client sees the break."""
        candidates = as_list(response.get("candidates"))
        if len(candidates) == 1 and isinstance(candidates[0], dict) and not is_empty(candidates[0]):
            return response  # the usual case
        if not candidates and "promptFeedback" not in response:
            return {**response, "candidates": [{"content": {"parts": [FILLER], "role": "model"}, "index": 0}]}
        filled = [
            {**one, "content": {"role": "model", **content_of(one), "parts": [FILLER]}}
            if isinstance(one, dict) and is_empty(one) and one.get("finishReason") in _ORDINARY
            else one
            for one in candidates
        ]
        return {**response, "candidates": filled} if filled != candidates else response

    def merged(self, last: Document | None, before: Sequence[Document], parts: Sequence[Document] | None) -> Document:
        """One response for all rounds of an answer that is not a stream. `last`: the last round's response, None if all
        of it is hidden; the parts of earlier rounds come before its own. `parts`: the last round's parts, if it came in
        pieces."""
        response = self.made([], "STOP") if last is None else last
        if self.rounds == 1:
            return response
        response = self.filled(self.part_of_answer(response))
        candidates = [dict(one) for one in objects(response.get("candidates"))]
        if candidates and (before or parts is not None):
            content = content_of(candidates[0]) or {"role": "model"}
            own = [part for part in (parts_of(content) if parts is None else parts) if part not in _EMPTY]
            candidates[0]["content"] = {**content, "parts": [*before, *own] or [FILLER]}
        return {**response, "candidates": candidates}

    def made(self, parts: Sequence[Document], finish: str | None = None) -> Document:
        candidate: Document = {"content": {"parts": list(parts) or [FILLER], "role": "model"}, "index": 0}
        if finish is not None:
            candidate["finishReason"] = finish
        return self.part_of_answer({"candidates": [candidate], **self._meta})


def is_empty(candidate: Document) -> bool:
    """Whether no part of a candidate has content."""
    return not any(parts_of(content_of(candidate)))


_MAX_PIECES = 64
"""The most further requests for the rest of one answer: Gemini 4 gives a million tokens in 32 pieces."""


class LoopRequest:
    """The loop's first upstream request. Most answers end with the first round, so the body is parsed only if a further
    request is made of it. A wire of another format parses it immediately, and keeps the result."""

    def __init__(self, exchange: Exchange, body: bytes) -> None:
        self.body = body
        self.token = _token_in(exchange.request)
        self._wire = exchange.wire
        self._read = exchange.request if exchange.request.body is body else None
        if self._read is None and not self._wire.native:
            self._read = self._wire.read(body)

    def changed(self, added: Sequence[Document], mode: str | None, token: str | None) -> bytes:
        """The request with `added` after its own Contents. Arguments as in `Wire.next_request`."""
        if self._read is None:
            if not added and mode is None and token == self.token:
                return self.body
            self._read = self._wire.read(self.body)
        return self._wire.next_request(self._read, added, mode, token)


class Rounds:
    """`body`: the Runner's first upstream request; None: mitmproxy sends the only one. `loop_id`: the loop that begins
    the calls, if any. `runs_calls`: whether any call of this answer is run. Several candidates are separate turns and
    the client may continue any of them, so their calls do not run. `resumption`: the broken-off answer that this one
    continues."""

    def __init__(self, exchange: Exchange, body: bytes | None, owners: Owners, loop_id: str | None) -> None:
        self.joined = JoinedRounds()
        self.resumption: Resumption | None = None
        self._exchange = exchange
        self._owners = owners
        self._loop_id = loop_id
        self._generation = generation(exchange.model)
        self.has_one_candidate = _candidate_count(exchange.request) == 1
        config = exchange.config
        # Gemini's own clients get what a whole answer would hold: without a tool to run, no loop. Front doors and other
        # formats tell the model of a wrong call in any case.
        at_door = exchange.incoming is not None and exchange.incoming.at_door
        has_tool = any(owners.can_run(config, name) for name in exchange.plan.names)
        may_run = config.loops and exchange.plan.grafts and (has_tool or at_door or not exchange.wire.native)
        self.runs_calls = body is not None and self.has_one_candidate and may_run
        if exchange.resumes is not None and exchange.resumes.has_calls:  # of others, so the answer ends without a loop
            self.runs_calls = False
        self._request = None if body is None else LoopRequest(exchange, body)
        self._loop = None if body is None else self._begun_loop()
        self._token = None if self._request is None else self._request.token  # of the first request alone
        self._piece: str | None = None  # the token of a request for the rest of an answer
        self._pieces = 0
        self._step: tuple[Document, Sequence[CapturedCall]] = ({}, ())  # the step whose calls are waited for
        self._begun_calls = 0  # of the current step
        self._repeated: set[str] = set()  # ids of calls of the broken-off answer

    def _begun_loop(self, added: Sequence[Document] = (), rounds: int = 0, mode: str | None = None) -> ToolLoop:
        if not self.runs_calls:  # its only further requests are for the rest of an answer
            return ToolLoop(sys.maxsize, None, added, rounds, mode)
        config = self._exchange.config
        return ToolLoop(config.max_rounds, config.max_tool_calls, added, rounds, mode)

    @property
    def has_runner(self) -> bool:
        """Whether a Runner sends this answer's requests: a single one, or those of a loop."""
        return self._loop is not None

    @property
    def number(self) -> int:
        """The number of requests that a loop has sent upstream."""
        return 0 if self._loop is None else self._loop.number

    @property
    def is_last_round(self) -> bool:
        """Whether the current request is the last that the loop may send, after others."""
        return self.runs_calls and 1 < self.number == self._exchange.config.max_rounds

    # --- the next request -------------------------------------------------------------------------------------

    def first(self) -> bytes:
        if (before := self._exchange.resumes) is not None:
            self._loop = self._begun_loop(before.added, before.rounds - 1, before.mode)
        return self._next_round()

    def after(self, candidates: Sequence[Candidate], token: str | None) -> tuple[CapturedCall, ...] | bytes | str:
        """The next action after a round: calls to wait for, another request, or the outcome of the answer for
        `End`. `token`: asks for the rest of the answer."""
        loop, state = self._loop, next((one for one in candidates if one.index == 0), None)
        if loop is None or state is None:
            return Next.ANSWERED.value
        if state.resumed_by_proxy:
            self._pieces += 1
            return Next.ANSWERED.value if token is None else self._request_with(token)
        # a further candidate that comes behind a step that the proxy answers is the client's
        answered = (state,) if state.answered_by_proxy else candidates
        calls = tuple(call for one in answered for call in one.captured)
        wrong = _has_wrong_calls(state) and self.runs_calls
        match loop.after(len(calls), runnable=state.answered_by_proxy, wrong=wrong):
            case Next.SEND:
                return self._next_round()
            case Next.RUN:
                self._step = {"role": "model", "parts": self._named(state.true_parts)}, calls
                return calls
            case outcome:
                return outcome.value

    def after_tools(self, responses: Mapping[str, Document]) -> bytes:
        """The request with the responses of the calls, by call id."""
        assert self._loop is not None
        self._begun_calls = 0
        if self.resumption is not None and not self.number:
            self._loop = self._resumed_loop(self.resumption, responses)
        else:
            content, calls = self._step
            self._loop.add_step(content, self._responses(calls, responses))
        return self._next_round()

    def _resumed_loop(self, resumption: Resumption, responses: Mapping[str, Document]) -> ToolLoop:
        """The loop after the rounds of a broken-off answer."""
        before: list[Document] = []
        calls = {one.call.call_id: one.call for one in resumption.calls}
        for step in resumption.steps:
            own = [calls[str(slot.call_id)] for slot in step.slots]
            answered = {"role": "user", "parts": self._responses(own, responses)}
            before += [{**step.content, "parts": self._named(step.content.get("parts") or [])}, answered]
        earlier = self._exchange.resumes
        if len(resumption.steps) > (0 if earlier is None else len(earlier.steps)):
            self._token = None  # its rest is complete
        return self._begun_loop(before, resumption.rounds)

    def _next_round(self) -> bytes:
        assert self._loop is not None
        self._loop.begin_round()
        return self._request_with(None)

    def _request_with(self, piece: str | None) -> bytes:
        """The current request. `piece`: the token that asks for the rest of its answer."""
        assert self._request is not None
        assert self._loop is not None
        self._piece = piece
        token, self._token = piece or self._token, None
        return self._request.changed(self._loop.added, self._loop.mode, token)

    def _responses(self, calls: Sequence[CapturedCall], responses: Mapping[str, Document]) -> list[Document]:
        names = self._exchange.plan.names
        parts: list[Document] = []
        for call in calls:
            head = {} if call.gemini_id is None else {"id": call.gemini_id}
            name = names.get(call.name, call.name)
            outcome = fitted(responses[call.call_id], self._generation)
            parts.append({"functionResponse": {**head, "name": name, **outcome}})
        return parts

    def _named(self, parts: Sequence[Document]) -> list[Document]:
        """The model's parts, under this request's names."""
        names = self._exchange.plan.names
        named: list[Document] = []
        for part in parts:
            call = part.get("functionCall")
            if isinstance(call, dict):
                used = str(call.get("name", ""))
                part = {**part, "functionCall": {**call, "name": names.get(used, used)}}
            named.append(part)
        return named

    # --- reading an answer ------------------------------------------------------------------------------------

    def note(self, response: Document) -> None:
        """Record a response before its calls are taken: several candidates may come although one was requested."""
        self.joined.note(response)
        candidates = list(objects(response.get("candidates")))
        if len(candidates) > 1 or any(map(index_of, candidates)):
            self.has_one_candidate = self.runs_calls = False

    def continues(self, token: str) -> bool:
        """Whether the proxy itself asks for the rest of an answer with this token."""
        if not self.has_runner or not self._exchange.plan.grafts:
            return False
        return self.has_one_candidate and self._pieces < _MAX_PIECES and self._piece != token

    def paused(self, answer: AnswerRewriter, steps: Sequence[Step], visible: Sequence[Document]) -> Paused:
        """An answer whose rest the client may request, once or several times."""
        resumed = answer.resumed()
        resumed.proxy_answers, resumed.proxy_resumes = _never, _never
        resumed.new_turn_id = resumed.call_id = _unset  # they refer to the whole exchange
        if self._loop is None:
            return Paused(resumed)
        return Paused(resumed, self._loop.added, self._loop.mode, self.number, tuple(steps), tuple(visible))

    def is_answered_here(self, state: Candidate) -> bool:
        """Whether the proxy answers the step itself, and the client's turn continues."""
        if not self.runs_calls or self._loop is None or self._loop.mode == "NONE":
            return False
        if _has_wrong_calls(state):
            return not self._loop.had_wrong_calls
        return (
            bool(state.captured)
            and len(state.captured) == len(state.slots)
            and all(self._runs(call) for call in state.captured)
        )

    def _runs(self, call: CapturedCall) -> bool:
        """Whether the call is run. A call that fails immediately counts as run."""
        return self.runs_calls and (call.fault is not None or self._owners.can_run(self._exchange.config, call.name))

    # --- storing calls ----------------------------------------------------------------------------------------

    def initial_state(self, call: CapturedCall) -> InitialState:
        """The state of a call when it is stored. A call identical to one of a broken-off answer does not run: it shares
        that call's answer."""
        initial_state = self._initial_state(call)
        self._begun_calls += 1
        if not initial_state.at_once or initial_state.repeats or self._begun_calls > self._exchange.config.parallel:
            return initial_state
        return initial_state._replace(loop_id=self._loop_id)

    def _initial_state(self, call: CapturedCall) -> InitialState:
        if not self.has_one_candidate:
            return InitialState(error=call.fault)
        initial_state = self._owners.initial_state(self._exchange.config, call, runs=self._runs(call))
        if self.resumption is None or not initial_state.begins or initial_state.error is not None:
            return initial_state
        repeats: str | None = call.call_id  # the call itself, if it was answered by hand and now has an executor
        if call.call_id not in self._repeated:
            earlier = self.resumption.identical(call.name, call.args, self._repeated)
            if earlier is None:
                return initial_state
            repeats = earlier.call_id
            self._repeated.add(repeats)
        return initial_state._replace(repeats=repeats, approval=False)

    def call_id(self, name: str, args: Document) -> str:
        """The id for a new call: that of the identical call that is answered by hand, if any, so that no second record
        of it is stored."""
        if self.resumption is not None and self.has_one_candidate:
            earlier = self.resumption.identical(name, args, self._repeated)
            if earlier is not None and earlier.owner == "hand":
                self._repeated.add(earlier.call_id)
                return earlier.call_id
        return new_call_id()


def _has_wrong_calls(state: Candidate) -> bool:
    return isinstance(state.finish, str) and state.finish in WRONG_CALLS and not state.slots


def _token_in(request: Request) -> str | None:
    value = request.value("continuationToken")
    token = decode(value) if value is not None else None
    return token if isinstance(token, str) else None


def _never(of: object) -> bool:
    return False


def _unset(*_: object) -> str:
    raise AssertionError("the answer that continues a paused one makes its own ids")


def _candidate_count(request: Request) -> float:
    config = request.value("generationConfig")
    document = decode(config) if config is not None else {}
    count = get(document, "candidateCount") if isinstance(document, dict) else None
    try:
        return float(count) if isinstance(count, int | float | str) else 1  # proto JSON accepts 2.0 and "2" too
    except (ValueError, OverflowError):
        return 1
