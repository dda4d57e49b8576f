"""Starts the proxy processes, starts those again that die, replaces them on SIGHUP, and ends them on SIGTERM."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import filelock

from addon.supervisor.messages import Message
from addon.supervisor.ports import Ports
from addon.supervisor.process import Process

START_TIMEOUT = 60.0
"""Seconds that a process has to open its ports."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a process that failed to start is started again; the pause doubles with each failure."""

_STEADY = 1.0
"""Seconds that a process must have served for its start not to count as a failure."""

_TOLERATED = 2
"""How often in a row a process may end soon after its start before the connections that wait for the slot are reset.
One may be killed twice by chance."""

_ADDRESS_FILES = ("control.url", "proxy.json")


@dataclass(slots=True)
class _Slot:
    number: int
    process: Process | None = None
    replaced: set[Process] = field(default_factory=set)
    """Processes whose place another one takes, while that starts and they finish their last requests."""


class Supervisor:
    """`command`: the program of every process."""

    def __init__(self, count: int, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._command = command
        self._environ = environ
        self._slots = [_Slot(number) for number in range(count)]
        self._ports = Ports()
        self._locks: dict[str, filelock.BaseFileLock] = {}
        self._ending = asyncio.Event()
        self._status = 0
        self._reload: asyncio.Task[None] | None = None

    async def run(self) -> int:
        """Returns the exit status once every process has ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, number)
        loop.add_signal_handler(signal.SIGHUP, self._begin_reload)
        try:
            if await self._start_first():
                await self._keep_all()
            await self._end_all()
        finally:
            self._release()
        return self._status

    async def _start_first(self) -> bool:
        """Start the first process alone, so that a wrong option is reported once. Returns whether it serves."""
        process = await self._start(self._slots[0])
        ready = asyncio.ensure_future(process.wait_until_ready(START_TIMEOUT))
        ending = asyncio.ensure_future(self._ending.wait())
        await asyncio.wait({ready, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        if not ready.done():
            ready.cancel()
            return False
        if not ready.result() and not self._ending.is_set():
            self._status = max(await process.wait(), 1) if process.has_ended else 1
            if not process.has_ended:
                say(f"the first process does not serve within {START_TIMEOUT:g} s")
            return False
        return not self._ending.is_set()

    async def _start(self, slot: _Slot) -> Process:
        """Start a process, which becomes that of its slot."""
        slot.process = await Process.start(
            slot.number, self._command, self._environ, partial(self._answer, slot.number), self._states
        )
        return slot.process

    async def _keep_all(self) -> None:
        """Have every slot served until the end. Raises what stopped that, such as OSError."""
        keepers = [asyncio.ensure_future(self._keep(slot)) for slot in self._slots]
        ending = asyncio.ensure_future(self._ending.wait())
        try:
            done, _ = await asyncio.wait({ending, *keepers}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (ending, *keepers):
                task.cancel()

    async def _keep(self, slot: _Slot) -> None:
        """Have the slot always served by a process."""
        failures = 0
        while True:
            try:
                process = slot.process or await self._start(slot)
            except OSError as error:
                say(f"slot {slot.number + 1}: no process can be started: {error}")
                await asyncio.sleep(_LONGEST_PAUSE)
                continue
            if not await process.wait_until_ready(START_TIMEOUT) and not process.has_ended:
                process.signal(signal.SIGKILL)
            began = asyncio.get_running_loop().time()
            status = await process.wait()
            is_steady = process.is_ready and asyncio.get_running_loop().time() - began >= _STEADY
            if slot.process is not process:
                continue  # another one has replaced it
            slot.process = None
            say(f"process {process.pid} of slot {slot.number + 1} {_in_words(status)}: another one is started")
            failures = 0 if is_steady else failures + 1
            if process.is_ready and failures <= _TOLERATED:
                continue  # its connections wait
            self._ports.pause(slot.number)
            await asyncio.sleep(min(_FIRST_PAUSE * 2 ** min(failures - 1, 10), _LONGEST_PAUSE))

    def _answer(self, slot: int, message: Message) -> tuple[Message, Sequence[socket.socket]]:
        """The reply to a process. Raises OSError."""
        if "listen" in message:
            return {}, self._ports.open(slot, *message["listen"])
        self._lock(message["lock"])
        return {}, ()

    async def _states(self, question: Message) -> list[Message]:
        """What the serving processes answer to a question. One that does not answer is left out."""
        serving = [process for process in self._processes() if process.is_ready and not process.has_ended]
        return [
            state for state in await asyncio.gather(*(one.describe(question) for one in serving)) if state is not None
        ]

    def _lock(self, folder: str) -> None:
        """Lock a state folder for all processes. Raises OSError if somebody else has it."""
        if folder in self._locks:
            return
        lock = filelock.FileLock(Path(folder) / "proxy.lock", mode=0o600, timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            words = "another proxy uses this state folder; stop it, or give this one its own (graft_state)"
            raise OSError(f"{folder}: {words}") from None
        self._locks[folder] = lock

    # --- signals ----------------------------------------------------------------------------------------------------

    def _end(self, number: signal.Signals) -> None:
        """End: every process drains. A second signal ends the drain."""
        self._ending.set()
        for process in self._processes():
            process.signal(number)

    def _begin_reload(self) -> None:
        if self._reload is not None and not self._reload.done():
            say("the processes are already being replaced")
        elif not self._ending.is_set():
            self._reload = asyncio.ensure_future(self._replace_all())

    async def _replace_all(self) -> None:
        """Replace the processes, one after the other. The old one ends once the new one serves."""
        for slot in self._slots:
            old = slot.process
            if old is None:
                continue  # another one is being started anyway
            slot.replaced.add(old)
            try:
                new = await self._start(slot)
            except OSError as error:
                slot.replaced.discard(old)
                say(f"no new process can be started, the others stay as they are: {error}")
                return
            if not await new.wait_until_ready(START_TIMEOUT):
                slot.process = old
                slot.replaced.discard(old)
                new.signal(signal.SIGKILL)
                await new.wait()
                say("the new process does not serve: the others stay as they are")
                return
            await old.retire()
            await self._wait_for_end(old)
            slot.replaced.discard(old)
        say("every process was replaced")

    # --- the end ----------------------------------------------------------------------------------------------------

    def _processes(self) -> list[Process]:
        return [one for slot in self._slots for one in (slot.process, *slot.replaced) if one is not None]

    async def _end_all(self) -> None:
        if self._reload is not None:
            self._reload.cancel()
        for process in self._processes():
            if not process.is_told_to_end:  # it has just been started, or nobody has sent a signal
                process.signal(signal.SIGTERM)
        statuses = await asyncio.gather(*(self._wait_for_end(process) for process in self._processes()))
        if any(statuses):
            self._status = self._status or 1

    async def _wait_for_end(self, process: Process) -> bool:
        """Returns whether the process has failed."""
        if not await process.wait_for_end():
            say(f"process {process.pid} has not ended within {process.ends_within:g} s: it was killed")
            return True
        return await process.wait() > 0

    def _release(self) -> None:
        self._ports.close()
        for folder, lock in self._locks.items():
            for name in _ADDRESS_FILES:
                with suppress(OSError):
                    (Path(folder) / name).unlink(missing_ok=True)
            lock.release()


def say(words: str) -> None:
    with suppress(OSError):  # nobody may be reading the output
        # one write: its processes write to the same place, and `print` makes two where Python does not buffer
        sys.stderr.write(f"toolgraft: {words}\n")
        sys.stderr.flush()


def supervise(count: int, command: Sequence[str]) -> int:
    """Run `count` processes of this command until a signal ends them. Returns the exit status."""
    return asyncio.run(Supervisor(count, command, os.environ).run())


def _in_words(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
