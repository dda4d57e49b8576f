"""MCP's tools and results, converted to the proxy's."""

import base64
import copy
import json
from typing import Any

import mcp_types
import pytest

from addon.tools.base import RunRules, Tool
from addon.tools.mcp_config import Selection, Server
from addon.tools.mcp_servers import output_schema, result_of, unknown_names, usable_tools
from addon.tools.mcp_transport import drop_invalid_tools
from addon.tools.outputs import output_of

TEXT = mcp_types.TextContent
LINK = mcp_types.ResourceLink(name="n", uri="file:///n")
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def tool(name: str, schema: dict[str, Any] | None = None, **fields: Any) -> mcp_types.Tool:
    return mcp_types.Tool(name=name, input_schema=SCHEMA if schema is None else schema, **fields)


def blob(data: bytes) -> mcp_types.EmbeddedResource:
    content = base64.b64encode(data).decode()
    return mcp_types.EmbeddedResource(resource=mcp_types.BlobResourceContents(uri="file:///a.pdf", blob=content))


def good(server: Server, found: list[mcp_types.Tool]) -> dict[str, Tool]:
    """The tools of a server; all must be usable."""

    def left_out(name: str, why: str) -> None:
        raise AssertionError(f"{name}: {why}")

    return usable_tools(server, found, left_out)


def test_a_tool_is_declared_with_its_schemas() -> None:
    found = good(Server(command="x"), [tool("t", description="Do.", title="T", output_schema=SCHEMA)])
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
    assert list(good(Server(command="x", tools=selection), [tool(name) for name in "abc"])) == names


def test_rules_are_the_tools_own_with_the_servers_timeout() -> None:
    server = Server(command="x", timeout=9, rules={"a": RunRules(timeout=1), "b": RunRules(retries=2)})
    found = good(server, [tool(name) for name in "abc"])
    assert [found[name].rules for name in "abc"] == [
        RunRules(timeout=1),
        RunRules(timeout=9, retries=2),
        RunRules(timeout=9),
    ]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (Server(command="x", tools=Selection(include=["z"])), "tools.include names 'z', but its tools are a, b"),
        (Server(command="x", tools=Selection(exclude=["z"])), "tools.exclude names 'z', but its tools are a, b"),
        (Server(command="x", rules={"z": RunRules()}), "rules names 'z', but its tools are a, b"),
        (Server(command="x", tools=Selection(include=["a"], exclude=["b"]), rules={"a": RunRules()}), None),
    ],
    ids=str,
)
def test_names_in_the_configuration_are_tools(server: Server, words: str | None) -> None:
    assert unknown_names(server, ["a", "b"]) == words


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (tool("no spaces"), "name is 'no spaces'"),
        (tool("bad", {"type": "object", "required": 1}), "inputSchema: `required`"),
        (tool("t", {"type": "array"}), "inputSchema.type is 'array'"),
        (tool("t", execution=mcp_types.ToolExecution(task_support="required")), "execution.taskSupport: is required"),
        (tool("good"), "name: another tool of the server has the same name"),
    ],
    ids=str,
)
def test_a_tool_that_cannot_be_used_is_left_out_with_its_field(bad: mcp_types.Tool, why: str) -> None:
    reported: list[tuple[str, str]] = []
    server = Server(command="x")
    found = usable_tools(server, [tool("good"), bad, tool("other")], lambda *words: reported.append(words))
    assert list(found) == ["good", "other"]
    ((name, words),) = reported
    assert name == bad.name
    assert words.startswith(why)
    if bad.name != "good":
        assert list(good(Server(command="x", tools=Selection(exclude=[bad.name])), [tool("good"), bad])) == ["good"]


@pytest.mark.parametrize(
    ("entry", "name", "why"),
    [
        ({"name": "t"}, "t", "inputSchema: Field required"),
        ({"name": "t", "inputSchema": "x"}, "t", "inputSchema: Input should be a valid dictionary"),
        ({"name": "t", "inputSchema": {}, "description": 7}, "t", "description: Input should be a valid string"),
        ({"inputSchema": {}}, "number 1", "name: Field required"),
        ({"name": ["t"], "inputSchema": {}}, "number 1", "name: Input should be a valid string"),
        ("t", "number 1", "Input should be a valid dictionary or instance of Tool"),
        (None, "number 1", "Input should be a valid dictionary or instance of Tool"),
    ],
)
def test_invalid_tools_are_removed_from_a_listing(entry: Any, name: str, why: str) -> None:
    reported: list[tuple[str, str]] = []
    fine = {"name": "fine", "inputSchema": {"type": "object"}}
    result = {"tools": [fine, entry, {**fine, "more": 1}], "nextCursor": "c"}
    drop_invalid_tools(result, lambda *words: reported.append(words))
    assert result == {"tools": [fine, {**fine, "more": 1}], "nextCursor": "c"}
    assert reported == [(name, why)]


def test_the_sdk_is_not_shown_what_results_have_to_fit() -> None:
    """The SDK would check results in the event loop, for any length of time."""
    listing = {"tools": [{"name": "t", "inputSchema": {}, "outputSchema": SCHEMA, "_meta": {"other": 1}}]}
    drop_invalid_tools(listing, lambda *_: pytest.fail("nothing is left out"))
    found = mcp_types.Tool.model_validate(listing["tools"][0], by_name=False)
    assert found.output_schema is None
    assert output_schema(found) == SCHEMA
    assert (found.meta or {})["other"] == 1


@pytest.mark.parametrize("result", [{"content": []}, {"tools": "all"}, {"tools": []}, None, 3])
def test_a_result_that_is_no_listing_is_unchanged(result: Any) -> None:
    before = copy.deepcopy(result)
    drop_invalid_tools(result, lambda *_: pytest.fail("nothing is left out"))
    assert result == before


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
            {"result": ["a", "[part 1: image/png]"], "parts": [("image/png", 1)]},
        ),
        (
            [mcp_types.AudioContent(data="AAA=", mime_type="audio/wav")],
            None,
            {"result": "[part 1: audio/wav]", "parts": [("audio/wav", 2)]},
        ),
        (
            [blob(b"%PDF-1"), TEXT(text="the report")],
            None,
            {
                "result": [{"uri": "file:///a.pdf", "file": "[part 1: application/pdf]"}, "the report"],
                "parts": [("application/pdf", 6)],
            },
        ),
        (
            [mcp_types.ImageContent(data="AA==", mime_type="image/png"), TEXT(text="same")],
            {"width": 3},
            {"result": {"width": 3}, "parts": [("image/png", 1)]},
        ),
        (
            [
                mcp_types.ImageContent(data="AA==", mime_type="image/png"),
                mcp_types.AudioContent(data="AAA=", mime_type="audio/wav"),
            ],
            {"result": [{"type": "image", "data": "AA==", "mimeType": "image/png"}]},
            {
                "result": {"result": [{"type": "image", "data": "[part 1: image/png]", "mimeType": "image/png"}]},
                "parts": [("image/png", 1), ("audio/wav", 2)],
            },
        ),
        (
            [mcp_types.ImageContent(data="AA==", mime_type="image/png"), LINK],
            None,
            {
                "result": {
                    "content": ["[part 1: image/png]", {"type": "resource_link", "name": "n", "uri": "file:///n"}]
                },
                "parts": [("image/png", 1)],
            },
        ),
        (
            [mcp_types.ImageContent(data="no base64", mime_type="image/png")],
            None,
            {"content": [{"type": "image", "data": "no base64", "mimeType": "image/png"}]},
        ),
    ],
    ids=str,
)
def test_a_result_is_its_structure_or_its_text_or_its_content(content: list[Any], structured: Any, value: Any) -> None:
    output = output_of(result_of(mcp_types.CallToolResult(content=content, structured_content=structured)))
    found = json.loads(output.data)
    if output.parts:
        kinds = [(one["inlineData"]["mimeType"], one["inlineData"]["data"]) for one in output.parts]
        found = {"result": found, "parts": [(kind, len(base64.b64decode(data))) for kind, data in kinds]}
    assert found == value
