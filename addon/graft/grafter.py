"""The way of a request: read, tools exchanged, history rewritten, missing results waited for.

One `Grafter` serves the whole proxy. It suspends only in the store and while it waits for results.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from addon.core import replies
from addon.core.answer import Answer
from addon.core.documents import Document, Malformed, decode, members
from addon.core.history import rewrite
from addon.core.request import Request
from addon.core.steps import last_step
from addon.core.tools import Plan, Toolbox, cannot_use_functions, generation
from addon.graft.exchange import Abandoned, Exchange, Forward, Outcome, Reply
from addon.graft.ledger import Hits, hits_of, is_leased, take_answers
from addon.graft.prefixes import Prefixes
from addon.graft.scope import Scope, Scopes
from addon.metrics import Metrics
from addon.settings import Settings
from addon.surfaces import Operation, Target, wire_of
from addon.surfaces.wire import Wire
from store.base import Store, StoreUnavailable, UnknownCall

logger = logging.getLogger("toolgraft")

_CONTINUATIONS = 128
OnPending = Literal["pass", "wait", "block"]
Hangup = Callable[[], Awaitable[object]]
"""Returns when the client has hung up."""


async def _never() -> None:
    await asyncio.Event().wait()


class GraftFailed(StoreUnavailable):
    """The graft itself has failed. To the client it is what a store that fails is: settings say what happens."""


class Grafter:
    """`running`: how many seconds a call that this process runs may still take; None for one that it does not."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        shared: Sequence[Document] = (),
        running: Callable[[str], float | None] = lambda call_id: None,
    ) -> None:
        self.store = store
        self.running = running
        self.settings = settings
        self.metrics = metrics
        self.scopes = Scopes(store, settings, shared)
        self.prefixes = Prefixes()
        self.continuations: OrderedDict[tuple[str, str], Answer] = OrderedDict()
        self._warned: set[str] = set()

    async def scope(self, session: str) -> Scope | None:
        """What holds for the session; None where its traffic is not to be touched. Raises StoreUnavailable."""
        return await self.scopes.of(session)

    async def request(
        self, target: Target, scope: Scope, body: bytes, *, takes_ids: bool = True, hangup: Hangup = _never
    ) -> Outcome:
        """What becomes of a request. Never raises: what is not understood goes on untouched, and where the store
        fails the settings say what happens. `takes_ids`: whether this version of the API knows ids of calls."""
        self.metrics.request(target.surface, target.operation)
        try:
            return await self._request(target, scope, body, takes_ids, hangup)
        except Malformed as error:
            self.warn(f"a {target.surface} {target.operation} request was passed on as it came: {error}")
            return Forward(body)
        except StoreUnavailable as error:
            return self.store_failed(target, body, error)

    def store_failed(self, target: Target, body: bytes, error: StoreUnavailable) -> Outcome:
        """What a client gets when the store does not answer, or the graft itself has failed."""
        broken = isinstance(error, GraftFailed)
        if not broken:
            self.metrics.error("store")
        if self.settings.on_store_error == "pass":
            self.warn(f"{'the graft' if broken else 'the store'} failed, what came was passed on: {error}")
            return Forward(body)
        if not broken:
            logger.warning("the store failed: %s", error)
        return Reply(500 if broken else 503, "application/json; charset=UTF-8", store_error(wire_of(target), error))

    def failed(self, error: Exception) -> "GraftFailed":
        """What an error that nothing foresaw is turned into, once it is logged."""
        self.metrics.error("graft")
        logger.exception("an answer could not be captured", exc_info=error)
        return GraftFailed(f"{type(error).__name__} while the answer was captured")

    def warn(self, text: str) -> None:
        """Say it once; the same thing again only in the debug log."""
        if text in self._warned or len(self._warned) > 1000:
            logger.debug(text)
            return
        self._warned.add(text)
        logger.warning(text)

    def keep_continuation(self, session: str, answer: Answer) -> None:
        """Remember an answer that paused until the client asks for the rest of it."""
        assert answer.continuation is not None
        self.continuations[session, answer.continuation] = answer
        if len(self.continuations) > _CONTINUATIONS:
            self.continuations.popitem(last=False)

    # --- the way ----------------------------------------------------------------------------------------------

    async def _request(self, target: Target, scope: Scope, body: bytes, takes_ids: bool, hangup: Hangup) -> Outcome:
        wire = wire_of(target)
        path = wire.path(body)
        request = wire.read(body, self.prefixes.find(scope.session, path, body) if wire.native else None)
        target = wire.target
        model = target.model or _model_in(request)
        cached = _text_in(request, "cachedContent")
        plan = await self._cached_plan(scope, cached) if cached else _plan(target, scope, request, path, model)
        if plan is None and wire.keeps_history:
            plan = Plan(None, None, False, {}, frozenset(), grafts=False)
        if plan is None:
            return Forward(body)
        if plan.dropped:
            self.warn(f"session {scope.session}, model {model}: left out {plan.dropped}")
        token = _text_in(request, "continuationToken")
        outcome: Hits | Reply | Abandoned = {}
        if (plan.rewrites or wire.keeps_history) and self.store.revision(scope.session) != 0:
            waits = target.operation in (Operation.GENERATE, Operation.STREAM) and not token
            on_pending = scope.on_pending if plan.rewrites or scope.on_pending != "block" else "pass"
            outcome = await self._hits(wire, scope, request, model, on_pending if waits else None, hangup)
        if wire.native:
            self.prefixes.keep(scope.session, path, request)  # with what was found for it
        if isinstance(outcome, (Reply, Abandoned)):
            return outcome
        rules = scope.rules(plan, generation(model), keep_unanswered=True, ids=takes_ids, kept=wire.keeps_history)
        pieces = rewrite(request.body, request.history, outcome, rules)
        replaced: dict[str, bytes | None] = {}
        if plan.changes:
            replaced = {"tools": plan.tools, "toolConfig": plan.tool_config}
        rewritten = wire.write(request, replaced, pieces)
        if wire.dropped:
            self.warn(f"session {scope.session}, surface {target.surface}: left out {wire.dropped}")
        if target.operation is Operation.COUNT or not plan.grafts:
            return Forward(rewritten)
        exchange = Exchange(wire, scope, plan, model, request)
        if token:
            exchange.resumes = self.continuations.get((scope.session, token))
        return Forward(rewritten, exchange)

    async def _cached_plan(self, scope: Scope, cached: str) -> Plan | None:
        """What a request declares that names a cachedContent; None where it is not known here."""
        tools = await self.store.cached_tools(scope.session, cached)
        if tools is None:
            return None
        names = tools.names
        return Plan(None, None, False, names, frozenset(names.values()), server_tools=True)

    # --- history ----------------------------------------------------------------------------------------------

    async def _hits(
        self, wire: Wire, scope: Scope, request: Request, model: str, on_pending: OnPending | None, hangup: Hangup
    ) -> Hits | Reply | Abandoned:
        """What the history's turns are. `on_pending`: what happens where the last has calls without results; None:
        they are not even waited for where they are being run."""
        hits = await self._look_up(scope, request)
        kept = wire.keeps_history
        if hits and await take_answers(self.store, scope.session, request.body, request.history, hits, kept=kept):
            hits = await self._look_up(scope, request)
        if not hits:
            return hits
        self.metrics.ledger_hits(len(hits))
        if on_pending is None or not _is_pending(scope, request, hits):
            return hits
        waited = await self._wait_for_running(scope, request, hits, hangup)
        if isinstance(waited, Abandoned) or on_pending == "pass" or not _is_pending(scope, request, waited):
            return waited
        if on_pending == "block":
            return self._blocked(wire, scope, request, waited, model)
        return await self._wait(scope, request, waited, hangup, scope.pending_timeout)

    async def _look_up(self, scope: Scope, request: Request) -> Hits:
        return await hits_of(self.store, scope.session, request.body, request.history, scope.placeholder)

    async def _wait_for_running(self, scope: Scope, request: Request, hits: Hits, hangup: Hangup) -> Hits | Abandoned:
        """Calls of the last step that are being run are waited for, whatever the settings say of pending ones."""
        if (left := await self._running(scope, request, hits)) is None:
            return hits
        return await self._wait(scope, request, hits, hangup, left, only_running=True)

    async def _running(self, scope: Scope, request: Request, hits: Hits) -> float | None:
        """How long what is being run of the last step may still take, at most; None where nothing is."""
        last = last_step(request.history, hits, scope.placeholder)
        left: list[float] = []
        for call_id in last.pending if last is not None else ():
            if (seconds := self.running(call_id)) is not None:
                left.append(seconds)
            elif last is not None and call_id in last.leased and await self._is_leased(call_id):
                left.append(scope.tool_timeout)
        return max(left, default=None)

    async def _is_leased(self, call_id: str) -> bool:
        """Whether a worker has the call now: leases are renewed, and run out, without the ledger's changing."""
        try:
            call = await self.store.call(call_id)
        except UnknownCall:
            return False
        return is_leased(call) and (call.lease_until or 0) > self.store.clock()

    async def _wait(
        self,
        scope: Scope,
        request: Request,
        hits: Hits,
        hangup: Hangup,
        timeout: float,
        *,
        only_running: bool = False,
    ) -> Hits | Abandoned:
        """Wait until the last step has all its answers, or those of the calls that are being run."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        gone = asyncio.ensure_future(hangup())
        woken: asyncio.Future[bool] | None = None
        try:
            while (left := deadline - clock()) > 0:
                seen = await self.store.last_event_id()
                hits = await self._look_up(scope, request)
                if not _is_pending(scope, request, hits):
                    break
                if only_running and await self._running(scope, request, hits) is None:
                    break
                woken = asyncio.ensure_future(self.store.wait(after=seen, timeout=left, session=scope.session))
                await asyncio.wait({gone, woken}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return Abandoned()
                if not woken.done() or not woken.result():
                    break
        finally:
            for task in (gone, woken):
                if task is not None:
                    task.cancel()
        return await self._look_up(scope, request)

    def _blocked(self, wire: Wire, scope: Scope, request: Request, hits: Hits, model: str) -> Hits | Reply:
        true = last_step(request.history, hits, scope.placeholder)
        if true is None or true.shares:
            return hits
        names = [slot.name for slot in true.steps[-1].slots]
        text = scope.placeholder.text(names, true.turn_id)
        answer = replies.text_answer(text, model, true.turn_id)
        return Reply(200, *wire.reply(answer))


def _plan(target: Target, scope: Scope, request: Request, path: Sequence[str], model: str) -> Plan | None:
    """What the request declares; None where it is to be left alone."""
    toolbox = scope.toolbox
    if cannot_use_functions(request.value("generationConfig"), model):
        if scope.strips:
            return Plan(None, None, True, {}, frozenset(), grafts=False)
        own = Toolbox().keep(request.value("tools"), None, generation(model))
        return own._replace(changes=False, grafts=False) if scope.flattens else None
    if scope.strips:
        plan = toolbox.strip(generation(model))
    else:
        plan = toolbox.keep(request.value("tools"), request.value("toolConfig"), generation(model))
    if target.operation is Operation.COUNT and not _counts_tools(target, request, path):
        return plan._replace(changes=False)
    return plan


def _is_pending(scope: Scope, request: Request, hits: Hits) -> bool:
    """Whether the last model turn is a step that has a call without an answer."""
    last = last_step(request.history, hits, scope.placeholder)
    return last is not None and bool(last.pending)


def store_error(wire: Wire, error: StoreUnavailable) -> bytes:
    if isinstance(error, GraftFailed):
        return wire.error(replies.error(500, "INTERNAL", f"toolgraft: {error}"))
    return wire.error(replies.error(503, "UNAVAILABLE", f"toolgraft: the store does not answer: {error}"))


def _counts_tools(target: Target, request: Request, path: Sequence[str]) -> bool:
    """Whether a countTokens request of this form has a place for tools."""
    if target.surface == "developer":
        return bool(path)
    return target.surface != "codeassist" or request.value("tools") is not None


def _text_in(request: Request, name: str) -> str:
    """A member that is a string; "" for none."""
    value = request.value(name)
    text = decode(value) if value is not None else ""
    return text if isinstance(text, str) else ""


def _model_in(request: Request) -> str:
    """The model that a body names (Code Assist beside `request`, cachedContents and others inside), bare."""
    value = request.value("model")
    if value is None and request.start:
        outer = next((m for m in members(request.body) if m.name == "model"), None)
        value = request.body[outer.start : outer.end] if outer else None
    named = decode(value) if value is not None else ""
    return str(named).rpartition("/")[2]
