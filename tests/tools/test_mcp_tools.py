"""MCP's tools and results in the proxy's words."""

from typing import Any

import mcp_types
import pytest

from addon.tools.base import Rules, SourceError
from addon.tools.mcp_config import Selection, Server
from addon.tools.mcp_tools import declared, result_of

TEXT = mcp_types.TextContent
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def tool(name: str, schema: dict[str, Any] | None = None, **fields: Any) -> mcp_types.Tool:
    return mcp_types.Tool(name=name, input_schema=SCHEMA if schema is None else schema, **fields)


def test_a_tool_is_declared_with_its_schemas() -> None:
    found = declared("s", Server(command="x"), [tool("t", description="Do.", title="T", output_schema=SCHEMA)])
    gemini = {"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}, "required": ["a"]}
    assert found["t"].declaration == {"name": "t", "description": "Do.", "parameters": gemini, "response": gemini}
    assert found["t"].schema == SCHEMA


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(), ["a", "b", "c"]),
        (Selection(include=["c", "a"]), ["a", "c"]),
        (Selection(exclude=["b"]), ["a", "c"]),
        (Selection(include=["a", "b"], exclude=["b"]), ["a"]),
        (Selection(include=[]), []),
    ],
    ids=str,
)
def test_the_configuration_selects_tools(selection: Selection, names: list[str]) -> None:
    assert list(declared("s", Server(command="x", tools=selection), [tool(name) for name in "abc"])) == names


def test_rules_are_the_tools_own_with_the_servers_timeout() -> None:
    server = Server(command="x", timeout=9, rules={"a": Rules(timeout=1), "b": Rules(retries=2)})
    found = declared("s", server, [tool(name) for name in "abc"])
    assert [found[name].rules for name in "abc"] == [
        Rules(timeout=1),
        Rules(timeout=9, retries=2),
        Rules(timeout=9),
    ]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (Server(command="x", tools=Selection(include=["z"])), "s: tools.include names 'z', but its tools are a"),
        (Server(command="x", tools=Selection(exclude=["z"])), "s: tools.exclude names 'z'"),
        (Server(command="x", rules={"z": Rules()}), "s: rules names 'z'"),
    ],
    ids=str,
)
def test_names_that_are_no_tools_are_an_error(server: Server, words: str) -> None:
    with pytest.raises(SourceError) as raised:
        declared("s", server, [tool("a")])
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (tool("no spaces"), "s: no spaces: name is 'no spaces'"),
        (
            tool("t", {"type": "object", "properties": {"a": {"type": "strnig"}}}),
            "s: t: inputSchema: properties.a.type",
        ),
        (tool("t", {"type": "array"}), "s: t: inputSchema.type is 'array'"),
    ],
    ids=str,
)
def test_a_tool_that_gemini_cannot_take_is_named_and_can_be_left_out(bad: mcp_types.Tool, words: str) -> None:
    with pytest.raises(SourceError) as raised:
        declared("s", Server(command="x"), [bad, tool("good")])
    assert str(raised.value).startswith(words)
    assert f'"exclude": ["{bad.name}"]' in str(raised.value)
    assert list(declared("s", Server(command="x", tools=Selection(exclude=[bad.name])), [bad, tool("good")])) == [
        "good"
    ]


@pytest.mark.parametrize(
    ("content", "structured", "value"),
    [
        ([], {"a": 1}, {"a": 1}),
        ([TEXT(text="other")], {"a": 1}, {"a": 1}),
        ([TEXT(text="hello")], None, "hello"),
        ([TEXT(text="a"), TEXT(text="b")], None, "a\nb"),
        ([TEXT(text=' {"a": [1]}')], None, {"a": [1]}),
        ([TEXT(text="[1, 2]")], None, [1, 2]),
        ([TEXT(text="{broken")], None, "{broken"),
        ([TEXT(text="007")], None, "007"),
        ([], None, ""),
        (
            [TEXT(text="a"), mcp_types.ImageContent(data="AA==", mime_type="image/png")],
            None,
            {
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image", "data": "AA==", "mimeType": "image/png"},
                ]
            },
        ),
    ],
    ids=str,
)
def test_a_result_is_its_structure_or_its_text_or_its_content(content: list[Any], structured: Any, value: Any) -> None:
    assert result_of(mcp_types.CallToolResult(content=content, structured_content=structured)) == value
