"""A Python function as a tool: the declaration from its signature, type hints and docstring, and argument validation.

All types that pydantic supports fit. No function is called and no file is read here.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import docstring_parser
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from addon.core.framing.documents import Document
from addon.core.tools.tool_forms import BadTool, normalise
from addon.tools.base import RunRules, SourceError, Tool, ToolError
from addon.tools.decorator import Marked

_PROBLEMS = {"missing_keyword_only_argument": "is missing", "unexpected_keyword_argument": "is unknown"}
_SCHEMAS = ("items", "additionalProperties", "not", "propertyNames", "contains")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_OBJECTS = ("properties", "patternProperties")


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
