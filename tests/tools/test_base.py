"""Rules and errors of all tool sources."""

import math
from typing import Any

import pytest

from addon.tools.base import MAX_MESSAGE, RunRules, ToolError


@pytest.mark.parametrize(
    "wrong",
    [{"timeout": 0}, {"timeout": -1}, {"timeout": math.inf}, {"timeout": math.nan}, {"cache_ttl": 0}, {"retries": -1}],
    ids=str,
)
def test_rules_that_cannot_be_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} is "):
        RunRules(**wrong)


def test_an_error_for_the_model_is_bounded() -> None:
    assert len(str(ToolError("x" * 10 * MAX_MESSAGE))) == MAX_MESSAGE
    assert str(ToolError("short")) == "short"
    assert not ToolError("short").retryable
