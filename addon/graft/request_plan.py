"""Reads the model and other members of a request, and plans its tools."""

from addon.core.framing.documents import decode, members
from addon.core.history.request import Request
from addon.core.tools.tool_plan import Toolbox, ToolPlan, cannot_use_functions, generation
from addon.graft.session_config import SessionConfig
from addon.surfaces import Operation, Target


def plan_of(target: Target, config: SessionConfig, request: Request, model: str) -> ToolPlan | None:
    """The plan for the request's tools; None: leave the request alone."""
    toolbox = config.toolbox
    if cannot_use_functions(request.value("generationConfig"), model):
        if config.strips:
            return ToolPlan.without_tools()
        own = Toolbox().keep(request.value("tools"), None, generation(model))
        return own._replace(changes=False, grafts=False)
    if config.strips:
        plan = toolbox.strip(generation(model), vertex=target.is_vertex)
    else:
        tools, own_config = request.value("tools"), request.value("toolConfig")
        plan = toolbox.keep(tools, own_config, generation(model), vertex=target.is_vertex)
    if target.operation is Operation.COUNT and not _counts_tools(target, request):
        return plan._replace(changes=False)
    return plan


def _counts_tools(target: Target, request: Request) -> bool:
    """Whether a countTokens request has a field for tools, or can get one."""
    return target.surface != "codeassist" or request.value("tools") is not None


def text_in(request: Request, name: str) -> str:
    """The value of a string member, or ""."""
    value = request.value(name)
    text = decode(value) if value is not None else ""
    return text if isinstance(text, str) else ""


def model_in(request: Request) -> str:
    """The model named in a body, without prefix. Code Assist names it beside `request`, cachedContents inside."""
    value = request.value("model")
    if value is None and request.start:
        outer = next((m for m in members(request.body) if m.name == "model"), None)
        value = request.body[outer.start : outer.end] if outer else None
    named = decode(value) if value is not None else ""
    return str(named).rpartition("/")[2]
