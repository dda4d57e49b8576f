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


def holds_hidden_call(exchange: Exchange, data: bytes, framing: Framing | None) -> bool:
    """Whether whole events, or a whole document, hold a call that the client may not see, or cannot be read and may
    hold one."""
    if not holds(data, exchange.wire.call_markers) or exchange.config.delivery == "passthrough":
        return False
    naming = exchange.naming
    try:
        for name in called_names(_documents(data, framing)):
            is_further_piece = not name and naming.own  # of a call of the client's own
            if not is_further_piece and naming.toolset_name(str(name)) is not None:
                return True
    except Malformed:
        return True
    return False


def _documents(data: bytes, framing: Framing | None) -> list[Any]:
    if framing is Framing.SSE:
        decoder = SseDecoder()
        events = [event.data for event in decoder.feed(data) + decoder.flush()]
        return [decode(one) for one in events if one is not None and one.strip() not in (b"", b"[DONE]")]
    if framing is Framing.ARRAY:
        data = b"[" + data.strip(b"[], \t\r\n") + b"]"
    return [decode(data)]
