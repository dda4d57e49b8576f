"""What a proxy process knows of its supervisor."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path

from addon.supervisor.messages import VARIABLE, Message, receive, send

_TIMEOUT = 10.0
"""Seconds within which the supervisor answers."""


@dataclass(slots=True)
class Membership:
    """The process's place below the supervisor. `slot`: from 0."""

    slot: int
    channel: socket.socket
    _numbers: Iterator[int] = field(default_factory=count)
    _waiting: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    _states: dict[int, list[Message]] = field(default_factory=dict)

    def listen(self, host: str, port: int) -> list[socket.socket]:
        """Listening sockets that the other slots have as well. Raises OSError."""
        return self._ask({"listen": [host, port]})[1]

    def lock(self, folder: Path) -> None:
        """Lock a state folder for the supervisor. Raises OSError if somebody else has it."""
        self._ask({"lock": str(folder)})

    def say_ready(
        self,
        *,
        ends_within: float,
        describe: Callable[[Message], Message],
        retire: Callable[[], None],
        orphaned: Callable[[], None],
    ) -> None:
        """Tell the supervisor that this process serves, and that its end takes at most `ends_within` seconds. From then
        on `describe` is called for this process's answer to a question, `{}` for its state, `retire` if another process
        has replaced it, and `orphaned` if the supervisor is gone."""
        loop = asyncio.get_running_loop()

        def read() -> None:
            try:
                message, _ = receive(self.channel)
            except EOFError:
                loop.remove_reader(self.channel)
                orphaned()
                return
            if "retire" in message:
                retire()
            elif "describe" in message:
                send(self.channel, {"described": message["describe"], "state": describe(message.get("question", {}))})
            elif (number := message["states"]) in self._waiting:
                if "state" in message:
                    self._states[number].append(message["state"])
                elif not self._waiting[number].done():
                    self._waiting[number].set_result(None)

        try:
            send(self.channel, {"ready": True, "ends_within": ends_within})
        except OSError:
            orphaned()
        else:
            loop.add_reader(self.channel, read)

    async def states(self, question: Message | None = None) -> list[Message]:
        """What every process answers to a question, this one included; without one, what it says of itself. Raises
        OSError if the supervisor does not answer."""
        number = next(self._numbers)
        self._waiting[number] = waiting = asyncio.get_running_loop().create_future()
        self._states[number] = states = list[Message]()
        try:
            send(self.channel, {"collect": number, "question": question or {}})
            async with asyncio.timeout(_TIMEOUT):
                await waiting
            return states
        except TimeoutError:
            raise OSError("the supervisor does not answer") from None
        finally:
            del self._waiting[number], self._states[number]

    def _ask(self, message: Message) -> tuple[Message, list[socket.socket]]:
        try:
            send(self.channel, message)
            answer, sockets = receive(self.channel)
        except (OSError, EOFError) as error:
            raise OSError(f"the supervisor does not answer: {error}") from error
        if "error" in answer:
            raise OSError(answer.get("errno"), answer["error"])
        return answer, sockets


@cache
def membership() -> Membership | None:
    """This process's membership, or None if it was started alone."""
    return _membership(os.environ)


def _membership(environ: MutableMapping[str, str]) -> Membership | None:
    slot, _, descriptor = environ.pop(VARIABLE, "").partition(":")  # not for programs that this one starts
    if not descriptor:
        return None
    os.set_inheritable(int(descriptor), False)
    channel = socket.socket(fileno=int(descriptor))
    channel.settimeout(_TIMEOUT)
    return Membership(int(slot), channel)
