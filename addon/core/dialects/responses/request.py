"""Parses a Responses API request: the fields for the Gemini request, and the fields that the response repeats.

`read_request` checks the whole body and raises Invalid for the first field that is wrong or not supported. Unknown
fields are refused, never ignored. Pure: the body is never changed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from addon.core.dialects.responses import history, options
from addon.core.dialects.responses.errors import (
    Unsupported,
    bad,
    body_object,
    boolean,
    count,
    fields,
    one_of,
    quoted,
    required,
    string,
    unsupported,
)
from addon.core.dialects.responses.items import (
    CallOutput,
    FunctionCall,
    Input,
    Part,
    Unseal,
    media_resolution,
    nothing_sealed,
    read_input,
    read_items,
)
from addon.core.dialects.responses.options import tool_config as gemini_tool_config
from addon.core.framing.documents import Document
from addon.core.model_names import MODEL_NAME, generation, is_before

_READ = (
    *("model", "input", "instructions", "tools", "tool_choice", "temperature", "top_p", "max_output_tokens", "text"),
    *("presence_penalty", "frequency_penalty", "stop", "top_logprobs", "service_tier", "max_tool_calls"),
    *("truncation", "background"),
    *("reasoning", "metadata", "store", "conversation", "previous_response_id", "stream", "stream_options", "include"),
    "parallel_tool_calls",
)
FIELDS = (*_READ, *options.LABELS, *options.NEUTRAL)
"""All known fields of a request. Some values of them are not supported."""

_SAMPLING = {"temperature": 1.0, "top_p": 0.95, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Gemini's defaults for settings that a request leaves out."""
_MAX_ID = 256
_MOST_LEFT_OUT = 64
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[]+)")

type _Path = tuple[str | int, ...]
"""The keys and indices that lead to a member."""


@dataclass(frozen=True)
class ResponsesRequest:
    """A valid request. `raw_input`: its input, unchanged.

    `tools`: its tools as Gemini's; None if it has none, so that its conversation's apply. `parallel`: whether the calls
    of a step may be given out together; None if not set. `conversation`: its name. `background`: the client does not
    wait for the response. `echo`: the members of a Response object that repeat the request. `shows_thoughts`: show
    thoughts. `carries_signatures`: give the client the model's signatures, sealed. `shows_sources`: show a web search
    with its sources. `truncates`: the oldest turns of a history that is too long may be left out. `max_tool_calls`: of
    the session's tools. `verbosity`: in words for the model. `service_tier`: Gemini's name of it, None for the default.
    """

    model: str
    raw_input: str | list[Document]
    input: Input
    instructions: str | None
    tools: list[Document] | None
    tool_choice: Any
    parallel: bool | None
    generation_config: Document
    metadata: dict[str, str]
    store: bool
    background: bool
    conversation: str | None
    previous_response_id: str | None
    stream: bool
    shows_thoughts: bool
    carries_signatures: bool
    shows_sources: bool
    truncates: bool
    max_tool_calls: int | None
    verbosity: str | None
    service_tier: str | None
    echo: Document

    @property
    def call_ids(self) -> list[str]:
        """The ids of the calls in the input, in order, to look up for `add_to`."""
        named = (item.call_id for item in self.input.items if isinstance(item, FunctionCall | CallOutput))
        return list(dict.fromkeys(named))

    def add_to(self, known: history.StoredCalls) -> history.AddedContents:
        """The Contents that the request adds to a history. Raises Invalid."""
        return history.add_items(self.input.items, known, self.model, self.input.carried)

    def behind(self, items: Sequence[Document], where: str, unseal: Unseal) -> "ResponsesRequest":
        """The request with items before its own. `where`: their position, for errors. Raises Invalid."""
        own = self.raw_input if isinstance(self.raw_input, list) else []
        config = {name: value for name, value in self.generation_config.items() if name != "mediaResolution"}
        if (resolution := media_resolution([*items, *own])) is not None:
            config["mediaResolution"] = resolution
        return replace(self, input=self.input.behind(read_items(items, where, unseal)), generation_config=config)

    def system_instruction(self, earlier: Sequence[Part] = ()) -> Document | None:
        """`instructions`, then the system and developer messages of the history's earlier requests (their
        `input.system`) and of this request, then the desired length of the answer."""
        first: list[Part] = [{"text": self.instructions}] if self.instructions else []
        last: list[Part] = [{"text": self.verbosity}] if self.verbosity else []
        parts = [*first, *earlier, *self.input.system, *last]
        return {"parts": parts} if parts else None

    def tool_config(self, tools: Sequence[Document]) -> Document | None:
        """The toolConfig. `tools`: of the request or its conversation. Raises Invalid for a choice of another
        function."""
        return gemini_tool_config(self.tool_choice, tools, self.model)


def read_request(body: object, unseal: Unseal = nothing_sealed) -> ResponsesRequest:
    """Reads a request's body, as decoded JSON. Raises Invalid."""
    given = {key: value for key, value in body_object(body).items() if value is not None}
    for key in given:
        if key not in FIELDS:
            raise unsupported(key, "is not a known field of a Responses API request", "unknown_parameter")
    model = string(required(given, "model", ""), "model")
    if not MODEL_NAME.fullmatch(model):
        raise bad("model", f"is {quoted(model)}; it must be a Gemini model, such as gemini-3-flash")
    options.check_neutral(given)
    declared = options.read_tools(given["tools"], model) if "tools" in given else None
    config = options.generation_config(given, model)
    if declared and "responseMimeType" in config and is_before(generation(model), (3, 0)):
        raise bad("text.format", f"is JSON, and {model} does not support JSON output with tools (Gemini 3 does)")
    conversation, previous = _conversation(given), given.get("previous_response_id")
    if previous is not None:
        _named(previous, "previous_response_id")
        if conversation is not None:
            raise bad("previous_response_id", "is given together with conversation; use only one of them")
    stream = boolean(given.get("stream", False), "stream")
    background, store = (
        boolean(given.get("background", False), "background"),
        boolean(given.get("store", True), "store"),
    )
    if background and not store:
        raise bad("background", "is true, and store is false: a background response is stored, so leave store out")
    one_of(given.get("truncation", "disabled"), ("auto", "disabled"), "truncation")
    parallel = given.get("parallel_tool_calls")
    if parallel is not None:
        boolean(parallel, "parallel_tool_calls")
    read = read_input(required(given, "input", ""), unseal)
    if (resolution := media_resolution(given["input"])) is not None:
        config["mediaResolution"] = resolution
    request = ResponsesRequest(
        model=model,
        raw_input=required(given, "input", ""),
        input=read,
        instructions=string(given["instructions"], "instructions") if "instructions" in given else None,
        tools=declared,
        tool_choice=given.get("tool_choice"),
        parallel=parallel,
        generation_config=config,
        metadata=options.metadata(given.get("metadata", {})),
        store=store,
        background=background,
        conversation=conversation,
        previous_response_id=previous,
        stream=stream,
        shows_thoughts=bool(config.get("thinkingConfig", {}).get("includeThoughts")),
        carries_signatures=options.SIGNATURES in given.get("include", ()),
        shows_sources=options.SOURCES in given.get("include", ()),
        truncates=given.get("truncation") == "auto",
        max_tool_calls=count(given["max_tool_calls"], "max_tool_calls") if "max_tool_calls" in given else None,
        verbosity=options.VERBOSITIES[given.get("text", {}).get("verbosity") or "medium"],
        service_tier=options.service_tier(given),
        echo=_echo(given, conversation),
    )
    if declared is not None:
        request.tool_config(declared)
    return request


def read_leniently(body: object, unseal: Unseal = nothing_sealed) -> tuple[ResponsesRequest, list[str]]:
    """The request without its unsupported members, and their positions. Raises Invalid for other errors."""
    left_out: list[_Path] = []
    while True:
        try:
            return read_request(body, unseal), [_position_of(path) for path in left_out]
        except Unsupported as error:
            path = _path_of(error.member)
            if len(left_out) == _MOST_LEFT_OUT or not _has_member(body, path):
                raise
            body = _without_member(body, path)
            left_out.append(_original_path(path, left_out))


def _named(value: object, at: str) -> str:
    if not 0 < len(string(value, at)) <= _MAX_ID or not str(value).isprintable():
        raise bad(at, f"is {quoted(value)}; it must be 1 to {_MAX_ID} printable characters")
    return str(value)


def _conversation(given: Document) -> str | None:
    """The name of a conversation, given directly or as the `id` of an object."""
    value = given.get("conversation")
    if value is None:
        return None
    if not isinstance(value, dict):
        return _named(value, "conversation")
    return _named(required(fields(value, ("id",), "conversation"), "id", "conversation"), "conversation.id")


def _echo(given: Document, conversation: str | None) -> Document:
    """All members of a Response object that repeat the request, with defaults for those not set."""
    text, reasoning = given.get("text", {}), given.get("reasoning", {})
    return {
        "background": given.get("background", False),
        "conversation": None if conversation is None else {"id": conversation},
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "max_tool_calls": given.get("max_tool_calls"),
        "metadata": given.get("metadata", {}),
        "model": given["model"],
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "previous_response_id": given.get("previous_response_id"),
        "prompt_cache_key": given.get("prompt_cache_key"),
        "reasoning": {
            "effort": reasoning.get("effort"),
            "summary": reasoning.get("summary") or reasoning.get("generate_summary"),
        },
        "safety_identifier": given.get("safety_identifier"),
        "service_tier": options.service_tier(given) or "default",
        "store": given.get("store", True),
        "text": {"format": options.shown_format(text), "verbosity": text.get("verbosity") or "medium"},
        "tool_choice": options.shown_choice(given.get("tool_choice", "auto")),
        "tools": options.shown_tools(given.get("tools", [])),
        "top_logprobs": given.get("top_logprobs", 0),
        "truncation": given.get("truncation", "disabled"),
        "user": given.get("user"),
        **{name: given.get(name, default) for name, default in _SAMPLING.items()},
    }


def _path_of(position: str) -> _Path:
    """`tools[1].strict` as a path."""
    return tuple(int(index) if index else key for index, key in _STEP.findall(position))


def _position_of(path: _Path) -> str:
    """A path as a position."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _has_member(value: Any, path: _Path) -> bool:
    """Whether the path leads to a member."""
    for step in path:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return False
    return bool(path)


def _without_member(value: Any, path: _Path) -> Any:
    """The value without the member at this path."""
    step, *rest = path
    if rest:
        inner = _without_member(value[step], tuple(rest))
        if isinstance(value, dict):
            return {**value, step: inner}
        return [*value[:step], inner, *value[int(step) + 1 :]]
    if isinstance(value, dict):
        return {key: member for key, member in value.items() if key != step}
    return [*value[:step], *value[int(step) + 1 :]]


def _original_path(path: _Path, before: Sequence[_Path]) -> _Path:
    """The path in the request before the members at `before` were removed. They are in list order."""
    found: list[str | int] = []
    for step in path:
        if isinstance(step, int):
            for one in before:
                if len(one) == len(found) + 1 and list(one[:-1]) == found and int(one[-1]) <= step:
                    step += 1
        found.append(step)
    return tuple(found)
