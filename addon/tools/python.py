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
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import docstring_parser
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from addon.core.framing.documents import Document
from addon.core.tools.tool_forms import BadTool, normalise
from addon.tools.base import Marked, RunRules, SourceError, Tool, ToolError, ToolSource, error_text, mark_of
from addon.tools.daemon_pool import DaemonPool, NoFreeThread

_PROBLEMS = {"missing_keyword_only_argument": "is missing", "unexpected_keyword_argument": "is unknown"}
_SCHEMAS = ("items", "additionalProperties", "not", "propertyNames", "contains")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_OBJECTS = ("properties", "patternProperties")

_log = logging.getLogger(__name__)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is a tool. `is_async`: awaited in the event loop; other functions run in a thread."""

    tool: Tool
    function: Callable[..., Any]
    is_async: bool
    _arguments: TypeAdapter[dict[str, Any]]

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments converted to the function's types, with defaults. Raises ToolError."""
        try:
            return self._arguments.validate_python(dict(args))
        except ValidationError as e:
            problems = (
                f"`{'.'.join(str(part) for part in error['loc'])}`: {_PROBLEMS.get(error['type'], error['msg'])}"
                for error in e.errors(include_url=False, include_input=False)
            )
            raise ToolError(f"the arguments do not fit: {'; '.join(problems)}") from None


def read(function: Callable[..., Any], mark: Marked | None, file: str) -> Function:
    """Read a function of a file as a tool. Raises SourceError with file, line, function and parameter."""
    place = f"{file}:{line_of(function)}: {function.__name__}()"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SourceError(f"{place} is a generator; a tool must return its result, for example as a list")
    signature = _signature(function, place)
    arguments = _arguments(signature)
    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    schema = _schema(arguments, {param.arg_name: param.description or "" for param in doc.params})
    description = mark.description if mark and mark.description else _description(doc)
    if not description:
        raise SourceError(f"{place} has no docstring: the model needs one to know what the tool is for")
    name = mark.name if mark and mark.name else function.__name__
    try:
        declarations = normalise(
            {"tools": [{"name": name, "description": description, "inputSchema": schema}]}
        ).declarations
    except BadTool as e:
        raise SourceError(f"{place}: {e.field.removeprefix('tools[0].')} {e.message}") from None
    tool = Tool(declarations[0], schema, mark.rules if mark else RunRules())
    return Function(tool, function, inspect.iscoroutinefunction(function), arguments)


def line_of(function: Callable[..., Any]) -> int:
    """The line where a function's definition starts; 0 if unknown."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return int(code.co_firstlineno) if code else 0


def _signature(function: Callable[..., Any], place: str) -> inspect.Signature:
    """The function's signature, with all parameters keyword-only and typed."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception as e:  # type hints are code of the file
        raise SourceError(f"{place}: its type hints cannot be read: {type(e).__name__}: {e}") from e
    parameters = []
    for parameter in signature.parameters.values():
        at = f"{place}: parameter `{parameter.name}`"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise SourceError(f"{at} takes any number of arguments; name each parameter")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise SourceError(f"{at} is positional-only; a model passes arguments by name, so remove the `/`")
        if parameter.annotation is parameter.empty:
            raise SourceError(f"{at} has no type hint; add one, such as `{parameter.name}: str`")
        _check_type(parameter.annotation, at)
        parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
    return inspect.Signature(parameters)


def _check_type(hint: Any, at: str) -> None:
    try:
        TypeAdapter(hint).json_schema()
    except (PydanticUserError, TypeError, ValueError, NameError, AttributeError) as e:
        first = str(e).strip().partition("\n")[0]
        raise SourceError(
            f"{at} has a type that JSON cannot carry: {first}; str, int, float, bool, list, dict, Literal, Enum, date, "
            "dataclasses, TypedDicts and pydantic models are supported"
        ) from e


def _arguments(signature: inspect.Signature) -> TypeAdapter[dict[str, Any]]:
    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    vars(collect)["__signature__"] = signature
    collect.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    hidden: Any = collect  # pydantic also accepts functions, which its type hints do not declare
    return TypeAdapter(hidden, config=ConfigDict(hide_input_in_errors=True))


class _Untitled(GenerateJsonSchema):
    """Omits the titles that pydantic generates: they only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schema(arguments: TypeAdapter[dict[str, Any]], documented: Mapping[str, str]) -> Document:
    """The JSON Schema of the arguments, with descriptions from the docstring.

    The service supports neither `const` nor a `$ref` with other keywords beside it: both are replaced. Older models do
    not support `additionalProperties`, so it is removed; `arguments` refuses undeclared arguments anyway.
    """
    made = arguments.json_schema(schema_generator=_Untitled)
    definitions = made.pop("$defs", {})
    made.pop("additionalProperties", None)
    for name, member in made.get("properties", {}).items():
        if description := " ".join(documented.get(name, "").split()):
            member.setdefault("description", description)
    try:
        return _inlined(made, definitions, frozenset())
    except _Recursive:
        return made | {"$defs": definitions}


class _Recursive(Exception):
    """A schema that refers to itself cannot be inlined."""


def _inlined(schema: Document, definitions: Document, open_refs: frozenset[str]) -> Document:
    def inline(member: Any) -> Any:
        return _inlined(member, definitions, open_refs) if isinstance(member, dict) else member

    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in open_refs:
            raise _Recursive
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        return _inlined(definitions[name] | siblings, definitions, open_refs | {name})
    result: Document = {}
    for key, value in schema.items():
        if key in _SCHEMAS:
            result[key] = inline(value)
        elif key in _LISTS:
            result[key] = [inline(member) for member in value]
        elif key in _OBJECTS:
            result[key] = {name: inline(member) for name, member in value.items()}
        elif key == "const":
            result["enum"] = [value]
        elif key != "discriminator":
            result[key] = value
    return result


def _description(doc: docstring_parser.Docstring) -> str:
    parts = [doc.description or ""]
    if doc.returns and doc.returns.description:
        parts.append(f"Returns: {' '.join(doc.returns.description.split())}")
    return "\n\n".join(part.strip() for part in parts if part.strip())


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

    async def __aexit__(self, *error: object) -> None:
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
            retryable = found.tool.rules.retries is not None or isinstance(e, ConnectionError | TimeoutError)
            raise ToolError(error_text(e), retryable=retryable) from e


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


def _imported(path: Path) -> ModuleType:
    if not path.is_file():
        raise SourceError(f"{path}: no such file")
    file = path.resolve()
    if file.suffix != ".py":
        raise SourceError(f"{path} is not a Python file: its name must end in .py")
    name = f"toolgraft_tools_{next(_numbers)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, file, loader=_SourceLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.parent)
    sys.modules[name] = module  # dataclasses and pydantic look up types by their module
    sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        message = e.msg if isinstance(e, SyntaxError) else str(e)
        raise SourceError(f"{_place(e, path)}: {type(e).__name__}: {message}") from e
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
