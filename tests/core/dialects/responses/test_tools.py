"""The tools of a conversation, as a response shows them."""

from typing import Any

import pytest

from addon.core.dialects.responses.errors import Invalid, Unsupported
from addon.core.dialects.responses.options import conversation_tools
from addon.core.dialects.responses.request import read_request

SCHEMA = {"type": "object", "properties": {"city": {"type": ["string", "null"]}}, "required": ["city"]}
FULL = {**SCHEMA, "additionalProperties": False}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [(SCHEMA, SCHEMA), (FULL, FULL), (None, {"type": "object", "properties": {}})],
    ids=["a schema that Gemini has", "one that it has not", "none"],
)
def test_kept_tools_are_shown_as_they_were_given(parameters: Any, expected: Any) -> None:
    tool = {"type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": False}
    declared = read_request({"model": "gemini-3-flash", "input": "hi", "tools": [tool]}).tools

    assert conversation_tools(declared or []) == [{**tool, "parameters": expected}]


SEARCH = {"type": "web_search"}
FUNCTION = {"type": "function", "name": "f"}
DECLARED = {"functionDeclarations": [{"name": "f"}]}
GOOGLE: dict[str, Any] = {"googleSearch": {}}


@pytest.mark.parametrize(
    ("tools", "found", "config"),
    [
        ([SEARCH], [GOOGLE], None),
        ([{"type": "web_search_preview", "search_context_size": "medium"}, SEARCH], [GOOGLE], None),
        ([SEARCH, FUNCTION], [DECLARED, GOOGLE], {"includeServerSideToolInvocations": True}),
        ([{**SEARCH, "user_location": {"type": "approximate", "city": None}, "filters": {}}], [GOOGLE], None),
        ([], [], None),
    ],
    ids=["a search", "two of them", "beside a function", "with nothing set", "none"],
)
def test_a_web_search_is_google_s(tools: Any, found: Any, config: Any) -> None:
    request = read_request({"model": "gemini-3-flash", "input": "hi", "tools": tools})
    assert request.tools == found
    assert request.tool_config(found) == config
    in_response = [tool["type"] for tool in request.echo["tools"]]
    assert in_response == [tool["type"] for tool in tools]
    assert [tool["type"] for tool in conversation_tools(found)] == [
        *(["function"] if DECLARED in found else []),
        *(["web_search"] if GOOGLE in found else []),
    ]


@pytest.mark.parametrize(
    ("tools", "param", "member"),
    [
        ([{**SEARCH, "search_context_size": "high"}], "tools[0].search_context_size", "tools[0].search_context_size"),
        ([{**SEARCH, "external_web_access": False}], "tools[0].external_web_access", "tools[0].external_web_access"),
        ([{**SEARCH, "filters": {"allowed_domains": ["a.example"]}}], "tools[0].filters", "tools[0].filters"),
        ([{**SEARCH, "user_location": {"city": "Oslo"}}], "tools[0].user_location", "tools[0].user_location"),
        ([{"type": "code_interpreter"}], "tools[0].type", "tools[0]"),
    ],
)
def test_what_google_search_does_not_have_is_named(tools: Any, param: str, member: str) -> None:
    with pytest.raises(Unsupported) as caught:
        read_request({"model": "gemini-3-flash", "input": "hi", "tools": tools})
    assert (caught.value.param, caught.value.member) == (param, member)


def test_older_models_search_or_call() -> None:
    with pytest.raises(Unsupported) as caught:
        read_request({"model": "gemini-2.5-flash", "input": "hi", "tools": [FUNCTION, SEARCH]})
    assert (caught.value.param, caught.value.member) == ("tools[1].type", "tools[1]")
    assert read_request({"model": "gemini-2.5-flash", "input": "hi", "tools": [SEARCH]}).tools == [GOOGLE]


@pytest.mark.parametrize(
    ("tool", "param"),
    [({**SEARCH, "x": 1}, "tools[0].x"), ({**SEARCH, "filters": 1}, "tools[0].filters"), (1, "tools[0]")],
)
def test_a_wrong_search_is_refused(tool: Any, param: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_request({"model": "gemini-3-flash", "input": "hi", "tools": [tool]})
    assert caught.value.param == param


def test_a_search_cannot_be_forced() -> None:
    with pytest.raises(Unsupported) as caught:
        read_request({"model": "gemini-3-flash", "input": "hi", "tools": [SEARCH], "tool_choice": SEARCH})
    assert caught.value.param == "tool_choice"
