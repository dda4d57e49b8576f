"""The way of an answer: calls are stored the moment they are complete, and the client gets its visible turn.

`Capture` does it for whole JSON answers (`whole`) and for streams (`feed`, `finish`). An event that holds no call is
given back as the bytes that came; nothing is even parsed before the first call. Neither knows HTTP.
"""

from collections.abc import Sequence

from addon.core.answer import Answer, Candidate
from addon.core.documents import Document, Malformed, decode, encode, objects
from addon.core.json_array import SEPARATOR, ArrayDecoder, ArrayItem
from addon.core.sse import SseDecoder, SseEvent
from addon.core.sse import encode as sse_event
from addon.graft.exchange import Exchange
from addon.graft.grafter import Grafter, GraftFailed, store_error
from addon.graft.records import call_of, keys_of, new_call_id, new_turn_id, step_of, turn_of
from addon.surfaces.base import Framing, Operation
from store.base import StoreUnavailable, run_now
from store.models import CachedTools

_CALL = (b'"functionCall"', b'"continuationToken"')
_SERVER_TOOL = (b'"toolCall"', b'"toolResponse"')


def concerns(exchange: Exchange, body: bytes) -> bool:
    """Whether there may be anything to do with a JSON answer: most hold no call."""
    if exchange.resumes is not None or exchange.target.operation is Operation.CACHE:
        return True
    return _holds(body, _markers(exchange))


def _markers(exchange: Exchange) -> tuple[bytes, ...]:
    return _CALL + _SERVER_TOOL if exchange.plan.hides_server_tools else _CALL


def _holds(data: bytes, markers: tuple[bytes, ...]) -> bool:
    for marker in markers:  # any() with a generator costs more than the search
        if marker in data:
            return True
    return False


class Capture:
    """One answer. `framing` is how it came, which the request need not have foretold."""

    def __init__(self, grafter: Grafter, exchange: Exchange, framing: Framing) -> None:
        self.grafter = grafter
        self.exchange = exchange
        self.framing = framing
        self.markers = _markers(exchange)
        self.path = exchange.target.response_path
        self._answer: Answer | None = exchange.resumes.resumed() if exchange.resumes is not None else None
        self._earlier: list[bytes] = []
        self._decoder = ArrayDecoder() if framing is Framing.ARRAY else SseDecoder()
        self._opening: bytes | None = None  # an array's, while what came behind it was dropped
        self._failed = False
        self._passes = False
        self._concluded = False
        self._cut = False  # by an error in the stream
        self._stored: dict[int, int] = {}
        self._counted = self._captured()

    # --- whole answers ----------------------------------------------------------------------------------------

    async def whole(self, body: bytes) -> bytes:
        """A JSON answer. Raises StoreUnavailable and nothing else; what is not understood is given back as it came."""
        try:
            return await self._whole(body)
        except StoreUnavailable:
            raise
        except Exception as error:
            raise self.grafter.failed(error) from error

    async def _whole(self, body: bytes) -> bytes:
        if self.exchange.target.operation is Operation.CACHE:
            await self._remember_cache(body)
            return body
        if not concerns(self.exchange, body):
            return body
        try:
            document = decode(body)
        except Malformed as error:
            self.grafter.warn(f"an answer was passed on as it came: {error}")
            return body
        response = self._inside(document)
        if response is None:
            return body
        answer = self._started()
        seen = answer.feed(response, whole=True)
        self._tell_unfinished(answer)
        for candidate in answer.candidates.values():
            if candidate.is_grafted:
                await self._save(candidate, delivered=candidate.ended)
        self._keep_continuation()
        return body if seen is response or seen is None else encode(self._outside(document, seen))

    async def _remember_cache(self, body: bytes) -> None:
        try:
            document = decode(body)
        except Malformed:
            return
        name = document.get("name") if isinstance(document, dict) else None
        if isinstance(name, str):
            scope, clock = self.exchange.scope, self.grafter.store.clock
            cached = CachedTools(
                session=scope.session, cached_content=name, names=dict(self.exchange.plan.names), created_at=clock()
            )
            await self.grafter.store.put_cached_tools(cached)

    # --- streams ----------------------------------------------------------------------------------------------

    def feed(self, chunk: bytes) -> bytes:
        """What the client gets for the next bytes of a stream. Never raises, never suspends: for stores that do not."""
        if self._answer is None and not self._passes and self._are_plain_events(chunk):
            self._earlier.append(chunk)
            return chunk
        return self._edited(chunk)

    def _are_plain_events(self, chunk: bytes) -> bool:
        """Whether these are whole events without a call, as most are: nothing is cut up or kept back then."""
        return (
            isinstance(self._decoder, SseDecoder)
            and chunk.endswith((b"\r\n\r\n", b"\n\n"))
            and not _holds(chunk, self.markers)
            and self._decoder.is_between
            and not self._failed
        )

    def finish(self) -> bytes:
        """The clean end of a stream: what is still to be sent."""
        out = self._edited(None)
        if self._failed or self._passes:
            return out
        closing: bytes | None = None
        try:
            closing = self._close() if self.framing is Framing.SSE else None
            self._conclude()
        except Exception as error:
            failure = self._store_failed(self._known(error), None)
            return out if failure is None or self.framing is Framing.ARRAY else out + failure
        return out if closing is None else out + sse_event(closing)

    def _conclude(self) -> None:
        """Store what is known only at the end: the turns by what the client sees of them."""
        if self._answer is None or self._concluded:
            return
        for candidate in self._answer.candidates.values():
            if candidate.is_grafted:
                ended = not candidate.paused and not self._cut
                run_now(self._save(candidate, ended=ended, delivered=ended))
        self._concluded = True
        self._keep_continuation()

    def _edited(self, chunk: bytes | None) -> bytes:
        """What becomes of the items that are whole with this chunk; None: of what is left at the end."""
        if self._failed:
            return b""
        items: Sequence[SseEvent | ArrayItem]
        try:
            items = self._decoder.flush() if chunk is None else self._decoder.feed(chunk)
        except Exception as error:
            failure = self._store_failed(self.grafter.failed(error), None)
            return failure if failure is not None else chunk or b""
        out: list[bytes] = []
        for item in items:
            if self._failed:
                break
            try:
                out.append(self._item(item))
            except Exception as error:
                failure = self._store_failed(self._known(error), item)
                out.append(self._as_came(item) if failure is None else failure)
        return b"".join(out)

    def _known(self, error: Exception) -> StoreUnavailable:
        return error if isinstance(error, StoreUnavailable) else self.grafter.failed(error)

    def _store_failed(self, error: StoreUnavailable, item: SseEvent | ArrayItem | None) -> bytes | None:
        """The error that ends the stream, in place of this item; None where the rest goes on as it comes."""
        if not isinstance(error, GraftFailed):
            self.grafter.metrics.error("store")
            self.grafter.warn(f"the store failed in the middle of a stream: {error}")
        if self.grafter.settings.on_store_error == "pass":
            self._passes = True
            return None
        self._failed = True
        body = store_error(self.exchange.wire, error).strip(b"[]")
        if self.framing is Framing.SSE:
            return sse_event(body)
        prefix = item.prefix if isinstance(item, ArrayItem) and item.data is not None else SEPARATOR
        return self._prefix(prefix) + body + b"]"

    def _item(self, item: SseEvent | ArrayItem) -> bytes:
        data = item.data
        if self._passes:
            return self._as_came(item)
        if data is None:
            return self._closing(item.raw) if isinstance(item, ArrayItem) else item.raw
        if self._answer is None and not _holds(data, self.markers):
            self._earlier.append(item.raw if isinstance(item, SseEvent) else data)
            return self._as_came(item)
        return self._event(item, data)

    def _event(self, item: SseEvent | ArrayItem, data: bytes) -> bytes:
        try:
            document = decode(data)
        except Malformed:
            return self._as_came(item)
        response = self._inside(document)
        self._cut = self._cut or _holds_error(document) or _holds_error(response)
        if response is None:
            return self._as_came(item)
        answer = self._started()
        seen = answer.feed(response)
        self._tell_unfinished(answer)
        for candidate in answer.candidates.values():
            stored = len(candidate.slots) + candidate.ended
            if candidate.is_grafted and self._stored.get(candidate.index) != stored:
                self._stored[candidate.index] = stored
                run_now(self._save(candidate, delivered=False))
        if seen is response:
            return self._as_came(item)
        if seen is None:
            if isinstance(item, ArrayItem) and item.prefix.lstrip().startswith(b"["):
                self._opening = item.prefix
            return b""
        body = encode(self._outside(document, seen))
        return sse_event(body) if isinstance(item, SseEvent) else self._prefix(item.prefix) + body

    def _as_came(self, item: SseEvent | ArrayItem) -> bytes:
        if self._opening is None or isinstance(item, SseEvent):
            return item.raw
        if item.data is None:
            return self._prefix(b"") + item.raw
        return self._prefix(item.prefix) + item.data

    def _prefix(self, own: bytes) -> bytes:
        """What stands before an element: the array's own opening, if all that came behind it was dropped."""
        opening, self._opening = self._opening, None
        return own if opening is None else opening

    def _closing(self, raw: bytes) -> bytes:
        """The end of an array: before it, what is still to be said."""
        if not raw.lstrip().startswith(b"]"):
            return self._prefix(b"") + raw
        closing = self._close()
        self._conclude()
        return self._prefix(b"" if closing is None else SEPARATOR) + (closing or b"") + raw

    def _close(self) -> bytes | None:
        if self._answer is None or self._cut:
            return None
        document = self._answer.close()
        self._tell_unfinished(self._answer)
        return None if document is None else encode(self._wrapped(document))

    def _tell_unfinished(self, answer: Answer) -> None:
        for name in answer.unfinished:
            self.grafter.warn(f"an answer ended within the arguments of a call of {name}: those that came were taken")

    # --- documents --------------------------------------------------------------------------------------------

    def _started(self) -> Answer:
        """The answer so far; begun with what was forwarded before the first call came."""
        if self._answer is None:
            exchange = self.exchange
            self._answer = Answer(
                exchange.naming,
                exchange.scope.placeholder,
                passthrough=exchange.scope.delivery == "passthrough",
                hides_server_tools=exchange.plan.hides_server_tools,
                new_turn_id=new_turn_id,
                new_call_id=new_call_id,
            )
            for data in self._events_before():
                try:
                    response = self._inside(decode(data))
                except Malformed:
                    continue
                if response is not None:
                    self._answer.feed(response)
            self._earlier.clear()
        return self._answer

    def _events_before(self) -> list[bytes]:
        if self.framing is not Framing.SSE:
            return self._earlier
        decoder = SseDecoder()
        events = decoder.feed(b"".join(self._earlier)) + decoder.flush()
        return [event.data for event in events if event.data is not None]

    def _inside(self, document: object) -> Document | None:
        for key in self.path:
            document = document.get(key) if isinstance(document, dict) else None
        return document if isinstance(document, dict) else None

    def _outside(self, document: Document, response: Document) -> Document:
        if not self.path:
            return response
        key, *rest = self.path
        assert not rest
        return {**document, key: response}

    def _wrapped(self, response: Document) -> Document:
        for key in reversed(self.path):
            response = {key: response}
        return response

    # --- the store --------------------------------------------------------------------------------------------

    def _keep_continuation(self) -> None:
        answer = self._answer
        if answer is not None and answer.continuation is not None:
            self.grafter.keep_continuation(self.exchange.scope.session, answer)

    def _captured(self) -> int:
        return sum(len(one.captured) for one in self._answer.candidates.values()) if self._answer is not None else 0

    async def _save(self, candidate: Candidate, *, ended: bool | None = None, delivered: bool) -> None:
        """Store a turn as far as it has come. Only one that has ended can be found by what the client sees of it."""
        store, exchange = self.grafter.store, self.exchange
        now = store.clock()
        ended = candidate.ended if ended is None else ended
        await store.save_turn(
            turn_of(exchange, candidate.turn_id, candidate.shown, [step_of(candidate)], delivered=delivered, now=now),
            [call_of(exchange, candidate.turn_id, call, now=now) for call in candidate.captured],
            keys_of(exchange, candidate.shown) if ended else [],
        )
        captured = self._captured()
        self.grafter.metrics.captured(captured - self._counted)
        self._counted = captured


def _holds_error(document: object) -> bool:
    """Whether an event (or a list of one, as Code Assist sends them) tells of an error."""
    return any(one.get("error") is not None for one in objects(document))
