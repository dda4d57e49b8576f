"""An answer that cannot be read shows no call of a grafted tool: the client is given an error in its surface's form."""

import pytest

from addon.graft.exchange import Reply
from addon.graft.machine_shell import Capture, concerns
from addon.surfaces.incoming import Framing, Operation
from store.backends.memory import MemoryStore
from tests.contents import user
from tests.graft.captures import Stream
from tests.graft.conftest import EVENTS, JSON, WEATHER, Graft, target

ARGS = {
    "plain": b'"x"',
    "half a pair": rb'"\ud800"',
    "no UTF-8": b'"\xff"',
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "1e999": b"1e999",
    "levels": b"[" * 100_000 + b"]" * 100_000,
    "digits": b"9" * 1_000_000,
    "cut off": b'"x',
    "control": b'"\x01"',
}
KEYS = {
    "camel": b'"functionCall"',
    "snake": b'"function_call"',
    "escaped": rb'"function\u0043all"',
    "escaped snake": rb'"function\u005fcall"',
    "all escaped": "".join(f"\\u{ord(c):04X}" for c in "functionCall").join('""').encode(),
}
FRAMINGS = {
    "whole": (target(), JSON, b"%b"),
    "sse": (target(Operation.STREAM, Framing.SSE), EVENTS, b"data: %b\r\n\r\n"),
    "array": (target(Operation.STREAM, Framing.ARRAY), JSON, b"[%b]"),
    "sse, unasked": (target(), EVENTS, b"data: %b\n\n"),
    "unnamed": (target(), "text/plain", b"%b"),
}


def event(key: bytes, value: bytes) -> bytes:
    return (
        b'{"candidates":[{"content":{"role":"model","parts":[{%b:{"name":"get_weather","args":{"secret":%b}}}]},'
        b'"finishReason":"STOP","index":0}]}' % (key, value)
    )


@pytest.fixture
async def graft() -> Graft:
    store = MemoryStore()
    await store.open()
    return Graft(store)


async def visible(graft: Graft, framing: str, document: bytes) -> bytes:
    """What the client gets."""
    to, kind, form = FRAMINGS[framing]
    exchange = await graft.exchange({"contents": [user("hi")]}, to)
    body = form.replace(b"%b", document)
    if to.operation is Operation.STREAM:
        stream = Stream(graft.grafter, exchange, kind)
        return await stream.feed(body) + await stream.finish()
    if not concerns(exchange, body):
        return body
    out = await Capture(graft.grafter, exchange, kind).whole(body)
    return out.body if isinstance(out, Reply) else out


@pytest.mark.parametrize(
    ("framing", "key", "value"),
    [
        *((framing, "camel", value) for framing in FRAMINGS for value in ARGS),
        *((framing, key, "plain") for framing in FRAMINGS for key in KEYS if key != "camel"),
        *(("sse", key, value) for key in KEYS for value in ("half a pair", "cut off") if key != "camel"),
    ],
)
async def test_no_call_is_shown(graft: Graft, framing: str, key: str, value: str) -> None:
    await graft.tools(WEATHER)
    assert_hidden(await visible(graft, framing, event(KEYS[key], ARGS[value])))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
@pytest.mark.parametrize("framing", FRAMINGS)
async def test_no_call_is_shown_in_another_encoding(graft: Graft, framing: str, encoding: str) -> None:
    """Clients guess it."""
    await graft.tools(WEATHER)
    assert_hidden(await visible(graft, framing, event(KEYS["camel"], b"1").decode().encode(encoding)))


@pytest.mark.parametrize("key", ["camel", "snake"])
async def test_no_call_is_shown_in_lines_of_an_event_that_are_not_data(graft: Graft, key: str) -> None:
    """A line break within the event's JSON leaves data that cannot be read, and a line with the call."""
    await graft.tools(WEATHER)
    assert_hidden(await visible(graft, "sse", event(KEYS[key], b"1").replace(b'{"function', b'{\n"function')))


def assert_hidden(given: bytes) -> None:
    assert b"secret" not in given.replace(b"\0", b"")
    assert b"Tool call completed: get_weather" in given or b'"code":502' in given or b'"code":500' in given
