"""Cuts the body of an answer into documents. The body determines the framing, whatever the request asked for."""

import sys
from collections.abc import Sequence

from addon.core.framing.encoding import TooLong
from addon.core.framing.json_array import ArrayDecoder, ArrayItem
from addon.core.framing.sse import SseDecoder, SseEvent
from addon.surfaces.base import Framing

Item = SseEvent | ArrayItem

_JSON = "application/json"
_EVENTS = "text/event-stream"
_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_LONGEST = max(map(len, _FIELDS))
_BLANK = 4096  # the most leading white space, in bytes, skipped before the framing is decided


class Decoder:
    """`framing`: None until the first bytes decide it. JSON is an array or one document; other content types are
    sniffed. `body`: the bytes of an answer that is not a stream (Framing.JSON), in any format. `events`: the decoder of
    a stream of server-sent events."""

    def __init__(self, content_type: str, max_event: int = sys.maxsize) -> None:
        kind = content_type.partition(";")[0].strip().lower()
        self.framing: Framing | None = None
        self.body = bytearray()
        self.events: SseDecoder | None = None
        self._cutter: SseDecoder | ArrayDecoder | None = None
        self._max_event = max_event
        self._is_json = kind == _JSON
        if kind == _EVENTS:
            self._become(Framing.SSE)

    @property
    def is_array_over(self) -> bool:
        return isinstance(self._cutter, ArrayDecoder) and self._cutter.is_over

    def feed(self, chunk: bytes) -> Sequence[Item]:
        """Raises TooLong if an event of a stream is longer than `max_event` bytes."""
        items: Sequence[Item] = ()
        if self._cutter is not None:
            items = self._cutter.feed(chunk)
        else:
            self.body += chunk
            if self.framing is None:
                items = self._begun()
        if self._cutter is not None and self._cutter.pending > self._max_event:
            raise TooLong(f"an event of the model's answer has more than {self._max_event} bytes")
        return items

    def flush(self) -> Sequence[Item]:
        """End the body. Returns a stream's last items."""
        items: Sequence[Item] = ()
        if self.framing is None:
            items = self._begun(ended=True)
        return items if self._cutter is None else [*items, *self._cutter.flush()]

    def _begun(self, *, ended: bool = False) -> Sequence[Item]:
        start = self.body.lstrip()[:_LONGEST]
        if not start and not ended and len(self.body) < _BLANK:
            return ()
        if start.startswith(b"["):
            return self._become(Framing.ARRAY)
        if not self._is_json and start.startswith(_FIELDS):
            return self._become(Framing.SSE)
        if ended or self._is_json or len(start) >= _LONGEST or not any(one.startswith(bytes(start)) for one in _FIELDS):
            self.framing = Framing.JSON
        return ()

    def _become(self, framing: Framing) -> Sequence[Item]:
        self.framing = framing
        if framing is Framing.SSE:
            self._cutter = self.events = SseDecoder()
        else:
            self._cutter = ArrayDecoder()
        body = bytes(self.body)
        self.body.clear()
        return self._cutter.feed(body) if body else ()
