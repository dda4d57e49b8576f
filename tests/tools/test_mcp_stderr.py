"""A server's stderr is logged line by line, with limits."""

import asyncio
import subprocess
import sys

import pytest

from addon.tools.mcp_transport import stderr_file

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="it is the process's own there")


async def lines_of(script: str) -> list[str]:
    lines: list[str] = []
    async with asyncio.timeout(20):
        async with stderr_file(lines.append) as file:
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stderr=file)
            await process.wait()
    return lines


async def test_lines_and_last_words_come() -> None:
    script = r"import sys; sys.stderr.buffer.write(b'one\n\n two \xff\r\nthe end')"
    assert await lines_of(script) == ["one", " two \ufffd", "the end"]


async def test_too_many_lines_are_left_out() -> None:
    lines = await lines_of("import sys; sys.stderr.write('x\\n' * 30000 + 'y' * 100000)")
    assert len(lines) < 5000
    assert any(line.endswith("more lines)") for line in lines)
    assert max(map(len, lines)) <= 2000


async def test_a_process_that_stays_holds_nobody_up() -> None:
    lines: list[str] = []
    async with stderr_file(lines.append) as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "input()", stdin=subprocess.PIPE, stderr=file
        )
    await process.communicate(b"\n")
    assert lines == []
