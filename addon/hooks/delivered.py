"""Notes the answers that clients are given, whoever made them: the model, the proxy, a script or a recording.

An answer that the ledger does not know could be mistaken for one with hidden calls, if another chat has those words.
"""

import contextlib
from collections.abc import Awaitable, Coroutine
from typing import Any, NamedTuple

from mitmproxy import ctx, http

from addon.core.framing.replies import is_answer
from addon.core.framing.streams import BadEncoding, decompressor
from addon.graft.exchange import Exchange
from addon.graft.grafter import Grafter
from addon.graft.machine_shell import note_answer
from addon.graft.upstream_answer import FINISH
from addon.hooks.messages import FlowState, value
from addon.hooks.streams import keep_whole
from addon.web import tasks


class Delivery(NamedTuple):
    """A request whose answer is noted, and the grafter that notes it."""

    grafter: Grafter
    exchange: Exchange


deliveries = FlowState[Delivery]("delivery")

answered_here = FlowState[bool]("answered_here")
"""Set for flows that the proxy answers itself, by a reply or by a loop, whose requests to the model are other flows."""


class Delivered:
    """Runs behind all scripts and mitmproxy's own addons."""

    name = "toolgraft-delivered"

    def __init__(self) -> None:
        self._streams = FlowState[_Stream]("stream")

    @classmethod
    def install(cls) -> None:
        """Append it to mitmproxy's addons, unless an earlier load of the script has."""
        if ctx.master.addons.get(cls.name) is None:
            ctx.master.addons.add(cls())

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        if flow.response is None:
            return
        keep_whole(flow)
        delivery, stage = deliveries.get(flow), flow.response.stream
        # a loop's stream that no script changes was noted by its machine
        if delivery is not None and stage and (callable(stage) or flow not in answered_here):
            flow.response.stream = self._streams[flow] = _Stream(delivery, flow.response)

    def response(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        delivery, stream, response = deliveries.pop(flow), self._streams.pop(flow), flow.response
        if delivery is None or response is None:
            return None
        if stream is not None:
            return stream.note(whole=True)
        return None if response.stream else _note(delivery, response, response.get_content(strict=False))

    def error(self, flow: http.HTTPFlow) -> Awaitable[None] | None:
        deliveries.pop(flow)
        stream = self._streams.pop(flow)
        return None if stream is None else stream.note(whole=False)


class _Stream:
    """The last stage of a streamed answer. It keeps what the client gets, and notes it when the model has finished."""

    def __init__(self, delivery: Delivery, response: http.Response) -> None:
        self._delivery = delivery
        self._response = response
        self._stage = response.stream
        encoding = value(response.headers, b"content-encoding") or ""
        self._decompress = decompressor(encoding, delivery.grafter.settings.max_answer)
        self._kept = bytearray()
        self._noted = 0  # bytes

    def __call__(self, chunk: bytes) -> list[bytes]:
        given = self._stage(chunk) if callable(self._stage) else chunk
        pieces = [piece for piece in ([given] if isinstance(given, bytes) else given) if piece]
        if self._decompress is not None:
            with contextlib.suppress(BadEncoding):
                read = self._decompress(b"".join(pieces))
                self._kept += read
                # some services send it in every event
                if FINISH in read and len(self._kept) >= 2 * self._noted:
                    self._noted = len(self._kept)
                    if (noting := self.note(whole=True)) is not None:
                        tasks.spawn(noting, name="a note of a stream")
        return pieces

    def note(self, *, whole: bool) -> Coroutine[Any, Any, None] | None:
        return _note(self._delivery, self._response, bytes(self._kept), whole=whole)


def _note(
    delivery: Delivery, response: http.Response, body: bytes | None, *, whole: bool = True
) -> Coroutine[Any, Any, None] | None:
    if not body or not is_answer(response.status_code):
        return None
    return note_answer(*delivery, value(response.headers, b"content-type") or "", body, whole=whole)
