"""Tools of a Python file: which functions are tools, how they run, and errors of files."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from addon.tools.base import SourceError, ToolError
from addon.tools.python import PythonSource

type Write = Callable[..., Path]


async def test_public_functions_with_a_docstring_are_the_tools_in_their_order(tools_file: Write) -> None:
    path = tools_file('''
        from textwrap import dedent
        from addon.tools import tool

        def second(a: int) -> int:
            """Two."""

        async def first() -> int:
            """One."""

        def undocumented(a): ...

        def _private(a):
            """No."""

        class Helper:
            """No."""

        @tool(description="Marked.")
        def _marked() -> None: ...

        alias = second
    ''')
    async with PythonSource(path) as source:
        assert [tool.name for tool in await source.list_tools()] == ["second", "first", "_marked"]


async def test_plain_and_async_functions_run(tools_file: Write) -> None:
    path = tools_file('''
        import threading

        def plain(a: int, b: int = 2) -> list:
            """Plain."""
            return [a, b, threading.current_thread() is threading.main_thread()]

        async def awaited(a: int) -> list:
            """Async."""
            return [a, threading.current_thread() is threading.main_thread()]

        def both(a: int):
            """A plain function that gives what is to be awaited."""
            return awaited(a)
    ''')
    async with PythonSource(path) as source:
        assert await source.call("plain", {"a": 1}, call_id="c") == [1, 2, False]
        assert await source.call("awaited", {"a": 1}, call_id="c") == [1, True]
        assert await source.call("both", {"a": 1}, call_id="c") == [1, True]
        with pytest.raises(ToolError, match="there is no tool 'other'"):
            await source.call("other", {}, call_id="c")
        with pytest.raises(ToolError, match="the arguments do not fit: `a`: is missing"):
            await source.call("plain", {}, call_id="c")


async def test_plain_functions_run_at_the_same_time(tools_file: Write) -> None:
    path = tools_file('''
        import threading

        barrier = threading.Barrier(3, timeout=5)

        def meet() -> int:
            """Meet the others."""
            return barrier.wait()
    ''')
    async with PythonSource(path) as source:
        assert sorted(await asyncio.gather(*(source.call("meet", {}, call_id=str(i)) for i in range(3)))) == [0, 1, 2]


FAILING = '''
    import asyncio, sys
    from addon.tools import ToolError, tool

    def fail(kind: str) -> None:
        """Fail."""
        raise {"value": ValueError("no such city"), "empty": KeyError, "exit": SystemExit(3),
               "interrupt": KeyboardInterrupt("now"), "group": BaseExceptionGroup("two", [SystemExit(3)]),
               "stop": StopIteration(), "connection": ConnectionError("refused"), "time": TimeoutError(),
               "told": ToolError("so and so", retryable=True), "cancelled": asyncio.CancelledError()}[kind]

    @tool
    async def fail_async(kind: str) -> None:
        """Fail."""
        fail(kind)

    @tool(retries=1)
    def fail_retried(kind: str) -> None:
        """Fail."""
        fail(kind)
'''


@pytest.mark.parametrize("name", ["fail", "fail_async"])
@pytest.mark.parametrize(
    ("kind", "words", "retryable"),
    [
        ("value", "ValueError: no such city", False),
        ("empty", "KeyError", False),
        ("exit", "SystemExit: 3", False),
        ("interrupt", "KeyboardInterrupt: now", False),
        ("group", "BaseExceptionGroup: two", False),
        ("stop", "StopIteration", False),
        ("connection", "ConnectionError: refused", True),
        ("time", "TimeoutError", True),
        ("told", "so and so", True),
        ("cancelled", "was cancelled from within", False),
    ],
)
async def test_every_exception_of_a_function_is_an_error_for_the_model(
    tools_file: Write, name: str, kind: str, words: str, retryable: bool
) -> None:
    async with PythonSource(tools_file(FAILING)) as source:
        with pytest.raises(ToolError) as raised:
            await source.call(name, {"kind": kind}, call_id="c")
    assert words in str(raised.value)
    assert raised.value.retryable is retryable
    assert raised.value.sent, "the function has begun"


async def test_any_exception_is_retryable_where_retries_are_asked_for(tools_file: Write) -> None:
    async with PythonSource(tools_file(FAILING)) as source:
        with pytest.raises(ToolError) as raised:
            await source.call("fail_retried", {"kind": "value"}, call_id="c")
    assert raised.value.retryable


async def test_the_traceback_is_logged_for_the_author(tools_file: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = tools_file(FAILING)
    async with PythonSource(path) as source:
        with caplog.at_level(logging.WARNING), pytest.raises(ToolError):
            await source.call("fail", {"kind": "value"}, call_id="c")
    assert f"{path}:6: fail raised ValueError: no such city" in caplog.text


async def test_cancelling_a_call_cancels_an_async_function(tools_file: Write) -> None:
    path = tools_file('''
        import asyncio

        seen = []

        async def hang() -> list:
            """Hang."""
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("cancelled")

        def look() -> list:
            """What was seen."""
            return seen
    ''')
    async with PythonSource(path) as source:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(source.call("hang", {}, call_id="c"), 0.02)
        assert await source.call("look", {}, call_id="c") == ["cancelled"]


def test_a_function_that_hangs_keeps_the_process_from_nothing(tools_file: Write) -> None:
    path = tools_file('''
        import threading

        def hang() -> None:
            """Hang."""
            threading.Event().wait()
    ''')
    code = f"""
import asyncio
from addon.tools.python import PythonSource

async def main():
    async with PythonSource({str(path)!r}) as source:
        try:
            await asyncio.wait_for(source.call("hang", {{}}, call_id="c"), 0.05)
        except TimeoutError:
            print("left")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == "left\n"


async def test_no_thread_is_left_when_it_is_closed(tools_file: Write, until: Any) -> None:
    path = tools_file('def f() -> None:\n    """F."""\n', "left_threads.py")
    async with PythonSource(path) as source:
        await source.call("f", {}, call_id="c")
    await until(lambda: not any("left_threads.py" in thread.name for thread in threading.enumerate()))


async def test_files_beside_it_and_types_of_its_own_are_found_and_the_path_stays_clean(tools_file: Write) -> None:
    tools_file("NUMBER = 7\n", "beside_the_tools.py")
    path = tools_file('''
        from __future__ import annotations
        from dataclasses import dataclass
        import beside_the_tools

        @dataclass
        class Point:
            x: int

        def f(point: Point) -> int:
            """F."""
            return point.x + beside_the_tools.NUMBER
    ''')
    before = list(sys.path)
    async with PythonSource(path) as source:
        assert await source.call("f", {"point": {"x": 1}}, call_id="c") == 8
    assert sys.path == before


async def test_two_files_of_one_name_are_two_modules(tools_file: Write, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one = PythonSource(tools_file('def f() -> int:\n    """F."""\n    return 1\n'))
    two = PythonSource(tools_file('def f() -> int:\n    """F."""\n    return 2\n', "other/tools.py"))
    async with one, two:
        assert [await source.call("f", {}, call_id="c") for source in (one, two)] == [1, 2]


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("import os\nimport not_there_at_all\n", 2, "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("x = 1\n\ndef f(:\n", 3, "SyntaxError: "),
        ("def g():\n    return 1 / 0\n\ng()\n", 2, "ZeroDivisionError: "),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError: "),
        ("raise SystemExit(1)\n", 1, "SystemExit: 1"),
        ("from addon.tools import tool\n\n@tool(timeout=0)\ndef f(): ...\n", 3, "ValueError: timeout is 0"),
        ('def f(a) -> None:\n    """F."""\n', 1, "f(): parameter `a` has no type hint"),
        (
            "from addon.tools import tool\ndef f() -> None:\n    'F.'\n\n@tool(name='f')\ndef g() -> None:\n    'G.'\n",
            5,
            "g() is named 'f', as is f() in line 2: rename one of them",
        ),
    ],
    ids=["import", "syntax", "call", "library", "exit", "decorator", "hint", "clash"],
)
def test_a_file_that_is_wrong_is_named_with_the_line(tools_file: Write, source: str, line: int, words: str) -> None:
    path = tools_file(source)
    with pytest.raises(SourceError) as raised:
        PythonSource(path)
    assert str(raised.value).startswith(f"{path}:{line}: {words}")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.py", None, "no such file"),
        ("tools.txt", "", "is not a Python file"),
        ("tools.py", "", "has no tools"),
    ],
)
def test_a_file_that_is_no_tools_file_is_named(tmp_path: Path, name: str, content: str | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(SourceError, match=words) as raised:
        PythonSource(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("hint", ["str", "int", "float", "dict[str, Any]", 'Literal["a"]', "datetime"])
@pytest.mark.parametrize(
    "value", ["\ud800", 2**70, -(10**4500), {"\ud800": "\udfff"}, float("inf")], ids=lambda v: type(v).__name__
)
async def test_arguments_that_are_not_usual_are_taken_or_refused_as_those_of_the_tool(
    tools_file: Write, hint: str, value: Any
) -> None:
    path = tools_file(f'''
        from datetime import datetime
        from typing import Any, Literal

        def takes(a: {hint}) -> bool:
            """Take it."""
            return True
    ''')
    async with PythonSource(path) as source:
        try:
            assert await source.call("takes", {"a": value}, call_id="c")
        except ToolError as error:
            str(error).encode()


async def test_a_file_is_read_anew_though_its_time_and_size_are_those_of_before(tmp_path: Path) -> None:
    """Python would take the code that it compiled of the file before."""
    path = tmp_path / "tools.py"
    for name in ("one", "two"):
        path.write_text(f'def {name}() -> None:\n    """A tool."""\n')
        os.utime(path, (1_000_000, 1_000_000))
        async with PythonSource(path) as source:
            assert [tool.name for tool in await source.list_tools()] == [name]
