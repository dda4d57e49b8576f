"""The last check before bytes go to a client: they contain no call of a grafted tool.

`Reading` takes calls out of the places where the service puts them. A broken answer may have one elsewhere: in a list
instead of an object, in the wrong field, in an event or a step of another type.
"""

from typing import Any

from addon.core.framing.documents import Malformed, decode
from addon.core.framing.sse import SseDecoder
from addon.core.history.calls import called_names
from addon.graft.exchange import Exchange
from addon.graft.reading import holds
from addon.surfaces.base import Framing


def holds_hidden_call(exchange: Exchange, data: bytes, framing: Framing | None) -> bool:
    """Whether whole events, or a whole document, hold a call that the client may not see. Unreadable bytes count if
    they may hold one."""
    if not holds(data, exchange.wire.call_markers) or exchange.config.delivery == "passthrough":
        return False
    naming = exchange.naming
    try:
        for name in called_names(_documents(data, framing)):
            is_further_piece = not name and naming.own  # of one of the client's own calls
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
