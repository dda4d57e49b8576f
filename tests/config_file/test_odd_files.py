"""Whatever stands in a file, it is a configuration or one error."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addon.config_file.reading import ConfigError, ConfigFile, parse_config
from addon.config_file.template import quoted
from addon.options import OPTIONS
from store.models import Policy

_KEYS = st.sampled_from(
    [
        *("modes", "options", "mcpServers", "sessions", "x", "a b", "tools", "toolset", "tool_config", "tool_choice"),
        *("command", "args", "env", "url", "headers", "rules", "prefix", "timeout", "include", "approval", "executor"),
        *("name", "type", "parameters", "function", "functionDeclarations", "properties", "after", "googleSearch"),
        *Policy.options(),
        *(option.key for option in OPTIONS),
    ]
)
_SCALARS = (
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.text(max_size=4)
    | st.sampled_from(["http", "worker", "hold", "regular", "reverse:http://a@1", "http://a", "${X}", "\0", "/", "a=b"])
)
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4))
_TABLES = st.dictionaries(_KEYS, _VALUES, max_size=3)
_NAMED = st.dictionaries(st.sampled_from(["a", "b", "a b"]), _TABLES, max_size=2)
_DOCUMENTS = (
    st.fixed_dictionaries({}, optional={"modes": _VALUES, "options": _TABLES, "mcpServers": _NAMED, "sessions": _NAMED})
    | _TABLES
)


def written(value: Any) -> str:
    """The value as inline TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def parsed(text: str) -> ConfigFile | str:
    path = Path("/nonexistent/toolgraft.toml")
    try:
        return parse_config(path, text.encode("utf-8", "surrogatepass"))
    except ConfigError as error:
        message = str(error)
    assert re.match(r"/nonexistent/toolgraft\.toml: ", message), message
    assert message.isprintable()
    return message


@given(_DOCUMENTS)
def test_any_document_is_a_configuration_or_an_error(document: dict[str, Any]) -> None:
    parsed("\n".join(f"{quoted(key)} = {written(value)}" for key, value in document.items()))


@given(st.text(max_size=60))
def test_any_text_is_a_configuration_or_an_error(text: str) -> None:
    parsed(text)


@pytest.mark.parametrize(
    "text",
    [
        f"a = {'9' * 5000}",
        f"[options]\nmax_rounds = {'9' * 4000}",
        f"[options]\nttl = {'9' * 4000}",
        f"[sessions.a]\nmax_rounds = {'9' * 4000}",
        f"a = {'[' * 100_000}{']' * 100_000}",
        "a." * 2000 + "a = 1",
        f"[sessions.a]\ntools = {'[' * 200}{']' * 200}",
        "\ufeff[options]\nmax_rounds = 0",
        "[options]\r\nmax_rounds = 0\r\n",
        "\x00",
        "a = 1979-13-45",
    ],
    ids=range(11),
)
def test_odd_texts_are_errors(text: str) -> None:
    assert isinstance(parsed(text), str)
