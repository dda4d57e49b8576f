"""Plans the tools of a request: strips or keeps the client's, injects the toolset's, renames clashing names.

A `Toolbox` is a session's toolset, ready for requests. Its `strip` and `keep` return the new `tools` and `toolConfig`
of one request, and the names of the grafted tools in it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Self

import xxhash

from addon.core.framing.documents import Document, as_list, camel, decode, encode, get, objects
from addon.core.model_names import Generation, is_before

MAX_NAME = 64
"""The maximum length of a function name, unless a service is known to accept more."""
MAX_VERTEX_NAME = 128

_FLAG = "includeServerSideToolInvocations"
_WITHOUT_FUNCTIONS = frozenset(
    "functionDeclarations googleSearch googleSearchRetrieval codeExecution urlContext googleMaps fileSearch".split()
)
"""Kinds of tools that can lead only to calls of declared functions."""
_LARGEST_CACHED = 16_384
_MOST_COUNTS = 256
_MEDIA_MODEL = re.compile(r"-image\b|-tts\b|^imagen|^veo|native-audio")


class ToolPlan(NamedTuple):
    """`tools` and `tool_config`: the member's new JSON, None to remove it. `changes` False: both stay unchanged.

    `names`: the toolset's name → the name used in this request, for every grafted tool that is declared. `declared`:
    every function that the rewritten request declares. `hides_server_tools`: the proxy requests toolCall and
    toolResponse parts, and the client did not. `server_tools`: the history may hold such parts. `dropped`: tools that
    were left out because they cannot be combined, for a warning. `grafts` False: the request cannot use functions, and
    its answer holds no calls. `own`: the functions that the client declares; None if its tools may call others.
    `builtins`: how many built-in tools were added.
    """

    tools: bytes | None
    tool_config: bytes | None
    changes: bool
    names: Mapping[str, str]
    declared: Collection[str]
    hides_server_tools: bool = False
    server_tools: bool = False
    dropped: str = ""
    grafts: bool = True
    own: Collection[str] | None = None
    builtins: int = 0

    @classmethod
    def untouched(cls) -> Self:
        """The request stays unchanged, and its answer holds no calls."""
        return cls(None, None, False, {}, frozenset(), grafts=False)

    @classmethod
    def without_tools(cls) -> Self:
        """All tools are removed, and the answer holds no calls."""
        return cls(None, None, True, {}, frozenset(), grafts=False)

    @classmethod
    def from_cache(cls, names: Mapping[str, str]) -> Self:
        """The request names a cachedContent, which declares the grafted tools under these names."""
        return cls(None, None, False, names, frozenset(names.values()), server_tools=True)

    @property
    def rewrites(self) -> bool:
        """Whether true turns replace visible ones, and missing results are waited for. A request without grafted tools
        gets known results as text, and otherwise keeps its visible turns."""
        return self.grafts and bool(self.names or self.hides_server_tools)


def cannot_use_functions(generation_config: bytes | None, model: str) -> bool:
    """Whether a request asks for output that excludes functions: structured output, images or audio."""
    is_small = len(generation_config or b"") <= _LARGEST_CACHED
    return (_cached_cannot_use_functions if is_small else _cannot_use_functions)(generation_config, model)


def _cannot_use_functions(generation_config: bytes | None, model: str) -> bool:
    if _MEDIA_MODEL.search(model):
        return True
    if generation_config is None:
        return False
    given = decode(generation_config)
    config = {camel(k): v for k, v in given.items() if v is not None} if isinstance(given, dict) else {}
    if str(config.get("responseMimeType", "text/plain")).lower() not in ("text/plain", ""):
        return True
    if any(key in config for key in ("responseSchema", "responseJsonSchema", "responseFormat")):
        return True
    return any(
        str(m).upper() not in ("TEXT", "MODALITY_UNSPECIFIED") for m in as_list(config.get("responseModalities"))
    )


_cached_cannot_use_functions = lru_cache(maxsize=64)(_cannot_use_functions)
"""Clients repeat their configuration. Large ones are not cached."""


class Toolbox:
    """A toolset ready to be injected. Immutable. Caches its plans by model generation."""

    def __init__(
        self,
        declarations: Sequence[Document] = (),
        builtins: Sequence[Document] = (),
        tool_config: Document | None = None,
    ) -> None:
        self.declarations = tuple(declarations)
        self.builtins = tuple(builtins)
        self.tool_config = tool_config
        self.names = {str(d["name"]): str(d["name"]) for d in declarations}
        self._stripped: dict[tuple[bool, bool], ToolPlan] = {}

    def strip(self, model: Generation, *, vertex: bool = False) -> ToolPlan:
        """The plan without the client's tools, with the toolset's. `vertex`, here and below: for Vertex AI."""
        key = is_before(model, (3, 0)), vertex
        plan = self._stripped.get(key)
        if plan is None:
            plan = self._stripped[key] = self._plan([], None, *key)
        return plan

    def keep(
        self, tools: bytes | None, tool_config: bytes | None, model: Generation, *, vertex: bool = False
    ) -> ToolPlan:
        """The plan with the client's tools and the toolset's. Raises Malformed."""
        own = list(objects(decode(tools))) if tools else []
        config = decode(tool_config) if tool_config else None
        return self._plan(own, config if isinstance(config, dict) else None, is_before(model, (3, 0)), vertex)

    def _plan(self, own: list[Document], own_config: Document | None, old: bool, vertex: bool) -> ToolPlan:
        own_names = [name for tool in own for name in declared_names(tool)]
        own_builtins = any(_is_builtin(tool) for tool in own)
        declarations, builtins, dropped = self.declarations, self.builtins, ""
        if old and declarations and own_builtins:
            declarations, dropped = (), "functions beside the client's built-in tools, which this model refuses"
        if old and builtins and (declarations or own_names):
            builtins, dropped = (), "built-in tools beside functions, which this model refuses"
        longest = MAX_VERTEX_NAME if vertex else MAX_NAME
        names = _used_names([str(d["name"]) for d in declarations], own_names, longest)
        tools = [*own, *builtins]
        if declarations:
            tools.append({"functionDeclarations": [{**d, "name": names[d["name"]]} for d in declarations]})
        ours = self.tool_config if declarations or builtins or not own else None
        config = _merge_config(own_config, ours, names, bool(own_names or declarations))
        asked = bool(own_config and get(own_config, _FLAG))
        mixes = bool((own_builtins or builtins) and (own_names or declarations))
        if mixes and not old and not vertex and (declarations or builtins):
            config = {**(config or {}), _FLAG: True}
        elif config and (vertex or (old and not asked)):
            config.pop(_FLAG, None)  # this model or service refuses the flag
        flagged = bool(config and config.get(_FLAG))
        return ToolPlan(
            tools=encode(tools) if tools else None,
            tool_config=encode(config) if config else None,
            changes=not own or bool(declarations or builtins),
            names=names,
            declared=frozenset([*own_names, *names.values()]),
            hides_server_tools=flagged and not asked,
            server_tools=flagged,
            dropped=dropped,
            own=None if any(_has_functions_of_its_own(tool) for tool in own) else frozenset(own_names),
            builtins=len(builtins),
        )


class ToolCounter:
    """Counts the tools of requests. Clients repeat their tools, so the counts are cached by hash."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def count(self, tools: bytes | None) -> int:
        """The number of functions and built-in tools. Raises Malformed."""
        if not tools:
            return 0
        key = xxhash.xxh3_64_intdigest(tools)
        if (found := self._counts.get(key)) is not None:
            return found
        if len(self._counts) >= _MOST_COUNTS:
            self._counts.clear()
        found = self._counts[key] = sum(map(_count, objects(decode(tools))))
        return found


def _count(tool: Document) -> int:
    return sum(
        len(list(objects(value))) if camel(key) == "functionDeclarations" else 1
        for key, value in tool.items()
        if value is not None
    )


def declared_names(tool: Document) -> list[str]:
    """The names of the functions that a Gemini Tool declares."""
    return [str(d["name"]) for d in objects(get(tool, "functionDeclarations")) if "name" in d]


def _has_functions_of_its_own(tool: Document) -> bool:
    """Whether the model may call functions of a tool that its declaration does not name, as with computerUse."""
    return any(camel(key) not in _WITHOUT_FUNCTIONS and value is not None for key, value in tool.items())


def _is_builtin(tool: Document) -> bool:
    return any(camel(key) != "functionDeclarations" and value is not None for key, value in tool.items())


def _used_names(names: Sequence[str], client_names: Collection[str], longest: int) -> dict[str, str]:
    """The name used in the request for each name: changed if a client's tool has it, or if it is too long."""
    used = set(client_names) | set(names)
    result: dict[str, str] = {}
    for name in names:
        result[name] = short = name if len(name) <= longest else _shortened(name, longest)
        if name in client_names or (short != name and short in used):
            number = 2
            while (other := short[: longest - len(f"_g{number}")] + f"_g{number}") in used:
                number += 1
            result[name] = other
        used.add(result[name])
    return result


def _shortened(name: str, longest: int) -> str:
    """A name cut to the maximum length, in the same way in every request."""
    digest = f"_{xxhash.xxh3_64_hexdigest(name.encode())[:8]}"
    return name[: longest - len(digest)] + digest


def _merge_config(
    own: Document | None, ours: Document | None, names: Mapping[str, str], has_functions: bool
) -> Document | None:
    """The client's toolConfig merged with the toolset's. On a conflict the client's value wins; lists of allowed names
    are joined. Without functions, functionCallingConfig is dropped."""
    merged = {camel(k): v for k, v in (ours or {}).items()} | {
        camel(k): v for k, v in (own or {}).items() if v is not None
    }
    calling = _calling(ours)
    if "allowedFunctionNames" in calling:
        calling["allowedFunctionNames"] = [names[n] for n in calling["allowedFunctionNames"] if n in names]
    own_calling = _calling(own)
    allowed = [*own_calling.get("allowedFunctionNames", []), *calling.get("allowedFunctionNames", [])]
    if "mode" in own_calling and "allowedFunctionNames" not in own_calling:
        allowed = []  # a list would restrict the client's own mode
    both = calling | own_calling
    both.pop("allowedFunctionNames", None)
    if allowed and str(both.get("mode", "")).upper() in ("ANY", "VALIDATED"):
        both["allowedFunctionNames"] = list(dict.fromkeys(allowed))
    merged.pop("functionCallingConfig", None)
    if both and has_functions:
        merged["functionCallingConfig"] = both
    return merged or None


def _calling(config: Document | None) -> Document:
    calling = get(config or {}, "functionCallingConfig")
    if not isinstance(calling, dict):
        return {}
    return {
        camel(k): ([str(n) for n in as_list(v)] if camel(k) == "allowedFunctionNames" else v)
        for k, v in calling.items()
        if v is not None
    }
