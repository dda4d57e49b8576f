"""Which tools a model may call: toolConfig, or OpenAI's `tool_choice` instead."""

from __future__ import annotations

from collections.abc import Collection

from addon.core.framing.documents import Document
from addon.core.tools.positions import Position, check_bool, check_depth, fields_of, quoted

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
