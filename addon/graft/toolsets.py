"""A session's toolset, from the document that sets it."""

from addon.core.tools.tool_forms import normalise
from store.models import ToolRules, Toolset


def toolset_of(document: object) -> Toolset:
    """`document`: `{"tools": […]}`, optionally with `tool_config` or `tool_choice`; see `normalise`. Raises BadTool, or
    ValidationError for a rule."""
    tools = normalise(document)
    return Toolset(
        declarations=list(tools.declarations),
        builtins=list(tools.builtins),
        tool_config=tools.tool_config,
        rules={name: ToolRules.model_validate(rules) for name, rules in tools.rules.items()},
    )
