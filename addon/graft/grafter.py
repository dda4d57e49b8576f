"""Rewrites a request: reads it, replaces its tools, rewrites its history, and waits for missing results.

One `Grafter` serves the whole proxy. It suspends only in the store and while it waits for results.
"""

import asyncio
import dataclasses
import functools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal

import xxhash

from addon.core.framing import replies
from addon.core.framing.documents import Document, Malformed, NotGrafted, decode, members, replace_invalid_text
from addon.core.history.keys import Keys, asker_digest
from addon.core.history.own_signatures import without_own_signatures
from addon.core.history.request import Request
from addon.core.history.rewriting import rewrite
from addon.core.history.steps import last_step
from addon.core.history.turns import History
from addon.core.history.visible import visible_digest
from addon.core.model_names import generation
from addon.core.summaries import Summary, problem
from addon.core.tools.tool_plan import Toolbox, ToolCounter, ToolPlan, cannot_use_functions
from addon.graft.exchange import STORE_FAILED, Abandoned, Continuations, Exchange, Forward, Outcome, Reply
from addon.graft.late_writes import PlainNotes
from addon.graft.ledger import MissedTurns, Prefixes, hits_of, store_client_results
from addon.graft.ledger_search import Hits, TrueTurns
from addon.graft.owners import ByHand, Hangup, Owners, PendingStep
from addon.graft.session_config import SessionConfig, SessionConfigs
from addon.graft.turn_records import note_of
from addon.monitoring.metrics import Metrics
from addon.settings import Settings
from addon.surfaces.incoming import Incoming, Operation, Target
from addon.surfaces.registry import wire_of
from addon.surfaces.surface import Wire
from store.base import Store, StoreUnavailable
from store.budget import Budget

logger = logging.getLogger("toolgraft")

_ANSWERED = (Operation.GENERATE, Operation.STREAM)
_ASKERS = 256
"""The most pairs of asker and system instruction with cached keys."""

WARNING_WINDOW = 3600.0
"""Seconds after which a warning may be repeated."""

MOST_WARNINGS = 500
"""The most warnings in a window."""

MOST_WARNINGS_OF_A_KIND = 20
"""The most warnings that differ only after their first colon: one client must not suppress warnings about others."""

_LONGEST_WARNING = 2000
_MENTIONED_SESSIONS = 4096
"""The most sessions for which the notice about stripping is remembered."""

OnPending = Literal["pass", "wait", "block"]


async def never() -> None:
    await asyncio.Event().wait()


class GraftFailed(Exception):
    """An unexpected error in the graft. The log holds the cause."""


type ExchangeFailed = GraftFailed | StoreUnavailable
"""Why an exchange could not be handled. `graft_on_store_error` decides what follows."""

EXCHANGE_FAILED = (GraftFailed, StoreUnavailable)
"""The same types, for an `except`."""


class Warner:
    """Limits warnings whose words clients and models partly choose: logs each once, and not too many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends = 0.0
        self._logged: set[str] = set()
        self._kinds: Counter[str] = Counter()
        self._omitted = 0
        self._mention_stripping = functools.lru_cache(_MENTIONED_SESSIONS)(_mention_stripping)

    def mention_stripping(self, session: str) -> None:
        """Log, once for each session, that its clients' tools are left out."""
        self._mention_stripping(session)

    def warn(self, text: str) -> None:
        """Log a warning. Repetitions go to the debug log only."""
        text = text[:_LONGEST_WARNING]
        if (now := self._clock()) >= self._ends:
            self._begin(now)
        kind = text.partition(":")[0]
        if text in self._logged:
            logger.debug(text)
        elif len(self._logged) >= MOST_WARNINGS or self._kinds[kind] >= MOST_WARNINGS_OF_A_KIND:
            logger.debug(text)
            if not self._omitted:
                logger.warning("there are more warnings than can be said: others are left out for up to an hour")
            self._omitted += 1
        else:
            self._logged.add(text)
            self._kinds[kind] += 1
            logger.warning(text)

    def _begin(self, now: float) -> None:
        if self._omitted:
            logger.warning("%d warnings were left out", self._omitted)
        self._ends, self._omitted = now + WARNING_WINDOW, 0
        self._logged.clear()
        self._kinds.clear()


class ReplayWarner(Warner):
    """For replayed requests, whose warnings concern no client."""

    def mention_stripping(self, session: str) -> None:
        pass


def _mention_stripping(session: str) -> None:
    logger.info(
        "session %s: the tools of its clients are left out: graft_client_tools=keep keeps them",
        session,
        extra=problem("client_tools_removed", session=session),
    )


class Grafter:
    """`owners`: runs the calls; None: all calls are answered by hand. `budget`: for the caches; None: a separate
    budget. `warner`: knows the warnings already given; None: none were."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        metrics: Metrics,
        shared: Sequence[Document] = (),
        owners: Owners | None = None,
        budget: Budget | None = None,
        warner: Warner | None = None,
    ) -> None:
        self.store = store
        self.budget = budget or Budget()
        self.owners = owners or ByHand(store)
        self.settings = settings
        self.metrics = metrics
        self.session_configs = SessionConfigs(store, settings, self.budget, shared)
        self.prefixes = Prefixes(self.budget)
        self.true_turns = TrueTurns(store, self.budget)
        self.continuations = Continuations(self.budget)
        self._unnamed = functools.lru_cache(_ASKERS)(Keys)
        self.warner = warner or Warner()
        self.plain_notes = PlainNotes(store, metrics, self.warn, self.failed)
        self._missed_turns = MissedTurns(metrics, self.budget)
        self._tool_counter = ToolCounter()

    def _forget(self) -> None:
        """Clear the caches of histories."""
        self.prefixes.clear()
        self.true_turns.clear()

    async def session_config(self, session: str) -> SessionConfig | None:
        """The session's configuration; None: do not touch its traffic. Raises EXCHANGE_FAILED."""
        return await self._config(self.session_configs.of(session))

    async def door_config(self, session: str) -> SessionConfig:
        """The configuration for requests at a front door. Raises EXCHANGE_FAILED."""
        return await self._config(self.session_configs.at_door(session))

    async def _config[T](self, reading: Awaitable[T]) -> T:
        try:
            return await reading
        except StoreUnavailable:
            raise
        except Exception as error:
            raise self.failed(error, "the session's tools could not be read") from error

    async def request(
        self,
        incoming: Incoming,
        config: SessionConfig,
        *,
        hangup: Hangup = never,
        is_expected: bool = False,
    ) -> Outcome:
        """Decide the outcome of a request. Never raises: the settings decide what follows if the request cannot be
        read, or if the store or the graft fails. `is_expected`: `config` is the session's last known configuration, and
        is read again."""
        target, body = incoming.target, incoming.body
        self.metrics.count_request(target.surface, target.operation)
        try:
            try:
                outcome = await self._request(incoming, body, config, hangup, is_expected)
            except Malformed:
                if (good := replace_invalid_text(body)) == body:
                    raise
                outcome = await self._request(incoming, good, config, hangup, is_expected)
            if isinstance(outcome, Forward) and outcome.exchange is not None and target.operation in _ANSWERED:
                outcome.exchange.incoming = incoming
                outcome.exchange.proxy_id = self.owners.proxy_id
            return self._without_own_signatures(outcome)
        except NotGrafted as error:
            return self._passed_unread(target, body, error)
        except Malformed as error:
            return self.unread_outcome(target, body, error)
        except EXCHANGE_FAILED as error:
            outcome = self.failure_outcome(target, body, error)
        except Exception as error:
            self._forget()  # a faulty cached beginning must not fail every request of its chat
            outcome = self.failure_outcome(target, body, self.failed(error, "a request could not be rewritten"))
        if isinstance(outcome, Forward):
            outcome = dataclasses.replace(outcome, noted=self.ungrafted(incoming, config))
        return outcome

    def ungrafted(self, incoming: Incoming, config: SessionConfig) -> Exchange | None:
        """The exchange of a request that is not grafted, for the notes of its answer; None if that is not noted, or if
        the request cannot be read. Never raises."""
        if incoming.target.operation not in _ANSWERED or not _may_hide(config):
            return None
        wire = wire_of(incoming.target)
        try:
            request = wire.read(replace_invalid_text(incoming.body))
            keys = self._keys(wire, request, incoming.asker, config)
            request.history.identify(request.body)
        except Malformed:
            return None
        except Exception as error:
            self.failed(error, "a request could not be read")
            return None
        return Exchange(wire, config, ToolPlan.untouched(), incoming.target.model, request, keys)

    def unread_outcome(self, target: Target, body: bytes, why: Malformed | str) -> Outcome:
        """The outcome of a request that cannot be read: its history may hold turns with hidden calls, and a later
        history would hold an answer that nobody has noted."""
        if self.settings.on_unread == "pass":
            return self._passed_unread(target, body, why)
        self.warn(f"a {target.surface} {target.operation} request was refused: it cannot be read: {why}")
        document = replies.error(400, "INVALID_ARGUMENT", f"toolgraft: the request cannot be read: {why}")
        return Reply(400, replies.content_type("json"), wire_of(target).error(document))

    def _passed_unread(self, target: Target, body: bytes, why: Malformed | str) -> Outcome:
        self.warn(f"a {target.surface} {target.operation} request was passed on unchanged: {why}")
        return self._without_own_signatures(Forward(body))

    def failure_outcome(self, target: Target, body: bytes, error: ExchangeFailed) -> Outcome:
        """The outcome of a request if the store or the graft has failed."""
        broken = isinstance(error, GraftFailed)
        if not broken:
            self.metrics.error("store")
        if self.settings.on_store_error == "pass":
            self.warn(f"{'the graft' if broken else 'the store'} failed, the request was passed on unchanged: {error}")
            return self._without_own_signatures(Forward(body))
        if broken:
            document = replies.error(500, "INTERNAL", f"toolgraft: {error}")
        else:
            logger.warning("the store failed: %s", error)
            document = replies.error(503, "UNAVAILABLE", f"toolgraft: {STORE_FAILED}")
        return Reply(500 if broken else 503, "application/json; charset=UTF-8", wire_of(target).error(document))

    def _without_own_signatures(self, outcome: Outcome) -> Outcome:
        """The outcome without signatures of the proxy in what goes upstream, where the ledger left some."""
        if not isinstance(outcome, Forward):
            return outcome
        known = outcome.exchange or outcome.noted
        if known is not None and not known.request.history.holds_signed_calls:
            return outcome
        body = without_own_signatures(outcome.body, self.store.secret)
        return outcome if body is outcome.body else dataclasses.replace(outcome, body=body)

    def failed(self, error: Exception, what: str = "an answer could not be captured") -> "GraftFailed":
        """Log an unexpected error. Returns the failure to raise or report. `what`: a sentence for the log."""
        self.metrics.error("graft")
        logger.error(what, exc_info=error)
        return GraftFailed(f"{what}: {type(error).__name__}")

    def warn(self, text: str) -> None:
        """Log a warning, at a limited rate: see `Warner`."""
        self.warner.warn(text)

    # --- the request ------------------------------------------------------------------------------------------

    async def _request(
        self,
        incoming: Incoming,
        body: bytes,
        config: SessionConfig,
        hangup: Hangup,
        is_expected: bool,
    ) -> Outcome:
        """`body`: the request's, without invalid text."""
        wire = wire_of(incoming.target)
        path = wire.path(body)
        request = wire.read(body, self.prefixes.find(config.session, path, body) if wire.native else None)
        known = request.history.by_turn(incoming.turn_ids)
        fresh = await self.session_config(config.session) if is_expected else config
        if fresh is None:
            return Forward(body)
        config = fresh
        keys = self._keys(wire, request, incoming.asker, config)
        target = wire.target
        model = target.model or _model_in(request)
        cached = _text_in(request, "cachedContent")
        plan = await self._cached_plan(config, cached) if cached else _plan_of(target, config, request, model)
        if plan is None and wire.keeps_history:
            plan = ToolPlan.untouched()
        summary = Summary(config.session, target.surface, target.operation, model)
        summary.is_streamed = target.operation is Operation.STREAM
        summary.note_client(incoming.user_agent)
        exchange = Exchange(wire, config, plan or ToolPlan.untouched(), model, request, keys, summary=summary)
        exchange.notes = target.operation in _ANSWERED and _may_hide(config)
        if exchange.notes:
            request.history.identify(request.body)
        noted = exchange if exchange.notes else None
        if plan is None:
            return Forward(body, noted=noted, summary=summary)
        self._count_tools(exchange, is_cached=bool(cached))
        if plan.dropped:
            self.warn(f"session {config.session}, model {model}: left out {plan.dropped}")
        token = _text_in(request, "continuationToken")
        outcome: Hits | Reply | Abandoned = {}
        if config.revision != 0:
            waits = target.operation in _ANSWERED and not token and (plan.rewrites or wire.keeps_history)
            on_pending = config.on_pending if plan.rewrites or config.on_pending != "block" else "pass"
            outcome = await self._hits(exchange, known, on_pending if waits else None, hangup)
        if isinstance(outcome, (Reply, Abandoned)):
            self._remember(exchange, path)
            return outcome
        exchange.before = _id_before(request.history, outcome)
        rules = config.rules(plan, generation(model), ids=incoming.takes_ids, keeps_history=wire.keeps_history)
        pieces = rewrite(request.body, request.history, outcome, rules)
        self._remember(exchange, path)
        replaced: dict[str, bytes | None] = {}
        if plan.changes:
            replaced = {"tools": plan.tools, "toolConfig": plan.tool_config}
        is_same = pieces is None and not plan.changes and not wire.keeps_history
        rewritten = body if is_same else wire.write(request, replaced, pieces)
        if wire.dropped:
            self.warn(f"session {config.session}, surface {target.surface}: left out {wire.dropped}")
        if target.operation is Operation.COUNT or not plan.grafts:
            return Forward(rewritten, noted=noted, summary=summary)
        if token:
            exchange.resumes = self.continuations.find(config.session, token)
        return Forward(rewritten, exchange, summary=summary)

    def _count_tools(self, exchange: Exchange, *, is_cached: bool) -> None:
        """Note in the summary how many tools were added and removed."""
        config, plan, summary = exchange.config, exchange.plan, exchange.summary
        summary.added = len(plan.names) + plan.builtins if plan.changes or is_cached else 0
        if config.strips and plan.changes and (removed := self._tool_counter.count(exchange.request.value("tools"))):
            summary.removed = removed
            self.warner.mention_stripping(config.session)

    def _remember(self, exchange: Exchange, path: Sequence[str]) -> None:
        """Cache the request's beginning, its ledger look-ups and its rewritten form."""
        if exchange.wire.native:
            self.prefixes.keep(exchange.config.session, path, exchange.request)

    async def _cached_plan(self, config: SessionConfig, cached: str) -> ToolPlan | None:
        """The plan of a request that names a cachedContent; None if the proxy does not know the cachedContent."""
        tools = await self.store.cached_tools(config.session, cached)
        return None if tools is None else ToolPlan.from_cache(tools.names)

    # --- history ----------------------------------------------------------------------------------------------

    async def _hits(
        self, exchange: Exchange, turn_ids: Mapping[int, str], on_pending: OnPending | None, hangup: Hangup
    ) -> Hits | Reply | Abandoned:
        """The true turns of the history. `on_pending`: what to do if the last turn has calls without results; None: do
        not wait, not even for running calls."""
        config, request = exchange.config, exchange.request
        hits = await self._look_up(exchange, turn_ids, config.revision)

        async def look_up() -> Hits:
            return await self._look_up(exchange, turn_ids, self.store.revision(config.session))

        by_service = exchange.wire.keeps_history
        if hits and await store_client_results(
            self.store, config.session, request.body, request.history, hits, keeps_history=by_service
        ):
            hits = await look_up()
        if not hits:
            return hits
        self.metrics.count_ledger_hits(len(hits))
        step = PendingStep(self.store, self.owners, config, request.history, look_up, hangup)
        if on_pending is None or not step.is_pending(hits):
            return hits
        waited = await step.wait(hits, None)  # while calls run, whatever the settings say about pending calls
        if isinstance(waited, Abandoned) or on_pending == "pass" or not step.is_pending(waited):
            return waited
        if on_pending == "block":
            return await self._blocked(exchange, waited)
        return await step.wait(waited, config.pending_timeout)

    async def _blocked(self, exchange: Exchange, hits: Hits) -> Hits | Reply:
        """The placeholder of a step with missing results, as the whole answer. A client that drops its id must not get
        another chat's step for it."""
        placeholder = exchange.config.placeholder
        true = last_step(exchange.request.history, hits, placeholder)
        if true is None or true.is_shared:
            return hits
        names = [slot.name for slot in true.steps[-1].slots]
        text = placeholder.text(names, true.turn_id, is_pending=bool(true.pending))
        bare = [{"text": placeholder.without_ids(text)}]
        await self.plain_notes.add(exchange.config.session, *note_of(exchange, visible_digest(bare), bare))
        return Reply(200, *exchange.wire.reply(replies.text_answer(text, exchange.model, true.turn_id)))

    def _keys(self, wire: Wire, request: Request, asker: str | bytes, config: SessionConfig) -> Keys:
        secret, (project, name) = self.store.secret, wire.project_and_chat(request)
        asker = asker or (f"project:{project}" if project else "")
        digest = asker_digest(secret, asker if config.askers == "each" else "")
        instruction = xxhash.xxh3_128_digest(wire.instruction(request))
        return Keys(secret, digest, name, instruction) if name else self._unnamed(secret, digest, "", instruction)

    async def _look_up(self, exchange: Exchange, turn_ids: Mapping[int, str], revision: int | None) -> Hits:
        """`revision`: the oldest acceptable revision of the ledger."""
        config, keys, request = exchange.config, exchange.keys, exchange.request
        return await hits_of(
            self.store,
            config.session,
            revision,
            keys,
            request.body,
            request.history,
            config.placeholder,
            functools.partial(self._missed_turns.report, config.session, keys),
            turn_ids,
            self.true_turns,
            strict=config.proof == "strict",
        )


def _id_before(history: History, hits: Hits) -> str:
    """The id of the entry behind the last model turn; "" if there is none."""
    last = next((at for at in range(len(history.turns) - 1, 0, -1) if history.turns[at].side == "model"), 0)
    return hits[last][-1].turn_id if hits.get(last) else ""


def _may_hide(config: SessionConfig) -> bool:
    """Whether answers of the session have hidden calls, or had."""
    return config.strips or bool(config.toolbox.names) or config.revision != 0


def _plan_of(target: Target, config: SessionConfig, request: Request, model: str) -> ToolPlan | None:
    """The plan for the request's tools; None: leave the request alone."""
    toolbox = config.toolbox
    if cannot_use_functions(request.value("generationConfig"), model):
        if config.strips:
            return ToolPlan.without_tools()
        own = Toolbox().keep(request.value("tools"), None, generation(model))
        return own._replace(changes=False, grafts=False)
    if config.strips:
        plan = toolbox.strip(generation(model), vertex=target.is_vertex)
    else:
        tools, own_config = request.value("tools"), request.value("toolConfig")
        plan = toolbox.keep(tools, own_config, generation(model), vertex=target.is_vertex)
    if target.operation is Operation.COUNT and target.surface == "codeassist" and request.value("tools") is None:
        return plan._replace(changes=False)  # the request cannot get a field for tools
    return plan


def _text_in(request: Request, name: str) -> str:
    """The value of a string member, or ""."""
    value = request.value(name)
    text = decode(value) if value is not None else ""
    return text if isinstance(text, str) else ""


def _model_in(request: Request) -> str:
    """The model named in a body, without prefix. Code Assist names it beside `request`, cachedContents inside."""
    value = request.value("model")
    if value is None and request.start:
        outer = next((m for m in members(request.body) if m.name == "model"), None)
        value = request.body[outer.start : outer.end] if outer else None
    named = decode(value) if value is not None else ""
    return str(named).rpartition("/")[2]
