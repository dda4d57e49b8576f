"""Interactions, requests: converts requests, steps, Contents and tools between the Interactions API and Gemini's form.

A step becomes a Content: the user's if it is input or the result of a call, else the model's. Items without a Gemini
form stay unchanged under the key `step` or `content` of a part. A client's own tools are restored unchanged: a function
keeps its keys, any other tool is kept under the key `tool`.

An interaction that the service keeps is named by its id. The id is stored as a thought part of a model Content
(`mark_part`): it stays with the model's parts in the ledger and is never visible. The service knows everything up to
that interaction.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from addon.core.framing.documents import (
    Document,
    Malformed,
    NotGrafted,
    as_list,
    camel,
    decode,
    encode,
    get,
    objects,
    parts_of,
    snake,
)
from addon.core.history.outcomes import from_base64, media_type, reference, response_of
from addon.core.history.request import Piece, Request, assemble, parse
from addon.core.history.rewriting import DUMMY_SIGNATURE
from addon.core.tools.schema import to_json_schema

MEDIA = frozenset({"image", "audio", "video", "document"})
_USERS = frozenset({"user_input", "function_result"})
_ID = "interactionId"
_CALLED = "calledAs"
_JOINED_LATER = " pieces"  # a key that the service's steps do not have

# --- ids ------------------------------------------------------------------------------------------------------


def mark_part(interaction_id: str) -> Document:
    """The part that represents an interaction that the service keeps."""
    return {"thought": True, "thoughtSignature": interaction_id, _ID: interaction_id}


def marked_id(content: Document) -> str | None:
    """The last interaction id in a Content, if any. One answer may take several interactions."""
    return next((part[_ID] for part in reversed(parts_of(content)) if isinstance(part.get(_ID), str)), None)


def call_names(content: Document) -> dict[str, str]:
    """The original names of a Content's calls, by call id. The service knows the calls by these names."""
    calls = [call for part in parts_of(content) if isinstance(call := get(part, "functionCall"), dict)]
    return {call["id"]: call[_CALLED] for call in calls if isinstance(call.get("id"), str) and call.get(_CALLED)}


def with_call_name(step: Document, names: Mapping[str, str]) -> Document:
    """A result with the original name of its call."""
    name = names.get(call_id) if isinstance(call_id := step.get("call_id"), str) else None
    return step if name is None else {**step, "name": name}


def kept_history(interaction_id: str) -> list[Document]:
    """Contents that represent a history kept by the service. Their model turn holds only the interaction's id."""
    model_turn = {"role": "model", "parts": [{"text": interaction_id}, mark_part(interaction_id)]}
    return [{"role": "user", "parts": [{"text": ""}]}, model_turn]


# --- steps and contents ---------------------------------------------------------------------------------------


def input_steps(given: Any) -> list[Document]:
    """An `input` in any of its forms as a list of steps. Raises Malformed."""
    if given is None:
        return []
    if isinstance(given, str):
        given = {"type": "text", "text": given}
    items = as_list(given)
    if not all(isinstance(item, dict) for item in items):
        raise Malformed("an item of the input is neither a step nor a content")
    if any(is_step(item) for item in items):
        return items
    return [{"type": "user_input", "content": items}] if items else []


def kind_of(item: Document) -> str:
    """The type of a step or a content, or ""."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else ""


def is_step(item: Document) -> bool:
    """Whether an item is a step, not a content."""
    kind = kind_of(item)
    if not kind:
        return "role" in item  # the older form of steps has no types
    return kind in ("user_input", "model_output", "thought") or kind.endswith(("_call", "_result"))


def is_tool_step(step: Document) -> bool:
    """Whether a step belongs to a tool: a call or a result. The client may not get such a step."""
    return kind_of(step).endswith(("_call", "_result"))


def content_of(step: Document) -> Document:
    is_users = kind_of(step) in _USERS if kind_of(step) else step.get("role") == "user"
    return {"role": "user" if is_users else "model", "parts": parts_of_step(step)}


def parts_of_step(step: Document) -> list[Document]:
    """A step as Gemini parts."""
    kind = kind_of(step)
    if kind == "function_call":
        arguments, name = step.get("arguments"), step.get("name", "")
        call = {"id": step.get("id"), "name": name, "args": arguments if isinstance(arguments, dict) else {}}
        return [{"functionCall": {**call, _CALLED: name}}]
    if kind == "function_result":
        error = str(step.get("result")) if step.get("is_error") and not isinstance(step.get("result"), dict) else None
        head = {"id": step.get("call_id"), "name": step.get("name") or ""}
        value, parts = _with_parts(step.get("result"))
        more = {"parts": parts} if parts else {}
        return [{"functionResponse": {**head, "response": response_of(value, error), **more, "step": step}}]
    if kind == "thought":
        text = "".join(str(one.get("text", "")) for one in objects(step.get("summary")))
        return [thought(text, step.get("signature"))]
    if kind.endswith("_call"):
        used = {"toolType": kind, "id": step.get("id"), "args": step.get("arguments")}
        return [{"toolCall": {**used, "step": step}}]
    if kind.endswith("_result"):
        used = {"toolType": kind, "id": step.get("call_id"), "response": step.get("result")}
        return [{"toolResponse": {**used, "step": step}}]
    return [part_of(one) for one in objects(step.get("content"))]


def _with_parts(result: Any) -> tuple[Any, list[Document]]:
    """A client's result with references instead of images and files, and these as parts."""
    parts: list[Document] = []
    if not isinstance(result, list):
        return result, parts
    values: list[Any] = []
    for item in result:
        part = part_of(item) if isinstance(item, dict) and kind_of(item) in MEDIA else {}
        if "inlineData" in part:
            parts.append(part)
            values.append(reference(len(parts), media_type(part)))
        else:
            values.append(item)
    return values, parts


def part_of(content: Document) -> Document:
    """A content of a step as a Gemini part: text, media, or the content itself if Gemini has no form for it."""
    kind = kind_of(content)
    if kind == "text" and isinstance(content.get("text"), str):
        return {"text": content["text"]}
    mime = content.get("mime_type") or f"{kind}/*"
    if kind in MEDIA and isinstance(content.get("data"), str):
        return {"inlineData": {"mimeType": mime, "data": content["data"]}}
    if kind in MEDIA and isinstance(content.get("uri"), str):
        return {"fileData": {"mimeType": mime, "fileUri": content["uri"]}}
    return {"content": content}


def thought(text: str, signature: Any) -> Document:
    """A thought as a part. Only a signed thought matters for the history."""
    part: Document = {"text": text, "thought": True}
    return {**part, "thoughtSignature": signature} if signature else part


def steps_of(content: Document) -> list[Document]:
    steps: list[Document] = []
    outer = "model_output" if content.get("role") == "model" else "user_input"
    for part in parts_of(content):
        if _ID in part:
            continue
        step = _step(part)
        if step is not None:
            steps.append(step)
        elif steps and steps[-1]["type"] == outer:
            steps[-1]["content"].append(_content(part))
        else:
            steps.append({"type": outer, "content": [_content(part)]})
    return steps


def _step(part: Document) -> Document | None:
    """The step for a part that is a whole step; None for a part that is only a content."""
    if isinstance(call := get(part, "functionCall"), dict):
        named = {"id": call.get("id"), "name": call.get("name")}
        return {"type": "function_call", **named, "arguments": get(call, "args") or {}}
    if isinstance(answer := get(part, "functionResponse"), dict):
        return _result(answer)
    for kind in ("toolCall", "toolResponse"):
        if isinstance(used := get(part, kind), dict) and isinstance(step := used.get("step"), dict):
            return step
    if part.get("thought"):
        signature = get(part, "thoughtSignature")
        head = {} if signature in (None, DUMMY_SIGNATURE) else {"signature": signature}
        summary = {"summary": [{"type": "text", "text": part["text"]}]} if part.get("text") else {}
        return {"type": "thought", **head, **summary}
    return None


def _result(answer: Document) -> Document:
    """A function_result. The client's own result keeps its members and gets the id and the name of its call."""
    call = {"call_id": answer.get("id"), "name": answer.get("name")}
    if isinstance(step := answer.get("step"), dict):
        return {**step, **{key: value for key, value in call.items() if step.get(key) != value and value}}
    response = get(answer, "response") or {}
    failed = {"is_error": True} if response.keys() == {"error"} else {}
    result = response
    if parts := list(objects(get(answer, "parts"))):
        only = response.get("result") if response.keys() == {"result"} else None
        text = only if isinstance(only, str) else encode(response).decode()
        result = [{"type": "text", "text": text}, *map(_file_content, parts)]
    return {"type": "function_result", **call, "result": result, **failed}


def _file_content(part: Document) -> Document:
    """A part of a result as a content. Plain text becomes text; documents have other types."""
    if media_type(part) == "text/plain" and (data := from_base64(str(part["inlineData"]["data"]))) is not None:
        return {"type": "text", "text": data.decode("utf-8", "replace")}
    return _content(part)


def _content(part: Document) -> Document:
    if isinstance(part.get("content"), dict):
        return dict(part["content"])
    for key, value, name in (("inlineData", "data", "data"), ("fileData", "fileUri", "uri")):
        if isinstance(media := get(part, key), dict):
            mime = str(get(media, "mimeType") or "")
            kind = mime.partition("/")[0]
            content: Document = {"type": kind if kind in MEDIA else "document", name: get(media, value)}
            return content if mime.endswith("/*") else {**content, "mime_type": mime}
    return {"type": "text", "text": str(part.get("text", ""))}


# --- streamed steps -------------------------------------------------------------------------------------------


def parts_of_delta(delta: Document) -> list[Document]:
    """The parts in Gemini's format that a delta adds to its step, which is not a function_call."""
    match delta:
        case {"type": "text" | "image" | "audio" | "video" | "document"}:
            return [part_of(delta)]
        case {"type": "thought_signature", "signature": str(signature)}:
            return [thought("", signature)]
        case {"type": "thought_summary", "content": {"text": str(text)}}:
            return [thought(text, None)]
    return []


def with_delta(step: Document, delta: Document) -> Document:
    """A step with a delta added. The arguments of a function_call are pieces of JSON; `completed_step` joins them. May
    change the given step in place."""
    if delta.get("type") == "arguments_delta" and isinstance(piece := delta.get("arguments") or "", str):
        if _JOINED_LATER not in step:
            return {**step, _JOINED_LATER: [piece]}
        step[_JOINED_LATER].append(piece)
        return step
    return step | {key: value for key, value in delta.items() if key != "type"}


def completed_step(step: Document) -> Document:
    """A step with its pieces joined. Arguments other than a JSON object are kept as text under the key `arguments`."""
    whole = {key: value for key, value in step.items() if key != _JOINED_LATER}
    if pieces := "".join(step.get(_JOINED_LATER, ())):
        try:
            arguments = decode(pieces.encode("utf-8", "surrogatepass"))
        except Malformed:
            arguments = None
        whole["arguments"] = arguments if isinstance(arguments, dict) else {"arguments": pieces}
    return whole


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
                raise NotGrafted(f"tools cannot be grafted into a request with {name!r}")
        self.body = body
        self.members: Document = given
        previous = given.get("previous_interaction_id")
        self.previous = previous if isinstance(previous, str) and previous else None
        self.is_stored = given.get("store") is not False
        self._input = input_steps(given.get("input"))

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
                if (interaction := marked_id(content)) is not None:
                    previous, names, steps = interaction, call_names(content), []
                else:
                    steps += [with_call_name(step, names) for step in steps_of(content)]
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
    contents = [*(kept_history(previous) if previous is not None else []), *map(content_of, steps)]
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
