"""Passes an upstream answer to a client, through the proxy's own code, without HTTP."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from addon.core.framing.documents import decode, encode
from addon.core.framing.streams import SseDecoder, sse_event
from addon.core.history.outcomes import outcome_of
from addon.graft.exchange import Exchange, Forward
from addon.graft.grafter import Grafter
from addon.graft.machine import AnswerMachine
from addon.graft.machine_protocol import Effect, Send, Show, Wait
from addon.graft.machine_shell import AnswerRecords, Capture, note_answer
from addon.graft.owners import ByHand, Owners
from addon.graft.session_config import SessionConfig
from tests.simulation.chat import Document

JSON, SSE = "application/json", "text/event-stream"


class HangUp(NamedTuple):
    """A client that hangs up after a number of events from the upstream, of which it has read only a share."""

    sent: int
    read: float

    def kept(self, parts: Sequence[Sequence[Document]]) -> list[Document]:
        """The parts of the events that it has read."""
        return [part for event in parts[: round(self.read * len(parts))] for part in event]


async def captured(
    grafter: Grafter, sent: Forward, documents: Sequence[Document], hangup: HangUp | None = None
) -> list[Document]:
    """The client's parts. Several documents are a stream."""
    exchange = sent.exchange
    assert exchange is not None
    if len(documents) > 1:
        return await Loop(grafter, sent, [documents], (), grafter.owners).parts(hangup)
    body = await Capture(grafter, exchange, JSON).whole(_whole(exchange, documents))
    assert isinstance(body, bytes)
    return _flat(_parts(exchange, [body]))


async def given(grafter: Grafter, exchange: Exchange, documents: Sequence[Document]) -> list[Document]:
    """The client's parts of an answer that another addon gives."""
    events = _events(exchange, documents) if len(documents) > 1 else [_whole(exchange, documents)]
    kind, body = SSE if len(documents) > 1 else JSON, b"".join(events)
    await note_answer(grafter, exchange, kind, body)
    return _flat(_parts(exchange, _data(body) if kind == SSE else events))


class Runs(ByHand):
    """All of a loop's calls can be run, by the test."""

    def can_run(self, config: SessionConfig, name: str) -> bool:
        return True


class Loop:
    """A loop: all rounds but the last have calls, which get these results in order."""

    def __init__(
        self,
        grafter: Grafter,
        sent: Forward,
        rounds: Sequence[Sequence[Document]],
        results: Sequence[Any],
        owners: Owners | None = None,
    ) -> None:
        exchange = sent.exchange
        assert exchange is not None
        self.exchange = exchange
        self.grafter = grafter
        self.rounds = iter(rounds)
        self.results = iter(results)
        self.machine = AnswerMachine(
            exchange, grafter.settings, grafter.store.clock, owners or Runs(grafter.store), sent.body
        )
        self.records = AnswerRecords(grafter, self.machine)
        self.visible = b""
        self.following: Effect | None = None

    async def parts(self, hangup: HangUp | None = None) -> list[Document]:
        """The client's parts."""
        left = hangup.sent if hangup is not None else -1
        await self._perform(self.machine.start())
        streams = False
        while self.following is not None:
            following, self.following = self.following, None
            if isinstance(following, Wait):
                given = {call.call_id: next(self.results) for call in following.calls}
                for call_id, result in given.items():
                    await self.grafter.store.answer(self.exchange.config.session, call_id, result=result)
                responses = {call_id: outcome_of(result, None) for call_id, result in given.items()}
                await self._perform(self.machine.take_responses(responses))
                continue
            documents = next(self.rounds)
            streams = len(documents) > 1
            await self._perform(self.machine.begin(SSE if streams else JSON))
            for chunk in _events(self.exchange, documents) if streams else [_whole(self.exchange, documents)]:
                if hangup is not None and not left:
                    return await self._broken(hangup)
                left -= 1
                out = chunk if self.machine.passes(chunk) else self.machine.feed(chunk)
                if isinstance(out, bytes):
                    self.visible += out
                else:
                    await self._perform(out)
            await self._perform(self.machine.finish())
        if hangup is not None:
            return await self._broken(hangup)
        return _flat(_parts(self.exchange, _data(self.visible) if streams else [self.visible]))

    async def _broken(self, hangup: HangUp) -> list[Document]:
        await self._perform(self.machine.close())
        await self.records.note_broken()
        return hangup.kept(_parts(self.exchange, _data(self.visible)))

    async def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Show):
                self.visible += effect.data
            elif isinstance(effect, (Send, Wait)):
                self.following = effect
            else:
                assert await self.records.perform(effect) is None


def _wrapped(exchange: Exchange, document: Document) -> bytes:
    for key in reversed(exchange.target.response_path):
        document = {key: document}
    return encode(document)


def _whole(exchange: Exchange, documents: Sequence[Document]) -> bytes:
    (document,) = documents
    return _wrapped(exchange, document)


def _events(exchange: Exchange, documents: Sequence[Document]) -> list[bytes]:
    return [sse_event(_wrapped(exchange, document)) for document in documents]


def _data(events: bytes) -> list[bytes]:
    decoder = SseDecoder()
    return [event.data for event in (*decoder.feed(events), *decoder.flush()) if event.data is not None]


def _flat(parts: Sequence[Sequence[Document]]) -> list[Document]:
    return [part for some in parts for part in some]


def _parts(exchange: Exchange, documents: Sequence[bytes]) -> list[list[Document]]:
    parts: list[list[Document]] = []
    for data in documents:
        document = decode(data)
        for key in exchange.target.response_path:
            document = document[key]
        parts.append([part for candidate in document.get("candidates", ()) for part in candidate["content"]["parts"]])
    return parts
