"""A Python function as a tool: its declaration from signature, type hints and docstring, and arguments made to fit it.

Types are whatever pydantic takes. Nothing is called here, and no file is read.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import docstring_parser
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from addon.core.toolset import BadTool, normalise
from addon.tools.base import Document, RunRules, SourceError, Tool, ToolError
from addon.tools.rules import Marked

_PROBLEMS = {"missing_keyword_only_argument": "is missing", "unexpected_keyword_argument": "is not known"}
_SCHEMAS = ("items", "additionalProperties", "not", "propertyNames", "contains")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_OBJECTS = ("properties", "patternProperties")


@dataclass(frozen=True, slots=True)
class Function:
    """A function that is a tool. `is_async`: it is awaited in the loop, others run in a thread."""

    tool: Tool
    function: Callable[..., Any]
    is_async: bool
    _arguments: TypeAdapter[dict[str, Any]]

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments in the types that the function asks for, defaults included. Raises ToolError."""
        try:
            return self._arguments.validate_python(dict(args))
        except ValidationError as e:
            problems = (
                f"`{'.'.join(str(part) for part in error['loc'])}`: {_PROBLEMS.get(error['type'], error['msg'])}"
                for error in e.errors(include_url=False, include_input=False)
            )
            raise ToolError(f"the arguments do not fit: {'; '.join(problems)}") from None


def read(function: Callable[..., Any], mark: Marked | None, file: str) -> Function:
    """The tool that a function of that file is. Raises SourceError with file, line, function and parameter."""
    place = f"{file}:{line_of(function)}: {function.__name__}()"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SourceError(f"{place} yields; a tool returns its result once, such as a list")
    signature = _signature(function, place)
    arguments = _arguments(signature)
    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    schema = _schema(arguments, {param.arg_name: param.description or "" for param in doc.params})
    description = mark.description if mark and mark.description else _description(doc)
    if not description:
        raise SourceError(f"{place} has no docstring; it tells the model what the tool is for")
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
    """The line where a function's definition starts; 0 if it is not known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return int(code.co_firstlineno) if code else 0


def _signature(function: Callable[..., Any], place: str) -> inspect.Signature:
    """The function's signature with every parameter by keyword and with its type."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except Exception as e:  # the hints are code of the file, run here
        raise SourceError(f"{place}: its type hints cannot be read: {type(e).__name__}: {e}") from e
    parameters = []
    for parameter in signature.parameters.values():
        at = f"{place}: parameter `{parameter.name}`"
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise SourceError(f"{at} takes any number of arguments; a tool names each of them")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise SourceError(f"{at} is positional-only; a model gives arguments by name, so leave out the `/`")
        if parameter.annotation is parameter.empty:
            raise SourceError(f"{at} has no type hint; give it one, such as `{parameter.name}: str`")
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
            "dataclasses, TypedDicts and pydantic models fit"
        ) from e


def _arguments(signature: inspect.Signature) -> TypeAdapter[dict[str, Any]]:
    def collect(**arguments: Any) -> dict[str, Any]:
        return arguments

    vars(collect)["__signature__"] = signature
    collect.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    hidden: Any = collect  # pydantic takes functions too, which its types do not say
    return TypeAdapter(hidden, config=ConfigDict(hide_input_in_errors=True))


class _Untitled(GenerateJsonSchema):
    """Without the titles that pydantic makes of the names: they only repeat them."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _schema(arguments: TypeAdapter[dict[str, Any]], documented: Mapping[str, str]) -> Document:
    """The JSON Schema of the arguments, with what the docstring says of them.

    The service knows neither `const` nor a `$ref` with something beside it: both are written out. What is not declared
    is refused by `arguments`, so the schema does without the `additionalProperties` that old models do not know.
    """
    made = arguments.json_schema(schema_generator=_Untitled)
    definitions = made.pop("$defs", {})
    made.pop("additionalProperties", None)
    for name, member in made.get("properties", {}).items():
        if description := " ".join(documented.get(name, "").split()):
            member.setdefault("description", description)
    try:
        return _written_out(made, definitions, frozenset())
    except _Recursive:
        return made | {"$defs": definitions}


class _Recursive(Exception):
    """A schema that holds itself cannot be written out."""


def _written_out(schema: Document, definitions: Document, within: frozenset[str]) -> Document:
    def plain(member: Any) -> Any:
        return _written_out(member, definitions, within) if isinstance(member, dict) else member

    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in within:
            raise _Recursive
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _written_out(definitions[name] | beside, definitions, within | {name})
    result: Document = {}
    for key, value in schema.items():
        if key in _SCHEMAS:
            result[key] = plain(value)
        elif key in _LISTS:
            result[key] = [plain(member) for member in value]
        elif key in _OBJECTS:
            result[key] = {name: plain(member) for name, member in value.items()}
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
