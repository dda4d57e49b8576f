"""`@tool` on functions of a tool file."""

import subprocess
import sys
from typing import Any

import pytest

from addon.tools import tool
from addon.tools.base import RunRules, mark_of


def plain() -> None:
    """A function."""


def test_a_marked_function_is_still_the_function() -> None:
    assert tool(plain) is plain
    assert tool(timeout=5)(plain) is plain


def test_the_mark_keeps_what_is_said() -> None:
    def function() -> None: ...

    tool(name="n", description="d", timeout=5, retries=2, after=["a"], idempotent=True, cache_ttl=60, approval=True)(
        function
    )
    mark = mark_of(function)
    assert mark is not None
    assert (mark.name, mark.description) == ("n", "d")
    assert mark.rules == RunRules(5, 2, ("a",), True, 60, True)

    tool(behavior="NON_BLOCKING", scheduling="SILENT")(function)
    mark = mark_of(function)
    assert mark is not None
    assert (mark.rules.behavior, mark.rules.scheduling) == ("NON_BLOCKING", "SILENT")


def test_a_function_without_the_decorator_has_no_mark() -> None:
    assert mark_of(lambda: None) is None


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"timeout": 0}, ValueError),
        ({"retries": -1}, ValueError),
        ({"after": "a"}, TypeError),
        ({"behavior": "SOMETIMES"}, ValueError),
        ({"scheduling": "NOW", "behavior": "NON_BLOCKING"}, ValueError),
        ({"scheduling": "SILENT"}, ValueError),
    ],
    ids=str,
)
def test_rules_that_cannot_be_are_refused_where_they_stand(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        tool(**wrong)


def test_importing_the_decorator_loads_nothing_heavy() -> None:
    heavy = "mitmproxy", "pydantic", "mcp", "httpx2", "jsonschema_rs", "fastapi"
    code = f"import sys, addon.tools; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.strip() == "[]"
