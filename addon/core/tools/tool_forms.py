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
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from addon.core.framing.documents import MAX_DEPTH, Document, as_list, camel, is_too_deep
from addon.core.tools.json_schema import fit_schema
from addon.core.tools.schema import Unfit, gemini_schema, is_gemini_form, says_nothing, to_declaration_schema
from addon.core.tools.tool_rules import RULES, BadRule, cycle_in_order, rules_of, unknown_in_order


class BadTool(ValueError):
    """An error in a document of tools.

    `tool`: the name of the tool, or its index if it has no name; "" if the error is in no tool. `field`: the dotted
    path to the error, such as `tools[0].function.parameters`, with Gemini's own keys in camelCase in either spelling;
    "" for the document. `message`: what is wrong, and what fits."""

    def __init__(self, tool: str, field: str, message: str) -> None:
        super().__init__(f"{field or 'the document'} {message}")
        self.tool = tool
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the document, for messages."""

    tool: str
    field: str

    def __truediv__(self, key: str) -> Position:
        return Position(self.tool, f"{self.field}.{key}" if self.field else key)

    def __getitem__(self, index: int) -> Position:
        return Position(self.tool, f"{self.field}[{index}]")

    def of(self, tool: str) -> Position:
        return Position(tool, self.field)

    def bad(self, message: str) -> BadTool:
        return BadTool(self.tool, self.field, message)


def check_bool(fields: Document, key: str, at: Position) -> None:
    if not isinstance(fields.get(key, False), bool):
        raise (at / key).bad("must be true or false")


def fields_of(value: object, known: tuple[str, ...], at: Position) -> Document:
    """An object's fields under their names in `known`, from either spelling. Null is unset; others are refused."""
    if not isinstance(value, dict):
        raise at.bad("must be an object")
    label = at.of(label_of(value, at))
    fields: Document = {}
    spellings: dict[str, str] = {}
    for key, member in value.items():
        name = key if key in known else camel(key)
        if name not in known:
            raise (label / key).bad(f"is not known; known fields are {', '.join(known)}")
        if name in spellings:
            raise (label / key).bad(
                f"is given together with {spellings[name]}, its other spelling; use only one of them"
            )
        spellings[name] = key
        if member is not None:
            fields[name] = member
    return fields


def label_of(value: Document, at: Position) -> str:
    """The label of a tool in messages: its name, if usable, else its index; "" outside of tools."""
    name = value.get("name")
    return name if at.tool and isinstance(name, str) and 0 < len(name) <= 128 else at.tool


def quoted(value: object) -> str:
    """A bad value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def list_at(value: object, at: Position) -> list[object]:
    """A list, or a single object instead of one."""
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise at.bad("must be a list")
    return value


def check_depth(value: object, at: Position) -> None:
    """Refuse a value that is nested too deeply for recursion."""
    if is_too_deep(value):
        raise at.bad(f"is nested deeper than {MAX_DEPTH} levels")


_MODES = ("AUTO", "ANY", "NONE", "VALIDATED")
_CHOICES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
_ALLOWED_MODES = {"auto": "VALIDATED", "required": "ANY"}


def tool_config_of(body: Document, names: Collection[str], top: Position) -> Document | None:
    """The toolConfig of a document of tools, checked against the `names` of its declarations. Raises BadTool."""
    if "tool_choice" in body:
        if "toolConfig" in body:
            raise (top / "tool_choice").bad("is given together with toolConfig; use only one of them")
        at = top / "tool_choice"
        config: Document = {"functionCallingConfig": _choice(body["tool_choice"], at)}
    elif "toolConfig" in body:
        at = top / "toolConfig"
        config = _tool_config(body["toolConfig"], at)
    else:
        return None
    calling = config.get("functionCallingConfig", {})
    if calling.get("mode") in ("ANY", "VALIDATED") and not names:
        raise at.bad(f"asks for mode {calling['mode']}, but no function is declared")
    for name in calling.get("allowedFunctionNames", ()):
        if name not in names:
            raise at.bad(f"names {quoted(name)}, which is not declared")
    return config


def _choice(choice: object, at: Position) -> Document:
    if isinstance(choice, str) and choice in _CHOICES:
        return {"mode": _CHOICES[choice]}
    if (name := _function_name(choice, at)) is not None:
        return {"mode": "ANY", "allowedFunctionNames": [name]}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(choice, at)
    raise at.bad(
        'must be "auto", "required", "none", {"type": "function", "name": …}, '
        '{"type": "function", "function": {"name": …}} or {"type": "allowed_tools", "mode": …, "tools": […]}'
    )


def _function_name(choice: object, at: Position) -> str | None:
    """The name in OpenAI's choice of one function, flat or nested; None for any other choice."""
    if not isinstance(choice, dict) or choice.get("type") != "function":
        return None
    named = fields_of(choice, ("type", "name", "function"), at)
    if "function" in named:
        named = fields_of(named["function"], ("name",), at / "function") if "name" not in named else {}
    name = named.get("name")
    return name if isinstance(name, str) else None


def _allowed(choice: Document, at: Position) -> Document:
    """A choice among some tools: one of them must be called (ANY), or may be called (VALIDATED)."""
    fields = fields_of(choice, ("type", "mode", "tools", "allowed_tools"), at)
    if "allowed_tools" in fields:  # as in OpenAI's chat completions
        at = at / "allowed_tools"
        fields = fields_of(fields["allowed_tools"], ("mode", "tools"), at)
    mode = "auto" if fields.get("mode") is None else fields["mode"]
    if not isinstance(mode, str) or mode not in _ALLOWED_MODES:
        raise (at / "mode").bad(f"is {quoted(mode)}; it must be 'auto' or 'required'")
    tools = fields.get("tools")
    if not isinstance(tools, list) or not tools:
        raise (at / "tools").bad('must be a list of one or more of {"type": "function", "name": …}')
    names: list[str] = []
    for index, tool in enumerate(tools):
        place = (at / "tools")[index]
        if (name := _function_name(tool, place)) is None:
            raise place.bad('must be {"type": "function", "name": …}')
        names.append(name)
    return {"mode": _ALLOWED_MODES[mode], "allowedFunctionNames": names}


def _tool_config(value: object, at: Position) -> Document:
    check_depth(value, at)
    config = fields_of(value, ("functionCallingConfig", "retrievalConfig", "includeServerSideToolInvocations"), at)
    if "functionCallingConfig" in config:
        config["functionCallingConfig"] = _calling(config["functionCallingConfig"], at / "functionCallingConfig")
    if "retrievalConfig" in config:
        place = at / "retrievalConfig"
        retrieval = fields_of(config["retrievalConfig"], ("latLng", "languageCode"), place)
        if "latLng" in retrieval:
            retrieval["latLng"] = fields_of(retrieval["latLng"], ("latitude", "longitude"), place / "latLng")
        config["retrievalConfig"] = retrieval
    check_bool(config, "includeServerSideToolInvocations", at)
    return config


def _calling(value: object, at: Position) -> Document:
    calling = fields_of(value, ("mode", "allowedFunctionNames", "streamFunctionCallArguments"), at)
    check_bool(calling, "streamFunctionCallArguments", at)
    mode = calling.get("mode", "AUTO")
    if not isinstance(mode, str) or mode.upper() not in _MODES:
        raise (at / "mode").bad(f"is {quoted(mode)}; it must be one of {', '.join(_MODES)}")
    if "mode" in calling:
        calling["mode"] = mode.upper()
    allowed = calling.get("allowedFunctionNames", [])
    if not isinstance(allowed, list) or not all(isinstance(name, str) for name in allowed):
        raise (at / "allowedFunctionNames").bad("must be a list of names")
    if allowed and mode.upper() not in ("ANY", "VALIDATED"):
        raise (at / "allowedFunctionNames").bad("is allowed only with mode ANY or VALIDATED")
    return calling


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
