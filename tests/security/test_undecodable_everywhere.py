"""The same through the whole proxy, on every surface and at the front doors, in the first round and in a later one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from wsproto.frame_protocol import Opcode

from addon.loop import upstream as upstream_module
from store.models import Policy
from tests.faults.dialects import COMPLETIONS, DIALECTS, GEMINI, INTERACTIONS, Answered, Call, Dialect, dialect_of
from tests.hooks import conftest  # noqa: F401 - mitmproxy's own warnings are kept out of it there
from tests.hooks.conftest import make  # noqa: F401
from tests.hooks.harness import GOOGLE, Hooks
from tests.hooks.proxied import Proxied, answer, requests, serving
from tests.hooks.test_live import SETUP, Socket
from tests.security.test_undecodable_answers import ARGS

TOOL = "lookup"
TOOLS = f'''
async def {TOOL}(secret: object = None) -> str:
    """Look it up."""
    return "found"
'''


def calling(dialect: Dialect, framing: str, args: bytes = b"1", key: bytes = b"") -> Answered:
    return dialect.answer(framing, Call(TOOL, b'{"secret":%b}' % args, key))


def encoded(encoding: str) -> Callable[[Dialect, str], Answered]:
    def answered(dialect: Dialect, framing: str) -> Answered:
        found = calling(dialect, framing)
        return found._replace(body=found.body.decode().encode(encoding))

    return answered


def cut(dialect: Dialect, framing: str) -> Answered:
    """Within the call, and ended as if it were whole."""
    found = calling(dialect, framing)
    end = found.body.index(b'"secret"') + 9
    return found._replace(body=found.body[:end] + (b"\r\n\r\n" if framing == "SSE" else b""))


def behind(dialect: Dialect, framing: str) -> Answered:
    """What comes behind a call that can be read is another, which cannot."""
    first, second = calling(dialect, framing), calling(dialect, framing, b"NaN")
    return first._replace(body=first.body + second.body)


def with_piece(piece: bytes) -> Callable[[Dialect, str], Answered]:
    """A stream within whose call there is this event."""

    def answered(dialect: Dialect, framing: str) -> Answered:
        found = calling(dialect, framing)
        events = found.body.split(b"\n\n")
        return found._replace(body=b"\n\n".join([*events[:2], b"data: " + piece, *events[2:]]))

    return answered


PIECES = {
    "unreadable": b'{"event_type":"step.delta","index":0,"delta":{"arguments":"secret"},"x":NaN}',
    "without an index": b'{"event_type":"step.delta","delta":{"arguments":"secret"}}',
    "of a strange index": b'{"event_type":"step.delta","index":"0","delta":{"arguments":"secret"}}',
}


def broken(dialect: Dialect, framing: str) -> dict[str, Callable[[Dialect, str], Answered]]:
    """Answers with a call, by what is wrong with it."""
    found: dict[str, Callable[[Dialect, str], Answered]] = {name: partial(calling, args=ARGS[name]) for name in ARGS}
    for key, raw in dialect.keys.items():
        found |= {f"{name}, {key} key": partial(calling, args=ARGS[name], key=raw) for name in ("plain", "NaN")}
    found |= {coding: encoded(coding) for coding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig")}
    if framing == "SSE" and dialect is INTERACTIONS:
        found |= {f"piece {name}": with_piece(piece) for name, piece in PIECES.items()}
    return found | {"truncated": cut, "behind it": behind}


def is_readable(case: str, framing: str) -> bool:
    """Whether it is an answer all the same: text that is no Unicode is replaced, and a stream may have a mark of order
    before it."""
    return case.startswith(("plain", "half a pair", "no UTF-8")) or (case == "utf-8-sig" and framing == "SSE")


class Upstream:
    """`saying` is broken, and comes where the requests of a loop say what none before has said: first, or `later`."""

    def __init__(self) -> None:
        self.saying: Callable[[Dialect, str], Answered] | None = None
        self.later = False
        self.heard: list[bytes] = []

    def begin(self, saying: Callable[[Dialect, str], Answered], *, later: bool) -> None:
        self.saying, self.later, self.heard = saying, later, []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for message in requests(reader):
            writer.write(answer(*self.answer(*message)))
            await writer.drain()

    def answer(self, head: bytes, body: bytes) -> Answered:
        assert self.saying is not None
        path = head.split(b" ", 2)[1].decode()
        dialect = dialect_of(path)
        framing = dialect.framing(path, body)
        if body not in self.heard:
            self.heard.append(body)
        number = self.heard.index(body) - self.later
        if number < 0:
            return dialect.answer(framing, Call(TOOL))
        return self.saying(dialect, framing) if number == 0 else dialect.answer(framing, "done")


class Route(NamedTuple):
    session: str = "default"
    later: bool = False


OWN_FORMS = (GEMINI, COMPLETIONS, INTERACTIONS)
ROUTES = {"a first round": Route(), "a later round": Route(later=True), "a placeholder": Route("by-hand")}


@pytest.fixture
async def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
async def proxied(tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxied]:
    monkeypatch.setattr(upstream_module, "_FIRST_PAUSE", 0.001)
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    async with (
        serving(upstream) as url,
        Proxied(
            tmp_path,
            url,
            tools=[str(file)],
            control="127.0.0.1:0",
            token="off",
            redirect=[f"{GOOGLE}={url}"],
            retry_window="0",
        ) as proxied,
    ):
        await proxied.runtime.store.put_policy("by-hand", Policy(delivery="placeholder"))
        yield proxied


@pytest.mark.e2e
@pytest.mark.parametrize("name", DIALECTS)
async def test_no_call_is_shown_and_what_cannot_be_read_is_an_error_of_the_surfaces(
    proxied: Proxied, upstream: Upstream, name: str
) -> None:
    dialect = DIALECTS[name]
    assert proxied.runtime._server is not None
    base = proxied.runtime._server.url if dialect.is_door else proxied.reverse
    wrong: dict[tuple[str, str, str], object] = {}
    spoken = GEMINI if dialect.is_door else dialect
    async with proxied.client() as client:
        # with placeholders, Code Assist's answers and those behind a door go the way of Gemini's
        ways = [way for way in ROUTES if ROUTES[way].session == "default" or dialect in OWN_FORMS]
        asked = [
            (way, framing, *case)
            for way in ways
            for framing in dialect.paths
            for case in broken(spoken, framing).items()
        ]
        for way, framing, case, saying in asked:
            upstream.begin(saying, later=ROUTES[way].later)
            headers = {"x-goog-api-key": "k", "x-graft-session": ROUTES[way].session}
            got = await client.post(base + dialect.paths[framing], json=dialect.request(framing), headers=headers)
            try:
                how = dialect.outcome(got.status_code, got.text).how
            except AssertionError as error:
                how = str(error)
            is_visible = b"secret" in got.content.replace(b"\0", b"")
            if is_visible or how != ("whole" if is_readable(case, framing) else "error"):
                wrong[way, framing, case] = how, got.text[:500]
    assert not wrong


FRAMES = {
    "camel": b'{"toolCall":{"functionCalls":[%b]}}',
    "snake": b'{"tool_call":{"function_calls":[%b]}}',
    "escaped": rb'{"tool\u0043all":{"functionCalls":[%b]}}',
}
MISSHAPEN = (
    b'{"toolCall":[{"functionCalls":[%b]}]}',
    b'{"toolCall":{"functionCalls":[[%b]]}}',
    b'{"toolCall":{"functionCalls":[],"function_calls":[%b]}}',
    b'{"toolCall":{},"tool_call":{"functionCalls":[%b]}}',
    b'[{"toolCall":{"functionCalls":[%b]}}]',
)


@pytest.mark.parametrize("kind", [Opcode.TEXT, Opcode.BINARY])
async def test_no_call_is_shown_in_a_live_connection_and_one_that_cannot_be_read_ends_it(
    make: Callable[..., Hooks],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    kind: Opcode,
) -> None:
    hooks = make()
    await hooks.tools(TOOL)
    call = b'{"id":"f1","name":"lookup","args":{"secret":%b}}'
    frames = {(key, name): form % (call % args) for key, form in FRAMES.items() for name, args in ARGS.items()}
    plain = frames["camel", "plain"]
    frames |= {("in", coding): plain.decode().encode(coding) for coding in ("utf-16", "utf-16-le", "utf-32")}
    frames |= {("shape", str(number)): form % (call % b"1") for number, form in enumerate(MISSHAPEN)}
    frames |= {("behind", "mark"): b"\xef\xbb\xbf" + plain, ("end", "cut"): plain[:-4], ("end", "more"): plain + b"}"}
    wrong = {}
    for case, data in frames.items():
        made = await Socket(hooks, monkeypatch).open()
        await made.frame(SETUP)
        message = await made.frame(data, from_client=False, type=kind)
        is_hidden = message.dropped or b"secret" not in message.content.replace(b"\0", b"")
        closed = [event.message.content for event in made.injected]
        if not is_hidden or bool(closed) is is_readable(case[1], "frame"):
            wrong[case] = message.dropped, message.content[:100], closed
        await hooks.call("websocket_end", made.flow)
    assert not wrong
