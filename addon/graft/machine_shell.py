"""The shells of an answer machine: what all share (`AnswerRecords`), and `Capture`, which takes a complete answer from
mitmproxy. `loop.runner` is the shell for streams."""

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from functools import partial

from addon.core.framing.documents import Malformed, decode
from addon.core.security.secrets import Redaction
from addon.core.summaries import CallSummary
from addon.graft.exchange import Exchange, Reply
from addon.graft.grafter import Grafter
from addon.graft.late_writes import LateWrites, Write
from addon.graft.machine import AnswerMachine
from addon.graft.machine_protocol import Effect, End, Mistake, Note, Pause, Refuse, Save, Show, Start, Warn
from addon.graft.rounds import Resumption, resumption
from addon.graft.upstream_answer import FINISH, Decoder, NoteReader, holds, markers_of
from addon.surfaces.incoming import Framing, Operation
from store.base import StoreUnavailable, TakeOverUnknown
from store.models import CachedTools

logger = logging.getLogger("toolgraft")

PATIENCE = 10.0
"""Seconds for which an error is held back from the client while the end of its answer cannot be noted. Without the
note, another process would treat a retry as a new request, and run its tools again."""


class AnswerRecords:
    """Stores what the machine of one answer wants stored, with the end of the answer."""

    def __init__(self, grafter: Grafter, machine: AnswerMachine) -> None:
        self.grafter = grafter
        self.machine = machine
        self._exchange = machine.exchange
        self._session = machine.exchange.config.session

    @property
    def _late_writes(self) -> LateWrites:
        return self.grafter.owners.late_writes

    async def take_over(self) -> Resumption | None:
        """Take over a recently broken-off answer to the same request. Raises StoreUnavailable."""
        store, exchange, window = self.grafter.store, self._exchange, self.grafter.settings.retry_window
        if exchange.proxy_id is None or not window or exchange.config.revision == 0:
            return None
        if not (key := exchange.request_key):
            return None
        await self.grafter.owners.catch_up()
        try:
            found = await store.take_over(self._session, key, window=window, proxy_id=exchange.proxy_id)
        except TakeOverUnknown as error:  # this proxy may have the turn now, so that no retry would find it
            give_back = partial(store.mark_broken_off, self._session, error.taken, proxy_id=exchange.proxy_id)
            self._late_writes.add(f"{error.taken} given back", give_back)
            await self._late_writes.wait(PATIENCE)
            raise
        if found is None:
            return None
        self._late_writes.forget(_key("broken off", found[0].turn_id))
        logger.info("session %s: a request was sent again, its answer goes on where it broke off", self._session)
        return resumption(*found, partial(self.grafter.owners.may_run_twice, exchange.config))

    async def perform(self, effect: Effect) -> list[Effect] | None:
        """Perform an effect on the records. If that fails, returns the effects to perform instead of all later ones;
        None: continue. Never raises."""
        grafter = self.grafter
        try:
            match effect:
                case Save():
                    await self._save(effect)
                case Note():
                    await self._note(*effect)
                case Pause(token, paused):
                    grafter.continuations.keep(self._session, token, paused)
                case Warn(text):
                    grafter.warn(text)
                case Mistake(error, passed=True):
                    grafter.metrics.error("graft")
                    grafter.warn(f"an answer was passed on unchanged: {type(error).__name__}: {error}")
                case Mistake(error):
                    grafter.failed(error)
        except StoreUnavailable as error:
            instead = self.store_failed(error)
            if instead is None and isinstance(effect, Save) and effect.keys:
                await self._note(effect.keys, b"")  # the client has the turn, the ledger does not
            return instead
        except Exception as error:
            grafter.failed(error, "an answer could not be stored")
            return self.machine.fail(500, "INTERNAL", f"{type(error).__name__} while the answer was stored")
        return None

    def store_failed(self, error: StoreUnavailable) -> list[Effect] | None:
        """Handle a store failure during the answer. Returns what `perform` returns."""
        self.grafter.metrics.error("store")
        instead = self.machine.on_store_failure()
        if instead is None:
            self.grafter.warn(f"the store failed, an answer is not remembered: {error}")
        else:
            logger.warning("the store failed in the middle of an answer: %s", error)
        return instead

    async def note_delivered(self) -> None:
        """Note that the client has the whole answer, so that a repeated request gets a new one. Never raises."""
        try:
            for turn_id in self.machine.complete:
                await self._mark(
                    "delivered", turn_id, partial(self.grafter.store.mark_delivered, self._session, turn_id)
                )
        except StoreUnavailable as error:
            logger.warning("an answer that the client has is noted so later: %s", error)
        except Exception as error:
            self.grafter.failed(error, "an answer that the client has could not be noted so")

    async def note_beginnings(self) -> None:
        """Note the partial answers that a client without the whole answer may have kept. Never raises."""
        try:
            for effect in self.machine.beginnings():
                if isinstance(effect, Save):
                    try:
                        await self._save(effect)
                    except StoreUnavailable:
                        self._late_writes.add(
                            f"{effect.turn.turn_id} so far", partial(self._save_unless_continued, effect)
                        )
                else:
                    await self._note(*effect)
        except Exception as error:
            self.grafter.failed(error, "an answer that broke off could not be noted")

    async def note_broken(self, *, waits: bool = False) -> None:
        """Note that the answer has ended and the client does not have all of it: the parts that it may have kept, and
        the turn for a retry. If the store fails, this is noted later. With `waits`, the caller then waits up to
        PATIENCE seconds, so that no retry comes before the note. Never raises."""
        await self.note_beginnings()
        try:
            for turn_id in self.machine.unsettled:
                # later the turn may belong to another proxy
                mark = partial(
                    self.grafter.store.mark_broken_off, self._session, turn_id, proxy_id=self._exchange.proxy_id
                )
                await self._mark("broken off", turn_id, mark)
                self._late_writes.remember(_key("broken off", turn_id), mark)
        except StoreUnavailable as error:
            logger.warning("an answer that broke off is left to a retry later: %s", error)
        except Exception as error:
            self.grafter.failed(error, "an answer that broke off could not be left to a retry")
        # without a server, only this process can get the retry, and it makes the late writes first
        if waits and self._late_writes and self._late_writes.has_server:
            await self._late_writes.wait(PATIENCE)

    async def _save(self, save: Save) -> None:
        self._exchange.recorded.update(save.keys[:1])
        await self.grafter.store.save_turn(save.turn, save.calls, save.keys)
        if save.calls:
            self.grafter.metrics.count_captured(len(save.calls))
        for call in save.calls:
            if call.status.final:  # the call failed at once
                self.grafter.metrics.count_ended(call.status)

    async def _save_unless_continued(self, save: Save) -> None:
        """Save a broken-off turn, unless a retry has continued it meanwhile."""
        turn_id = save.turn.turn_id
        known = (await self.grafter.store.look_up(self._session, turn_ids=[turn_id])).turns.get(turn_id)
        if known is None or (known.proxy_id == save.turn.proxy_id and not known.delivered):
            await self._save(save)

    async def _note(self, keys: Sequence[bytes], chain: bytes) -> None:
        self._exchange.recorded.add(keys[0])
        await self.grafter.plain_notes.add(self._session, keys, chain)

    async def _mark(self, what: str, turn_id: str, write: Write) -> None:
        """Raises StoreUnavailable, but the mark is still made later."""
        try:
            await write()
        except StoreUnavailable:
            self._late_writes.add(_key(what, turn_id), write)
            raise


def _key(what: str, turn_id: str) -> str:
    return f"{turn_id} {what}"


_CLEAN = ("answered", "delivered", "failed")  # values of `End.outcome`
_NO_SECRETS = Redaction(())
_JSON = "application/json; charset=UTF-8"


class Capture:
    """One answer with status 200. `secrets`: the request's secrets, removed before the answer is stored or sent.
    `ends_with_connection`: only the end of the connection ends the body, so a cut can go unnoticed."""

    def __init__(
        self,
        grafter: Grafter,
        exchange: Exchange,
        content_type: str,
        secrets: Redaction = _NO_SECRETS,
        *,
        ends_with_connection: bool = False,
    ) -> None:
        self.grafter = grafter
        self.exchange = exchange
        self.machine = AnswerMachine(exchange, grafter.settings, grafter.store.clock, grafter.owners)
        self._records = AnswerRecords(grafter, self.machine)
        self._background = grafter.owners.background(exchange.config)
        self._is_end_certain = not ends_with_connection
        self._ended = False  # cleanly
        self._secrets = secrets
        self._content_type = content_type

    async def settle(self, whole: bool) -> None:
        """Note whether the client has received the whole answer. If not, it never will."""
        if whole and self._ended:
            await self._records.note_delivered()
        else:
            await self._records.note_broken()

    async def whole(self, body: bytes) -> bytes | Reply:
        """Process a complete body, in any framing. Raises StoreUnavailable, only for `cachedContents`."""
        if self.exchange.target.operation is Operation.CACHE:
            await self._remember_cache(body)
            return body
        out: list[bytes] = []
        refused = await self._perform(await self._take_over(), out)
        if refused is not None:
            return Reply(refused.status, _JSON, refused.body)
        self.machine.begin(self._content_type)
        fed = self.machine.feed(self._secrets.data(body))
        if isinstance(fed, bytes):
            out.append(fed)
            fed = ()
        for effects in (fed, self.machine.finish(is_certain=self._is_end_certain)):
            refused = await self._perform(effects, out)
            if refused is not None:
                return Reply(refused.status, _JSON, refused.body)
        self.machine.summarise()
        visible = b"".join(out)
        return body if visible == body else visible

    async def _perform(self, effects: Iterable[Effect], out: list[bytes]) -> Refuse | None:
        refused: Refuse | None = None
        for effect in effects:
            if isinstance(effect, Show):
                out.append(effect.data)
            elif isinstance(effect, Refuse):
                refused = effect
            elif isinstance(effect, Start | End):
                self._begin(effect)
                if isinstance(effect, End) and not self._ended:
                    await self._records.note_broken()
            elif (instead := await self._records.perform(effect)) is not None:
                return await self._perform(instead, out)
        return refused

    def _begin(self, effect: Start | End) -> None:
        if isinstance(effect, End):
            self._background.complete()
            self._ended = effect.outcome in _CLEAN
            return
        state = "client" if self.exchange.config.delivery == "passthrough" else "waiting"
        for call, initial_state in effect.calls:
            failed = initial_state.error is not None
            self.exchange.summary.calls.append(CallSummary(call.name, call.args, "failed" if failed else state))
            self._background.start(call, initial_state)

    async def _take_over(self) -> list[Effect]:
        """Take over the calls of a broken-off answer to the same request, instead of beginning them again. If the store
        does not say whether it was taken over, returns the effects to perform instead of all later ones."""
        try:
            if (resumption := await self._records.take_over()) is not None:
                self.machine.resume(resumption)
        except TakeOverUnknown as error:
            return self._records.store_failed(error) or []
        except StoreUnavailable as error:
            self.grafter.warn(f"the store failed, what an earlier answer has left is not known: {error}")
        except Exception as error:
            self.grafter.failed(error, "what an earlier answer has left could not be taken over")
        return []

    async def _remember_cache(self, body: bytes) -> None:
        try:
            document = decode(body)
        except Malformed:
            return
        name = document.get("name") if isinstance(document, dict) else None
        if isinstance(name, str):
            config, clock = self.exchange.config, self.grafter.store.clock
            names = dict(self.exchange.plan.names)
            cached = CachedTools(session=config.session, cached_content=name, names=names, created_at=clock())
            await self.grafter.store.put_cached_tools(cached)


async def note_answer(
    grafter: Grafter, exchange: Exchange, content_type: str, body: bytes, *, whole: bool = True
) -> None:
    """Note the turns of an answer as its client receives it, except those that are recorded already. `whole` False: the
    answer broke off, and the client may have kept any part of it from the start. Never raises."""
    try:
        exchange = dataclasses.replace(exchange, wire=exchange.wire.for_another_answer())
        reader, decoder = NoteReader(exchange), Decoder(content_type)
        items = [*decoder.feed(body), *decoder.flush()]
        found = [item.data for item in items if item.data is not None]
        reader.documents([body] if decoder.framing is Framing.JSON else found)
        notes = [*reader.notes()] if whole else []
        if decoder.framing is not Framing.JSON and (not whole or (exchange.wire.native and FINISH not in body)):
            notes += reader.beginnings()
        for keys, chain in notes:
            if keys[0] not in exchange.recorded:
                exchange.recorded.add(keys[0])
                await grafter.plain_notes.add(exchange.config.session, keys, chain)
    except Exception as error:
        grafter.failed(error, "an answer that was passed on could not be noted")


def concerns(exchange: Exchange, body: bytes) -> bool:
    """Whether a complete answer may need processing. Most hold no call."""
    if exchange.resumes is not None or exchange.target.operation is Operation.CACHE:
        return True
    return holds(body, markers_of(exchange))
