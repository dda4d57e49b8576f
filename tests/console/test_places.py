import json
from typing import Any

import pytest

from addon.console.places import line_of
from addon.graft.toolsets import toolset_of
from addon.web.problems import Problem, problem_of

TEXT = """{
  "tools": [
    {"functionDeclarations": [
      {
        "name": "f",
        "executor": {"type": "http",
                     "headers": {"Key": "***"}}
      },
      {
        "name": "g"
      }
    ]},
    {"google_search":
      {}}
  ],
  "tool_config": {}
}"""


@pytest.mark.parametrize(
    ("detail", "extra", "line"),
    [
        ("not JSON: expected `,` or `}` at line 3 column 7", {}, 3),
        ("x", {"field": "tools[0].functionDeclarations[1].name", "tool": "g"}, 10),
        ("x", {"field": "tools[0].functionDeclarations[1].parameters.type", "tool": "g"}, 9),
        ("x", {"field": "tools[1].googleSearch"}, 13),
        ("x", {"field": "tools[7]"}, 2),
        ("x", {"field": "toolConfig.mode"}, 16),
        ("x", {"field": "executor.headers.Key", "tool": "f"}, 7),
        ("x", {"field": "executor.headers.Key", "tool": "none"}, None),
        ("x", {"tool": "f"}, 4),
        ("x", {}, None),
    ],
)
def test_a_refusal_has_a_line(detail: str, extra: dict[str, Any], line: int | None) -> None:
    assert line_of(TEXT, Problem(422, detail, **extra)) == line


@pytest.mark.parametrize("text", ["", "{", "[1", "[" * 100_000])
def test_what_is_no_json_has_none(text: str) -> None:
    assert line_of(text, Problem(422, "x", field="tools[0]")) is None


def test_the_line_of_what_the_api_refuses() -> None:
    text = json.dumps({"tools": [{"name": "f"}, {"name": "g", "after": ["x"]}]}, indent=1)
    with pytest.raises(ValueError, match="after") as refused:
        toolset_of(json.loads(text))
    line = line_of(text, problem_of(refused.value))
    assert line is not None
    assert '"after"' in text.split("\n")[line - 1]
