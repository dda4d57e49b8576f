"""Runs each loop in a separate task, and buffers its output until it is taken.

A callable that mitmproxy streams through cannot await; a task can. This module knows nothing about how output reaches
the client: no port, connection, address or secret.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import httpx2

from addon.core.framing import replies
from addon.loop.runner import Head, Runner

logger = logging.getLogger("toolgraft")

_AHEAD = 64 * 1024
"""The most bytes of output that a loop may buffer."""

_FAREWELL = 1.0
"""Seconds for sending clients the error that the proxy stops."""

Send = Callable[[Head | bytes], Awaitable[None]]


class LoopAnswer:
    """The answer of one loop while it is sent. `error`: why it broke off. `is_sent()`: whether the whole answer was
    sent to the client. `streams()`: whether output is sent as soon as it is taken. `stopping`: the proxy, not the
    client, ends the answer. `was_caught_up`: all output was sent before the client hung up. `kept`: the body so far;
    None if it is not kept."""

    def __init__(
        self,
        is_sent: Callable[[], bool] = lambda: True,
        streams: Callable[[], bool] = lambda: True,
        settle: Callable[[bool], None] = lambda whole: None,
        *,
        keeps: bool = False,
    ) -> None:
        self.error: BaseException | None = None
        self.is_sent = is_sent
        self.stopping = False
        self.was_caught_up = False
        self.kept: list[bytes] | None = [] if keeps else None
        self._streams = streams
        self._settle = settle
        self._pieces: list[Head | bytes] = []
        self._size = 0
        self._ended = False
        self._changed = asyncio.Event()
        self._drained = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def complete(cls, head: Head, body: bytes) -> "LoopAnswer":
        """An answer that no loop makes."""
        answer = cls()
        answer._pieces = [head, body]
        answer.end()
        return answer

    @property
    def over(self) -> bool:
        """Whether the answer has ended and all of it was taken."""
        return self._ended and not self._pieces

    def run(self, task: asyncio.Task[None]) -> None:
        """Set the task that produces the answer, which ends with the task."""
        self._task = task
        task.add_done_callback(self._end)

    async def put(self, piece: Head | bytes) -> None:
        """Add a piece. Returns when the buffer has room."""
        self._pieces.append(piece)
        self._changed.set()
        if isinstance(piece, bytes):
            self._size += len(piece)
            if self.kept is not None:
                self.kept.append(piece)
        while self._size > _AHEAD:
            self._drained.clear()
            await self._drained.wait()

    async def take(self) -> list[Head | bytes]:
        """The pieces since the last call, as soon as one exists; empty if the answer has ended."""
        while not self._pieces and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        pieces, self._pieces, self._size = self._pieces, [], 0
        self._drained.set()
        return pieces

    def cancel(self) -> None:
        """Cancel the loop because the client has hung up or the proxy stops: only once, so that it can clean up."""
        if self._task is not None and not self._task.cancelling():
            self.was_caught_up = not self._pieces and self._streams()
            self._task.cancel()

    def settle_handover(self, whole: bool) -> None:
        """Record, once, whether the client received the whole answer or hung up before."""
        if self._ended:  # otherwise the cancelled loop settles it
            self._settle(whole)

    def end(self) -> None:
        """End the answer after its last piece, before the task ends: no waiter then needs another turn of the event
        loop."""
        self._ended = True
        self._changed.set()

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.error = asyncio.CancelledError("the proxy has ended the answer")
        else:
            self.error = task.exception()
        if self.error is not None:
            logger.debug("an answer broke off: %s", self.error)
        self._task = None
        self.end()


class LoopServer:
    """Runs the loops of the proxy's clients. Its length is the number of running loops."""

    def __init__(self) -> None:
        self._answers: dict[asyncio.Task[None], LoopAnswer] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._stopped = False

    def answer(
        self,
        runner: Runner,
        is_sent: Callable[[], bool] = lambda: True,
        streams: Callable[[], bool] = lambda: True,
        *,
        keeps: bool = False,
    ) -> LoopAnswer:
        """Begin a loop. After `stop`, its answer breaks off before it begins. `is_sent` and `streams` as in
        `LoopAnswer`. `keeps`: keep its body."""
        answer = LoopAnswer(is_sent, streams, partial(self._settle, runner), keeps=keeps)
        task = asyncio.ensure_future(_answer(runner, answer))
        self._answers[task] = answer
        task.add_done_callback(self._answers.pop)
        answer.run(task)
        if self._stopped:
            answer.cancel()
        return answer

    def _settle(self, runner: Runner, whole: bool) -> None:
        task = asyncio.ensure_future(runner.settle_handover(whole))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def stop(self) -> None:
        """Stop all loops. Returns when they have ended and the error was sent to their clients."""
        self._stopped = True
        answers = dict(self._answers)
        for answer in answers.values():
            answer.stopping = True
            answer.cancel()
        if answers:
            await asyncio.wait(list(answers))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    while not all(answer.is_sent() for answer in answers.values()):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)  # mitmproxy does not report when it has sent something
        if self._settling:
            await asyncio.wait(set(self._settling))

    def __len__(self) -> int:
        return len(self._answers)


async def _answer(runner: Runner, answer: LoopAnswer) -> None:
    """Put the output of a loop into its answer, which breaks off with the upstream. If the proxy stops, an error
    follows."""
    send, has_begun = answer.put, False
    output = runner.output()
    try:
        async for out in output:
            has_begun = True
            await send(out)
    except httpx2.RequestError as error:
        if has_begun:
            raise
        await _refuse(runner, send, 502, "UNAVAILABLE", f"the model cannot be reached: {error}")
    except Exception as error:
        logger.exception("a tool loop failed")
        if has_begun:
            raise
        await _refuse(runner, send, 500, "INTERNAL", f"the tool loop failed: {type(error).__name__}")
    except asyncio.CancelledError:
        await output.aclose()
        await runner.cut_off()
        if not answer.stopping:
            await runner.settle_handover(answer.was_caught_up)
            raise
        for out in runner.stopped():
            await send(out)
    finally:
        await output.aclose()
    answer.end()


async def _refuse(runner: Runner, send: Send, code: int, status: str, message: str) -> None:
    await send(Head(code, [(b"content-type", b"application/json; charset=UTF-8")]))
    await send(runner.exchange.wire.error(replies.error(code, status, f"toolgraft: {message}")))
