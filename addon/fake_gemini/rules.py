"""Checks whether the service would accept a request: tools, toolConfig, output, cache, and then its history.

Works on the canonical form that ``fields.read`` returns. Pure. The comment "own words" marks messages whose wording by
the service is not public.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from addon.fake_gemini import history, signatures
from addon.fake_gemini.errors import Refused
from addon.fake_gemini.fields import snake
from addon.fake_gemini.routes import Model

Request = dict[str, Any]

MAX_DECLARATIONS = 512
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")
_BAD_NAME = (
    "Invalid function name. Must start with a letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), underscores "
    "(_), dots (.), colons (:), or dashes (-), with a maximum length of {}."
)
_CACHED = (
    "CachedContent can not be used with GenerateContent request setting system_instruction, tools or tool_config.\n\n"
    "Proposed fix: move those values to CachedContent from GenerateContent request."
)


@dataclass(frozen=True, slots=True)
class Options:
    """How strict the checks are. The demo and the tests use the defaults.

    ``check_signatures=False`` is for requests with another service's signatures. ``check_declared=False`` accepts calls
    of undeclared functions in the history, as the service often does. ``prompt_tokens``: the prompt size that every
    answer reports; None: a rough count.
    """

    check_signatures: bool = True
    check_declared: bool = True
    prompt_tokens: int | None = None


def check(
    request: Request,
    model: Model,
    place: frozenset[str],
    *,
    stream: bool = False,
    options: Options | None = None,
) -> int:
    """Raise ``Refused`` if the service would. Returns the number of dummy signatures in the history.

    ``request`` already contains what its cachedContent adds; see ``check_cached``.
    """
    options = options or Options()
    contents = request.get("contents") or []
    history.check_contents(contents, model, place)
    declared = check_tools(request, model, place)
    _check_tool_config(request.get("toolConfig") or {}, declared, model, stream)
    _check_output(request.get("generationConfig") or {}, bool(declared), model, place)
    token = request.get("continuationToken")
    if token is not None and signatures.continued_from(token, request) is None:
        raise Refused("Invalid continuation token: it is for another request.")  # own words
    turns = history.turns(contents)
    history.check_order(turns, model)
    if options.check_declared:
        history.check_declared(turns, declared)
    return history.check_signatures(turns, model, place) if options.check_signatures else 0


def check_cached(request: Request) -> None:
    """Refuse fields that are not allowed beside ``cachedContent``. Raises ``Refused``."""
    if request.get("cachedContent") and any(request.get(k) for k in ("systemInstruction", "tools", "toolConfig")):
        raise Refused(_CACHED)


def check_tools(request: Request, model: Model, place: frozenset[str], *, live: bool = False) -> frozenset[str]:
    """Check the tools and return the names of declared functions. ``live``: by the Live API's rules. Raises
    ``Refused``."""
    declared: list[str] = []
    errors: list[str] = []
    builtins: set[str] = set()
    for n, tool in enumerate(request.get("tools") or []):
        builtins |= tool.keys() - {"functionDeclarations"}
        for m, declaration in enumerate(tool.get("functionDeclarations") or []):
            where = f"GenerateContentRequest.tools[{n}].function_declarations[{m}]"
            errors += _declaration_errors(declaration, where, place, live=live)
            declared.append(declaration.get("name", ""))
    if errors:
        raise Refused("".join(f"* {error}\n" for error in errors))
    for tool in request.get("tools") or []:
        for declaration in tool.get("functionDeclarations") or []:
            _check_schemas(declaration, "vertex" in place)
    if len(declared) > MAX_DECLARATIONS:
        # own words
        raise Refused(f"At most {MAX_DECLARATIONS} function declarations are allowed; got {len(declared)}.")
    names = frozenset(declared)
    if len(names) < len(declared):
        twice = next(name for name in declared if declared.count(name) > 1)
        raise Refused(f"Duplicate function declaration found: {twice}")
    if not live:
        _check_builtins(builtins, bool(names), request.get("toolConfig") or {}, model, place)
    return names


def _is_vertex_ai(place: frozenset[str]) -> bool:
    return "vertex" in place and "codeassist" not in place


def _check_builtins(
    builtins: set[str], functions: bool, tool_config: dict[str, Any], model: Model, place: frozenset[str]
) -> None:
    invocations = tool_config.get("includeServerSideToolInvocations")
    if invocations and not model.is_gemini_3:
        # own words
        raise Refused("tool_config.include_server_side_tool_invocations is not supported by this model.")
    if not builtins or not functions:
        return
    if not model.is_gemini_3:
        raise Refused(
            "Multiple tools are supported only when they are all search tools."
            if "vertex" in place
            else "Tool use with function calling is unsupported"
        )
    if not invocations and not _is_vertex_ai(place):  # Vertex AI has no such field
        raise Refused(
            "Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with Function "
            "calling."
        )


def _declaration_errors(declaration: dict[str, Any], where: str, place: frozenset[str], *, live: bool) -> list[str]:
    errors: list[str] = []
    name = declaration.get("name") or ""
    longest = 128 if _is_vertex_ai(place) and not live else 64  # 128 only by Vertex AI's reference
    if len(name) > longest or not _FUNCTION_NAME.fullmatch(name):
        errors.append(f"{where}.name: {_BAD_NAME.format(longest)}")
    for plain, full in (("parameters", "parametersJsonSchema"), ("response", "responseJsonSchema")):
        if plain in declaration and full in declaration:
            # own words
            errors.append(f"{where}: {plain} and {snake(full)} are mutually exclusive.")
    behavior = declaration.get("behavior")
    if live and behavior not in (None, "UNSPECIFIED", "BLOCKING", "NON_BLOCKING", 0, 1, 2):
        errors.append(f"{where}.behavior: no such behavior: {behavior}.")  # own words
    if not live and "behavior" in declaration:
        errors.append(f"{where}.behavior: only supported by BidiGenerateContent.")  # own words
    parameters = declaration.get("parameters")
    if parameters is not None:
        if parameters.get("type") not in ("OBJECT", None, "TYPE_UNSPECIFIED"):
            errors.append(f"{where}.parameters: functionDeclaration parameters schema should be of type OBJECT.")
        errors += _schema_errors(parameters, f"{where}.parameters", "vertex" in place)
    return errors


def _check_schemas(declaration: dict[str, Any], vertex: bool) -> None:
    """Checks that the service reports one schema at a time."""
    for field in ("parametersJsonSchema", "responseJsonSchema"):
        if field in declaration:
            check_schema(declaration[field], vertex=vertex)
    if vertex and "parameters" in declaration:
        parameters = declaration["parameters"]
        start = f"Unable to submit request because `{declaration.get('name')}` functionDeclaration "
        if parameters.get("type") != "OBJECT":
            raise Refused(f"{start}parameters schema should be of type OBJECT.")
        if problem := _vertex_problem(parameters, "parameters"):
            raise Refused(start + problem)


def _vertex_problem(schema: dict[str, Any], where: str) -> str | None:
    """A problem that only Vertex reports. It names the nearest property."""
    if "anyOf" in schema and len(schema) > 1:
        return (
            f"`{where}` schema specified other fields alongside any_of. When using any_of, it must be the only field "
            "set."
        )
    if "anyOf" not in schema and schema.get("type") in (None, "TYPE_UNSPECIFIED"):
        return f"`{where}` schema didnt specify the schema type field."
    nested = [(item, f"{where}.{name}") for name, item in (schema.get("properties") or {}).items()]
    nested += [(item, where) for item in (*(schema.get("anyOf") or []), schema.get("items")) if item is not None]
    return next((problem for item, place in nested if (problem := _vertex_problem(item, place))), None)


def _schema_errors(schema: dict[str, Any], where: str, vertex: bool) -> list[str]:
    """The service's errors for a ``Schema`` whose fields are all known."""
    errors: list[str] = []
    kind = schema.get("type")
    properties = schema.get("properties") or {}
    if kind == "STRING" and not vertex and schema.get("format") not in (None, "", "enum", "date-time"):
        errors.append(f"{where}.format: only 'enum' and 'date-time' are supported for STRING type")
    if kind == "ARRAY" and "items" not in schema:
        errors.append(f"{where}.items: missing field.")
    if "enum" in schema and kind not in ("STRING", None):
        errors.append(f"{where}.enum: only allowed for STRING type")
    if any(value == "" for value in schema.get("enum") or []):
        errors.append(f"{where}.enum[{schema['enum'].index('')}]: cannot be empty")
    if kind == "OBJECT" or properties:
        errors += [
            f"{where}.required[{n}]: property is not defined"
            for n, name in enumerate(schema.get("required") or [])
            if name not in properties
        ]
    for name, item in properties.items():
        errors += _schema_errors(item, f"{where}.properties[{name}]", vertex)
    if "items" in schema:
        errors += _schema_errors(schema["items"], f"{where}.items", vertex)
    for n, item in enumerate(schema.get("anyOf") or []):
        errors += _schema_errors(item, f"{where}.any_of[{n}]", vertex)
    return errors


def _check_tool_config(tool_config: dict[str, Any], declared: frozenset[str], model: Model, stream: bool) -> None:
    calling = tool_config.get("functionCallingConfig")
    if calling is None:
        return
    mode = calling.get("mode", "MODE_UNSPECIFIED")
    allowed = calling.get("allowedFunctionNames") or []
    if mode in ("ANY", "VALIDATED") and not declared and model.version >= (2, 5):  # 2.0 accepts it
        raise Refused("Function calling config is set without function_declarations.")
    if allowed and mode not in ("ANY", "VALIDATED"):
        # own words
        raise Refused(
            "Function calling config: allowed_function_names can only be set when the mode is ANY or VALIDATED; the "
            f"mode is {mode}."
        )
    unknown = [name for name in allowed if name not in declared]
    if unknown:
        # own words
        raise Refused(
            f"Function calling config: allowed_function_names holds `{unknown[0]}`, which is not in "
            "function_declarations."
        )
    if calling.get("streamFunctionCallArguments") and not stream:
        # own words
        raise Refused("Function calling config: stream_function_call_arguments needs a streaming request.")


def _check_output(config: dict[str, Any], functions: bool, model: Model, place: frozenset[str]) -> None:
    mime = config.get("responseMimeType")
    schema = config.get("responseSchema")
    if functions and mime == "application/json" and not model.is_gemini_3:
        raise Refused(f"Function calling with a response mime type: '{mime}' is unsupported")
    if (schema is not None or "responseJsonSchema" in config) and mime not in ("application/json", "text/x.enum"):
        raise Refused(
            "* GenerateContentRequest.generation_config.response_schema: only allowed when response_mime_type is "
            "'application/json' or 'text/x.enum'.\n"
        )
    if schema is not None and "responseJsonSchema" in config:
        # own words
        raise Refused("response_schema and response_json_schema are mutually exclusive.")
    if "responseJsonSchema" in config:
        check_schema(config["responseJsonSchema"], vertex="vertex" in place)
    count = config.get("candidateCount", 1)
    if not 1 <= count <= 8:
        raise Refused(
            f"* GenerateContentRequest.generation_config.candidate_count: must be in the range [1, 8], got {count}.\n"
        )
    temperature = config.get("temperature", 1)
    if not 0 <= temperature <= 2:
        if "vertex" in place:
            raise Refused(
                f"Unable to submit request because it has a temperature value of {temperature:g} but the supported "
                "range is from 0 (inclusive) to 2.0001 (exclusive). Update the value and try again."
            )
        raise Refused(
            "* GenerateContentRequest.generation_config.temperature: temperature must be in the range [0.0, 2.0].\n"
        )


_OBJECTS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LOOP = (
    "ref loops are only supported if they include optional or nullable property values, or a potentially-zero-length "
    "array items, but a ref loop of required fields was found at "
)


def check_schema(schema: Any, *, vertex: bool) -> None:
    """Raise ``Refused`` if the service would."""
    if not isinstance(schema, dict):
        raise Refused("the schema at top-level must be an object")  # own words
    reader = _Reader(schema, vertex)
    if "$ref" in schema and not str(schema["$ref"]).startswith(
        "#/$defs/"
    ):  # no other reference is followed at top level
        raise Refused("reference to undefined schema at top-level")
    for member, path in _walk(schema, ""):
        reader.check(member, path)


def _subschemas(schema: dict[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
    """Keyword, schema and path of the direct subschemas."""
    dot = f"{path}." if path else ""
    for key, value in schema.items():
        if key in _OBJECTS and isinstance(value, dict):
            yield from ((key, member, f"{dot}{key}.{name}") for name, member in value.items())
        elif key in (*_LISTS, "items") and isinstance(value, list):
            yield from ((key, member, f"{dot}{key}.{n}") for n, member in enumerate(value))
        elif key in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"):
            yield key, value, f"{dot}{key}"


def _walk(schema: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    if isinstance(schema, dict):
        yield schema, path
        for _, member, place in _subschemas(schema, path):
            yield from _walk(member, place)


class _Reader:
    def __init__(self, schema: dict[str, Any], vertex: bool) -> None:
        registry: Registry[Any] = Registry().with_resource("", DRAFT202012.create_resource(schema))
        self._lookup = registry.resolver().lookup
        self._vertex = vertex
        self._without_loop: set[str] = set()  # references known not to loop

    def check(self, schema: dict[str, Any], path: str) -> None:
        for key, value in schema.items():
            if key in _OBJECTS and not isinstance(value, dict):
                raise Refused(f"value for {key} at {path or 'top-level'} must be an object")
            if key in _NUMBERS and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise Refused(f"value at {f'{path}.' if path else ''}{key} must be a number")
        if "$ref" not in schema:
            return
        siblings = [key for key in schema if key not in ("description", "default") and not key.startswith("$")]
        if self._vertex and siblings:
            raise Refused(
                f"Schema.ref '{schema['$ref']}' was set alongside unsupported fields. If a schema node has $ref set, "
                "then only description and default can be set alongside it"
            )
        self._follow(schema["$ref"], path, ())

    def _follow(self, ref: Any, path: str, refs: tuple[str, ...]) -> None:
        try:
            target = self._lookup(ref).contents
        except (Unresolvable, AttributeError, TypeError):
            raise Refused(f"reference to undefined schema at {path}") from None
        if ref in refs:
            raise Refused(_LOOP + path)
        if ref not in self._without_loop:
            self._follow_required(target, ref.lstrip("#/").replace("/", "."), (*refs, ref))
            self._without_loop.add(ref)

    def _follow_required(self, schema: Any, path: str, refs: tuple[str, ...]) -> None:
        """Follow the subschemas that every value must have. All options of a choice count."""
        if not isinstance(schema, dict):
            return
        if "$ref" in schema:
            self._follow(schema["$ref"], path, refs)
        for key, member, place in _subschemas(schema, path):
            if key == "properties":
                name = place.removeprefix(f"{path}.properties." if path else "properties.")
                is_required = name in (schema.get("required") or [])
            elif key == "items":
                is_required = schema.get("type") != "array" or bool(schema.get("minItems"))
            else:
                is_required = key in (*_LISTS, "additionalProperties")
            if is_required:
                self._follow_required(member, place, refs)
