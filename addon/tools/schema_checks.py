"""Values checked against JSON Schemas without keeping the event loop.

A pattern or a few nested choices can make a check take for ever. What is certain to be quick is checked at once;
everything else in a process of its own, which is killed when its time is out.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from addon.tools.arguments import check_text, schema_problem
from addon.tools.schema_weight import weight

MAX_SECONDS = 5.0
"""How long one check may take, where the tool's own time is not shorter."""

_QUICK = 16_384  # places in a value, times how often each is looked at: a few milliseconds
_PROCESSES = 2  # that check at the same time
_LINE = 1024 * 1024
_MAIN = "import sys; sys.path[:] = sys.argv[1:]; from addon.tools.schema_process import main; main()"


class SchemaChecks:
    """Used by everything that runs tools in one event loop. `close` ends its processes, which start anew if needed."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_PROCESSES)
        self._idle: list[asyncio.subprocess.Process] = []

    def quick_problems(self, schema: Mapping[str, Any], value: Any) -> list[str] | None:
        """What `problems` says, where that is certain to be quick; None where it is not. Never raises."""
        written = _written(schema, value)
        return written if isinstance(written, list) else _quick(*written, value)

    async def problems(self, schema: Mapping[str, Any], value: Any, seconds: float = MAX_SECONDS) -> list[str]:
        """What keeps the value from fitting, as `addon.tools.arguments.check` says it. Never raises."""
        written = _written(schema, value)
        if isinstance(written, list):
            return written
        if (found := _quick(*written, value)) is not None:
            return found
        try:
            problems: list[str] = await self._asked(*written, min(seconds, MAX_SECONDS))
            return problems
        except _Unanswered as e:
            return [f"the arguments could not be checked against the tool's schema{e}"]

    async def schema_problem(self, schema: Mapping[str, Any]) -> str | None:
        """Why nothing can be checked against a schema, in words; None if it is a JSON Schema. Never raises."""
        try:
            text = json.dumps(schema)
        except (RecursionError, ValueError, TypeError):
            return "it is nested too deeply"
        if weight(text) is not None:
            return schema_problem(text)
        try:
            problem: str | None = await self._asked(text, None, MAX_SECONDS)
            return problem
        except _Unanswered as e:
            return f"it could not be read{e}"

    async def close(self) -> None:
        """End the processes that check nothing."""
        while self._idle:
            await _killed(self._idle.pop())

    async def _asked(self, schema: str, value: str | None, seconds: float) -> Any:
        """The answer of a process. Raises _Unanswered."""
        line = json.dumps((seconds, schema, value)).encode() + b"\n"
        try:
            async with asyncio.timeout(seconds), self._places:
                process = self._idle.pop() if self._idle else await _started()
                try:
                    answer = await _answer(process, line)
                except BaseException:
                    await _killed(process)
                    raise
                self._idle.append(process)
                return answer
        except TimeoutError:
            raise _Unanswered(f" within {seconds:g} s") from None
        except (OSError, ValueError):  # it could not be started, or has ended: it takes no more memory than it may
            raise _Unanswered("") from None


class _Unanswered(Exception):
    """A check without an outcome."""


def _written(schema: Mapping[str, Any], value: Any) -> tuple[str, str] | list[str]:
    """Both as text, or why that cannot be."""
    try:
        return json.dumps(schema), json.dumps(value)
    except RecursionError:
        return ["the arguments are nested too deeply"]
    except (ValueError, TypeError) as e:
        return [f"the arguments cannot be checked against the tool's schema: {type(e).__name__}"]


def _quick(schema: str, text: str, value: Any) -> list[str] | None:
    looks = weight(schema)
    return check_text(schema, value) if looks is not None and looks * len(text) <= _QUICK else None


async def _started() -> asyncio.subprocess.Process:
    """In a session of its own: what a terminal sends to the proxy is not for it."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _MAIN, *sys.path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        limit=_LINE,
    )


async def _answer(process: asyncio.subprocess.Process, line: bytes) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    await process.stdin.drain()
    return json.loads(await process.stdout.readline())


async def _killed(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
