"""Converts tools as users write them to Gemini's form: the body of `PUT /v1/sessions/{session}/tools`.

Each tool is recognised by its shape and converted to Gemini's camelCase form:

- a Gemini Tool: `functionDeclarations`, or built-in tools such as `googleSearch`; either spelling of keys;
- OpenAI chat: `{"type": "function", "function": {"name", "description", "parameters", "strict"}}`;
- OpenAI Responses: `{"type": "function", "name", "description", "parameters", "strict"}`;
- MCP: `{"name", "description", "inputSchema", "outputSchema", …}`;
- a bare declaration: `{"name", "description", "parameters" or "parametersJsonSchema", …}`.

Beside `name` (OpenAI chat: beside `function`) a tool may hold the rules by which its calls run (see `tool_rules`). The
rules are returned separately, by name, and never go upstream.

The only fields dropped are those without a counterpart in Gemini that change no call: OpenAI's `strict` (Gemini has
mode VALIDATED, for all tools together), and MCP's `title`, `annotations`, `icons`, `execution` and `_meta`. Keys with
null are unset. Any other unknown field is refused by name. Pure: the document is never changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from addon.core.framing.documents import Document, as_list, camel
from addon.core.tools.json_schema import fit_schema
from addon.core.tools.positions import Position, check_depth, fields_of, label_of, list_at, quoted
from addon.core.tools.schema import Unfit, gemini_schema, is_gemini_form, says_nothing, to_declaration_schema
from addon.core.tools.tool_choice import tool_config_of
from addon.core.tools.tool_rules import RULES, BadRule, cycle_in_order, rules_of, unknown_in_order

MAX_DECLARATIONS = 512

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,127}")
_BUILTINS = (
    *("googleSearch", "googleSearchRetrieval", "codeExecution", "urlContext", "googleMaps", "fileSearch"),
    *("computerUse", "mcpServers", "retrieval", "enterpriseWebSearch", "parallelAiSearch", "exaAiSearch"),
)
_DECLARATION = ("name", "description", "parameters", "parametersJsonSchema", "response", "responseJsonSchema")
_OPENAI = ("name", "description", "parameters", "strict")
_MCP_UNUSED = ("title", "annotations", "icons", "execution", "_meta")


@dataclass(frozen=True)
class Tools:
    """Declarations and built-in tools (one kind each) in the given order, and a toolConfig, if any.

    `rules`: how calls run, by the names of the declarations that set any rule.
    """

    declarations: list[Document]
    builtins: list[Document]
    tool_config: Document | None
    rules: dict[str, Document] = field(default_factory=dict)


def normalise(document: object) -> Tools:
    """The tools and the tool choice, checked and in Gemini's form. Raises BadTool.

    `document`: `{"tools": […], "tool_config" or "toolConfig": {…}}`, or with OpenAI's `"tool_choice"` instead of the
    config."""
    top = Position("", "")
    body = fields_of(document, ("tools", "toolConfig", "tool_choice"), top)
    if "tools" not in body:
        raise (top / "tools").bad("is missing; it is a list, and may be empty")
    declarations: list[Document] = []
    builtins: list[Document] = []
    rules: dict[str, Document] = {}
    places: dict[str, Position] = {}
    for index, tool in enumerate(list_at(body["tools"], top / "tools")):
        at = (top / "tools")[index].of(str(index))
        check_depth(tool, at)
        for place, declaration, how in _read(tool, at, builtins):
            name = declaration["name"]
            if name in places:
                raise (place / "name").bad(f"is {name!r}, as is that of {places[name].field}; names must differ")
            places[name] = place
            declarations.append(declaration)
            if how:
                rules[name] = how
    if len(declarations) > MAX_DECLARATIONS:
        raise (top / "tools").bad(f"declares {len(declarations)} functions; at most {MAX_DECLARATIONS} are allowed")
    _check_order(rules, places)
    return Tools(declarations, builtins, tool_config_of(body, places, top), rules)


def _check_order(rules: dict[str, Document], places: dict[str, Position]) -> None:
    if unknown := unknown_in_order(rules, places):
        raise (places[unknown[0]] / "after").bad(f"names {quoted(unknown[1])}, which is not declared")
    if cycle := cycle_in_order(rules):
        raise (places[cycle[0]] / "after").bad(f"forms a cycle: {' → '.join(cycle)}")


def _read(tool: object, at: Position, builtins: list[Document]) -> Iterator[tuple[Position, Document, Document]]:
    """The declarations of one tool, each with its position and its rules. Built-in tools are added to `builtins`."""
    if not isinstance(tool, dict):
        raise at.bad("must be an object")
    keys = {camel(key) for key in tool}
    if keys & {"functionDeclarations", *_BUILTINS}:
        fields = fields_of(tool, ("functionDeclarations", *_BUILTINS), at)
        for index, declaration in enumerate(
            list_at(fields.pop("functionDeclarations", []), at / "functionDeclarations")
        ):
            yield _with_rules(_declaration(declaration, (at / "functionDeclarations")[index]), declaration)
        builtins.extend({kind: _builtin(kind, value, at / kind)} for kind, value in fields.items())
    elif "function" in keys:
        fields = fields_of(tool, ("type", "function", *RULES), at)
        _check_function_type(fields, at)
        yield _with_rules(_openai(fields.get("function"), at / "function", _OPENAI), tool, at)
    elif "type" in keys:
        _check_function_type(tool, at)
        fields = {key: value for key, value in tool.items() if key != "type"}
        yield _with_rules(_openai(fields, at, (*_OPENAI, *RULES)), tool)
    elif "inputSchema" in keys:
        yield _with_rules(_mcp(tool, at), tool)
    elif "name" in keys:
        yield _with_rules(_declaration(tool, at), tool)
    else:
        raise at.bad(
            "is no known form of a tool. Use a Gemini Tool (functionDeclarations, or a built-in tool such as "
            "googleSearch), an OpenAI function tool (type, function), an MCP tool (name, inputSchema) or a declaration "
            "(name, …)"
        )


def _with_rules(
    read: tuple[Position, Document], source: Any, at: Position | None = None
) -> tuple[Position, Document, Document]:
    """A declaration with its rules from `source`. `at`: the position for errors, by default the declaration's."""
    place, declaration = read
    try:
        return place, declaration, rules_of(source)
    except BadRule as e:
        raise ((at or place).of(declaration["name"]) / e.field).bad(e.message) from None


def _builtin(kind: str, value: object, at: Position) -> object:
    expected = list if kind == "mcpServers" else dict
    if not isinstance(value, expected):
        raise at.bad("must be a list" if expected is list else "must be an object, such as {}")
    return value


def _check_function_type(tool: Document, at: Position) -> None:
    if tool.get("type") != "function":
        raise (at / "type").bad(f"is {quoted(tool.get('type'))}; it must be 'function'")


def _openai(value: object, at: Position, known: tuple[str, ...]) -> tuple[Position, Document]:
    fields = fields_of(value, known, at)
    place, result = _named(fields, at)
    if not isinstance(fields.get("strict", False), bool):
        raise (place / "strict").bad("must be true or false")
    result |= _schema(fields, "parameters", "parameters", place)
    return place, result


def _mcp(value: object, at: Position) -> tuple[Position, Document]:
    fields = fields_of(value, ("name", "description", "inputSchema", "outputSchema", *_MCP_UNUSED, *RULES), at)
    place, result = _named(fields, at)
    result |= _schema(fields, "inputSchema", "parameters", place)
    result |= _schema(fields, "outputSchema", "response", place)
    return place, result


def _declaration(value: object, at: Position) -> tuple[Position, Document]:
    fields = fields_of(value, (*_DECLARATION, *RULES), at)
    place, result = _named(fields, at)
    for plain in ("parameters", "response"):
        full = f"{plain}JsonSchema"
        if full not in fields:
            result |= _schema(fields, plain, plain, place)
        elif plain in fields:
            raise (place / full).bad(f"is given together with {plain}; use only one of them")
        else:
            _check_arguments(fields[full], full, place / full)
            result[full] = _in_form(fit_schema, fields[full], place / full)
    return place, result


def _named(fields: Document, at: Position) -> tuple[Position, Document]:
    """The start of a declaration (name and description), and its position under its name."""
    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise (
            (at / "name")
            .of(label_of(fields, at))
            .bad(
                f"is {quoted(name)}; a name is a letter or _ and up to 127 letters, digits, _ . : -"
                if "name" in fields
                else "is missing"
            )
        )
    place = at.of(name)
    if description is None:
        return place, {"name": name}
    if not isinstance(description, str):
        raise (place / "description").bad("must be a string")
    return place, {"name": name, "description": description}


def _schema(fields: Document, source: str, target: str, at: Position) -> Document:
    """The schema under `source` as a field of a declaration; {} if no field is needed."""
    schema = fields.get(source)
    if schema is None:
        return {}
    at = at / source
    _check_arguments(schema, target, at)
    if target == "parameters" and schema.get("type") not in ("object", "OBJECT"):
        schema = {**schema, "type": "object"}  # arguments are always an object, never null
    if is_gemini_form(schema) and not says_nothing(schema):
        return {target: _in_form(gemini_schema, schema, at, ". A JSON Schema (with lower-case types) is accepted too")}
    converted = to_declaration_schema(schema)
    if converted is None:
        return {}
    if converted[0] == "parameters":
        return {target: converted[1]}
    return {f"{target}JsonSchema": _in_form(fit_schema, converted[1], at)}


def _in_form(form: Callable[[Document], Document], schema: Document, at: Position, hint: str = "") -> Document:
    """A schema in one of Gemini's forms."""
    try:
        return form(schema)
    except Unfit as e:
        raise (at / e.path if e.path else at).bad(e.message + hint) from None


def _check_arguments(schema: object, target: str, at: Position) -> None:
    """Refuse a schema that is not an object, and a schema of arguments that does not describe an object."""
    if not isinstance(schema, dict):
        raise at.bad("must be an object (a JSON Schema)")
    kind = schema.get("type")
    kinds = [str(item).lower() for item in as_list(kind)]
    if target.startswith("parameters") and kinds and "object" not in kinds:
        raise (at / "type").bad(f"is {quoted(kind)}; arguments are an object, so it must be 'object'")
