"""The way of an answer: calls are stored the moment they are complete, and the client gets its visible turn.

`Capture` does it for whole JSON answers (`whole`) and for streams (`feed`, `finish`). An event that holds no call is
given back as the bytes that came; nothing is even parsed before the first call. Neither knows HTTP.
"""

from collections.abc import Sequence

from addon.core.answer import Answer, Candidate
from addon.core.documents import Document, Malformed, decode, encode
from addon.core.json_array import SEPARATOR, ArrayDecoder, ArrayItem
from addon.core.sse import SseDecoder, SseEvent
from addon.core.sse import encode as sse_event
from addon.graft.exchange import Exchange
from addon.graft.grafter import Grafter, store_error
from addon.graft.records import call_of, keys_of, new_call_id, new_turn_id, step_of, turn_of
from addon.surfaces.base import Framing, Operation
from store.base import StoreUnavailable, run_now
from store.models import CachedTools

_CALL = (b'"functionCall"', b'"continuationToken"')
_SERVER_TOOL = (b'"toolCall"', b'"toolResponse"')


class Capture:
    """One answer. `framing` is how it came, which the request need not have foretold."""

    def __init__(self, grafter: Grafter, exchange: Exchange, framing: Framing) -> None:
        self.grafter = grafter
        self.exchange = exchange
        self.framing = framing
        self.markers = _CALL + (_SERVER_TOOL if exchange.plan.hides_server_tools else ())
        self.path = exchange.target.response_path
        self._answer: Answer | None = exchange.resumes.resumed() if exchange.resumes is not None else None
        self._earlier: list[bytes] = []
        self._decoder = ArrayDecoder() if framing is Framing.ARRAY else SseDecoder()
        self._opening: bytes | None = None  # an array's, while what came behind it was dropped
        self._failed = False
        self._passes = False
        self._concluded = False
        self._stored: dict[int, int] = {}
        self._counted = self._captured()

    # --- whole answers ----------------------------------------------------------------------------------------

    async def whole(self, body: bytes) -> bytes:
        """A JSON answer. Raises StoreUnavailable; what is not understood is given back as it came."""
        if self.exchange.target.operation is Operation.CACHE:
            await self._remember_cache(body)
            return body
        if self._answer is None and not any(marker in body for marker in self.markers):
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
        return self._edited(self._decoder.feed(chunk))

    def finish(self) -> bytes:
        """The clean end of a stream: what is still to be sent."""
        out = self._edited(self._decoder.flush())
        if self._failed or self._passes:
            return out
        closing = self._close() if self.framing is Framing.SSE else None
        try:
            self._conclude()
        except StoreUnavailable as error:
            failure = self._store_failed(error, None)
            return out if failure is None or self.framing is Framing.ARRAY else out + failure
        return out if closing is None else out + sse_event(closing)

    def _conclude(self) -> None:
        """Store what is known only at the end: the turns by what the client sees of them."""
        if self._answer is None or self._concluded:
            return
        for candidate in self._answer.candidates.values():
            if candidate.is_grafted:
                run_now(self._save(candidate, ended=not candidate.paused, delivered=not candidate.paused))
        self._concluded = True
        self._keep_continuation()

    def _edited(self, items: Sequence[SseEvent | ArrayItem]) -> bytes:
        out: list[bytes] = []
        for item in items:
            if self._failed:
                break
            try:
                out.append(self._item(item))
            except StoreUnavailable as error:
                failure = self._store_failed(error, item)
                out.append(self._as_came(item) if failure is None else failure)
        return b"".join(out)

    def _store_failed(self, error: StoreUnavailable, item: SseEvent | ArrayItem | None) -> bytes | None:
        """The error that ends the stream, in place of this item; None where the rest goes on as it comes."""
        self.grafter.metrics.error("store")
        self.grafter.warn(f"the store failed in the middle of a stream: {error}")
        if self.grafter.settings.on_store_error == "pass":
            self._passes = True
            return None
        self._failed = True
        body = store_error(self.exchange.target, error).strip(b"[]")
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
        if self._answer is None and not any(marker in data for marker in self.markers):
            self._earlier.append(data)
            return self._as_came(item)
        return self._event(item, data)

    def _event(self, item: SseEvent | ArrayItem, data: bytes) -> bytes:
        try:
            document = decode(data)
        except Malformed:
            return self._as_came(item)
        response = self._inside(document)
        if response is None:
            return self._as_came(item)
        answer = self._started()
        seen = answer.feed(response)
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
        document = self._answer.close() if self._answer is not None else None
        return None if document is None else encode(self._wrapped(document))

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
            for data in self._earlier:
                try:
                    response = self._inside(decode(data))
                except Malformed:
                    continue
                if response is not None:
                    self._answer.feed(response)
            self._earlier.clear()
        return self._answer

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
