"""The rounds of one answer: applies the rules of the tool loop to the outcome of each round.

Without a loop there is one round, the client's own, and no call is run.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from addon.core.answers.answer import AnswerRewriter, Candidate, CapturedCall
from addon.core.framing.documents import Document, decode, get, index_of, objects
from addon.core.history.outcomes import fitted
from addon.core.history.request import Request
from addon.core.toolloop import WRONG_CALLS, End, Ended, Loop, Round, RunTools, Send, tool_loop
from addon.core.tools.tool_plan import generation
from addon.graft.exchange import Exchange, Paused
from addon.graft.owners import Owners
from addon.graft.resumption import Resumption
from store.models import Step

_MAX_PIECES = 64
"""How many further requests the rest of one answer may take: Gemini 4 gives a million tokens in 32 pieces."""
_OUTCOMES = {End.ANSWERED: "answered", End.DELIVERED: "delivered", End.FAILED: "failed"}


class Over(NamedTuple):
    """There is no further round. `outcome`: `answered`, `delivered` or `failed`, as `effects.End` has it."""

    outcome: str


class LoopRequest:
    """What a loop sends upstream first. Most answers end with the first round, so the body is read only when a further
    request is made of it; a wire of another language reads it at once, and remembers it."""

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
    """`body`: what a loop sends upstream; None: there is no loop. `number` counts the requests upstream. `runs_calls`:
    whether any call of this answer is run at all. With several candidates, each is a turn of its own and the client may
    continue any of them, so nobody runs their calls."""

    def __init__(self, exchange: Exchange, body: bytes | None, owners: Owners) -> None:
        self.number = 0
        self._exchange = exchange
        self._request = None if body is None else LoopRequest(exchange, body)
        self._loop = None if body is None else _tool_loop(exchange)
        self._owners = owners
        self._generation = generation(exchange.model)
        self.has_one_candidate = _candidate_count(exchange.request) == 1
        self.runs_calls = body is not None and self.has_one_candidate and _runs_calls(exchange)
        self._asked: Send | RunTools | None = None
        self._token = None if self._request is None else self._request.token  # of the first request alone
        self._pieces = 0
        self._had_wrong_calls = False

    @property
    def is_loop(self) -> bool:
        return self._loop is not None

    @property
    def is_last(self) -> bool:
        """Whether the present request is the last that the loop may send, after others."""
        return self._loop is not None and 1 < self.number == self._exchange.config.max_rounds

    # --- what is next -----------------------------------------------------------------------------------------

    def first(self) -> bytes:
        """The request of the first round."""
        assert self._loop is not None
        if (before := self._exchange.resumes) is not None and not self.number:
            self.number = before.rounds - 1
            self._loop = _tool_loop(self._exchange, before.added, self.number, before.mode)
        asked = next(self._loop)
        assert isinstance(asked, Send)
        return self._sent(asked)

    def resumed(self, resumption: Resumption, responses: Mapping[str, Document]) -> bytes:
        """The first request after the rounds of a broken-off answer. `responses` by call id."""
        before: list[Document] = []
        calls = {one.call.call_id: one.call for one in resumption.calls}
        for step in resumption.steps:
            own = [calls[str(slot.call_id)] for slot in step.slots]
            answered = {"role": "user", "parts": self._responses(own, responses)}
            before += [{**step.content, "parts": self._named(step.content.get("parts") or [])}, answered]
        earlier = self._exchange.resumes
        if len(resumption.steps) > (0 if earlier is None else len(earlier.steps)):
            self._token = None  # its rest is complete
        self.number = resumption.rounds
        self._loop = _tool_loop(self._exchange, before, resumption.rounds)
        return self.first()

    def after(self, candidates: Sequence[Candidate], token: str | None = None) -> RunTools | bytes | Over:
        """What follows a round with this outcome: calls to wait for, another request, or nothing. `token`: asks for the
        rest of the answer."""
        if self._loop is None:
            return Over(_OUTCOMES[End.ANSWERED])
        try:
            asked = self._loop.send(self._outcome(candidates, token))
        except StopIteration as stop:
            ended: Ended = stop.value
            return Over(_OUTCOMES[ended.end])
        if isinstance(asked, Send):
            return self._sent(asked)
        self._asked = asked
        return asked

    def after_tools(self, responses: Mapping[str, Document]) -> bytes:
        """The request that tells the model the responses of the calls, by call id."""
        assert self._loop is not None
        assert isinstance(self._asked, RunTools)
        asked = self._loop.send(self._responses(self._asked.calls, responses))
        assert isinstance(asked, Send)
        return self._sent(asked)

    def _responses(self, calls: Sequence[CapturedCall], responses: Mapping[str, Document]) -> list[Document]:
        names = self._exchange.plan.names
        parts: list[Document] = []
        for call in calls:
            head = {} if call.gemini_id is None else {"id": call.gemini_id}
            name = names.get(call.name, call.name)
            outcome = fitted(responses[call.call_id], self._generation)
            parts.append({"functionResponse": {**head, "name": name, **outcome}})
        return parts

    def _sent(self, asked: Send) -> bytes:
        assert self._request is not None
        self._asked = asked
        token, self._token = asked.token or self._token, None
        if asked.token is None:
            self.number += 1
        return self._request.changed(asked.added, asked.mode, token)

    # --- what a round comes to --------------------------------------------------------------------------------

    def note(self, response: Document) -> None:
        """Read a response before its calls are taken: several candidates may come although one was asked for."""
        candidates = list(objects(response.get("candidates")))
        if len(candidates) > 1 or any(map(index_of, candidates)):
            self.has_one_candidate = self.runs_calls = False

    def runs(self, call: CapturedCall) -> bool:
        """Whether the call is run here. A call that fails at once counts as run."""
        return self.runs_calls and (call.fault is not None or self._owners.can_run(self._exchange.config, call.name))

    def continues(self, token: str) -> bool:
        """Whether the proxy itself asks for the rest of an answer with this token."""
        asked = self._asked
        return (
            isinstance(asked, Send) and self.has_one_candidate and self._pieces < _MAX_PIECES and asked.token != token
        )

    def paused(self, answer: AnswerRewriter, steps: Sequence[Step], visible: Sequence[Document]) -> Paused:
        """An answer whose rest the client may ask for, once or several times."""
        asked, resumed = self._asked, answer.resumed()
        resumed.proxy_answers, resumed.proxy_resumes = _never, _never
        if not isinstance(asked, Send):
            return Paused(resumed)
        return Paused(resumed, asked.added, asked.mode, self.number, tuple(steps), tuple(visible))

    def is_answered_here(self, state: Candidate) -> bool:
        """Whether the proxy answers the step itself, and the client's turn goes on."""
        asked = self._asked
        if not self.runs_calls or not isinstance(asked, Send) or asked.mode == "NONE":
            return False
        if has_wrong_calls(state):
            return not self._had_wrong_calls
        return (
            bool(state.captured)
            and len(state.captured) == len(state.slots)
            and all(self.runs(call) for call in state.captured)
        )

    def _outcome(self, candidates: Sequence[Candidate], token: str | None) -> Round:
        state = next((one for one in candidates if one.index == 0), None)
        if state is None:
            return Round({}, (), runnable=False, finish=None)
        if state.resumed_by_proxy:
            self._pieces += 1
            return Round({}, (), runnable=False, finish=None, token=token)
        wrong = has_wrong_calls(state) and self.runs_calls
        self._had_wrong_calls = self._had_wrong_calls or wrong
        calls = tuple(call for one in candidates for call in one.captured)
        return Round(self._content(state), calls, state.answered_by_proxy, str(state.finish) if wrong else None)

    def _content(self, state: Candidate) -> Document:
        """The model's Content, under this request's names."""
        return {"role": "model", "parts": self._named(state.true_parts)}

    def _named(self, parts: Sequence[Document]) -> list[Document]:
        names = self._exchange.plan.names
        named: list[Document] = []
        for part in parts:
            call = part.get("functionCall")
            if isinstance(call, dict):
                used = str(call.get("name", ""))
                part = {**part, "functionCall": {**call, "name": names.get(used, used)}}
            named.append(part)
        return named


def _tool_loop(exchange: Exchange, before: Sequence[Document] = (), rounds: int = 0, mode: str | None = None) -> Loop:
    return tool_loop(exchange.config.max_rounds, before, rounds, mode, exchange.config.max_tool_calls)


def has_wrong_calls(state: Candidate) -> bool:
    return isinstance(state.finish, str) and state.finish in WRONG_CALLS and not state.slots


def _runs_calls(exchange: Exchange) -> bool:
    """Whether the loop runs calls. If the answer already has calls of others, it ends without a loop."""
    if exchange.resumes is not None and exchange.resumes.has_calls:
        return False
    return exchange.config.loops


def _token_in(request: Request) -> str | None:
    value = request.value("continuationToken")
    token = decode(value) if value is not None else None
    return token if isinstance(token, str) else None


def _never(of: object) -> bool:
    return False


def _candidate_count(request: Request) -> float:
    config = request.value("generationConfig")
    document = decode(config) if config is not None else {}
    count = get(document, "candidateCount") if isinstance(document, dict) else None
    try:
        return float(count) if isinstance(count, int | float | str) else 1  # proto JSON takes 2.0 and "2" as well
    except (ValueError, OverflowError):
        return 1
