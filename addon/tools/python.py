"""Tools from a Python file: its public functions that have a docstring.

Plain functions run in threads, `async` functions in the event loop. The optional decorator `@tool`
(`from toolgraft import tool`) sets how calls are run. Functions without a docstring, imported functions, and names
that start with `_` are not tools. The file can import modules beside it; installed packages come first.
"""

import asyncio
import functools
import importlib.machinery
import importlib.util
import inspect
import itertools
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from addon.tools.base import SourceError, Tool, ToolError, ToolSource, error_text
from addon.tools.daemon_pool import DaemonPool, NoFreeThread
from addon.tools.decorator import mark_of
from addon.tools.signature import Function, line_of, read

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class PythonSource(ToolSource):
    """The tools of one file. The constructor imports it, and raises SourceError with the file and line of an error.

    Cancelling a call of a plain function abandons its thread; neither the proxy nor other calls wait for it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = str(path)
        self._functions: dict[str, Function] = {}
        module = _imported(self.path)
        self._module = module.__name__
        for function in _functions(module):
            found = read(function, mark_of(function), self.name)
            if (other := self._functions.get(found.tool.name)) is not None:
                raise SourceError(
                    f"{self.name}:{line_of(function)}: {function.__name__}() is named {found.tool.name!r}, as is "
                    f"{other.function.__name__}() in line {line_of(other.function)}: rename one of them"
                )
            self._functions[found.tool.name] = found
        if not self._functions:
            raise SourceError(f"{self.name} has no tools: a tool is a public function with a docstring")
        self._threads = DaemonPool(f"tools of {self.path.name}")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.close()
        sys.modules.pop(self._module, None)

    async def list_tools(self) -> Sequence[Tool]:
        return [function.tool for function in self._functions.values()]

    async def call(self, name: str, args: Mapping[str, Any], *, call_id: str) -> Any:
        found = self._functions.get(name)
        if found is None:
            raise ToolError(f"there is no tool {name!r}")
        bound = functools.partial(found.function, **found.arguments(args))
        try:
            result = bound() if found.is_async else await self._threads.run(bound)
            return await result if inspect.isawaitable(result) else result
        except (ToolError, GeneratorExit):
            raise
        except NoFreeThread as e:
            raise ToolError(f"{name} cannot be run now: {e}", retryable=True, sent=False) from e
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ToolError(f"{name} was cancelled from within") from None
        except BaseException as e:  # SystemExit and KeyboardInterrupt would end the event loop
            _log.warning("%s: %s raised %s: %s", _place(e, self.path), name, type(e).__name__, e)
            retries_configured = found.tool.rules.retries is not None
            raise ToolError(
                error_text(e),
                retryable=retries_configured or isinstance(e, ConnectionError | TimeoutError),
            ) from e


def _functions(module: ModuleType) -> Iterator[Callable[..., Any]]:
    """The functions of a module that are tools, in the order of the module."""
    found = set()
    for name, value in vars(module).items():
        if not inspect.isfunction(value) or value.__module__ != module.__name__ or value in found:
            continue
        if mark_of(value) or (not name.startswith("_") and inspect.getdoc(value)):
            found.add(value)
            yield value


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Ignores compiled code: it would pass for current if the file was changed within a second and kept its length."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _loader(name: str, path: Path) -> _SourceLoader | None:
    return _SourceLoader(name, str(path)) if path.suffix == ".py" else None


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise SourceError(f"{path}: no such file")
    name = f"toolgraft_tools_{next(_numbers)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve(), loader=_loader(name, path.resolve()))
    if spec is None or spec.loader is None:
        raise SourceError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.modules[name] = module  # dataclasses and pydantic look up types by their module
    sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise SourceError(f"{_place(e, path)}: {type(e).__name__}: {_message(e)}") from e
    finally:
        sys.path.remove(folder)
    return module


def _place(error: BaseException, path: Path) -> str:
    """The tool file, and the line in it that raised the exception."""
    file = str(path.resolve())
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{path}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _message(error: BaseException) -> str:
    return error.msg if isinstance(error, SyntaxError) else str(error)
