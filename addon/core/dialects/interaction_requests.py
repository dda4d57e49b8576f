"""Interactions, requests: converts a request, its tools and its tool choice to Gemini's form and back.

A client's own tools are restored unchanged: a function keeps its keys, any other tool is kept under the key `tool`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from addon.core.dialects import interaction_contents as own
from addon.core.framing.documents import (
    Document,
    Malformed,
    as_list,
    camel,
    decode,
    encode,
    get,
    objects,
    snake,
)
from addon.core.history.request import Piece, Request, assemble, parse
from addon.core.tools.schema import to_json_schema

_TOOLS = {
    "googleSearch": "google_search",
    "codeExecution": "code_execution",
    "urlContext": "url_context",
    "googleMaps": "google_maps",
    "fileSearch": "file_search",
    "computerUse": "computer_use",
}
"""The built-in tools that both APIs have."""

_ONLY_GEMINI = frozenset({"behavior", "response", "responseJsonSchema"})
"""Fields of a Gemini declaration that function tools do not support."""


def to_gemini_tools(tools: Any) -> list[Document]:
    return [_gemini_tool(tool) for tool in objects(tools)]


def _gemini_tool(tool: Document) -> Document:
    if tool.get("type") != "function":
        return {"tool": tool}
    declaration = {key: value for key, value in tool.items() if key not in ("type", "parameters")}
    if isinstance(tool.get("parameters"), dict):
        declaration["parametersJsonSchema"] = tool["parameters"]
    return {"functionDeclarations": [declaration]}


def to_interaction_tools(tools: Sequence[Document]) -> list[Document]:
    """Gemini tools in the form of the Interactions API, without those that it does not have (`unsupported_tools`)."""
    return [one for tool in tools for one in _own_tool(tool)]


def unsupported_tools(tools: Sequence[Document]) -> list[str]:
    """The names of the Gemini tools that the Interactions API does not have."""
    known = {*_TOOLS, "functionDeclarations", "tool"}
    return [key for tool in tools for key in tool if camel(key) not in known]


def _own_tool(tool: Document) -> Iterator[Document]:
    for key, value in tool.items():
        if key == "tool":
            yield value
        elif camel(key) == "functionDeclarations":
            for declaration in objects(value):
                yield _function(declaration)
        elif camel(key) in _TOOLS and isinstance(value, dict):
            yield {"type": _TOOLS[camel(key)], **{snake(name): setting for name, setting in value.items()}}


def _function(declaration: Document) -> Document:
    function: Document = {"type": "function"}
    for key, value in declaration.items():
        name = camel(key)
        if name == "parameters" and isinstance(value, dict):
            function["parameters"] = to_json_schema(value)
        elif name == "parametersJsonSchema":
            function["parameters"] = value
        elif name not in _ONLY_GEMINI:
            function[key] = value
    return function


def calling_config(choice: Any) -> Document | None:
    """A `tool_choice` as a functionCallingConfig; None if it sets nothing."""
    if isinstance(choice, str):
        return {"mode": choice.upper()}
    allowed = choice.get("allowed_tools") if isinstance(choice, dict) else None
    if not isinstance(allowed, dict):
        return None
    calling: Document = {"mode": str(allowed.get("mode", "auto")).upper()}
    if names := as_list(allowed.get("tools")):
        calling["allowedFunctionNames"] = names
    return calling


def tool_choice(calling: Document | None) -> Any:
    """A functionCallingConfig as a `tool_choice`; None if it sets nothing."""
    mode = str(get(calling or {}, "mode") or "").lower()
    names = as_list(get(calling or {}, "allowedFunctionNames"))
    if names:
        return {"allowed_tools": {"mode": mode or "auto", "tools": names}}
    return mode or None


def with_choice(config: bytes | None, tool_config: bytes | None) -> bytes | None:
    """A `generation_config` with the tool choice of Gemini's toolConfig; None if nothing is left."""
    given = decode(config) if config is not None else {}
    if not isinstance(given, dict):
        raise Malformed("generation_config is not an object")
    new = {key: value for key, value in given.items() if key != "tool_choice"}
    choice = tool_choice(get(decode(tool_config), "functionCallingConfig")) if tool_config is not None else None
    if choice is not None:
        new["tool_choice"] = choice
    return encode(new) if new else None


class InteractionRequest:
    """`previous`: the interaction that the request names, if any. `is_stored`: the answer is kept. Raises Malformed."""

    def __init__(self, body: bytes) -> None:
        given = decode(body)
        if not isinstance(given, dict):
            raise Malformed("the body is not an object")
        for name in ("agent", "background"):
            if given.get(name):
                raise Malformed(f"tools cannot be grafted into a request with {name!r}")
        self.body = body
        self.members: Document = given
        previous = given.get("previous_interaction_id")
        self.previous = previous if isinstance(previous, str) and previous else None
        self.is_stored = given.get("store") is not False
        self._input = own.input_steps(given.get("input"))

    def gemini(self) -> bytes:
        """The request in Gemini's form."""
        return gemini_request(self.members, self.previous, self._input)

    def write(
        self,
        request: Request,
        replaced: Mapping[str, bytes | None],
        contents: Sequence[Piece] | None,
        unfinished: str = "",
    ) -> tuple[bytes, str]:
        """The body for upstream, and a warning about left-out tools. `unfinished`: the interaction whose rest is
        requested."""
        outer = parse(self.body)
        new: dict[str, bytes | None] = {}
        dropped = ""
        if "tools" in replaced:
            tools = decode(replaced["tools"] or b"[]")
            converted = to_interaction_tools(tools)
            new["tools"] = encode(converted) if converted else None
            if unsupported := unsupported_tools(tools):
                dropped = f"{', '.join(unsupported)}: the Interactions API has no such tool"
        if "toolConfig" in replaced:
            new["generation_config"] = with_choice(outer.value("generationConfig"), replaced["toolConfig"])
        if "continuationToken" in replaced:
            new["continuation_token"] = replaced["continuationToken"]
        if unfinished:  # its id is enough: the service has the input
            new |= {"previous_interaction_id": encode(unfinished), "input": None}
        elif contents is not None:
            previous, steps = self._split_history(request, contents)
            if previous != self.previous:
                new["previous_interaction_id"] = encode(previous)
            if steps != self._input:
                new["input"] = encode(steps)
        present = {member.name for member in outer.members}
        return assemble(outer, {camel(k) if camel(k) in present else k: value for k, value in new.items()}), dropped

    def _split_history(self, request: Request, contents: Sequence[Piece]) -> tuple[str | None, list[Document]]:
        """The interaction that the Contents continue, and the steps that are new to the service."""
        spans = [span for turn in request.history.turns for span in turn.spans]
        stored = len(spans) - len(self._input)
        previous: str | None = None
        names: dict[str, str] = {}
        steps: list[Document] = []
        for piece in contents:
            if isinstance(piece, bytes):
                content = decode(piece)
                if (interaction := own.marked_id(content)) is not None:
                    previous, names, steps = interaction, own.call_names(content), []
                else:
                    steps += [own.with_call_name(step, names) for step in own.steps_of(content)]
                continue
            for number, (start, end) in enumerate(spans):
                if piece[0] <= start and end <= piece[1]:
                    if number < stored:
                        previous = self.previous
                    else:
                        steps.append(self._input[number - stored])
        return previous, steps


def gemini_config(given: Document) -> Document:
    """Gemini's generationConfig for a request, limited to the fields that matter for tools."""
    config: Document = {}
    if mime := given.get("response_mime_type"):
        config["responseMimeType"] = mime
    if modalities := given.get("response_modalities"):
        config["responseModalities"] = modalities
    for form in objects(given.get("response_format")):
        if form.get("type", "text") != "text" or "schema" in form or form.get("mime_type") == "application/json":
            config["responseFormat"] = form
    return config


def gemini_request(given: Document, previous: str | None, steps: Sequence[Document]) -> bytes:
    """A request in Gemini's form. Its Contents represent the previous interaction, if any, and each step."""
    config = given.get("generation_config")
    calling = calling_config(config.get("tool_choice") if isinstance(config, dict) else None)
    contents = [*(own.kept_history(previous) if previous is not None else []), *map(own.content_of, steps)]
    document: Document = {"contents": contents, "model": given.get("model", "")}
    if given.get("tools") is not None:
        document["tools"] = to_gemini_tools(given["tools"])
    tool_config: Document = {} if calling is None else {"functionCallingConfig": calling}
    if any("functionDeclarations" not in tool for tool in document.get("tools", ())):
        tool_config["includeServerSideToolInvocations"] = True  # this API always shows the steps of built-in tools
    if tool_config:
        document["toolConfig"] = tool_config
    if config := gemini_config(given):
        document["generationConfig"] = config
    for name in ("cached_content", "continuation_token"):
        if isinstance(given.get(name), str):
            document[camel(name)] = given[name]
    return encode(document)
