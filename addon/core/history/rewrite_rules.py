"""The rules for rewriting a history."""

from collections.abc import Mapping
from typing import NamedTuple

from addon.core.history.placeholder import Placeholder
from addon.core.model_names import Generation
from addon.core.tools.tool_plan import ToolPlan


class RewriteRules(NamedTuple):
    """The rules for one request. `strip`: the client's own calls become text if the request does not declare them.
    `keep_unanswered`: the last step keeps its text if none of its calls has a result. `ids`: calls have ids.
    `keeps_history`: the service has the history and waits for the responses to its calls, whatever the request
    declares. `only_known`: any turn with a pending call keeps its visible form, if that form is valid by itself."""

    plan: ToolPlan
    strip: bool
    model: Generation
    placeholder: Placeholder
    keep_unanswered: bool = True
    ids: bool = True
    keeps_history: bool = False
    only_known: bool = False


class StepFormat(NamedTuple):
    """The settings that the written form of a step depends on, if the client answers none of its calls."""

    names: Mapping[str, str]
    server_tools: bool
    model: Generation
    ids: bool
