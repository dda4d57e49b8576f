"""Drives the answer machine over a complete answer from mitmproxy. `loop.runner` does it for streams."""

from collections.abc import Iterable

from addon.core.framing.documents import Malformed, decode
from addon.core.security.redaction import Redaction
from addon.core.summaries import CallSummary
from addon.graft.exchange import Exchange, Reply
from addon.graft.grafter import Grafter
from addon.graft.machine import AnswerMachine
from addon.graft.machine_protocol import Effect, End, Refuse, Show, Start
from addon.graft.shell import (
    note_broken,
    note_delivered,
    note_plain,
    record,
    store_failed,
    take_over_answer,
)
from addon.graft.upstream_answer import FINISH, Decoder, NoteReader, holds, markers_of
from addon.surfaces.base import Framing, Operation
from store.base import StoreUnavailable, TakeOverUnknown
from store.models import CachedTools

_CLEAN = ("answered", "delivered", "failed")  # values of `effects.End.outcome`
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
        self._background = grafter.owners.background(exchange.config)
        self._is_end_certain = not ends_with_connection
        self._ended = False  # cleanly
        self._secrets = secrets
        self._content_type = content_type

    async def settle(self, whole: bool) -> None:
        """Note whether the client has received the whole answer. If not, it never will."""
        if whole and self._ended:
            await note_delivered(self.grafter, self.machine)
        else:
            await note_broken(self.grafter, self.machine)

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
                    await note_broken(self.grafter, self.machine)
            elif (instead := await record(self.grafter, self.machine, effect)) is not None:
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
            if (resumption := await take_over_answer(self.grafter, self.exchange)) is not None:
                self.machine.resume(resumption)
        except TakeOverUnknown as error:
            return store_failed(self.grafter, self.machine, error) or []
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
    """Note the turns of an answer that was passed on unchanged. `whole` False: the answer broke off, and the client may
    have kept any part of it from the start. Never raises."""
    try:
        reader, decoder = NoteReader(exchange), Decoder(content_type)
        items = [*decoder.feed(body), *decoder.flush()]
        found = [item.data for item in items if item.data is not None]
        reader.documents([body] if decoder.framing is Framing.JSON else found)
        notes = [*reader.notes()] if whole else []
        if decoder.framing is not Framing.JSON and (not whole or (exchange.wire.native and FINISH not in body)):
            notes += reader.beginnings()
        for keys, chain in notes:
            await note_plain(grafter, exchange, keys, chain)
    except Exception as error:
        grafter.failed(error, "an answer that was passed on could not be noted")


def concerns(exchange: Exchange, body: bytes) -> bool:
    """Whether a complete answer may need processing. Most hold no call."""
    if exchange.resumes is not None or exchange.target.operation is Operation.CACHE:
        return True
    return holds(body, markers_of(exchange))
