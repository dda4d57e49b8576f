"""Loops as they are served: each is a task of its own, and what it says waits until it is taken.

A callable that mitmproxy streams through cannot await; a task can. How the pieces get to the client is not known here:
there is no port, no connection and nothing that an address or a secret would be needed for.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial

import httpx2

from addon.core import replies
from addon.loop.runner import Head, Runner

logger = logging.getLogger("toolgraft")

_AHEAD = 64 * 1024
"""Bytes that a loop may be ahead of its client."""

_FAREWELL = 1.0
"""Seconds in which clients are told that the proxy stops."""

Send = Callable[[Head | bytes], Awaitable[None]]


class LoopAnswer:
    """The answer of one loop on its way. `over`: it has ended, and all of it was taken; `error`: it broke off.
    `is_sent` says whether the client has been sent all of it, and `streams` whether it is sent what was taken at once;
    `stopping`: the proxy ends, and not the client. `was_shown`: the client that hung up had been sent all that there
    was."""

    def __init__(
        self,
        is_sent: Callable[[], bool] = lambda: True,
        streams: Callable[[], bool] = lambda: True,
        settle: Callable[[bool], None] = lambda whole: None,
    ) -> None:
        self.error: BaseException | None = None
        self.is_sent = is_sent
        self.stopping = False
        self.was_shown = False
        self._streams = streams
        self._settle = settle
        self._pieces: list[Head | bytes] = []
        self._size = 0
        self._ended = False
        self._came = asyncio.Event()
        self._taken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return self._ended and not self._pieces

    def run(self, task: asyncio.Task[None]) -> None:
        """The task that puts the pieces, and ends the answer when it is done."""
        self._task = task
        task.add_done_callback(self._end)

    async def put(self, piece: Head | bytes) -> None:
        """Returns when the client is not too far behind."""
        self._pieces.append(piece)
        self._came.set()
        if isinstance(piece, bytes):
            self._size += len(piece)
        while self._size > _AHEAD:
            self._taken.clear()
            await self._taken.wait()

    async def take(self) -> list[Head | bytes]:
        """What has come since the last time: nothing where the answer has ended."""
        while not self._pieces and not self._ended:
            self._came.clear()
            await self._came.wait()
        pieces, self._pieces, self._size = self._pieces, [], 0
        self._taken.set()
        return pieces

    def cancel(self) -> None:
        """The client has hung up, or the proxy ends. Once is enough: what a loop has to do then is not cut off."""
        if self._task is not None and not self._task.cancelling():
            self.was_shown = not self._pieces and self._streams()
            self._task.cancel()

    def handed_over(self, whole: bool) -> None:
        """The client has all of the answer, or else has hung up before. Said once."""
        if self._ended:  # else the loop that was cancelled knows
            self._settle(whole)

    def _end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.error = asyncio.CancelledError("the proxy has ended the answer")
        else:
            self.error = task.exception()
        if self.error is not None:
            logger.debug("an answer broke off: %s", self.error)
        self._ended = True
        self._task = None
        self._came.set()


class LoopServer:
    """Runs the loops of the proxy's own clients. Its length is how many are under way."""

    def __init__(self) -> None:
        self._answers: dict[asyncio.Task[None], LoopAnswer] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._stopped = False

    def answer(
        self,
        runner: Runner,
        is_sent: Callable[[], bool] = lambda: True,
        streams: Callable[[], bool] = lambda: True,
    ) -> LoopAnswer:
        """Begin a loop. After `stop` its answer breaks off before it has begun. `is_sent`, `streams`: see
        `LoopAnswer`."""
        answering = LoopAnswer(is_sent, streams, partial(self._settle, runner))
        task = asyncio.ensure_future(_answer(runner, answering))
        self._answers[task] = answering
        task.add_done_callback(self._answers.pop)
        answering.run(task)
        if self._stopped:
            answering.cancel()
        return answering

    def _settle(self, runner: Runner, whole: bool) -> None:
        task = asyncio.ensure_future(runner.handed_over(whole))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def stop(self) -> None:
        """Returns when the loops have ended, and their clients have been told so."""
        self._stopped = True
        answers = dict(self._answers)
        for answering in answers.values():
            answering.stopping = True
            answering.cancel()
        if answers:
            await asyncio.wait(list(answers))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    while not all(answering.is_sent() for answering in answers.values()):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)  # mitmproxy tells nobody when it has sent something
        if self._settling:
            await asyncio.wait(set(self._settling))

    def __len__(self) -> int:
        return len(self._answers)


async def _answer(runner: Runner, answering: LoopAnswer) -> None:
    """Send what a loop gives. Where the upstream breaks off in an answer, the answer breaks off; where the proxy stops,
    the client is told so."""
    send, begun = answering.put, False
    output = runner.output()
    try:
        async for out in output:
            begun = True
            await send(out)
    except httpx2.RequestError as error:
        if begun:
            raise
        await _refuse(runner, send, 502, "UNAVAILABLE", f"the model cannot be reached: {error}")
    except Exception as error:
        logger.exception("a tool loop failed")
        if begun:
            raise
        await _refuse(runner, send, 500, "INTERNAL", f"the tool loop failed: {type(error).__name__}")
    except asyncio.CancelledError:
        await output.aclose()
        await runner.cut_off()
        if not answering.stopping:
            await runner.handed_over(answering.was_shown)
            raise
        for out in runner.stopped():
            await send(out)
    finally:
        await output.aclose()


async def _refuse(runner: Runner, send: Send, code: int, status: str, message: str) -> None:
    await send(Head(code, [(b"content-type", b"application/json; charset=UTF-8")]))
    await send(runner.wire.error(replies.error(code, status, f"toolgraft: {message}")))
