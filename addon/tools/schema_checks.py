"""Checks values against JSON Schemas without blocking the event loop.

A pattern or a few nested choices can make a check take forever. A check that is certainly quick runs at once; any other
runs in a separate process, which is killed after a time limit.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

from addon.tools.arguments import check_text, schema_problem
from addon.tools.schema_weight import weight

MAX_SECONDS = 5.0
"""Time limit of one check, unless the tool's own timeout is shorter."""

_QUICK = 16_384  # characters of a value, times visits of each: a few milliseconds
_PROCESSES = 2  # concurrent checks
_MAX_LINE = 1024 * 1024
_MAIN = "import sys; sys.path[:] = sys.argv[1:]; from addon.tools.schema_process import main; main()"


class SchemaChecks:
    """Shared by everything that runs tools in one event loop. Who made it closes it, after all that use it."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(_PROCESSES)
        self._processes: set[asyncio.subprocess.Process] = set()
        self._idle: list[asyncio.subprocess.Process] = []
        self._is_closed = False
        self._changing: set[asyncio.Task[Any]] = set()  # starts and ends of processes, which nobody cancels

    def quick_problems(self, schema: Mapping[str, Any], value: Any) -> list[str] | None:
        """The result of `problems` if the check is certainly quick, else None. Never raises."""
        texts = _as_json(schema, value)
        return texts if isinstance(texts, list) else _quick(*texts, value)

    async def problems(self, schema: Mapping[str, Any], value: Any, seconds: float = MAX_SECONDS) -> list[str]:
        """The problems of the value, as `addon.tools.arguments.check` words them. Never raises."""
        texts = _as_json(schema, value)
        if isinstance(texts, list):
            return texts
        if (found := _quick(*texts, value)) is not None:
            return found
        try:
            problems: list[str] = await self._ask_process(*texts, min(seconds, MAX_SECONDS))
            return problems
        except _NoAnswer as e:
            return [f"the arguments could not be checked against the tool's schema{e}"]

    async def schema_problem(self, schema: Mapping[str, Any]) -> str | None:
        """Why the schema cannot be used; None if it is a JSON Schema. Never raises."""
        try:
            text = json.dumps(schema)
        except (RecursionError, ValueError, TypeError):
            return "it is nested too deeply"
        if weight(text) is not None:
            return schema_problem(text)
        try:
            problem: str | None = await self._ask_process(text, None, MAX_SECONDS)
            return problem
        except _NoAnswer as e:
            return f"it could not be read{e}"

    async def close(self) -> None:
        """End the processes, and with them the checks in progress. From now on only quick checks have a result."""
        self._is_closed = True
        while self._processes or self._changing:
            for process in self._processes:
                self._change(_end(process))
            self._processes.clear()
            self._idle.clear()
            await asyncio.wait(self._changing)

    async def _ask_process(self, schema: str, value: str | None, seconds: float) -> Any:
        """Ask a process. Raises _NoAnswer."""
        line = json.dumps((seconds, schema, value)).encode() + b"\n"
        try:
            async with asyncio.timeout(seconds), self._slots:
                process = self._idle.pop() if self._idle else await self._start()
                try:
                    answer = await _exchange(process, line)
                except BaseException:
                    self._processes.discard(process)
                    await asyncio.shield(self._change(_end(process)))
                    raise
                self._idle.append(process)
                return answer
        except TimeoutError:
            raise _NoAnswer(f" within {seconds:g} s") from None
        except (OSError, ValueError):  # it did not start, or ended, for example at its memory limit
            raise _NoAnswer("") from None

    async def _start(self) -> asyncio.subprocess.Process:
        if self._is_closed:
            raise _NoAnswer(": the proxy is ending")
        starting = self._change(_start_process())
        starting.add_done_callback(self._add)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(self._keep)
            raise

    def _add(self, started: "asyncio.Task[asyncio.subprocess.Process]") -> None:
        if not started.cancelled() and started.exception() is None:
            self._processes.add(started.result())

    def _keep(self, started: "asyncio.Task[asyncio.subprocess.Process]") -> None:
        """For the next check: who started it has gone."""
        if not started.cancelled() and started.exception() is None and not self._is_closed:
            self._idle.append(started.result())

    def _change[T](self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        task = asyncio.ensure_future(work)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)
        return task


class _NoAnswer(Exception):
    """The check has no result. The message is the reason, if known."""


def _as_json(schema: Mapping[str, Any], value: Any) -> tuple[str, str] | list[str]:
    """Both as JSON text, or the problem that prevents it."""
    try:
        return json.dumps(schema), json.dumps(value)
    except RecursionError:
        return ["the arguments are nested too deeply"]
    except (ValueError, TypeError) as e:
        return [f"the arguments cannot be checked against the tool's schema: {type(e).__name__}"]


def _quick(schema: str, text: str, value: Any) -> list[str] | None:
    visits = weight(schema)
    return check_text(schema, value) if visits is not None and visits * len(text) <= _QUICK else None


async def _start_process() -> asyncio.subprocess.Process:
    """In its own session, so that it does not receive the terminal's signals to the proxy."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MAIN, *sys.path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        limit=_MAX_LINE,
    )


async def _exchange(process: asyncio.subprocess.Process, line: bytes) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    await process.stdin.drain()
    return json.loads(await process.stdout.readline())


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
