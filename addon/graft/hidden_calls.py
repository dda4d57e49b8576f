"""The last look at what a client is sent: no call of a grafted tool, wherever a client may look for one.

The reading takes calls out of the places where the service puts them. A broken answer may have one elsewhere: in a list
where an object belongs, beside its place, in an event of another kind, within a step of another kind.
"""

from typing import Any

from addon.core.framing.documents import Malformed, decode
from addon.core.framing.sse import SseDecoder
from addon.core.history.calls import called_names
from addon.graft.exchange import Exchange
from addon.graft.reading import holds
from addon.surfaces.base import Framing


class HiddenCalls:
    """The calls that the client of an exchange may not see."""

    def __init__(self, exchange: Exchange) -> None:
        self._markers = exchange.wire.call_markers
        self._naming = exchange.naming
        self._are_shown = exchange.config.delivery == "passthrough"

    def are_in(self, data: bytes, framing: Framing | None) -> bool:
        """Whether whole events, or a whole document, hold such a call, or cannot be read and may hold one."""
        if self._are_shown or not holds(data, self._markers):
            return False
        try:
            return any(self._is_hidden(name) for name in called_names(_documents(data, framing)))
        except Malformed:
            return True

    def _is_hidden(self, name: Any) -> bool:
        if not name and self._naming.own:
            return False  # a further piece of a call of the client's own
        return self._naming.toolset_name(str(name)) is not None


def _documents(data: bytes, framing: Framing | None) -> list[Any]:
    if framing is Framing.SSE:
        decoder = SseDecoder()
        events = [event.data for event in decoder.feed(data) + decoder.flush()]
        return [decode(one) for one in events if one is not None and one.strip() not in (b"", b"[DONE]")]
    if framing is Framing.ARRAY:
        data = b"[" + data.strip(b"[], \t\r\n") + b"]"
    return [decode(data)]
