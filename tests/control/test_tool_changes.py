from typing import Any

from addon.control import tool_changes as module
from addon.control.tool_changes import tool_changes
from store.models import Executor, ToolRules, Toolset

F: dict[str, Any] = {"name": "f", "description": "One.\nTwo."}
G: dict[str, Any] = {"name": "g"}


def changed(before: Toolset | None, after: Toolset) -> list[tuple[str, str | None, str]]:
    return [(one.part, one.name, one.change) for one in tool_changes(before, after)]


def test_each_tool_that_changes_is_named() -> None:
    before = Toolset(declarations=[F, G], builtins=[{"googleSearch": {}}], tool_config={"a": 1})
    assert changed(before, before) == []
    after = Toolset(declarations=[G, F | {"description": "Three."}, {"name": "h"}], builtins=[{"urlContext": {}}])
    assert changed(before, after) == [
        ("declaration", "f", "changed"),
        ("declaration", "h", "added"),
        ("built_in", "urlContext", "added"),
        ("built_in", "googleSearch", "removed"),
        ("tool_config", None, "removed"),
    ]
    assert changed(before, before.model_copy(update={"declarations": [G, F]})) == [("order", None, "changed")]
    assert changed(None, Toolset()) == [("toolset", None, "added")]
    assert changed(Toolset(), Toolset()) == []


def test_a_difference_has_the_lines_around_it() -> None:
    rules = {"f": ToolRules(timeout=5)}
    (change,) = tool_changes(Toolset(declarations=[F]), Toolset(declarations=[F], rules=rules))
    assert change.diff.split("\n") == [
        "@@ -1,4 +1,5 @@",
        " {",
        '   "name": "f",',
        '-  "description": "One.\\nTwo."',
        '+  "description": "One.\\nTwo.",',
        '+  "timeout": 5.0',
        " }",
    ]


def with_header(value: str) -> Toolset:
    executor = Executor(type="http", url="https://a.example", headers={"Key": value})
    return Toolset(declarations=[F], rules={"f": ToolRules(executor=executor)})


def test_values_of_headers_are_nowhere() -> None:
    (added,) = tool_changes(Toolset(), with_header("s3cret"))
    assert '"Key": "***"' in added.diff
    assert "s3cret" not in added.diff
    (change,) = tool_changes(with_header("s3cret"), with_header("an0ther"))
    assert (change.change, change.diff) == ("changed", "")


def test_what_is_too_long_to_show_is_only_named(monkeypatch: Any) -> None:
    long = F | {"parametersJsonSchema": {"enum": list(range(5000))}}
    (change,) = tool_changes(Toolset(declarations=[F]), Toolset(declarations=[long]))
    assert (change.name, change.diff) == ("f", "")
    monkeypatch.setattr(module, "_MOST_LINES", 5)
    found = tool_changes(Toolset(), Toolset(declarations=[G, F]))
    assert [bool(one.diff) for one in found] == [True, False]
