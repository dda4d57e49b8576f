"""One proxy process, as its supervisor sees it."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Self

from addon.supervisor import messages
from addon.supervisor.messages import Message

type Respond = Callable[[Message], tuple[Message, Sequence[socket.socket]]]
type Collect = Callable[[Message], Awaitable[list[Message]]]

_RETIRE_TIMEOUT = 10.0
"""Seconds that a process has to read that it is replaced."""

_DESCRIBE_TIMEOUT = 1.0
"""Seconds that a process has to describe itself; a stopped one does not."""


_SEND_PAUSE = 0.01
"""Seconds until a message is sent again that found the channel full."""

_ENDS_WITHIN = 60.0
"""Seconds that the end of a process may take that has not said so itself."""


class Process:
    """Made by `start`."""

    def __init__(
        self, running: asyncio.subprocess.Process, channel: socket.socket, respond: Respond, collect: Collect
    ) -> None:
        self._running = running
        self._channel = channel
        self._respond = respond
        self._collect = collect
        self._numbers = count()
        self._described: dict[int, asyncio.Future[Message]] = {}
        self._collecting: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()
        self.pid = running.pid
        self.is_ready = False
        self.is_told_to_end = False
        self.ends_within = _ENDS_WITHIN
        self._changed = asyncio.Event()
        self._ended = asyncio.ensure_future(self._wait())
        asyncio.get_running_loop().add_reader(channel, self._read)

    @classmethod
    async def start(
        cls, slot: int, command: Sequence[str], environ: Mapping[str, str], respond: Respond, collect: Collect
    ) -> Self:
        """`respond` gives the reply to a message, `collect` the states of all processes. Raises OSError if the program
        cannot be started."""
        own, other = messages.pair()
        own.setblocking(False)
        with other:
            try:
                running = await asyncio.create_subprocess_exec(
                    *command,
                    env={**environ, messages.VARIABLE: f"{slot}:{other.fileno()}"},
                    pass_fds=[other.fileno()],
                    process_group=0,  # Ctrl-C is the supervisor's: two signals would end a process without a drain
                )
            except BaseException:
                own.close()
                raise
        return cls(running, own, respond, collect)

    async def wait_until_ready(self, timeout: float) -> bool:
        """Returns whether the process serves: it may end first, or take longer than `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self.is_ready and not self._ended.done():
                    self._changed.clear()
                    await self._changed.wait()
        return self.is_ready and not self._ended.done()

    async def wait(self) -> int:
        """The exit status; negative: the signal that ended it."""
        return await asyncio.shield(self._ended)

    async def wait_for_end(self) -> bool:
        """Wait for the end of a process that was told to end. Returns False if it had to be killed, since that took
        longer than it may."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.ends_within):
                await self.wait()
                return True
        self.signal(signal.SIGKILL)
        await self.wait()
        return False

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    async def describe(self, question: Message) -> Message | None:
        """The process's answer to a question; None if there is none in time."""
        number = next(self._numbers)
        self._described[number] = waiting = asyncio.get_running_loop().create_future()
        try:
            messages.send(self._channel, {"describe": number, "question": question})
            async with asyncio.timeout(_DESCRIBE_TIMEOUT):
                state: Message = await waiting
                return state
        except OSError:  # TimeoutError is one
            return None
        finally:
            del self._described[number]

    async def retire(self) -> None:
        """Have the process accept nothing new, finish what it has, and end. One that does not read is told by a signal
        to end."""
        try:
            async with asyncio.timeout(_RETIRE_TIMEOUT):
                await self._send([{"retire": True}])
        except OSError:  # TimeoutError is one
            self.signal(signal.SIGTERM)

    def signal(self, number: signal.Signals) -> None:
        self.is_told_to_end = True
        if not self.has_ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _wait(self) -> int:
        status = await self._running.wait()
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()
        self._changed.set()
        return status

    def _read(self) -> None:
        try:
            message, _ = messages.receive(self._channel)
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._channel)
            return
        if "ready" in message:
            self.is_ready = True
            self.ends_within = message["ends_within"]
            self._changed.set()
        elif "described" in message:
            waiting = self._described.get(message["described"])
            if waiting is not None and not waiting.done():
                waiting.set_result(message["state"])
        elif "collect" in message:
            task = asyncio.ensure_future(self._send_states(message["collect"], message.get("question", {})))
            self._collecting.add(task)
            task.add_done_callback(self._collecting.discard)
        else:
            self._send_reply(message)

    def _send_reply(self, message: Message) -> None:
        try:
            reply, sockets = self._respond(message)
        except OSError as error:
            reply, sockets = {"error": error.strerror or str(error), "errno": error.errno}, ()
        with suppress(OSError):
            messages.send(self._channel, reply, sockets)

    async def _send_states(self, number: int, question: Message) -> None:
        states = await self._collect(question)
        with suppress(OSError):  # one by one: all together may be more than one message can hold
            await self._send([*({"states": number, "state": state} for state in states), {"states": number}])

    async def _send(self, several: Sequence[Message]) -> None:
        """Send messages as the process reads them. Raises OSError."""
        async with self._sending:  # one after the other, in their order
            for message in several:
                while True:
                    try:
                        messages.send(self._channel, message)
                    except BlockingIOError:
                        await asyncio.sleep(_SEND_PAUSE)
                    else:
                        break
